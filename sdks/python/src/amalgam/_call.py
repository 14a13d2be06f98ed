"""Calls of the REST API as values: how a request is built, its answer read, and its failure judged. Does no I/O.

The transports (``_async/transport.py`` and ``_sync/transport.py``) send them.
"""

from __future__ import annotations

import json
import os
import random
import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import IO, Any, Generic, Protocol, TypeVar
from urllib.parse import urlencode

import httpx

from ._local import URL as LOCAL_URL
from ._local import user_name
from ._version import __version__
from .errors import (
    AmalgamError,
    ConnectError,
    InvalidArgumentError,
    ProtocolError,
    RateLimitedError,
    RequestTimeoutError,
    UnavailableError,
    error_from_body,
)
from .models import Snapshot

T = TypeVar("T")
Content = bytes | bytearray | memoryview | IO[bytes]
ROOT = "/api/v1"
RETRY_STATUSES = frozenset({429, 502, 503, 504})
RETRY_DELAY_SECONDS_MAX = 60.0
BACKOFF_EXPONENT_MAX = 30
"""Delays have a limit anyway; after some thousand failures the power would be too large for a float."""
CONTENT_PIECE_BYTES = 1 << 20
LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=32)
"""A stream holds its connection for as long as it is read, so that other calls must not wait for a free one."""


@dataclass(frozen=True, slots=True)
class Options:
    """How a client calls its server."""

    url: str
    api_key: str = field(repr=False, default="")
    project: str = ""
    timeout: float = 30.0
    retries: int = 3
    retry_delay: float = 1.0
    retry_backoff: float = 2.0
    actor: str = ""
    """The author of what the caller does in the local store."""

    def changed(self, changes: Mapping[str, Any]) -> Options:
        """Returns these options with some replaced; ``None`` keeps a value."""
        return replace(self, **{name: value for name, value in changes.items() if value is not None})

    def headers(self) -> dict[str, str]:
        """Returns the headers of every request."""
        headers = {"user-agent": f"amalgam-sdk-python/{__version__}", "accept": "application/json"}
        if self.api_key:
            headers["authorization"] = f"Bearer {self.api_key}"
        if self.project:
            headers["amalgam-project"] = self.project
        if self.actor:
            # A header has plain characters only; the command writes the same name.
            headers["amalgam-actor"] = re.sub("[^!-~]", "-", self.actor)
        return headers


def options_of(
    url: str | None,
    api_key: str | None,
    project: str | None,
    timeout: float,
    retries: int,
    retry_delay: float,
    retry_backoff: float,
) -> Options:
    """Returns the options of a client; the environment has those that were not given. No URL is the local store."""
    url = url or os.environ.get("AMALGAM_URL") or LOCAL_URL
    if not url.startswith(("http://", "https://")):
        raise InvalidArgumentError(f"url {url!r}: it begins with http:// or https://")
    return Options(
        url=url.rstrip("/").removesuffix(ROOT),
        api_key=api_key if api_key is not None else os.environ.get("AMALGAM_API_KEY", ""),
        project=project if project is not None else os.environ.get("AMALGAM_PROJECT", ""),
        timeout=timeout,
        retries=retries,
        retry_delay=retry_delay,
        retry_backoff=retry_backoff,
        actor=user_name() if url == LOCAL_URL else "",
    )


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer with its whole body."""

    status: int
    headers: Mapping[str, str]
    content: bytes

    def json(self) -> Any:
        """Returns the body's JSON."""
        try:
            return json.loads(self.content)
        except ValueError as error:
            message = f"the answer with status {self.status} is not JSON"
            raise ProtocolError(message, status=self.status) from error


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One request, and how its answer is read."""

    verb: str
    path: str
    """Below the root of the API, encoded."""
    parse: Callable[[Answer], T]
    query: Sequence[tuple[str, str]] = ()
    content: Content | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    is_safe: bool = False
    """Whether the request may be sent again although the first one may have been done."""
    accepted: frozenset[int] = frozenset()
    """Statuses above 299 that ``parse`` reads."""
    timeout: float | None = None
    """Seconds to wait for the answer, if it may take longer than answers usually do."""

    def seconds(self, options: Options) -> float:
        """Returns the seconds to wait for a connection, and for each piece of the answer."""
        return max(options.timeout, self.timeout or 0.0)

    def url(self, options: Options) -> str:
        """Returns the whole URL."""
        query = f"?{urlencode(self.query)}" if self.query else ""
        return f"{options.url}{ROOT}{self.path}{query}"

    def all_headers(self, options: Options) -> dict[str, str]:
        """Returns the headers of the request."""
        return {**options.headers(), **self.headers}

    def read(self, answer: Answer) -> T:
        """Returns the result.

        Raises:
            AmalgamError: The server refused the call.

        """
        if answer.status > 299 and answer.status not in self.accepted:
            raise error_of(answer)
        try:
            return self.parse(answer)
        except (KeyError, TypeError, AttributeError) as error:
            message = f"{self.verb} {self.path}: the answer has an unexpected form: {error!r}"
            raise ProtocolError(message, status=answer.status) from error


def error_of(answer: Answer) -> AmalgamError:
    """Returns the error of an answer with an error status."""
    try:
        body = json.loads(answer.content)
    except ValueError:
        body = None
    retry_after = answer.headers.get("retry-after", "")
    return error_from_body(
        body,
        status=answer.status,
        request_id=answer.headers.get("x-request-id", ""),
        retry_after=float(retry_after) if retry_after.isdecimal() else None,
    )


def transport_error(error: httpx.HTTPError, call: Call[Any], options: Options) -> AmalgamError:
    """Returns the error of a request that got no whole answer."""
    place = f"{call.verb} {options.url}{ROOT}{call.path}"
    found: AmalgamError
    if isinstance(error, httpx.TimeoutException):
        found = RequestTimeoutError(f"{place}: no answer within {call.seconds(options):g} s ({type(error).__name__})")
    elif isinstance(error, httpx.TransportError):
        found = ConnectError(f"{place}: {error or type(error).__name__}")
    else:
        found = ProtocolError(f"{place}: {error}")
    unsent = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
    found.details["sent"] = not isinstance(error, unsent)
    return found


def retry_delay(error: AmalgamError, call: Call[Any], attempt: int, options: Options) -> float | None:
    """Returns the seconds before a failed call is sent again; nothing if it must not be.

    A request that was never sent, or that the rate limit refused, may always be sent again. Any other one only if the
    call is safe.
    """
    if attempt >= options.retries:
        return None
    if isinstance(error, (ConnectError, RequestTimeoutError)):
        is_permitted = call.is_safe or error.details.get("sent") is False
    elif isinstance(error, RateLimitedError):
        is_permitted = True
    else:
        is_permitted = call.is_safe and (isinstance(error, UnavailableError) or error.status in RETRY_STATUSES)
    if not is_permitted:
        return None
    delay = options.retry_delay * options.retry_backoff ** min(attempt, BACKOFF_EXPONENT_MAX)
    # Clients that failed together must not come back together.
    delay *= 1 + random.random() / 4
    return min(max(delay, error.retry_after or 0.0), RETRY_DELAY_SECONDS_MAX)


def new_request_id() -> str:
    """Returns an id for a request, so that a retry is recognised."""
    return uuid.uuid4().hex


def json_call(
    verb: str,
    path: str,
    parse: Callable[[Any], T],
    *,
    query: Mapping[str, Any] | None = None,
    body: Mapping[str, Any] | None = None,
    is_safe: bool | None = None,
    idempotency_key: str | None = None,
    has_request_id: bool = False,
    timeout: float | None = None,
) -> Call[T]:
    """Returns a call with JSON in both directions.

    Args:
        verb: The HTTP verb.
        path: The path below the root of the API.
        parse: Reads the JSON of the answer.
        query: Fields for the query; ``None``, ``False`` and empty ones are left out.
        body: Fields for the body; ``None`` and ``False`` are left out.
        is_safe: Whether a retry is safe; unset, it is for ``GET`` and for calls with a request id.
        idempotency_key: The caller's own request id.
        has_request_id: Whether the call has a request id. It gets a new one unless the caller gave one.
        timeout: Seconds to wait for the answer, if they are more than the client's timeout.

    """
    headers = {}
    if has_request_id:
        headers["idempotency-key"] = idempotency_key or new_request_id()
    content = None
    if body is not None:
        content = _json_content(body)
        headers["content-type"] = "application/json"
    return Call(
        verb=verb,
        path=path,
        parse=lambda answer: parse(answer.json()),
        query=query_pairs(query or {}),
        content=content,
        headers=headers,
        is_safe=is_safe if is_safe is not None else verb == "GET" or has_request_id,
        timeout=timeout,
    )


def _json_content(body: Mapping[str, Any]) -> bytes:
    return json.dumps(
        {name: value for name, value in body.items() if value is not None and value is not False}
    ).encode()


def event_call(
    path: str,
    query: Mapping[str, Any],
    last_event_id: str = "",
    *,
    verb: str = "GET",
    body: Mapping[str, Any] | None = None,
) -> Call[None]:
    """Returns a call whose answer is a stream of server-sent events."""
    headers = {"accept": "text/event-stream"}
    if last_event_id:
        headers["last-event-id"] = last_event_id
    content = None
    if body is not None:
        content = _json_content(body)
        headers["content-type"] = "application/json"
    return Call(verb, path, nothing, query=query_pairs(query), headers=headers, content=content)


def query_pairs(query: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns the pairs of a query. A sequence becomes several pairs of one name."""
    pairs: list[tuple[str, str]] = []
    for name, value in query.items():
        if value is None or value is False or value == "":
            continue
        for one in value if isinstance(value, (list, tuple)) else (value,):
            pairs.append((name, "true" if one is True else str(one)))
    return pairs


def nothing(_: Any) -> None:
    """Reads an answer that says nothing."""


def field_of(name: str, parse: Callable[[Any], T]) -> Callable[[Any], T]:
    """Returns a reader of one field of an answer."""
    return lambda value: parse(value[name])


def list_of(name: str, parse: Callable[[Any], T]) -> Callable[[Any], list[T]]:
    """Returns a reader of a list in an answer."""
    return lambda value: [parse(one) for one in value.get(name, ())]


def page_of(name: str, parse: Callable[[Any], T]) -> Callable[[Any], tuple[list[T], str]]:
    """Returns a reader of one page of a list, and of the token of the next page."""
    return lambda value: (
        [parse(one) for one in value.get(name, ())],
        value.get("nextPageToken", ""),
    )


class LineSplitter:
    """Splits a stream of bytes into lines. Only LF ends a line: JSON may contain the other separators of Unicode."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Takes the next bytes, and yields the lines that are complete."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        yield from lines

    def end(self) -> Iterator[bytes]:
        """Yields the last line, if it has no end."""
        if self._rest:
            yield self._rest


def message_of_line(line: bytes) -> Any:
    """Returns the message of a line of a stream.

    Raises:
        AmalgamError: The line is the error with which the stream ended.

    """
    try:
        value = json.loads(line)
    except ValueError as error:
        raise ProtocolError("a line of the stream is not JSON") from error
    if isinstance(value, dict) and isinstance(value.get("error"), dict):
        raise error_from_body(value, status=200)
    return value


@dataclass(slots=True)
class Event:
    """A server-sent event."""

    data: str
    id: str = ""
    event: str = ""


class EventParser:
    """Reads server-sent events from lines."""

    def __init__(self) -> None:
        self._fields: dict[str, str] = {}

    def feed(self, line: bytes) -> Event | None:
        """Takes the next line, and returns the event that it completes."""
        text = line.decode("utf-8", "replace").rstrip("\r")
        if not text:
            fields, self._fields = self._fields, {}
            if "data" not in fields:
                return None
            return Event(fields["data"], fields.get("id", ""), fields.get("event", ""))
        name, _, value = text.partition(":")
        value = value.removeprefix(" ")
        if name == "data" and "data" in self._fields:
            value = f"{self._fields['data']}\n{value}"
        if name:
            self._fields[name] = value
        return None


class Empty:
    """The tree without entries, as one side of a diff. Its only value is ``EMPTY``."""

    def __repr__(self) -> str:
        return "EMPTY"


EMPTY = Empty()
Revision = str | Snapshot
"""A snapshot: the value itself, its id or the beginning of it, a label, `@`, `main@`, `@~2`, `@{10 minutes ago}`."""


class Named(Protocol):
    """A workspace of either client, where only its name matters."""

    @property
    def name(self) -> str:
        """The name."""


def revision_text(revision: Revision | None) -> str:
    """Returns the text of a revision; empty for none."""
    if revision is None:
        return ""
    text = revision.id if isinstance(revision, Snapshot) else revision
    return text.removeprefix("snapshots/")


def side(name: str, revision: Revision | Empty) -> dict[str, Any]:
    """Returns the fields of one side of a diff."""
    if isinstance(revision, Empty):
        return {f"{name}.empty": True}
    return {f"{name}.revision": revision_text(revision)}


def expected_head_text(head: Revision | None) -> str | None:
    """Returns the field ``expected_head``; ``none`` stands for a workspace without a snapshot."""
    if head is None:
        return None
    text = revision_text(head)
    return f"snapshots/{text}" if text and text != "none" else "none"
