"""The local store without a server: its process is started on demand, and directories become workspaces."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from amalgam import Amalgam, AsyncAmalgam, errors
from amalgam._push import push_directory

from .conftest import Server


class Store:
    """A store of one test, with the command beside the SDK."""

    def __init__(self, program: str, directory: Path) -> None:
        self.program = program
        self.directory = directory / "store"

    def command(self, *words: str, cwd: Path | None = None) -> str:
        line = [self.program, "--store", str(self.directory), *words]
        return subprocess.run(line, check=True, capture_output=True, text=True, cwd=cwd).stdout

    def process(self) -> int:
        """Returns the id of the background process."""
        for found in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                words = found.read_bytes().split(b"\0")
                if b"serve" in words and os.fsencode(self.directory) in words:
                    return int(found.parent.name)
        raise AssertionError("the process does not run")

    def client(self) -> Amalgam:
        return Amalgam(store=str(self.directory), retry_delay=0.05)


@pytest.fixture
def store(program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    runtime = tmp_path / "run"
    runtime.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    monkeypatch.setenv("AMALGAM_BIN", program)
    monkeypatch.setenv("AMALGAM_AUTHOR", "ann")
    monkeypatch.delenv("AMALGAM_URL", raising=False)
    store = Store(program, tmp_path)
    yield store
    store.command("stop", "--force")


def test_a_new_store_is_made_and_its_process_started(store: Store) -> None:
    with store.client() as client:
        ws = client.workspaces.create("first")
        ws.files.write("a.txt", "1\n")
        ws.commit("by the SDK")
        assert [snapshot.author for snapshot in ws.log()] == ["ann"]
    assert "by the SDK" in store.command("log", "first@")
    assert store.command("cat", "first@:a.txt") == "1\n"


def test_an_author_with_other_characters_has_dashes_for_them(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMALGAM_AUTHOR", "Jörg 李🙂")
    with store.client() as client:
        ws = client.workspaces.create("w")
        ws.files.write("a", "1")
        ws.commit("by the SDK")
        assert b"".join(ws.files.stream("a")) == b"1"
        assert [snapshot.author for snapshot in ws.log()] == ["J-rg---"]


# httpcore leaves a Unix socket open that it could not connect.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_client_goes_on_after_the_process_ended(store: Store) -> None:
    with store.client() as client:
        ws = client.workspaces.create("w")
        ws.files.write("a", "1")
        ws.commit("before")
        store.command("stop")
        assert ws.files.read("a") == b"1"
        # Killed, it leaves its sockets behind.
        os.kill(store.process(), signal.SIGKILL)
        assert ws.files.read("a") == b"1"
        ws.files.write("b", "2")
        assert ws.commit("after").changed


def test_a_forked_child_does_not_wait_for_a_lock_of_its_parent(store: Store) -> None:
    with store.client() as client:
        ws = client.workspaces.create("w")
        ws.files.write("a", "1")
        local = client._transport.pool.store
        assert local is not None
        # As a thread of the parent does that calls at the moment of the fork.
        with local._lock:
            child = os.fork()
            if child == 0:
                try:
                    signal.alarm(5)
                    os._exit(0 if ws.files.read("a") == b"1" else 3)
                except BaseException:
                    os._exit(2)
        assert os.waitpid(child, 0)[1] == 0
        assert ws.files.read("a") == b"1"


def test_the_environment_names_the_store_and_asyncio_works(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMALGAM_STORE", str(store.directory))

    async def run() -> list[str]:
        async with AsyncAmalgam() as client:
            ws = await client.workspaces.create("a")
            await ws.files.write("x", "1")
            return [file.path async for file in ws.files.list()]

    assert asyncio.run(run()) == ["x"]
    with Amalgam() as client:
        assert client.workspaces.get("a").files.read("x") == b"1"
    with pytest.raises(errors.InvalidArgumentError):
        Amalgam("http://127.0.0.1:1", store=str(store.directory))


def test_without_the_program_the_error_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMALGAM_BIN", str(tmp_path / "none"))
    with Amalgam(store=str(tmp_path / "store"), retries=0) as client, pytest.raises(errors.ConnectError):
        client.workspaces.get("w")
    monkeypatch.delenv("AMALGAM_BIN")
    monkeypatch.setenv("PATH", str(tmp_path))
    with Amalgam(store=str(tmp_path / "store"), retries=0) as client:
        with pytest.raises(errors.ConnectError) as caught:
            client.workspaces.get("w")
        assert "AMALGAM_BIN" in caught.value.suggestion


def test_a_wheel_can_carry_the_program(program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("hatchling")
    small = tmp_path / "amalgam"
    # The real program is large; this one is as good for a wheel.
    small.write_text(f'#!/bin/sh\nexec "{program}" "$@"\n')
    small.chmod(0o755)
    (tmp_path / "amalgam-agent").write_bytes(small.read_bytes())
    (tmp_path / "amalgam-agent").chmod(0o755)
    monkeypatch.setenv("AMALGAM_WHEEL_PROGRAM", str(small))
    package = Path(__file__).resolve().parent.parent
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(package)]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    assert "-py3-none-manylinux_" in wheel.name
    place = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True)
    install = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(place / "bin" / "python"),
        "install",
        "--no-deps",
        str(wheel),
    ]
    subprocess.run(install, check=True, capture_output=True)
    told = subprocess.run([place / "bin" / "amalgam", "--version"], check=True, capture_output=True, text=True).stdout
    assert told.startswith("amalgam ")
    assert os.access(place / "bin" / "amalgam-agent", os.X_OK)
    ask = "import amalgam._local as local; print(local.find_program())"
    environment = {
        "PATH": "/nowhere",
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if "site-packages" in path),
    }
    found = subprocess.run(
        [place / "bin" / "python", "-c", ask], check=True, capture_output=True, text=True, env=environment
    )
    assert found.stdout.strip() == str(place / "bin" / "amalgam")


def make_source(directory: Path) -> Path:
    source = directory / "source"
    (source / "src" / "empty").mkdir(parents=True)
    (source / "src" / "run.sh").write_text("echo hi\n")
    (source / "src" / "run.sh").chmod(0o755)
    (source / "big.bin").write_bytes(os.urandom(5 << 20))
    (source / "link").symlink_to("src/run.sh")
    (source / ".env").write_text("TOKEN=1\n")
    (source / "notes.txt").write_text("-----BEGIN OPENSSH PRIVATE KEY-----\n")
    return source


def test_a_directory_becomes_a_workspace(store: Store, tmp_path: Path) -> None:
    source = make_source(tmp_path)
    with store.client() as client:
        ws = client.workspaces.create("from-directory", source=source, exclude=["*.txt"])
        paths = [(file.path, file.kind) for file in ws.files.list(recursive=True)]
        assert paths == [
            (".env", "file"),
            ("big.bin", "file"),
            ("link", "symlink"),
            ("src", "directory"),
            ("src/empty", "directory"),
            ("src/run.sh", "file"),
        ]
        assert ws.files.read("big.bin") == (source / "big.bin").read_bytes()
        assert ws.files.stat("src/run.sh").mode == 0o755
        assert not ws.status()
        (source / "later").write_text("1")
        assert not ws.files.exists("later")
        with pytest.raises(errors.InvalidArgumentError):
            client.workspaces.create("none", source=tmp_path / "missing")
        with pytest.raises(errors.NotFoundError):
            client.workspaces.get("none")


def test_secrets_are_not_sent_to_a_server_unasked(server: Server, name: str, tmp_path: Path) -> None:
    source = make_source(tmp_path)
    with server.client() as client:
        with pytest.raises(errors.SecretsFoundError) as caught:
            client.workspaces.create(name, source=source)
        assert caught.value.details["paths"] == [".env", "notes.txt"]
        with pytest.raises(errors.NotFoundError):
            client.workspaces.get(name)
        ws = client.workspaces.create(name, source=source, allow_secrets=True)
        assert ws.files.exists(".env")


def test_a_server_gets_only_what_it_lacks_of_a_directory(server: Server, name: str, tmp_path: Path) -> None:
    source = make_source(tmp_path)
    (source / "src" / "deep").mkdir()
    os.link(source / "src" / "run.sh", source / "src" / "deep" / "twin")
    with server.client() as client:
        exclude = [".env", "*.txt"]
        ws = client.workspaces.create(name, source=source, exclude=exclude, agent="ann")
        assert ws.info.agent == "ann"
        assert ws.files.read("big.bin") == (source / "big.bin").read_bytes()
        assert (ws.files.stat("src/run.sh").mode, ws.files.stat("src/run.sh").links) == (0o755, 2)
        assert not ws.files.exists(".env")
        assert not [found.name for found in client.workspaces.list("upload-")]
        (source / "src" / "run.sh").write_text("changed\n")
        again = push_directory(str(source), exclude, client.options, allow_secrets=False)
        assert again is not None
        assert again.sent_bytes < 10_000
        client.workspaces.delete(again.workspace)
        other = client.workspaces.create(f"{name}-2", source=source, exclude=exclude)
        assert other.files.read_text("src/run.sh") == "changed\n"
        # The program finds secrets in places where the client does not look.
        (source / "data").write_bytes(b"x" * (300 << 10) + b"\n-----BEGIN RSA PRIVATE KEY-----\nabc\n")
        with pytest.raises(errors.SecretsFoundError) as caught:
            client.workspaces.create(f"{name}-3", source=source, exclude=exclude)
        assert caught.value.details["paths"] == ["data"]
        with pytest.raises(errors.NotFoundError):
            client.workspaces.get(f"{name}-3")


def test_all_files_are_sent_where_the_program_is_missing(
    server: Server, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = make_source(tmp_path)
    monkeypatch.setenv("AMALGAM_BIN", str(tmp_path / "missing"))
    with server.client() as client:
        ws = client.workspaces.create(name, source=source, exclude=[".env", "*.txt"])
        assert ws.files.read("big.bin") == (source / "big.bin").read_bytes()
        assert [snapshot.message for snapshot in ws.log()] == [f"files of {source}"]


def test_a_sandbox_of_the_local_store_runs_commands(store: Store) -> None:
    with store.client() as client:
        try:
            sandbox = client.sandboxes.create()
        except errors.NotIsolatedError as error:
            pytest.skip(str(error))
        with sandbox:
            assert sandbox.commands.run("echo from the sandbox").stdout == "from the sandbox\n"


def test_a_workspace_is_mounted_for_a_block(store: Store, server: Server, name: str, tmp_path: Path) -> None:
    with server.client() as remote:
        ws = remote.workspaces.create(name)
        with pytest.raises(errors.NotPossibleError, match="export nfs"), ws.mount(tmp_path / "m"):
            pass
    if not os.access("/dev/fuse", os.W_OK):
        pytest.skip("/dev/fuse cannot be opened")
    with store.client() as client:
        ws = client.workspaces.create("mounted")
        ws.files.write("a", "1")
        with ws.mount(tmp_path / "m") as path:
            assert (path / "a").read_text() == "1"
            (path / "b").write_text("2")
        assert not (tmp_path / "m" / "a").exists()
        assert ws.files.read("b") == b"2"
