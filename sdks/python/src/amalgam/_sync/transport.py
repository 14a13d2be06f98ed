"""Sends calls with blocking I/O. Written by hand; ``_async/transport.py`` is its counterpart."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import closing
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
from .connections import Connections
from .parallel import call_in_thread

T = TypeVar("T")


class Pool:
    """The connections of a client, for all threads.

    Connections belong to a process. After a fork the child gets a new pool; the old one is kept, so that its sockets,
    which the parent process uses, are not closed, and a lock that another thread held is not waited for.
    """

    def __init__(self, http_client: httpx.Client | None = None, store: LocalStore | None = None) -> None:
        self.store = store
        self._socket = ""
        self._given = http_client
        self._client = http_client
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._abandoned: list[httpx.Client | Connections] = []
        self._connections: Connections | None = None
        self._needs_httpx = http_client is not None

    @property
    def client(self) -> httpx.Client:
        """The HTTP client of this process."""
        if self._given is not None:
            return self._given
        self._leave_parent()
        with self._lock:
            if self._client is None:
                self._client = httpx.Client(
                    timeout=None, follow_redirects=False, limits=LIMITS, transport=self._transport()
                )
            return self._client

    def connections(self, url: str) -> Connections | None:
        """Returns the connections of this process for small calls to a server; nothing if ``httpx`` sends them."""
        if self._needs_httpx:
            return None
        self._leave_parent()
        with self._lock:
            if self._connections is None:
                if not self._socket and not Connections.can_reach(url):
                    self._needs_httpx = True
                    return None
                self._connections = Connections(url, self._socket)
            return self._connections

    def _leave_parent(self) -> None:
        if self._pid == os.getpid():
            return
        # Only the forking thread lives in the child, so nothing else runs here yet.
        self._abandoned.extend(one for one in (self._client, self._connections) if one is not None)
        self._client, self._connections, self._lock, self._pid = None, None, threading.Lock(), os.getpid()

    def _transport(self) -> httpx.HTTPTransport | None:
        return httpx.HTTPTransport(uds=self._socket, limits=LIMITS) if self._socket else None

    def prepare(self, *, restart: bool = False) -> None:
        """Starts the process of the local store if it does not run."""
        if self.store is None or self._given is not None:
            return
        socket = call_in_thread(self.store.socket, restart=restart)
        if socket != self._socket:
            self.close()
            self._socket = socket

    def close(self) -> None:
        """Closes the connections."""
        client, connections = self._client, self._connections
        self._client, self._connections = None, None
        if self._given is not None or self._pid != os.getpid():
            return
        for one in (client, connections):
            if one is not None:
                one.close()


def sleep(seconds: float) -> None:
    """Waits."""
    time.sleep(seconds)


class Transport:
    """Sends calls, and sends them again where that is safe."""

    def __init__(self, options: Options, pool: Pool) -> None:
        self.options = options
        self.pool = pool

    def _prepare(self, failure: AmalgamError | None) -> None:
        self.pool.prepare(restart=isinstance(failure, ConnectError))

    def send(self, call: Call[T]) -> T:
        """Sends a call, and returns its result."""
        start = _position(call.content)
        failure: AmalgamError | None = None
        attempt = 0
        while True:
            self._prepare(failure)
            try:
                return call.read(self._answer(call, _content(call.content, start)))
            except httpx.HTTPError as error:
                failure = transport_error(error, call, self.options)
                failure.__cause__ = error
            except AmalgamError as error:
                failure = error
            delay = retry_delay(failure, call, attempt, self.options)
            if delay is None or (start is None and not _is_whole(call.content)):
                raise failure
            attempt += 1
            sleep(delay)

    def _answer(self, call: Call[Any], content: bytes | Iterator[bytes] | None) -> Answer:
        url, headers = call.url(self.options), call.all_headers(self.options)
        connections = self.pool.connections(self.options.url)
        if connections is not None and (content is None or isinstance(content, bytes)):
            return Answer(*connections.request(call.verb, url, content, headers, call.seconds(self.options)))
        response = self.pool.client.request(
            call.verb, url, content=content, headers=headers, timeout=call.seconds(self.options)
        )
        return Answer(response.status_code, response.headers, response.content)

    def messages(self, call: Call[Any]) -> Generator[Any, None, None]:
        """Yields the messages of a stream of JSON lines. It is begun again only before its first message."""
        with closing(self.lines(call)) as lines:
            for line in lines:
                if line:
                    yield message_of_line(line)

    def events(self, call: Call[Any]) -> Generator[Event | None, None, None]:
        """Yields the server-sent events of a stream, and ``None`` for each line that completes none.

        The server sends a comment every 15 seconds, so that an idle stream does not reach the timeout.
        """
        parser = EventParser()
        with closing(self.lines(call)) as lines:
            for line in lines:
                event = parser.feed(line)
                if event is not None and event.event == "error":
                    value = json.loads(event.data)
                    # A command has events of this name, too.
                    if "error" in value:
                        raise error_from_body(value, status=200)
                yield event

    def lines(self, call: Call[Any]) -> Generator[bytes, None, None]:
        """Yields the lines of a stream."""
        splitter = LineSplitter()
        with closing(self.pieces(call)) as pieces:
            for data in pieces:
                yield from splitter.feed(data)
        yield from splitter.end()

    def pieces(self, call: Call[Any]) -> Generator[bytes, None, None]:
        """Yields the bytes of a body as they arrive."""
        attempt = 0
        failure: AmalgamError | None = None
        while True:
            self._prepare(failure)
            has_begun = False
            try:
                with self.pool.client.stream(
                    call.verb,
                    call.url(self.options),
                    content=_content(call.content, None),
                    headers=call.all_headers(self.options),
                    timeout=call.seconds(self.options),
                ) as response:
                    if response.status_code in call.accepted:
                        return
                    if response.status_code > 299:
                        raise error_of(Answer(response.status_code, response.headers, response.read()))
                    for data in response.iter_bytes():
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
            sleep(delay)


def _is_whole(content: Content | None) -> bool:
    return content is None or isinstance(content, (bytes, bytearray, memoryview))


def _position(content: Content | None) -> int | None:
    """Where a file object stands; nothing if it cannot be read twice."""
    if content is None or isinstance(content, (bytes, bytearray, memoryview)) or not content.seekable():
        return None
    return content.tell()


def _content(content: Content | None, start: int | None) -> bytes | Iterator[bytes] | None:
    if content is None:
        return None
    if isinstance(content, (bytes, bytearray, memoryview)):
        whole = memoryview(content).cast("B")
        if len(whole) <= CONTENT_PIECE_BYTES:
            return bytes(whole)

        # The HTTP client copies what is left of a body after each write to the socket.
        def slices() -> Iterator[bytes]:
            for offset in range(0, len(whole), CONTENT_PIECE_BYTES):
                yield bytes(whole[offset : offset + CONTENT_PIECE_BYTES])

        return slices()
    if start is not None:
        content.seek(start)

    def pieces() -> Iterator[bytes]:
        while data := content.read(CONTENT_PIECE_BYTES):
            yield data

    return pieces()
