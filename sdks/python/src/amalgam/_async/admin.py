"""Projects and API keys of a server, and merges that wait for a person."""

from __future__ import annotations

import builtins
from collections.abc import AsyncGenerator, Sequence
from datetime import datetime
from typing import Any, Literal

from .._call import field_of, json_call, nothing, page_of
from .._text import PathLike, escape_path, segment, time_text
from ..models import Key, MergeResult, NewKey, Project, ProjectUsage, QueueEntry, ReviewInfo
from .transport import AsyncTransport


class AsyncProjects:
    """The projects of a server, as ``client.projects``. Each is a store of its own."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def create(self, name: str) -> Project:
        """Makes a project with an empty store. Needs the scope ``admin``."""
        parse = field_of("project", Project.from_json)
        return await self._transport.send(json_call("POST", "/projects", parse, body={"projectId": name}))

    async def get(self, name: str) -> Project:
        """Returns a project."""
        parse = field_of("project", Project.from_json)
        return await self._transport.send(json_call("GET", f"/projects/{segment(name)}", parse))

    async def list(self, *, show_deleted: bool = False) -> AsyncGenerator[Project, None]:
        """Yields the projects that the caller may use, by name."""
        parse = page_of("projects", Project.from_json)
        token = ""
        while True:
            query = {"pageSize": 1000, "pageToken": token, "showDeleted": show_deleted}
            found, token = await self._transport.send(json_call("GET", "/projects", parse, query=query))
            for project in found:
                yield project
            if not token:
                return

    async def delete(self, name: str) -> Project:
        """Deletes a project. Its data stays until an operator removes it."""
        parse = field_of("project", Project.from_json)
        return await self._transport.send(json_call("DELETE", f"/projects/{segment(name)}", parse))

    async def undelete(self, name: str) -> Project:
        """Brings a deleted project back."""
        parse = field_of("project", Project.from_json)
        call = json_call("POST", f"/projects/{segment(name)}/undelete", parse, body={})
        return await self._transport.send(call)

    async def usage(self, name: str) -> ProjectUsage:
        """Returns the disk space of a project and the number of its objects."""
        call = json_call("GET", f"/projects/{segment(name)}/usage", ProjectUsage.from_json)
        return await self._transport.send(call)


class AsyncKeys:
    """The API keys of a server, as ``client.keys``."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def create(
        self,
        agent: str,
        *,
        scopes: Sequence[Literal["read", "write", "merge", "run", "admin"]],
        projects: Sequence[str] = (),
        expires: datetime | None = None,
    ) -> NewKey:
        """Makes a key. Only this answer holds its text.

        Args:
            agent: The actor of the operations that the key makes.
            scopes: A scope includes those before it, except that ``run`` includes nothing.
            projects: The projects that it may use; all without any.
            expires: When it stops working; never if unset.

        """
        body = {
            "agent": agent,
            "scopes": [*scopes],
            "projects": [*projects],
            "expireTime": time_text(expires) if expires else None,
        }

        def parse(value: Any) -> NewKey:
            return NewKey(Key.from_json(value["key"]), value["text"])

        return await self._transport.send(json_call("POST", "/keys", parse, body=body))

    async def list(self) -> builtins.list[Key]:
        """Returns all keys by time of creation, revoked and expired ones, too."""
        parse = page_of("keys", Key.from_json)
        keys: builtins.list[Key] = []
        token = ""
        while True:
            query = {"pageSize": 1000, "pageToken": token}
            found, token = await self._transport.send(json_call("GET", "/keys", parse, query=query))
            keys += found
            if not token:
                return keys

    async def revoke(self, key: str | Key) -> Key:
        """Revokes a key for ever. Its open streams end."""
        id = key.id if isinstance(key, Key) else key  # noqa: A001
        parse = field_of("key", Key.from_json)
        return await self._transport.send(json_call("DELETE", f"/keys/{segment(id)}", parse))

    async def caller(self) -> Key | None:
        """Returns the key that makes this call; nothing on a server without keys."""

        def parse(value: Any) -> Key | None:
            return Key.from_json(value["key"]) if value.get("key") else None

        return await self._transport.send(json_call("GET", "/caller", parse))


class AsyncReviews:
    """Merges that wait in the queue or for a person, as ``client.reviews``."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def list(self, *, target: str | None = None) -> builtins.list[ReviewInfo]:
        """Returns the merges that wait for a person; with ``target`` those into one workspace."""
        parse = page_of("reviews", ReviewInfo.from_json)
        found: builtins.list[ReviewInfo] = []
        token = ""
        while True:
            named = f"workspaces/{target}" if target else ""
            query = {"target": named, "pageSize": 1000, "pageToken": token}
            page, token = await self._transport.send(json_call("GET", "/reviews", parse, query=query))
            found.extend(page)
            if not token:
                return found

    async def get(self, id: str) -> ReviewInfo:  # noqa: A002
        """Returns one merge that waits for a person."""
        parse = field_of("review", ReviewInfo.from_json)
        return await self._transport.send(json_call("GET", f"/reviews/{segment(id)}", parse))

    async def queue(self, *, target: str | None = None) -> builtins.list[QueueEntry]:
        """Returns the merges that wait in the queue, the oldest of each target first."""
        parse = page_of("entries", QueueEntry.from_json)
        found: builtins.list[QueueEntry] = []
        token = ""
        while True:
            named = f"workspaces/{target}" if target else ""
            query = {"target": named, "pageSize": 1000, "pageToken": token}
            page, token = await self._transport.send(json_call("GET", "/queue", parse, query=query))
            found.extend(page)
            if not token:
                return found

    async def accept(self, id: str, *, dry_run: bool = False) -> MergeResult:  # noqa: A002
        """Merges again, and stores the conflicts that are left in the target."""
        return await self._decide(id, "accept", {"dryRun": dry_run})

    async def take(
        self,
        id: str,  # noqa: A002
        side: Literal["ours", "theirs"],
        *,
        paths: Sequence[PathLike] = (),
        dry_run: bool = False,
    ) -> MergeResult:
        """Merges again, and takes one side of each conflict, or of those at ``paths``."""
        body = {
            "side": f"MERGE_SIDE_{side.upper()}",
            "paths": [escape_path(path) for path in paths],
            "dryRun": dry_run,
        }
        return await self._decide(id, "take", body)

    async def _decide(self, id: str, verb: str, body: dict[str, Any]) -> MergeResult:  # noqa: A002
        call = json_call(
            "POST",
            f"/reviews/{segment(id)}/{verb}",
            field_of("merge", MergeResult.from_json),
            body=body,
            has_request_id=True,
        )
        return await self._transport.send(call)

    async def reject(self, id: str) -> None:  # noqa: A002
        """Does not merge it. The workspace stays as it is."""
        call = json_call("POST", f"/reviews/{segment(id)}/reject", nothing, body={}, has_request_id=True)
        await self._transport.send(call)
