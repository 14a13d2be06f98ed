# Generated from _async/history.py by scripts/generate_sync.py; do not edit.
"""The history of files of a workspace."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing

from .._call import Revision, json_call, nothing, revision_text
from .._text import PathLike, escape_path, segment
from ..models import BlamedLines, Version
from .transport import Transport


class History:
    """The history of files, as ``ws.history``."""

    def __init__(self, transport: Transport, workspace: str) -> None:
        self._transport = transport
        self._workspace = f"workspaces/{workspace}"

    def blame(self, path: PathLike, *, revision: Revision = "@") -> list[BlamedLines]:
        """Returns which snapshot each line of a file comes from, as runs of lines."""
        place = f"/snapshots/{segment(revision_text(revision))}/blame"
        query = {"workspace": self._workspace, "path": escape_path(path)}
        return self._transport.send(json_call("GET", place, BlamedLines.list_from_json, query=query))

    def versions(
        self, path: PathLike, *, revision: Revision = "@", follow: bool = False, limit: int = 0
    ) -> Generator[Version, None, None]:
        """Yields the snapshots that changed a path, newest first; with ``follow`` also those before renames."""
        place = f"/snapshots/{segment(revision_text(revision))}/versions"
        query = {
            "workspace": self._workspace,
            "path": escape_path(path),
            "follow": follow,
            "limit": limit or None,
        }
        with closing(self._transport.messages(json_call("GET", place, nothing, query=query))) as found:
            for message in found:
                yield Version.from_json(message)
