# Generated from _async/merge.py by scripts/generate_sync.py; do not edit.
"""Merges of one workspace into another, with conflicts that the caller resolves before anything changes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Literal

from .. import edits
from .._call import field_of, json_call
from .._text import segment
from ..errors import InvalidArgumentError, MergeConflictError, NotFoundError, NotPossibleError
from ..models import MergedPath, MergeResult
from .transport import Transport

if TYPE_CHECKING:
    from .workspace import Workspace

Side = Literal["ours", "theirs"]
OnConflict = Literal["review", "raise", "keep", "ours", "theirs"]
_SPECIAL = re.compile(r"([*?\[\]{}!\\])")
_CONTENT_KINDS = frozenset({"contents", "both added"})


class Conflict:
    """A path that a merge could not decide."""

    def __init__(self, merge: Merge, found: MergedPath) -> None:
        self._merge = merge
        self.path = found.path
        self.kind = found.result
        """For example ``contents`` or ``changed and removed``."""
        self.others = found.others
        self.side: Side | None = None
        """The side that ``resolve`` chose."""

    def resolve(self, side: Side) -> None:
        """Chooses the version of the target (``ours``) or of the merged workspace (``theirs``). ``apply`` uses it."""
        if side not in ("ours", "theirs"):
            raise InvalidArgumentError(f"side {side!r}: it is `ours` or `theirs`")
        self.side = side

    def read(self, side: Side) -> bytes | None:
        """Returns the version of a side; nothing if that side has no such file."""
        workspace = self._merge.target if side == "ours" else self._merge.source
        try:
            return workspace.files.read(self.path, revision=f"{workspace.name}@")
        except NotFoundError:
            return None

    def __repr__(self) -> str:
        return f"<conflict {self.path!r}: {self.kind}{', ' + self.side if self.side else ''}>"


class Merge:
    """A merge: done, or waiting for ``apply`` because it has conflicts."""

    def __init__(
        self,
        transport: Transport,
        target: Workspace,
        source: Workspace,
        message: str,
    ) -> None:
        self._transport = transport
        self._message = message
        self.target = target
        self.source = source
        self.applied = False
        """Whether the target has the changes now."""
        self.result = MergeResult("unspecified", target.name, None)
        self.conflicts: list[Conflict] = []

    def start(self, on_conflict: OnConflict, dry_run: bool, fast_forward_only: bool) -> None:
        """Merges, or finds the conflicts."""
        if on_conflict == "keep" and not dry_run:
            self._merge(dry_run=False, fast_forward_only=fast_forward_only)
            return
        self._merge(dry_run=True, fast_forward_only=fast_forward_only)
        if self.conflicts and on_conflict == "raise":
            raise self._error(self.conflicts)
        if on_conflict in ("ours", "theirs"):
            for conflict in self.conflicts:
                conflict.resolve("ours" if on_conflict == "ours" else "theirs")
        elif self.conflicts:
            return
        if not dry_run:
            self.apply(fast_forward_only=fast_forward_only)

    def apply(self, *, fast_forward_only: bool = False) -> MergeResult:
        """Merges with the chosen sides. Does nothing if the merge was done before.

        A conflict about the contents of a file is decided within the merge. Any other one, for example a file that one
        side changed and the other removed, is decided by a second snapshot that follows the merge at once.

        Raises:
            MergeConflictError: A conflict has no side yet. Nothing was changed.

        """
        if self.applied:
            return self.result
        chosen = self.conflicts
        open_conflicts = [conflict for conflict in chosen if conflict.side is None]
        if open_conflicts:
            raise self._error(open_conflicts)
        # The heads may have moved since, and with them the conflicts.
        self._merge(dry_run=True, fast_forward_only=fast_forward_only, chosen=chosen)
        sides = {conflict.path: conflict.side for conflict in chosen}
        new = [conflict for conflict in self.conflicts if conflict.path not in sides]
        if new:
            raise self._error(new)
        left = [(conflict, sides[conflict.path]) for conflict in self.conflicts]
        changes = [self._edit_for(conflict, side or "ours") for conflict, side in left]
        self._merge(dry_run=False, fast_forward_only=fast_forward_only, chosen=chosen)
        if changes:
            paths = ", ".join(conflict.path for conflict, _ in left)
            head = self.result.head.id if self.result.head else None
            self.target.commit_edits(changes, message=f"resolve {paths}", expected_head=head)
        self.conflicts = []
        return self.result

    def _edit_for(self, conflict: Conflict, side: Side) -> edits.Edit:
        workspace = self.target if side == "ours" else self.source
        revision = f"{workspace.name}@"
        found = (workspace.files.stat_many([conflict.path], revision=revision))[0]
        if found is None:
            return edits.remove(conflict.path, recursive=True, missing_ok=True)
        if found.is_file:
            data = workspace.files.read(conflict.path, revision=revision)
            return edits.write(conflict.path, data, mode=found.mode)
        if found.is_symlink:
            return edits.symlink(conflict.path, found.link_target)
        raise NotPossibleError(
            f"{conflict.path}: a conflict of the kind `{conflict.kind}` cannot be resolved by a side"
        )

    def _merge(self, *, dry_run: bool, fast_forward_only: bool, chosen: list[Conflict] | None = None) -> None:
        ways = [
            {"path": _SPECIAL.sub(r"\\\1", conflict.path), "way": conflict.side}
            for conflict in chosen or ()
            if conflict.kind in _CONTENT_KINDS
        ]
        body: dict[str, Any] = {
            "sources": [f"workspaces/{self.source.name}"],
            "dryRun": dry_run,
            "fastForwardOnly": fast_forward_only,
            "message": self._message,
            "rules": {"ways": ways} if ways else None,
        }
        call = json_call(
            "POST",
            f"/workspaces/{segment(self.target.name)}/merge",
            field_of("merge", MergeResult.from_json),
            body=body,
            has_request_id=True,
        )
        self.result = self._transport.send(call)
        self.conflicts = [Conflict(self, found) for found in self.result.conflicts]
        self.applied = not dry_run and self.result.how != "refused"

    def _error(self, conflicts: list[Conflict]) -> MergeConflictError:
        paths = [conflict.path for conflict in conflicts]
        listed = ", ".join(paths[:5]) + (f" and {len(paths) - 5} more" if len(paths) > 5 else "")
        message = f"{self.source.name} conflicts with {self.target.name}: {listed}; nothing was merged"
        return MergeConflictError(message, name="CONFLICT", details={"paths": paths})

    def __repr__(self) -> str:
        state = "applied" if self.applied else f"{len(self.conflicts)} conflicts"
        return f"<merge of {self.source.name!r} into {self.target.name!r}: {state}>"
