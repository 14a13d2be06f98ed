"""Snapshots and labels of a project."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

from .._call import (
    Empty,
    Revision,
    field_of,
    json_call,
    nothing,
    page_of,
    revision_text,
    side,
)
from .._text import PathLike, escape_path, segment, unescape
from ..models import Change, ChangeSummary, FileInsight, Insight, Label, Patch, Snapshot, data_of
from .transport import AsyncTransport

PAGE_SIZE = 1000


def resource(workspace: str | None) -> str:
    """Returns the resource name of a workspace; empty for none."""
    return f"workspaces/{workspace}" if workspace else ""


class AsyncSnapshots:
    """Snapshots and their differences, as ``client.snapshots``. ``@`` stands for the head of ``workspace``."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def get(self, revision: Revision, *, workspace: str | None = None) -> Snapshot:
        """Returns one snapshot by any of its names."""
        query = {"workspace": resource(workspace)}
        place = f"/snapshots/{segment(revision_text(revision))}"
        parse = field_of("snapshot", Snapshot.from_json)
        return await self._transport.send(json_call("GET", place, parse, query=query))

    async def list(
        self,
        *revisions: Revision,
        workspace: str | None = None,
        all: bool = False,  # noqa: A002
        path: PathLike | None = None,
        exclude: Sequence[Revision] = (),
    ) -> AsyncGenerator[Snapshot, None]:
        """Yields the snapshots that led to some revisions, newest first.

        Args:
            revisions: Where to begin; without any, at the head of the workspace.
            workspace: The workspace that ``@`` stands for.
            all: Begin at all workspaces and labels.
            path: Only snapshots that changed this path.
            exclude: Leave out these snapshots and all that led to them.

        """
        query: dict[str, Any] = {
            "revisions": [revision_text(revision) for revision in revisions],
            "workspace": resource(workspace),
            "all": all,
            "paths": [escape_path(path)] if path is not None else [],
            "exclude": [revision_text(revision) for revision in exclude],
            "pageSize": PAGE_SIZE,
        }
        parse = page_of("snapshots", Snapshot.from_json)
        token = ""
        while True:
            call = json_call("GET", "/snapshots", parse, query={**query, "pageToken": token})
            found, token = await self._transport.send(call)
            for snapshot in found:
                yield snapshot
            if not token:
                return

    async def diff(
        self,
        before: Revision | Empty,
        after: Revision | Empty,
        *,
        paths: Sequence[PathLike] = (),
        renames: bool = True,
        times: bool = False,
        without_git: bool = False,
        workspace: str | None = None,
    ) -> AsyncGenerator[Change, None]:
        """Yields the paths that differ between two snapshots.

        Args:
            before: The first snapshot, or ``amalgam.EMPTY``.
            after: The second snapshot, or ``amalgam.EMPTY``.
            paths: Only these paths and everything below them.
            renames: Report a removed and an added file with the same contents as one rename.
            times: Report entries that differ in nothing but their time, too.
            without_git: Leave out every entry called ``.git``.
            workspace: The workspace that ``@`` stands for.

        """
        query = {
            **_two_sides(before, after, paths, without_git, workspace),
            "renames": renames,
            "times": times,
        }
        async with aclosing(self._transport.messages(json_call("GET", "/diff", nothing, query=query))) as found:
            async for message in found:
                for change in message.get("changes", ()):
                    yield Change.from_json(change)

    async def insight(
        self,
        before: Revision | Empty,
        after: Revision | Empty,
        *,
        paths: Sequence[PathLike] = (),
        without_git: bool = False,
        workspace: str | None = None,
    ) -> Insight:
        """Returns the measures of a change: lines, languages, sizes, hints about risks, a score."""
        query = _two_sides(before, after, paths, without_git, workspace)
        files = []
        summary = ChangeSummary()
        async with aclosing(self._transport.messages(json_call("GET", "/insight", nothing, query=query))) as found:
            async for message in found:
                files += [FileInsight.from_json(file) for file in message.get("files", ())]
                if message.get("summary"):
                    summary = ChangeSummary.from_json(message["summary"])
        return Insight(tuple(files), summary)

    async def patch(
        self,
        before: Revision | Empty,
        after: Revision | Empty,
        *,
        paths: Sequence[PathLike] = (),
        context_lines: int | None = None,
        without_git: bool = False,
        workspace: str | None = None,
    ) -> Patch:
        """Returns a unified patch that ``git apply`` takes."""
        query = {
            **_two_sides(before, after, paths, without_git, workspace),
            "contextLines": context_lines,
        }
        data = b""
        omissions: list[tuple[str, str]] = []
        async with aclosing(self._transport.messages(json_call("GET", "/patch", nothing, query=query))) as found:
            async for message in found:
                data += data_of(message)
                omissions += [(unescape(one["path"]), one["message"]) for one in message.get("leftOut", ())]
        return Patch(data, tuple(omissions))


def _two_sides(
    before: Revision | Empty,
    after: Revision | Empty,
    paths: Sequence[PathLike],
    without_git: bool,
    workspace: str | None,
) -> dict[str, Any]:
    return {
        **side("before", before),
        **side("after", after),
        "paths": [escape_path(path) for path in paths],
        "withoutGit": without_git,
        "workspace": resource(workspace),
    }


class AsyncLabels:
    """Names on snapshots, as ``client.labels``."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def set(
        self,
        name: str,
        revision: Revision,
        *,
        workspace: str | None = None,
        idempotency_key: str | None = None,
    ) -> Label:
        """Puts a label on a snapshot, or moves it there. With ``workspace`` an undo in it takes the label back."""
        body = {"revision": revision_text(revision), "workspace": resource(workspace)}
        call = json_call(
            "PUT",
            f"/labels/{segment(name)}",
            field_of("label", Label.from_json),
            body=body,
            has_request_id=True,
            idempotency_key=idempotency_key,
        )
        return await self._transport.send(call)

    async def delete(self, name: str, *, idempotency_key: str | None = None) -> None:
        """Removes a label. The snapshot stays."""
        call = json_call(
            "DELETE",
            f"/labels/{segment(name)}",
            nothing,
            has_request_id=True,
            idempotency_key=idempotency_key,
        )
        await self._transport.send(call)

    async def list(self, prefix: str = "") -> AsyncGenerator[Label, None]:
        """Yields the labels by name."""
        parse = page_of("labels", Label.from_json)
        token = ""
        while True:
            query = {"prefix": prefix, "pageSize": PAGE_SIZE, "pageToken": token}
            found, token = await self._transport.send(json_call("GET", "/labels", parse, query=query))
            for label in found:
                yield label
            if not token:
                return
