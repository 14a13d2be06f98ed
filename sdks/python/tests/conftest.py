"""Starts a real server in a temporary directory; the tests are skipped if there is no program to start."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from amalgam import Amalgam, Workspace

REPOSITORY = Path(__file__).resolve().parents[3]


def find_program() -> str:
    given = os.environ.get("AMALGAM_BIN")
    if given:
        if not os.access(given, os.X_OK):
            pytest.fail(f"AMALGAM_BIN is {given}, which is no program")
        return given
    target = Path(os.environ.get("CARGO_TARGET_DIR", REPOSITORY / "target"))
    built = target / "debug" / "amalgam"
    if os.access(built, os.X_OK):
        return str(built)
    found = shutil.which("amalgam")
    if found is None:
        pytest.skip("no `amalgam` program: build it with `cargo build -p amalgam-cli`, or set AMALGAM_BIN")
    return found


class Server:
    """A server that can be stopped and started again with the same data and address."""

    def __init__(self, program: str, data: Path) -> None:
        self.program = program
        self.data = data
        self.reader = threading.Thread()
        self.process: subprocess.Popen[str] | None = None
        self.address = "127.0.0.1:0"
        command = [program, "key", "create", "tester", "--scope", "admin", "--data", str(data)]
        self.key = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
        self.url = ""

    def start(self, *arguments: str) -> None:
        command = [self.program, "serve", "--data", str(self.data), "--listen", self.address, *arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        lines = []
        for line in self.process.stderr:
            lines.append(line)
            found = re.search(r"listening on (http://(\S+))", line)
            if found:
                self.url, self.address = found.groups()
                # A full pipe would stop the server.
                self.reader = threading.Thread(target=self.process.stderr.read, daemon=True)
                self.reader.start()
                return
        pytest.fail(f"the server did not start: {''.join(lines)}")

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait(timeout=60)
            self.reader.join()
            assert self.process.stderr is not None
            self.process.stderr.close()
            self.process = None

    def client(self, **options: object) -> Amalgam:
        given = {"api_key": self.key, "retry_delay": 0.05, **options}
        return Amalgam(self.url, **given)  # type: ignore[arg-type]


class Relay:
    """Passes the bytes of connections on to a server, and cuts all of them on command."""

    def __init__(self, address: str) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        host, port = address.split(":")
        self._target = (host, int(port))
        self._connections: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def __enter__(self) -> Relay:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join()

    def cut(self) -> None:
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _serve(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            self._threads.append(threading.Thread(target=self._connect, args=(near,)))
            self._threads[-1].start()

    def _connect(self, near: socket.socket) -> None:
        with near, socket.create_connection(self._target) as far:
            self._connections.append(near)
            back = threading.Thread(target=self._pass, args=(far, near))
            back.start()
            self._pass(near, far)
            back.join()

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
            target.shutdown(socket.SHUT_RDWR)


@pytest.fixture(autouse=True, scope="session")
def upload_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keeps the stores of uploads out of the user's cache."""
    os.environ["AMALGAM_UPLOAD_CACHE"] = str(tmp_path_factory.mktemp("uploads"))


@pytest.fixture(scope="session")
def program() -> str:
    return find_program()


@pytest.fixture(scope="session")
def server(program: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(program, tmp_path_factory.mktemp("server") / "data")
    server.start()
    yield server
    server.stop()


@pytest.fixture
def own_server(program: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of one test, which may stop it. Its path is short, because the sockets of sandboxes are below it."""
    server = Server(program, tmp_path_factory.mktemp("own") / "data")
    server.start()
    yield server
    server.stop()


@pytest.fixture
def client(server: Server) -> Iterator[Amalgam]:
    with server.client() as client:
        yield client


@pytest.fixture
def name() -> str:
    return f"test-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def ws(client: Amalgam, name: str) -> Workspace:
    return client.workspaces.create(name)
