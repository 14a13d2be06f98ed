"""Failures of the network and of the server: which calls are sent again, and the errors that callers see."""

from __future__ import annotations

import os
import pickle
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone

import httpx
import pytest

from amalgam import Amalgam, Workspace, edits, errors
from amalgam._call import EventParser, LineSplitter, message_of_line
from amalgam._sync import events as sync_events
from amalgam._sync.connections import Connections
from amalgam.models import Operation

from .conftest import Relay, Server

ERROR_BODY = b'{"error":{"code":9004,"name":"UNAVAILABLE","message":"stopping","details":{"reason":"BUSY"}}}'
UNAVAILABLE = b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%b" % (
    len(ERROR_BODY),
    ERROR_BODY,
)


class Proxy:
    """Passes requests on to a server, one for each connection, and fails some of them on command."""

    def __init__(self, address: str) -> None:
        host, port = address.split(":")
        self.target = (host, int(port))
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self.faults: list[str] = []
        """What happens to the next requests: `drop-answer`, `drop-request`, `unavailable`."""
        self.requests = 0
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def serve(self) -> None:
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            with near:
                self.answer(near)

    def answer(self, near: socket.socket) -> None:
        data = near.recv(1 << 20)
        if not data:
            return
        while b"\r\n\r\n" not in data:
            data += near.recv(1 << 20)
        head, _, body = data.partition(b"\r\n\r\n")
        length = next(
            (int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), 0
        )
        while len(body) < length:
            body += near.recv(1 << 20)
        self.requests += 1
        fault = self.faults.pop(0) if self.faults else ""
        if fault == "drop-request":
            return
        if fault == "unavailable":
            near.sendall(UNAVAILABLE)
            return
        lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"connection:")]
        with socket.create_connection(self.target) as far:
            far.sendall(b"\r\n".join([*lines, b"connection: close"]) + b"\r\n\r\n" + body)
            answer = b""
            while piece := far.recv(1 << 20):
                answer += piece
        if fault != "drop-answer":
            near.sendall(answer)


@contextmanager
def proxied(server: Server) -> Iterator[tuple[Proxy, Amalgam]]:
    proxy = Proxy(server.address)
    try:
        with Amalgam(proxy.url, api_key=server.key, retry_delay=0.01) as client:
            yield proxy, client
    finally:
        proxy.listener.close()


@pytest.mark.parametrize("fault", ["drop-answer", "drop-request", "unavailable"])
def test_a_commit_is_done_once_although_its_answer_is_lost(server: Server, name: str, fault: str) -> None:
    with proxied(server) as (proxy, client):
        ws = client.workspaces.create(name)
        proxy.faults = [fault, fault]
        done = ws.commit_edits([edits.write("a", "1")], message="once")
        assert done.changed
        assert [snapshot.id for snapshot in ws.log()] == [done.id]


def test_reads_and_whole_files_are_sent_again(server: Server, name: str) -> None:
    with proxied(server) as (proxy, client):
        ws = client.workspaces.create(name)
        proxy.faults = ["drop-answer", "unavailable"]
        ws.files.write("a", "1")
        proxy.faults = ["drop-answer"] * 3
        assert ws.files.read("a") == b"1"
        proxy.faults = ["drop-answer"]
        assert [match.path for match in ws.files.grep("1")] == ["a"]


def test_a_change_of_files_whose_answer_is_lost_is_sent_again_and_made_once(server: Server, name: str) -> None:
    with proxied(server) as (proxy, client):
        ws = client.workspaces.create(name)
        ws.files.write("a", "1")
        for call in (
            lambda: ws.files.edit("a", "1", "11"),
            lambda: ws.files.write("b", "1", if_absent=True),
            lambda: ws.files.apply([edits.write("c", "1")]),
            lambda: ws.files.rename("c", "d"),
            lambda: ws.files.remove("d"),
            lambda: ws.state.set("key", 1, if_absent=True),
            lambda: ws.state.delete("key"),
        ):
            before = proxy.requests
            proxy.faults = ["drop-answer"]
            call()
            assert proxy.requests == before + 2
        assert (ws.files.read("a"), ws.files.read("b"), ws.files.exists("d")) == (b"11", b"1", False)


def test_an_unsafe_call_is_reported_and_not_sent_again(server: Server) -> None:
    with proxied(server) as (proxy, client):
        before = proxy.requests
        proxy.faults = ["drop-answer"]
        with pytest.raises(errors.ConnectError) as caught:
            client.keys.create("unsafe", scopes=["read"])
        assert caught.value.retryable
        assert isinstance(caught.value, ConnectionError)
        assert proxy.requests == before + 1
        assert [key.agent for key in client.keys.list()].count("unsafe") == 1


def test_retries_end_after_the_given_number(server: Server) -> None:
    with proxied(server) as (proxy, client):
        proxy.faults = ["unavailable"] * 9
        with pytest.raises(errors.UnavailableError) as caught:
            list(client.with_options(retries=2).workspaces.list())
        assert (proxy.requests, caught.value.code, caught.value.status) == (3, 9004, 503)


def test_a_subscription_goes_on_after_a_lost_connection(server: Server, name: str) -> None:
    with (
        Relay(server.address) as relay,
        server.client() as direct,
        Amalgam(relay.url, api_key=server.key, retry_delay=0.01) as client,
    ):
        subscription = client.events.subscribe()
        operations = iter(subscription)
        # The server also records what other tests left behind.
        own = (one for one in operations if any(name in change.reference for change in one.changes))
        ws = direct.workspaces.create(name)
        assert next(own).action == "create"
        relay.cut()
        ws.commit_edits([edits.write("a", "1")])
        ws.commit_edits([edits.write("a", "2")])
        found = [next(own), next(own)]
        assert [operation.sequence for operation in found] == sorted({operation.sequence for operation in found})
        heads = [change.after for operation in found for change in operation.changes]
        assert heads == [snapshot.id for snapshot in ws.log()][::-1]
        operations.close()


def test_a_subscription_outlives_thousands_of_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    delays: list[float] = []
    monkeypatch.setattr(sync_events, "sleep", delays.append)
    with Amalgam("http://127.0.0.1:1", retry_delay=0.5) as client:
        subscription = client.events.subscribe(after=7)
        subscription._has_connected = True

        def connected() -> Iterator[Operation]:
            if len(delays) < 2000:
                raise errors.ConnectError("the server is away")
            yield Operation.from_json({"sequence": 8})

        monkeypatch.setattr(subscription, "_connected", connected)
        operations = iter(subscription)
        assert next(operations).sequence == 8
        operations.close()
    assert (delays[:3], delays[-1]) == ([0.5, 1.0, 2.0], 30.0)


def test_a_list_of_sandboxes_is_whole_although_the_loop_deletes_them() -> None:
    ids = [f"sbx-{number}" for number in range(250)]
    left = [*ids]

    def answer(request: httpx.Request) -> httpx.Response:
        if request.method == "DELETE":
            left.remove(request.url.path.rpartition("/")[2])
            return httpx.Response(200, json={})
        page, limit = int(request.url.params["page"]), int(request.url.params["limit"])
        items = [{"id": one} for one in left[(page - 1) * limit : page * limit]]
        return httpx.Response(200, json={"items": items})

    with (
        httpx.Client(transport=httpx.MockTransport(answer)) as http_client,
        Amalgam("http://127.0.0.1:1", http_client=http_client) as client,
    ):
        seen = []
        for sandbox in client.sandboxes.list():
            seen.append(sandbox.id)
            sandbox.delete()
    assert (seen, left) == (ids, [])


def test_a_client_works_after_the_server_was_restarted(own_server: Server) -> None:
    with own_server.client(retries=8) as client:
        ws = client.workspaces.create("w")
        ws.files.write("a", "1")
        own_server.stop()
        with pytest.raises(errors.ConnectError) as caught:
            client.with_options(retries=0).workspaces.get("w")
        assert "AMALGAM_URL" in caught.value.suggestion
        timer = threading.Timer(0.2, own_server.start)
        timer.start()
        assert ws.files.read("a") == b"1"
        timer.join()
        assert ws.commit("after").changed


def test_no_answer_is_a_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with Amalgam(url, timeout=0.1, retries=0) as client, pytest.raises(TimeoutError) as caught:
            client.workspaces.get("w")
    assert isinstance(caught.value, errors.RequestTimeoutError)


def test_an_idle_stream_of_events_outlives_the_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as quiet:

        def answer() -> None:
            near, _ = quiet.accept()
            with near:
                near.recv(65536)
                near.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n")
                for _ in range(6):
                    near.sendall(b": keep-alive\n\n")
                    threading.Event().wait(0.1)
                near.sendall(b'data: {"changes":[{"path":"late","kind":"CHANGE_KIND_ADDED"}]}\n\n')

        thread = threading.Thread(target=answer)
        thread.start()
        with Amalgam(f"http://127.0.0.1:{quiet.getsockname()[1]}", timeout=0.3, retries=0) as client:
            changes = next(client.workspaces._named("w").files.watch())
        assert [change.path for change in changes] == ["late"]
        thread.join()


def test_an_expired_key_a_large_request_and_the_rate_limit_are_refused(own_server: Server) -> None:
    with own_server.client() as client:
        ws = client.workspaces.create("w")
        with pytest.raises(errors.TooLargeError) as large:
            ws.files.apply([edits.write("a", "x" * (17 << 20))])
        assert large.value.status == 413
        with pytest.raises(errors.InvalidArgumentError):
            client.keys.create("past", scopes=["read"], expires=datetime(2020, 1, 1, tzinfo=timezone.utc))
        expired = client.keys.create("old", scopes=["read"], expires=datetime.now(timezone.utc) + timedelta(seconds=1))
        time.sleep(1.1)
    with own_server.client(api_key=expired.text) as late, pytest.raises(errors.KeyExpiredError):
        late.workspaces.get("w")
    own_server.stop()
    own_server.start("--rate", "5")

    def call_often(client: Amalgam) -> None:
        for _ in range(50):
            client.workspaces.get("w")

    with own_server.client(retries=0) as hasty:
        with pytest.raises(errors.RateLimitedError) as limited:
            call_often(hasty)
        assert limited.value.retryable
        assert (limited.value.retry_after or 0) > 0


def test_a_server_that_is_not_amalgam_is_reported() -> None:
    page = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\nconnection: close\r\n\r\n<hi>"
    with socket.create_server(("127.0.0.1", 0)) as other:

        def answer() -> None:
            near, _ = other.accept()
            with near:
                near.recv(65536)
                near.sendall(page)

        thread = threading.Thread(target=answer)
        thread.start()
        with Amalgam(f"http://127.0.0.1:{other.getsockname()[1]}") as client, pytest.raises(errors.ProtocolError):
            client.workspaces.get("w")
        thread.join()


def test_one_client_serves_many_threads(client: Amalgam, ws: Workspace) -> None:
    def work(number: int) -> bytes:
        ws.files.write(f"f{number}", str(number))
        return ws.files.read(f"f{number}")

    with ThreadPoolExecutor(16) as executor:
        assert list(executor.map(work, range(64))) == [str(number).encode() for number in range(64)]


def test_parent_and_child_use_connections_of_their_own_after_a_fork(client: Amalgam, ws: Workspace) -> None:
    ws.files.write("a", "1")
    child = os.fork()
    if child == 0:
        try:
            for number in range(20):
                ws.files.write(f"child{number}", "1")
            os._exit(0 if client._transport.pool._abandoned else 3)
        except BaseException:
            os._exit(2)
    for number in range(20):
        ws.files.write(f"parent{number}", "1")
    assert os.waitpid(child, 0)[1] == 0
    assert len(list(ws.files.list())) == 41


def test_errors_carry_what_a_program_needs(server: Server, client: Amalgam) -> None:
    with pytest.raises(errors.NotFoundError) as caught:
        client.workspaces.get("nothing-like-this")
    error = caught.value
    assert (error.code, error.name, error.reason, error.status) == (3000, "NOT_FOUND", "NOT_FOUND", 404)
    assert error.request_id.startswith("req-")
    assert not error.retryable
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), copy.code, copy.details, str(copy)) == (type(error), 3000, error.details, str(error))
    with server.client(api_key="am_wrong") as stranger, pytest.raises(errors.AuthenticationError) as refused:
        stranger.workspaces.get("w")
    assert isinstance(refused.value, PermissionError)
    assert "AMALGAM_API_KEY" in refused.value.suggestion


def test_every_error_name_has_a_class_and_every_class_one_root() -> None:
    for name, kind in {**errors.BY_NAME, **errors.BY_REASON}.items():
        body = {"error": {"code": 1, "name": name, "message": "m", "details": {}, "requestId": "r"}}
        assert isinstance(errors.error_from_body(body, status=400), errors.AmalgamError)
        assert issubclass(kind, errors.AmalgamError)
    assert isinstance(errors.error_from_body(None, status=502), ConnectionError)
    assert isinstance(errors.error_from_body({}, status=500), errors.InternalError)


def test_options_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMALGAM_URL", "http://example.test:1/api/v1/")
    monkeypatch.setenv("AMALGAM_API_KEY", "am_key")
    monkeypatch.setenv("AMALGAM_PROJECT", "p")
    options = Amalgam().options
    assert (options.url, options.api_key, options.project) == ("http://example.test:1", "am_key", "p")
    assert (options.timeout, options.retries, options.retry_delay, options.retry_backoff) == (30.0, 3, 1.0, 2.0)
    assert "am_key" not in repr(options) + repr(Amalgam())
    assert Amalgam("https://other.test", project="q").options.project == "q"
    with pytest.raises(ValueError):
        Amalgam("example.test")


def test_lines_and_events_survive_any_split() -> None:
    stream = 'id: 1\ndata: {"a":"\u2028"}\n\n: keep-alive\n\ndata: x\ndata: y\n\n'.encode()
    for size in (1, 2, 7, 1000):
        splitter, parser = LineSplitter(), EventParser()
        lines = [line for at in range(0, len(stream), size) for line in splitter.feed(stream[at : at + size])]
        found = [event for line in lines if (event := parser.feed(line))]
        assert [(event.id, event.data) for event in found] == [("1", '{"a":"\u2028"}'), ("", "x\ny")]
        assert list(splitter.end()) == []
    with pytest.raises(errors.NotFoundError):
        message_of_line(b'{"error":{"code":3000,"name":"NOT_FOUND","message":"gone"}}')
    with pytest.raises(errors.ProtocolError):
        message_of_line(b"<html>")


def one_answer(listener: socket.socket, answer: bytes) -> None:
    """Accepts a connection, sends an answer as soon as a request begins, and closes the connection."""
    near, _ = listener.accept()
    with near:
        near.recv(1 << 16)
        near.sendall(answer)


def test_an_idle_connection_that_the_server_closed_is_replaced() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        connections = Connections(url)
        for number in range(3):
            answer = b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n%d" % number
            thread = threading.Thread(target=one_answer, args=(listener, answer))
            thread.start()
            # The call is not safe to repeat: it fails if the closed connection is used.
            found = connections.request("POST", f"{url}/x?a=b", b"body", {}, 20.0)
            thread.join()
            assert (found[0], found[2]) == (200, b"%d" % number)
        connections.close()


def test_a_refusal_before_the_body_was_read_is_the_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        connections = Connections(url)
        answer = b"HTTP/1.1 413 Content Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"

        def refuse() -> None:
            near, _ = listener.accept()
            near.recv(1)
            near.sendall(answer)
            near.shutdown(socket.SHUT_WR)
            while near.recv(1 << 20):
                pass
            near.close()

        thread = threading.Thread(target=refuse)
        thread.start()
        assert connections.request("PUT", f"{url}/x", bytes(1 << 22), {}, 20.0)[0] == 413
        thread.join()
        connections.close()


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (b"", httpx.RemoteProtocolError),
        (b"nonsense\r\n\r\n", httpx.RemoteProtocolError),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf", httpx.RemoteProtocolError),
    ],
)
def test_half_an_answer_is_an_error(answer: bytes, expected: type[Exception]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread = threading.Thread(target=one_answer, args=(listener, answer))
        thread.start()
        with pytest.raises(expected):
            Connections(url).request("GET", f"{url}/x", None, {}, 20.0)
        thread.join()


def test_only_plain_addresses_without_a_proxy_are_called_directly(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    assert Connections.can_reach("http://127.0.0.1:8080")
    assert not Connections.can_reach("https://example.invalid")
    assert not Connections.can_reach("http://user:password@127.0.0.1")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    assert not Connections.can_reach("http://example.invalid")
    monkeypatch.setenv("no_proxy", "example.invalid")
    assert Connections.can_reach("http://example.invalid")
