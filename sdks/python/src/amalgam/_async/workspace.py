"""One workspace: a named line of work with files, a head and a history."""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any, TypeVar, overload

from .._call import (
    Empty,
    Named,
    Revision,
    expected_head_text,
    field_of,
    json_call,
    list_of,
    nothing,
    revision_text,
)
from .._text import PathLike, escape_path, segment
from ..edits import Edit
from ..errors import InvalidArgumentError
from ..models import (
    Change,
    Commit,
    CommitKind,
    Followed,
    FollowMode,
    Insight,
    Operation,
    Patch,
    Restored,
    Snapshot,
    Status,
    Submitted,
    WorkspaceInfo,
)
from .explore import AsyncAttempt, explore
from .files import AsyncFiles
from .history import AsyncHistory
from .merge import AsyncMerge, OnConflict
from .mount import AsyncMount, Backend
from .sandboxes import AsyncSandbox, AsyncSandboxes
from .snapshots import AsyncSnapshots
from .state import AsyncState
from .transport import AsyncTransport

R = TypeVar("R")


class AsyncWorkspace:
    """A named line of work. ``client.workspaces`` makes and finds them.

    Attributes:
        info: The workspace as the server described it last; ``refresh`` reads it again.
        files: The files of its live tree, or of any revision.
        state: Small JSON values that belong to the tree.
        history: Blame and versions of files.

    """

    def __init__(self, transport: AsyncTransport, info: WorkspaceInfo) -> None:
        self._transport = transport
        self._snapshots = AsyncSnapshots(transport)
        self._bind(info)

    def _bind(self, info: WorkspaceInfo) -> None:
        self.info = info
        self.files = AsyncFiles(self._transport, info.name)
        self.state = AsyncState(self._transport, info.name)
        self.history = AsyncHistory(self._transport, info.name)

    @property
    def name(self) -> str:
        """The name, which may hold slashes."""
        return self.info.name

    @property
    def head(self) -> str:
        """The id of the head as this object saw it last; empty while nothing was committed."""
        return self.info.head

    @property
    def _base(self) -> str:
        return f"/workspaces/{segment(self.name)}"

    def __repr__(self) -> str:
        return f"<workspace {self.name!r} at {self.head[:12] or 'no snapshot'}>"

    async def refresh(self) -> WorkspaceInfo:
        """Reads ``info`` again."""
        parse = field_of("workspace", WorkspaceInfo.from_json)
        self.info = await self._transport.send(json_call("GET", self._base, parse))
        return self.info

    async def status(self) -> Status:
        """Returns the uncommitted changes of the live tree."""
        return await self._transport.send(json_call("GET", f"{self._base}/status", Status.from_json))

    async def commit(
        self,
        message: str = "",
        *,
        metadata: Mapping[str, str] | None = None,
        labels: Sequence[str] = (),
        kind: CommitKind = "manual",
        expected_head: Revision | None = None,
        note: str | None = None,
        reward: float | None = None,
        buffered: bool = False,
        with_changes: bool = False,
        idempotency_key: str | None = None,
    ) -> Commit:
        """Commits the uncommitted changes of the live tree.

        Args:
            message: The message of the snapshot.
            metadata: Further small values to store with it.
            labels: Labels to set on it.
            kind: ``step`` for a step of a run, ``automatic`` for a snapshot that retention may thin.
            expected_head: Only if this is the head, ``StaleHeadError`` otherwise; ``none`` for a workspace without a
                snapshot. Without it, a head that moved is merged with the changes.
            note: A note about the snapshot.
            reward: The reward of the snapshot.
            buffered: Return before the commit is on disk: it survives a crash of the process, not a power cut.
            with_changes: Return the paths that differ from the head before, at most 10,000.
            idempotency_key: The same call with the same key again returns the first result.

        """
        body = {
            **_commit_fields(message, metadata, labels, kind, expected_head, note, reward),
            "buffered": buffered,
            "withChanges": with_changes,
        }
        return await self._commit("commit", body, idempotency_key)

    async def commit_edits(
        self,
        edits: Sequence[Edit],
        *,
        message: str = "",
        revision: Revision | None = None,
        expected_head: Revision | None = None,
        metadata: Mapping[str, str] | None = None,
        labels: Sequence[str] = (),
        kind: CommitKind = "manual",
        note: str | None = None,
        reward: float | None = None,
        buffered: bool = False,
        with_changes: bool = False,
        with_summary: bool = False,
        idempotency_key: str | None = None,
    ) -> Commit:
        """Makes edits on the head, or on ``revision``, and commits them in one call, without the live tree.

        ``amalgam.edits`` has the edits. The other arguments are those of ``commit``; ``with_summary`` returns the
        counts of the change.
        """
        body = {
            **_commit_fields(message, metadata, labels, kind, expected_head, note, reward),
            "edits": [edit.to_json() for edit in edits],
            "revision": revision_text(revision),
            "buffered": buffered,
            "withChanges": with_changes,
            "withSummary": with_summary,
        }
        return await self._commit("commit-edits", body, idempotency_key)

    async def _commit(self, verb: str, body: Mapping[str, Any], idempotency_key: str | None) -> Commit:
        call = json_call(
            "POST",
            f"{self._base}/{verb}",
            Commit.from_json,
            body=body,
            has_request_id=True,
            idempotency_key=idempotency_key,
        )
        commit = await self._transport.send(call)
        self.info = replace(self.info, head=commit.id or self.info.head)
        return commit

    async def diff(
        self,
        before: Revision | Empty = "@~",
        after: Revision | Empty = "@",
        *,
        paths: Sequence[PathLike] = (),
        renames: bool = True,
        times: bool = False,
        without_git: bool = False,
    ) -> AsyncGenerator[Change, None]:
        """Yields the paths that differ between two snapshots; by default those of the last commit.

        ``status`` has the uncommitted changes. ``amalgam.EMPTY`` is the empty tree.
        """
        async with aclosing(
            self._snapshots.diff(
                before,
                after,
                paths=paths,
                renames=renames,
                times=times,
                without_git=without_git,
                workspace=self.name,
            )
        ) as found:
            async for change in found:
                yield change

    async def insight(
        self,
        before: Revision | Empty = "@~",
        after: Revision | Empty = "@",
        *,
        paths: Sequence[PathLike] = (),
        without_git: bool = False,
    ) -> Insight:
        """Returns the measures of a change: lines, languages, sizes, hints about risks, a score."""
        return await self._snapshots.insight(before, after, paths=paths, without_git=without_git, workspace=self.name)

    async def patch(
        self,
        before: Revision | Empty = "@~",
        after: Revision | Empty = "@",
        *,
        paths: Sequence[PathLike] = (),
        context_lines: int | None = None,
        without_git: bool = False,
    ) -> Patch:
        """Returns a unified patch that ``git apply`` takes."""
        return await self._snapshots.patch(
            before,
            after,
            paths=paths,
            context_lines=context_lines,
            without_git=without_git,
            workspace=self.name,
        )

    async def log(self, *, path: PathLike | None = None) -> AsyncGenerator[Snapshot, None]:
        """Yields the snapshots that led to the head, newest first; with ``path`` those that changed it."""
        async with aclosing(self._snapshots.list(workspace=self.name, path=path)) as found:
            async for snapshot in found:
                yield snapshot

    async def snapshot(self, revision: Revision = "@") -> Snapshot:
        """Returns one snapshot; ``@`` is the head."""
        return await self._snapshots.get(revision, workspace=self.name)

    async def fork(
        self,
        *,
        count: int | None = None,
        names: Sequence[str] = (),
        idempotency_key: str | None = None,
    ) -> list[AsyncWorkspace]:
        """Makes workspaces that begin where this one stands, all of them or none.

        Uncommitted changes are committed first. Without ``names`` the forks get names of their own, the same ones for
        the same ``idempotency_key``.
        """
        if (count is None) == (not names):
            raise InvalidArgumentError("fork takes either count or names")
        if count is not None and count < 1:
            raise InvalidArgumentError(f"count {count}: at least 1")
        # A call that is made again with its key has to ask for the same names.
        mark = hashlib.sha256(idempotency_key.encode()).hexdigest()[:8] if idempotency_key else secrets.token_hex(4)
        given = [*names] or [f"{self.name}-{mark}-{number}" for number in range(1, (count or 0) + 1)]
        call = json_call(
            "POST",
            f"{self._base}/fork",
            list_of("workspaces", WorkspaceInfo.from_json),
            body={"workspaceIds": given},
            has_request_id=True,
            idempotency_key=idempotency_key,
        )
        return [AsyncWorkspace(self._transport, info) for info in await self._transport.send(call)]

    async def restore(
        self,
        revision: Revision,
        *,
        paths: Sequence[PathLike] = (),
        dry_run: bool = False,
        idempotency_key: str | None = None,
    ) -> Restored:
        """Makes an old tree, or paths of it, the newest snapshot.

        Uncommitted changes are recorded first: `undo` brings them back.

        With ``dry_run`` returns the paths that would change in the head, and changes nothing.
        """
        if dry_run:
            changes: list[Change] = []
            async with aclosing(self.diff("@", revision, paths=paths)) as found:
                async for change in found:
                    changes.append(change)
            return Restored(bool(changes), tuple(changes), dry_run=True)
        body = {
            "revision": revision_text(revision),
            "paths": [escape_path(path) for path in paths],
        }

        def parse(value: Any) -> tuple[WorkspaceInfo, bool]:
            return WorkspaceInfo.from_json(value["workspace"]), value.get("changed", False)

        call = json_call(
            "POST",
            f"{self._base}/restore",
            parse,
            body=body,
            has_request_id=True,
            idempotency_key=idempotency_key,
        )
        self.info, changed = await self._transport.send(call)
        return Restored(changed)

    async def undo(self, *, idempotency_key: str | None = None) -> Operation:
        """Takes the last operation of this workspace back. Returns the operation that did so."""
        return await self._revert("undo", idempotency_key)

    async def redo(self, *, idempotency_key: str | None = None) -> Operation:
        """Does again the operation that was undone last."""
        return await self._revert("redo", idempotency_key)

    async def _revert(self, verb: str, idempotency_key: str | None) -> Operation:
        call = json_call(
            "POST",
            f"/operations/{verb}",
            field_of("operation", Operation.from_json),
            body={"workspace": f"workspaces/{self.name}"},
            has_request_id=True,
            idempotency_key=idempotency_key,
        )
        operation = await self._transport.send(call)
        for change in operation.changes:
            if change.reference == f"workspace/{self.name}":
                self.info = replace(self.info, head=change.after)
        return operation

    async def merge(
        self,
        other: AsyncWorkspace,
        *,
        on_conflict: OnConflict = "review",
        message: str = "",
        dry_run: bool = False,
        fast_forward_only: bool = False,
    ) -> AsyncMerge:
        """Merges the head of another workspace into this one.

        Args:
            other: The workspace whose changes are merged. Its uncommitted changes are not: commit them first.
            on_conflict: ``review``: change nothing, so that the caller resolves ``m.conflicts`` and calls
                ``m.apply()``. ``raise``: raise ``MergeConflictError``. ``ours`` and ``theirs``: take this side of each
                conflict. ``keep``: merge, and store the conflicts in the tree.
            message: The message of the snapshot.
            dry_run: Find the conflicts, and change nothing.
            fast_forward_only: Only move the head, or change nothing.

        """
        merge = AsyncMerge(self._transport, self, other, message)
        await merge.start(on_conflict, dry_run, fast_forward_only)
        if merge.applied:
            await self.refresh()
        return merge

    async def complete(
        self,
        *,
        target: str | None = None,
        message: str = "",
        wait: bool = True,
        dry_run: bool = False,
        idempotency_key: str | None = None,
    ) -> Submitted:
        """Merges this workspace into its target through the queue, and ends it when its work has landed.

        The target of a fork is the workspace that it was forked from. Conflicts wait for a person: ``client.reviews``.
        """
        return await self._submit("complete", target, message, wait, dry_run, idempotency_key)

    async def publish(
        self,
        *,
        target: str | None = None,
        message: str = "",
        wait: bool = True,
        dry_run: bool = False,
        idempotency_key: str | None = None,
    ) -> Submitted:
        """Merges this workspace into its target through the queue, and keeps it."""
        return await self._submit("publish", target, message, wait, dry_run, idempotency_key)

    async def _submit(
        self,
        verb: str,
        target: str | None,
        message: str,
        wait: bool,
        dry_run: bool,
        idempotency_key: str | None,
    ) -> Submitted:
        submission = {
            "target": f"workspaces/{target}" if target else "",
            "message": message,
            "detach": not wait,
            "dryRun": dry_run,
        }
        call = json_call(
            "POST",
            f"{self._base}/{verb}",
            Submitted.from_json,
            body={"submission": submission},
            has_request_id=True,
            idempotency_key=idempotency_key,
        )
        return await self._transport.send(call)

    def mount(self, path: PathLike, *, backend: Backend = "auto") -> AsyncMount:
        """Mounts this workspace at a directory for the time of a ``with`` block, which gets the path.

        Needs the local store. Leaving the block unmounts it and never deletes data: changes are those of the live tree.
        """
        pool = self._transport.pool
        return AsyncMount(pool.store, self.name, os.fsdecode(path), backend, self._transport.options.url)

    async def sandbox(
        self,
        image: str = "host",
        *,
        name: str = "",
        envs: Mapping[str, str] | None = None,
        timeout: int | None = None,
        cpu: str = "",
        memory: str = "",
        disk: str = "",
        pids: int = 0,
        best_effort: bool = False,
        read_only: bool = False,
        runtime: str = "",
        network: str | Sequence[str] = "",
    ) -> AsyncSandbox:
        """Starts a sandbox whose commands work in this workspace: ``client.sandboxes.create`` with ``workspace``.

        The end of its block ends the sandbox, and commits its changes. This workspace stays.

        Args:
            image: The template.
            name: A name for people.
            envs: Environment variables of all its commands.
            timeout: The seconds after which it is ended; an hour if unset, at most a day.
            cpu: CPUs, for example ``0.5``.
            memory: For example ``512m``.
            disk: The size of the workspace, for example ``1g``.
            pids: Processes and threads.
            best_effort: Start it although nothing enforces some of the limits.
            read_only: Show the workspace for reading only.
            runtime: The runtime; the server's default if empty.
            network: ``none`` if empty; or the hosts that it may reach.

        """
        return await AsyncSandboxes(self._transport).create(
            image,
            name=name,
            workspace=self.name,
            envs=envs,
            timeout=timeout,
            cpu=cpu,
            memory=memory,
            disk=disk,
            pids=pids,
            best_effort=best_effort,
            read_only=read_only,
            runtime=runtime,
            network=network,
        )

    async def follow(
        self,
        source: str | Named,
        *,
        mode: FollowMode | None = None,
        every: int = 0,
        dry_run: bool = False,
        idempotency_key: str | None = None,
    ) -> Followed:
        """Keeps this workspace up to date with another one, and updates it now.

        Files that the agent did not change are updated; its own changes stay, merged where that is possible.

        Args:
            source: The workspace whose new snapshots are merged in.
            mode: ``lazy`` (every 30 to 60 seconds), ``regular`` (5 to 10), ``event`` (at once); by ``every`` if unset.
            every: The seconds between updates; 30 if 0.
            dry_run: Check the request, and change nothing.
            idempotency_key: The same call with the same key again returns the first result.

        """
        name = source if isinstance(source, str) else source.name
        call = json_call(
            "POST",
            f"{self._base}/follow",
            Followed.from_json,
            body={
                "sourceWorkspace": f"workspaces/{name}",
                "mode": mode or "",
                "everySeconds": every,
                "dryRun": dry_run,
            },
            has_request_id=True,
            idempotency_key=idempotency_key,
        )
        followed = await self._transport.send(call)
        await self.refresh()
        return followed

    async def update(self, *, dry_run: bool = False) -> Followed:
        """Merges the new snapshots of the source that this workspace follows, and returns when its files are updated.

        Raises:
            InvalidArgumentError: It follows nothing.

        """
        call = json_call("POST", f"{self._base}/update", Followed.from_json, body={"dryRun": dry_run}, is_safe=True)
        updated = await self._transport.send(call)
        await self.refresh()
        return updated

    async def unfollow(self, *, idempotency_key: str | None = None) -> None:
        """Ends the following. The files stay as they are."""
        call = json_call(
            "POST",
            f"{self._base}/unfollow",
            nothing,
            body={},
            has_request_id=True,
            idempotency_key=idempotency_key,
        )
        await self._transport.send(call)
        await self.refresh()

    async def rename(self, new_name: str, *, idempotency_key: str | None = None) -> None:
        """Gives this workspace another name."""
        call = json_call(
            "POST",
            f"{self._base}/rename",
            field_of("workspace", WorkspaceInfo.from_json),
            body={"newWorkspaceId": new_name},
            has_request_id=True,
            idempotency_key=idempotency_key,
        )
        self._bind(await self._transport.send(call))

    async def delete(self, *, etag: str | None = None, idempotency_key: str | None = None) -> None:
        """Deletes this workspace. ``client.workspaces.undelete`` brings it back until it is collected."""
        call = json_call(
            "DELETE",
            self._base,
            nothing,
            query={"etag": etag},
            has_request_id=True,
            idempotency_key=idempotency_key,
        )
        await self._transport.send(call)

    @overload
    async def explore(
        self,
        *,
        count: int,
        run: Callable[[AsyncWorkspace], Awaitable[R]],
        score: Callable[[AsyncWorkspace, R], Awaitable[float]],
        parallel: int | None = None,
        keep_all: bool = False,
        sandbox: None = None,
    ) -> AsyncAttempt[R]: ...

    @overload
    async def explore(
        self,
        *,
        count: int,
        run: Callable[[AsyncWorkspace, AsyncSandbox], Awaitable[R]],
        score: Callable[[AsyncWorkspace, R], Awaitable[float]],
        parallel: int | None = None,
        keep_all: bool = False,
        sandbox: str | Mapping[str, Any],
    ) -> AsyncAttempt[R]: ...

    async def explore(
        self,
        *,
        count: int,
        run: Callable[..., Awaitable[R]],
        score: Callable[[AsyncWorkspace, R], Awaitable[float]],
        parallel: int | None = None,
        keep_all: bool = False,
        sandbox: str | Mapping[str, Any] | None = None,
    ) -> AsyncAttempt[R]:
        """Forks this workspace, runs a function in each fork, and keeps the fork with the highest score.

        Args:
            count: How many forks.
            run: Works in a fork, and returns any result. Its uncommitted changes are committed after it. With
                ``sandbox`` it gets the fork and its sandbox.
            score: Judges a fork and the result of ``run``; the highest score is the best.
            parallel: How many attempts run at once; all of them if unset.
            keep_all: Keep the other forks, too.
            sandbox: Start a sandbox for each fork, which ends after ``run``: a template, or the arguments of
                :meth:`sandbox`.

        Returns:
            The best attempt; ``others`` has the other ones, with their errors.

        Raises:
            ExploreError: All attempts failed.

        """
        return await explore(self, count, run, score, parallel, keep_all, sandbox)


def _commit_fields(
    message: str,
    metadata: Mapping[str, str] | None,
    labels: Sequence[str],
    kind: CommitKind,
    expected_head: Revision | None,
    note: str | None,
    reward: float | None,
) -> dict[str, Any]:
    return {
        "message": message,
        "metadata": dict(metadata or {}),
        "labels": [*labels],
        "kind": f"COMMIT_KIND_{kind.upper()}",
        "expectedHead": expected_head_text(expected_head),
        "note": note,
        "reward": reward,
    }
