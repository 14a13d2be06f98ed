"""HTTP/1.1 connections for calls with a whole body and a whole answer. Written by hand; the async client has none.

``httpx`` takes several times the processor time of ``http.client`` for a small call, which is most of the time that a
call to a server on the same machine takes. It still sends streams, and all calls over TLS or through a proxy.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException, HTTPResponse
from typing import NoReturn
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import httpx

IDLE_MAX = 32


class UnixConnection(HTTPConnection):
    """A connection to a Unix socket."""

    def __init__(self, path: str, host: str, timeout: float) -> None:
        super().__init__(host, timeout=timeout)
        self._path = path

    def connect(self) -> None:
        """Connects to the socket."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self.sock.settimeout(self.timeout)
            self.sock.connect(self._path)
        except BaseException:
            self.close()
            raise


class Connections:
    """Connections to one server, for all threads of a process. Idle ones are kept and used again."""

    def __init__(self, url: str, unix_socket: str = "") -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port
        self._socket = unix_socket
        self._idle: list[HTTPConnection] = []
        self._is_closed = False
        self._lock = threading.Lock()

    @staticmethod
    def can_reach(url: str) -> bool:
        """Returns whether a server is called without TLS, without a proxy and without a password in its URL."""
        parts = urlsplit(url)
        if parts.scheme != "http" or "@" in parts.netloc:
            return False
        proxies = getproxies()
        return not ("http" in proxies or "all" in proxies) or bool(proxy_bypass(parts.hostname or ""))

    def request(
        self, verb: str, url: str, content: bytes | None, headers: Mapping[str, str], seconds: float
    ) -> tuple[int, Mapping[str, str], bytes]:
        """Sends a request, and returns the status, the headers and the body of its answer.

        Raises:
            httpx.HTTPError: There was no whole answer.

        """
        parts = urlsplit(url)
        target = f"{parts.path}?{parts.query}" if parts.query else parts.path
        connection = self._connected(seconds)
        try:
            answer = _exchange(connection, verb, target, content, headers)
        except BaseException:
            connection.close()
            raise
        if connection.sock is not None:
            self._keep(connection)
        return answer

    def close(self) -> None:
        """Closes the connections: idle ones now, the others when their call has ended."""
        with self._lock:
            idle, self._idle, self._is_closed = self._idle, [], True
        for connection in idle:
            connection.close()

    def _connected(self, seconds: float) -> HTTPConnection:
        while (connection := self._idle_one()) is not None:
            if _is_usable(connection):
                connection.timeout = seconds
                connection.sock.settimeout(seconds)
                return connection
            connection.close()
        if self._socket:
            connection = UnixConnection(self._socket, self._host, seconds)
        else:
            connection = HTTPConnection(self._host, self._port, timeout=seconds)
        try:
            connection.connect()
        except TimeoutError as error:
            raise httpx.ConnectTimeout(str(error)) from error
        except OSError as error:
            raise httpx.ConnectError(str(error)) from error
        return connection

    def _idle_one(self) -> HTTPConnection | None:
        with self._lock:
            return self._idle.pop() if self._idle else None

    def _keep(self, connection: HTTPConnection) -> None:
        with self._lock:
            if not self._is_closed and len(self._idle) < IDLE_MAX:
                self._idle.append(connection)
                return
        connection.close()


def _is_usable(connection: HTTPConnection) -> bool:
    """Returns whether the server keeps an idle connection open: it sends nothing until it is asked."""
    try:
        connection.sock.setblocking(False)
        connection.sock.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _exchange(
    connection: HTTPConnection, verb: str, target: str, content: bytes | None, headers: Mapping[str, str]
) -> tuple[int, Mapping[str, str], bytes]:
    unsent: OSError | None = None
    try:
        connection.request(verb, target, content, headers)
    except TimeoutError as error:
        raise httpx.WriteTimeout(str(error)) from error
    except OSError as error:
        # A server that refuses a request may answer before it has read the body.
        unsent = error
    response: HTTPResponse | None = None
    try:
        response = connection.getresponse()
        return response.status, response.headers, response.read()  # type: ignore[return-value]
    except (OSError, HTTPException) as error:
        _raise_unread(error, unsent)
    finally:
        if response is not None:
            response.close()


def _raise_unread(error: OSError | HTTPException, unsent: OSError | None) -> NoReturn:
    if unsent is not None:
        raise httpx.WriteError(str(unsent)) from unsent
    if isinstance(error, TimeoutError):
        raise httpx.ReadTimeout(str(error)) from error
    if isinstance(error, HTTPException):
        raise httpx.RemoteProtocolError(str(error) or type(error).__name__) from error
    raise httpx.ReadError(str(error)) from error
