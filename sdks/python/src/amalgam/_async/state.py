"""State values: small JSON values of a tree, beside its files."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import Any

from .._call import Revision, field_of, json_call, nothing, page_of, revision_text
from .._text import segment
from ..errors import NotFoundError
from ..models import StateValue
from .transport import AsyncTransport

PAGE_SIZE = 1000


class AsyncState:
    """The state values of a workspace, as ``ws.state``. Forks, commits, merges and restores carry them."""

    def __init__(self, transport: AsyncTransport, workspace: str) -> None:
        self._transport = transport
        self._base = f"/workspaces/{segment(workspace)}/state"

    async def get(self, key: str, default: Any = None, *, revision: Revision | None = None) -> Any:
        """Returns a value, or the default if there is none."""
        try:
            return (await self.entry(key, revision=revision)).value
        except NotFoundError:
            return default

    async def entry(self, key: str, *, revision: Revision | None = None) -> StateValue:
        """Returns a value with its etag.

        Raises:
            NotFoundError: There is no such value.

        """
        query = {"revision": revision_text(revision)}
        parse = field_of("value", StateValue.from_json)
        return await self._transport.send(json_call("GET", f"{self._base}/{segment(key)}", parse, query=query))

    async def set(self, key: str, value: Any, *, if_match: str | None = None, if_absent: bool = False) -> StateValue:
        """Sets a value of the live tree to anything that JSON has, at most 64 KiB.

        Args:
            key: 1 to 255 bytes of text.
            value: The value.
            if_match: Only if the value has this etag; ``*`` for any. ``StaleFileError`` otherwise.
            if_absent: Only if there is no value; ``AlreadyExistsError`` otherwise.

        """
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        body = {"json": text, "ifMatch": if_match, "ifAbsent": if_absent}
        parse = field_of("value", StateValue.from_json)
        call = json_call("PUT", f"{self._base}/{segment(key)}", parse, body=body, has_request_id=True)
        return await self._transport.send(call)

    async def delete(self, key: str, *, missing_ok: bool = False, if_match: str | None = None) -> None:
        """Removes a value of the live tree."""
        query = {"allowMissing": missing_ok, "ifMatch": if_match}
        path = f"{self._base}/{segment(key)}"
        await self._transport.send(json_call("DELETE", path, nothing, query=query, has_request_id=True))

    async def list(self, prefix: str = "", *, revision: Revision | None = None) -> AsyncGenerator[StateValue, None]:
        """Yields the values whose keys start with a prefix, sorted by key."""
        query = {"prefix": prefix, "revision": revision_text(revision), "pageSize": PAGE_SIZE}
        parse = page_of("values", StateValue.from_json)
        token = ""
        while True:
            call = json_call("GET", self._base, parse, query={**query, "pageToken": token})
            found, token = await self._transport.send(call)
            for value in found:
                yield value
            if not token:
                return
