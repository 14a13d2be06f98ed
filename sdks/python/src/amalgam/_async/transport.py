"""Sends calls with asyncio. Written by hand; ``_sync/transport.py`` is its counterpart."""

from __future__ import annotations

import asyncio
import json
import os
import weakref
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any, TypeVar

import httpx

from .._call import (
    CONTENT_PIECE_BYTES,
    LIMITS,
    Answer,
    Call,
    Content,
    Event,
    EventParser,
    LineSplitter,
    Options,
    error_of,
    message_of_line,
    retry_delay,
    transport_error,
)
from .._local import LocalStore
from ..errors import AmalgamError, ConnectError, error_from_body
from .parallel import call_in_thread

T = TypeVar("T")


class AsyncPool:
    """The connections of a client.

    Connections belong to a process and to an event loop. In another loop the pool is replaced. In another process, too;
    the old one is then kept, so that its sockets, which the parent process uses, are not closed.
    """

    def __init__(self, http_client: httpx.AsyncClient | None = None, store: LocalStore | None = None) -> None:
        self.store = store
        self._socket = ""
        self._given = http_client
        self._client = http_client
        self._abandoned: list[httpx.AsyncClient] = []
        self._loop: weakref.ref[asyncio.AbstractEventLoop] | None = None
        self._pid = os.getpid()

    @property
    def client(self) -> httpx.AsyncClient:
        """The HTTP client of this process and event loop."""
        if self._given is not None:
            return self._given
        loop = asyncio.get_running_loop()
        is_same_loop = self._loop is not None and self._loop() is loop
        if self._client is None or not is_same_loop or self._pid != os.getpid():
            if self._client is not None and self._pid != os.getpid():
                self._abandoned.append(self._client)
            self._client = httpx.AsyncClient(
                timeout=None, follow_redirects=False, limits=LIMITS, transport=self._transport()
            )
            self._loop, self._pid = weakref.ref(loop), os.getpid()
        return self._client

    def _transport(self) -> httpx.AsyncHTTPTransport | None:
        return httpx.AsyncHTTPTransport(uds=self._socket, limits=LIMITS) if self._socket else None

    async def prepare(self, *, restart: bool = False) -> None:
        """Starts the process of the local store if it does not run."""
        if self.store is None or self._given is not None:
            return
        socket = await call_in_thread(self.store.socket, restart=restart)
        if socket != self._socket:
            await self.close()
            self._socket = socket

    async def close(self) -> None:
        """Closes the connections."""
        client, self._client, self._loop = self._client, None, None
        if client is not None and self._given is None and self._pid == os.getpid():
            await client.aclose()


async def sleep(seconds: float) -> None:
    """Waits."""
    await asyncio.sleep(seconds)


class AsyncTransport:
    """Sends calls, and sends them again where that is safe."""

    def __init__(self, options: Options, pool: AsyncPool) -> None:
        self.options = options
        self.pool = pool

    async def _prepare(self, failure: AmalgamError | None) -> None:
        await self.pool.prepare(restart=isinstance(failure, ConnectError))

    async def send(self, call: Call[T]) -> T:
        """Sends a call, and returns its result."""
        start = _position(call.content)
        failure: AmalgamError | None = None
        attempt = 0
        while True:
            await self._prepare(failure)
            try:
                response = await self.pool.client.request(
                    call.verb,
                    call.url(self.options),
                    content=_content(call.content, start),
                    headers=call.all_headers(self.options),
                    timeout=call.seconds(self.options),
                )
                return call.read(Answer(response.status_code, response.headers, response.content))
            except httpx.HTTPError as error:
                failure = transport_error(error, call, self.options)
                failure.__cause__ = error
            except AmalgamError as error:
                failure = error
            delay = retry_delay(failure, call, attempt, self.options)
            if delay is None or (start is None and not _is_whole(call.content)):
                raise failure
            attempt += 1
            await sleep(delay)

    async def messages(self, call: Call[Any]) -> AsyncGenerator[Any, None]:
        """Yields the messages of a stream of JSON lines. It is begun again only before its first message."""
        async with aclosing(self.lines(call)) as lines:
            async for line in lines:
                if line:
                    yield message_of_line(line)

    async def events(self, call: Call[Any]) -> AsyncGenerator[Event | None, None]:
        """Yields the server-sent events of a stream, and ``None`` for each line that completes none.

        The server sends a comment every 15 seconds, so that an idle stream does not reach the timeout.
        """
        parser = EventParser()
        async with aclosing(self.lines(call)) as lines:
            async for line in lines:
                event = parser.feed(line)
                if event is not None and event.event == "error":
                    value = json.loads(event.data)
                    # A command has events of this name, too.
                    if "error" in value:
                        raise error_from_body(value, status=200)
                yield event

    async def lines(self, call: Call[Any]) -> AsyncGenerator[bytes, None]:
        """Yields the lines of a stream."""
        splitter = LineSplitter()
        async with aclosing(self.pieces(call)) as pieces:
            async for data in pieces:
                for line in splitter.feed(data):
                    yield line
        for line in splitter.end():
            yield line

    async def pieces(self, call: Call[Any]) -> AsyncGenerator[bytes, None]:
        """Yields the bytes of a body as they arrive."""
        attempt = 0
        failure: AmalgamError | None = None
        while True:
            await self._prepare(failure)
            has_begun = False
            try:
                async with self.pool.client.stream(
                    call.verb,
                    call.url(self.options),
                    content=_content(call.content, None),
                    headers=call.all_headers(self.options),
                    timeout=call.seconds(self.options),
                ) as response:
                    if response.status_code in call.accepted:
                        return
                    if response.status_code > 299:
                        content = await response.aread()
                        raise error_of(Answer(response.status_code, response.headers, content))
                    async for data in response.aiter_bytes():
                        has_begun = True
                        yield data
                    return
            except httpx.HTTPError as error:
                failure = transport_error(error, call, self.options)
                failure.__cause__ = error
            except AmalgamError as error:
                failure = error
            delay = None if has_begun else retry_delay(failure, call, attempt, self.options)
            if delay is None:
                raise failure
            attempt += 1
            await sleep(delay)


def _is_whole(content: Content | None) -> bool:
    return content is None or isinstance(content, (bytes, bytearray, memoryview))


def _position(content: Content | None) -> int | None:
    """Where a file object stands; nothing if it cannot be read twice."""
    if content is None or isinstance(content, (bytes, bytearray, memoryview)) or not content.seekable():
        return None
    return content.tell()


def _content(content: Content | None, start: int | None) -> bytes | AsyncIterator[bytes] | None:
    if content is None:
        return None
    if isinstance(content, (bytes, bytearray, memoryview)):
        whole = memoryview(content).cast("B")
        if len(whole) <= CONTENT_PIECE_BYTES:
            return bytes(whole)

        # The HTTP client copies what is left of a body after each write to the socket.
        async def slices() -> AsyncGenerator[bytes, None]:
            for offset in range(0, len(whole), CONTENT_PIECE_BYTES):
                yield bytes(whole[offset : offset + CONTENT_PIECE_BYTES])

        return slices()
    if start is not None:
        content.seek(start)

    async def pieces() -> AsyncGenerator[bytes, None]:
        while data := await asyncio.to_thread(content.read, CONTENT_PIECE_BYTES):
            yield data

    return pieces()
