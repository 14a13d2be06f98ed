"""The history of files of a workspace."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from .._call import Revision, json_call, nothing, revision_text
from .._text import PathLike, escape_path, segment
from ..models import BlamedLines, Version
from .transport import AsyncTransport


class AsyncHistory:
    """The history of files, as ``ws.history``."""

    def __init__(self, transport: AsyncTransport, workspace: str) -> None:
        self._transport = transport
        self._workspace = f"workspaces/{workspace}"

    async def blame(self, path: PathLike, *, revision: Revision = "@") -> list[BlamedLines]:
        """Returns which snapshot each line of a file comes from, as runs of lines."""
        place = f"/snapshots/{segment(revision_text(revision))}/blame"
        query = {"workspace": self._workspace, "path": escape_path(path)}
        return await self._transport.send(json_call("GET", place, BlamedLines.list_from_json, query=query))

    async def versions(
        self, path: PathLike, *, revision: Revision = "@", follow: bool = False, limit: int = 0
    ) -> AsyncGenerator[Version, None]:
        """Yields the snapshots that changed a path, newest first; with ``follow`` also those before renames."""
        place = f"/snapshots/{segment(revision_text(revision))}/versions"
        query = {
            "workspace": self._workspace,
            "path": escape_path(path),
            "follow": follow,
            "limit": limit or None,
        }
        async with aclosing(self._transport.messages(json_call("GET", place, nothing, query=query))) as found:
            async for message in found:
                yield Version.from_json(message)
