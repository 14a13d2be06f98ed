"""The conflict radar: open workspaces that change the same files, while agents still work in them."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from .._call import Named, json_call, page_of
from .._text import PathLike, escape_path
from ..models import Overlap
from .transport import AsyncTransport

PAGE_SIZE = 1000


class AsyncRadar:
    """Overlaps of open workspaces, as ``client.radar``."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def list(
        self, *, workspace: str | Named | None = None, path: PathLike = "", paths_only: bool = False
    ) -> AsyncGenerator[Overlap, None]:
        """Yields the paths that two or more open workspaces have changed, by path.

        Args:
            workspace: Only overlaps of this workspace.
            path: Only paths that start so.
            paths_only: Leave out lines, keys and trial merges, which need contents.

        """
        name = workspace if workspace is None or isinstance(workspace, str) else workspace.name
        parse = page_of("overlaps", Overlap.from_json)
        token = ""
        while True:
            query = {
                "workspace": f"workspaces/{name}" if name else "",
                "pathPrefix": escape_path(path),
                "pathsOnly": paths_only,
                "pageSize": PAGE_SIZE,
                "pageToken": token,
            }
            found, token = await self._transport.send(json_call("GET", "/radar", parse, query=query))
            for overlap in found:
                yield overlap
            if not token:
                return
