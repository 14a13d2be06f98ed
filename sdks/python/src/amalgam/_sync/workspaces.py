# Generated from _async/workspaces.py by scripts/generate_sync.py; do not edit.
"""All workspaces of a project."""

from __future__ import annotations

import builtins
import os
from collections.abc import Generator, Sequence

from .._call import Revision, field_of, json_call, page_of, revision_text
from .._push import PUSH_BYTES_MIN, Pushed, push_directory
from .._source import SourceEntry
from .._text import PathLike, segment
from ..errors import InvalidArgumentError
from ..models import WorkspaceInfo
from .parallel import call_in_thread
from .transport import Transport
from .upload import find_entries, upload
from .workspace import Workspace

PAGE_SIZE = 1000


class Workspaces:
    """The workspaces of a project, as ``client.workspaces``."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def create(
        self,
        name: str,
        *,
        base: Revision | Workspace | None = None,
        agent: str = "",
        source: PathLike | None = None,
        exclude: Sequence[str] = (),
        allow_secrets: bool = False,
        idempotency_key: str | None = None,
    ) -> Workspace:
        """Makes a workspace.

        Args:
            name: 1 to 255 bytes; may hold slashes.
            base: The snapshot that it begins at, or a workspace, whose head it begins at; empty without it.
            agent: The agent that works in it.
            source: A directory of this machine whose files are its first snapshot. The directory is not attached: later
                changes on either side stay apart. A server gets only what it lacks, if the ``amalgam`` program is
                installed; the history then has the earlier uploads of the same directory, too.
            exclude: Names and paths of the source that are left out, as globs.
            allow_secrets: Send files of the source to a server although they look like secrets.
            idempotency_key: The same call with the same key again returns the first result.

        Raises:
            AlreadyExistsError: There is a workspace of this name.
            SecretsFoundError: The source has files that look like secrets, and would be sent to a server.

        """
        entries: builtins.list[SourceEntry] = []
        pushed: Pushed | None = None
        if source is not None:
            if base is not None:
                raise InvalidArgumentError("create takes either base or source")
            is_local = self._transport.pool.store is not None
            entries = find_entries(os.fsdecode(source), exclude=exclude, allow_secrets=allow_secrets or is_local)
            # The program leaves out what this file says; a client sends all files.
            has_ignore_file = any(os.path.basename(entry.path) == ".amalgamignore" for entry in entries)
            is_large = sum(entry.size for entry in entries) >= PUSH_BYTES_MIN
            if is_large and not is_local and not has_ignore_file:
                options = self._transport.options
                pushed = call_in_thread(
                    push_directory, os.fsdecode(source), exclude, options, allow_secrets=allow_secrets
                )
        revision = f"{base.name}@" if isinstance(base, Workspace) else revision_text(base)
        if pushed is not None:
            revision = pushed.snapshot
        call = json_call(
            "POST",
            "/workspaces",
            field_of("workspace", WorkspaceInfo.from_json),
            body={"workspaceId": name, "from": revision, "agent": agent},
            has_request_id=True,
            idempotency_key=idempotency_key,
        )
        try:
            workspace = Workspace(self._transport, self._transport.send(call))
        finally:
            if pushed is not None:
                self.delete(pushed.workspace)
        if source is not None and pushed is None:
            upload(workspace, os.fsdecode(source), entries)
        return workspace

    def get(self, name: str) -> Workspace:
        """Returns a workspace.

        Raises:
            NotFoundError: There is no workspace of this name.

        """
        parse = field_of("workspace", WorkspaceInfo.from_json)
        call = json_call("GET", f"/workspaces/{segment(name)}", parse)
        return Workspace(self._transport, self._transport.send(call))

    def list(self, prefix: str = "") -> Generator[Workspace, None, None]:
        """Yields the workspaces by name; with a prefix only those whose names start so."""
        parse = page_of("workspaces", WorkspaceInfo.from_json)
        token = ""
        while True:
            query = {"prefix": prefix, "pageSize": PAGE_SIZE, "pageToken": token}
            found, token = self._transport.send(json_call("GET", "/workspaces", parse, query=query))
            for info in found:
                yield Workspace(self._transport, info)
            if not token:
                return

    def fork(
        self,
        name: str,
        *,
        count: int | None = None,
        names: Sequence[str] = (),
        idempotency_key: str | None = None,
    ) -> builtins.list[Workspace]:
        """Makes workspaces that begin where another one stands: ``Workspace.fork`` by name."""
        workspace = self._named(name)
        return workspace.fork(count=count, names=names, idempotency_key=idempotency_key)

    def rename(self, name: str, new_name: str, *, idempotency_key: str | None = None) -> Workspace:
        """Gives a workspace another name."""
        workspace = self._named(name)
        workspace.rename(new_name, idempotency_key=idempotency_key)
        return workspace

    def delete(self, name: str, *, etag: str | None = None, idempotency_key: str | None = None) -> None:
        """Deletes a workspace. ``undelete`` brings it back until it is collected."""
        self._named(name).delete(etag=etag, idempotency_key=idempotency_key)

    def undelete(self, name: str, *, idempotency_key: str | None = None) -> Workspace:
        """Brings a deleted workspace back."""
        call = json_call(
            "POST",
            f"/workspaces/{segment(name)}/undelete",
            field_of("workspace", WorkspaceInfo.from_json),
            body={},
            has_request_id=True,
            idempotency_key=idempotency_key,
        )
        return Workspace(self._transport, self._transport.send(call))

    def _named(self, name: str) -> Workspace:
        return Workspace(self._transport, WorkspaceInfo(name, head=""))
