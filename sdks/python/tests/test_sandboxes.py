"""Sandboxes of a real server: commands, terminals, forks and errors, through both clients."""

from __future__ import annotations

import asyncio
import os
import threading
import uuid
from collections.abc import Iterator

import httpx
import pytest

from amalgam import Amalgam, AsyncAmalgam, Sandbox, Workspace, errors

from .conftest import Relay, Server


@pytest.fixture(scope="module")
def runner(server: Server) -> Iterator[Amalgam]:
    """A client whose key may run commands; the tests are skipped where the machine cannot isolate processes."""
    with server.client() as admin:
        key = admin.keys.create("runner", scopes=["write", "run", "merge"])
    with server.client(api_key=key.text) as client:
        try:
            client.sandboxes.create().delete()
        except errors.NotIsolatedError as error:
            pytest.skip(error.message)
        yield client


@pytest.fixture(scope="module")
def sandbox(runner: Amalgam) -> Iterator[Sandbox]:
    """A sandbox that the tests of this module share."""
    with runner.sandboxes.create(name="shared", envs={"COLOUR": "blue"}) as sandbox:
        yield sandbox


@pytest.fixture(scope="module")
def noisy(runner: Amalgam) -> Iterator[Sandbox]:
    """A sandbox whose ``tail`` writes to its standard error, and that has the file ``/tmp/plain``."""
    with runner.sandboxes.create(envs={"PATH": "/workspace/bin:/usr/local/bin:/usr/bin:/bin"}) as sandbox:
        sandbox.files.write("bin/tail", '#!/bin/sh\necho noise >&2\nexec /usr/bin/tail "$@"\n', mode=0o755)
        assert sandbox.commands.run("printf contents > /tmp/plain; tail -c 1 /tmp/plain").stderr == "noise\n"
        yield sandbox


def test_a_command_returns_its_output_and_its_exit_code(sandbox: Sandbox) -> None:
    done = sandbox.commands.run("echo $COLOUR $SIZE; pwd; echo wrong >&2; cat; exit 3", envs={"SIZE": "4"}, stdin="in")
    assert (done.stdout, done.stderr, done.exit_code) == ("blue 4\n/workspace\nin", "wrong\n", 3)
    assert not done.truncated
    assert sandbox.commands.run("pwd", cwd="/tmp").stdout == "/tmp\n"
    assert sandbox.commands.run("yes | head -c 5000", max_output_bytes=100).truncated


def test_files_are_shared_with_the_commands(sandbox: Sandbox) -> None:
    sandbox.files.write("shared.txt", "from the client\n")
    assert sandbox.commands.run("cat shared.txt; echo reply > reply.txt").stdout == "from the client\n"
    assert sandbox.files.read_text("reply.txt") == "reply\n"


def test_output_is_streamed_by_callbacks_and_by_events(sandbox: Sandbox) -> None:
    heard: list[str] = []
    done = sandbox.commands.run("echo one; echo two >&2", on_stdout=heard.append, on_stderr=heard.append)
    assert (sorted(heard), done.stdout, done.stderr, done.exit_code) == (["one\n", "two\n"], "one\n", "two\n", 0)
    events = list(sandbox.commands.stream("printf 'a\\303'; sleep 0.1; printf '\\244\\377'; exit 4"))
    assert (events[0].type, events[-1].type, events[-1].exit_code) == ("started", "exit", 4)
    assert b"".join(event.output for event in events) == b"a\xc3\xa4\xff"
    assert "".join(event.data for event in events) == "aä\ufffd"
    again = sandbox.commands.get(events[0].command_id)
    assert b"".join(event.output for event in again.events(offset=1)) == b"\xc3\xa4\xff"
    assert again.wait().exit_code == 4


def test_output_is_complete_although_the_connection_is_lost(runner: Amalgam, sandbox: Sandbox) -> None:
    address = runner.options.url.removeprefix("http://")
    with Relay(address) as relay, Amalgam(relay.url, api_key=runner.options.api_key, retry_delay=0.01) as client:
        distant = client.sandboxes.get(sandbox.id)
        text = ""
        script = "for i in 1 2 3; do echo $i; until test -e go$i; do sleep 0.01; done; done"
        for event in distant.commands.stream(script, timeout=60):
            text += event.data
            if event.type == "stdout":
                # The command waits for the file, so that the next line comes after the cut.
                relay.cut()
                sandbox.files.write(f"go{event.data.strip()}", "on\n")
        assert text == "1\n2\n3\n"
        terminal = distant.pty.create(shell="/bin/sh")
        output = terminal.output()
        seen = next(output)
        relay.cut()
        terminal.write("echo $((6 * 7)); exit 3\n")
        seen += b"".join(output)
        assert seen.count(b"42") == 1
        assert terminal.exit_code == 3


def test_a_command_that_cannot_be_started_is_reported(sandbox: Sandbox) -> None:
    with pytest.raises(errors.CommandFailedError):
        sandbox.commands.run("true", cwd="/no/such/directory")
    with pytest.raises(errors.CommandFailedError):
        sandbox.commands.run("true", cwd="/no/such/directory", on_stdout=print)


def test_a_started_command_reads_input_and_is_killed(sandbox: Sandbox) -> None:
    command = sandbox.commands.start("cat; echo end", stdin_open=True)
    command.write("one ")
    command.write(b"two\n", end=True)
    assert command.wait().stdout == "one two\nend\n"
    asleep = sandbox.commands.start("sleep 900")
    assert [info.command for info in sandbox.commands.list() if info.running] == ["sleep 900"]
    asleep.kill()
    assert asleep.wait().exit_code == 128 + 15
    ended = {info.id: info.exit_code for info in sandbox.commands.list()}
    assert ended[asleep.id] == 128 + 15
    with pytest.raises(errors.CommandNotFoundError):
        sandbox.commands.kill("cmd-none")


def test_a_timeout_kills_the_command_and_is_reported(sandbox: Sandbox) -> None:
    with pytest.raises(errors.ProcessTimeoutError) as late:
        sandbox.commands.run("sleep 900", timeout=0.2)
    assert isinstance(late.value, TimeoutError)
    assert late.value.details["killed"] == "true"
    with pytest.raises(errors.ProcessTimeoutError) as streamed:
        sandbox.commands.run("sleep 900", timeout=0.2, on_stdout=print)
    assert streamed.value.details["commandId"]
    assert not [info for info in sandbox.commands.list() if info.running]


def test_a_terminal_takes_input_and_a_size(sandbox: Sandbox) -> None:
    terminal = sandbox.pty.create(shell="/bin/sh", cols=80, rows=24)
    terminal.resize(100, 40)
    terminal.write("stty size; exit 5\n")
    assert b"40 100" in b"".join(terminal)
    assert terminal.exit_code == 5
    asleep = [sandbox.pty.create(shell="/bin/sh") for _ in range(5)]
    with pytest.raises(errors.PTYLimitExceededError):
        sandbox.pty.create()
    for one in asleep:
        one.kill()
    with pytest.raises(errors.PTYNotFoundError):
        sandbox.pty.kill("pty-none")


def test_a_sandbox_of_a_workspace_leaves_it_in_place(runner: Amalgam) -> None:
    ws = runner.workspaces.create(f"sandboxed-{uuid.uuid4().hex[:8]}")
    ws.files.write("a.txt", "one\n")
    ws.commit("first")
    with ws.sandbox(timeout=600) as sandbox:
        assert sandbox.workspace == ws.name
        assert sandbox.commands.run("cat a.txt; echo two > a.txt").stdout == "one\n"
    with pytest.raises(errors.SandboxNotFoundError):
        runner.sandboxes.get(sandbox.id)
    assert ws.files.read_text("a.txt") == "two\n"
    assert ws.status().changes == ()
    assert [change.path for change in ws.diff()] == ["a.txt"]
    with runner.sandboxes.create(base=ws, read_only=True) as other:
        assert other.workspace != ws.name
        assert other.commands.run("cat a.txt; echo x > a.txt").exit_code != 0


def test_a_running_sandbox_forks_and_copies_are_deleted_together(runner: Amalgam) -> None:
    with runner.sandboxes.create(name="origin") as origin:
        origin.commands.run("echo kept > note")
        copies = origin.fork(count=2, name="copy")
        assert [copy.commands.run("cat note; echo changed > note").stdout for copy in copies] == ["kept\n"] * 2
        assert origin.files.read_text("note") == "kept\n"
        listed = {one.id for one in runner.sandboxes.list(state="running", name_prefix="copy")}
        assert listed == {copy.id for copy in copies}
        deleted = runner.sandboxes.batch_delete([*(copy.id for copy in copies), "sbx-none"])
        assert set(deleted.succeeded) == listed
        assert "sbx-none" in deleted.failed
        assert "running" in origin.logs().text
        before = origin.info.expires_at
        after = origin.extend(600).expires_at
        assert before is not None
        assert after is not None
        assert after > before
        assert origin.stats().processes >= 0
        assert origin.refresh().state == "running"


def test_a_workspace_of_a_deleted_sandbox_can_be_kept(runner: Amalgam) -> None:
    with runner.sandboxes.create(keep_workspace=True) as sandbox:
        sandbox.commands.run("echo kept > note")
    ws = runner.workspaces.get(sandbox.workspace)
    assert ws.files.read_text("note") == "kept\n"
    assert ws.status().changes == ()


def test_refusals_have_classes_of_their_own(runner: Amalgam, client: Amalgam, server: Server) -> None:
    assert "host" in [template.name for template in runner.templates.list()]
    with pytest.raises(errors.TemplateNotFoundError):
        runner.sandboxes.create("no-such-template")
    with runner.sandboxes.create(disk="1g", memory="256m", best_effort=True) as sandbox:
        enforced_by = {limit.limit: limit.enforced_by for limit in sandbox.info.limits}
    assert enforced_by["disk"] == "quota"
    if enforced_by["memory"] == "none":  # No cgroup is delegated on this machine.
        with pytest.raises(errors.LimitNotEnforcedError):
            runner.sandboxes.create(memory="256m")
    key = client.keys.create("reader", scopes=["read"])
    with server.client(api_key=key.text) as reader, pytest.raises(errors.ForbiddenError):
        reader.sandboxes.create()


def test_many_sandboxes_are_refused(runner: Amalgam) -> None:
    made: list[Sandbox] = []
    try:
        with pytest.raises(errors.SandboxLimitExceededError):
            made.extend(runner.sandboxes.create() for _ in range(20))
    finally:
        runner.sandboxes.batch_delete([one.id for one in made])


def test_a_restart_of_the_server_ends_sandboxes_and_keeps_their_work(runner: Amalgam, own_server: Server) -> None:
    with own_server.client() as client:
        sandbox = client.sandboxes.create()
        sandbox.commands.run("echo kept > note")
        own_server.stop()
        own_server.start()
        with pytest.raises(errors.SandboxNotReadyError) as caught:
            sandbox.commands.run("true")
        assert "refresh" in caught.value.suggestion
        assert sandbox.refresh().state in ("stopped", "error")
        assert sandbox.info.reason
        assert sandbox.files.read_text("note") == "kept\n"


def test_a_machine_without_bubblewrap_starts_no_sandbox(
    program: str, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(program, tmp_path_factory.mktemp("b") / "data")
    monkeypatch.setenv("PATH", "/nowhere")
    server.start()
    try:
        with server.client() as client, pytest.raises(errors.NotIsolatedError):
            client.sandboxes.create()
    finally:
        server.stop()


def test_threads_share_a_sandbox(sandbox: Sandbox) -> None:
    found: list[str] = []
    threads = [
        threading.Thread(target=lambda n=n: found.append(sandbox.commands.run(f"echo {n}").stdout)) for n in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [f"{n}\n" for n in range(4)]


def test_everything_works_with_asyncio(runner: Amalgam) -> None:
    async def main() -> None:
        async with AsyncAmalgam(runner.options.url, api_key=runner.options.api_key) as client:
            async with await client.sandboxes.create() as sandbox:
                done = await asyncio.gather(*(sandbox.commands.run(f"echo {n}") for n in range(3)))
                assert [one.stdout for one in done] == ["0\n", "1\n", "2\n"]
                events = [event async for event in sandbox.commands.stream("echo streamed")]
                assert "".join(event.data for event in events) == "streamed\n"
                command = await sandbox.commands.start("cat", stdin_open=True)
                await command.write("x", end=True)
                assert (await command.wait()).stdout == "x"
                terminal = await sandbox.pty.create(shell="/bin/sh")
                await terminal.write("exit 7\n")
                async for _ in terminal:
                    pass
                assert terminal.exit_code == 7
            with pytest.raises(errors.SandboxNotFoundError):
                await client.sandboxes.get(sandbox.id)

    asyncio.run(main())


def test_a_command_runs_on_a_fork_and_its_changes_are_merged(runner: Amalgam, name: str) -> None:
    ws = runner.workspaces.create(name)
    ws.files.write("a.txt", "one\n")
    ws.commit("first")
    stages: list[str] = []
    heard: list[str] = []
    done = runner.sandboxes.run_on_fork(
        ws,
        "cat; cat a.txt; echo wrong >&2; echo $WHO >> a.txt",
        stdin="in\n",
        envs={"WHO": "me"},
        on_stage=stages.append,
        on_stdout=heard.append,
    )
    assert (done.exit_code, done.stdout, done.stderr) == (0, "in\none\n", "wrong\n")
    assert "".join(heard) == done.stdout
    assert stages == ["update", "fork", "sandbox", "run", "end", "detect", "merge"]
    assert (done.merged, done.kept, [change.path for change in done.changes]) == (True, False, ["a.txt"])
    assert ws.files.read_text("a.txt") == "one\nme\n"
    failed = runner.sandboxes.run_on_fork(name, "echo no > a.txt; exit 4", keep=True)
    assert (failed.exit_code, failed.merged, failed.kept, failed.merge) == (4, False, True, None)
    assert runner.workspaces.get(failed.workspace).files.read_text("a.txt") == "no\n"
    late = runner.sandboxes.run_on_fork(name, "sleep 900", timeout=0.2)
    assert late.timed_out
    assert not late.merged
    with pytest.raises(errors.NotFoundError):
        runner.sandboxes.run_on_fork("nothing-" + name, "true")


def test_a_file_that_deepagents_downloads_has_no_standard_error_in_it(noisy: Sandbox) -> None:
    pytest.importorskip("deepagents")
    from amalgam.integrations.deepagents import AmalgamSandboxBackend

    (found,) = AmalgamSandboxBackend(noisy).download_files(["/tmp/plain"])
    assert (found.content, found.error) == (b"contents", None)


def test_deepagents_moves_files_that_are_longer_than_a_standard_input(sandbox: Sandbox) -> None:
    pytest.importorskip("deepagents")
    from amalgam.integrations.deepagents import AmalgamSandboxBackend, _code

    backend = AmalgamSandboxBackend(sandbox)
    files = [("/workspace/z", b"\0" * (3 << 20)), ("/tmp/z", os.urandom(5 << 20)), ("/tmp/empty", b"")]
    assert [(one.path, one.error) for one in backend.upload_files(files)] == [(path, None) for path, _ in files]
    found = backend.download_files([path for path, _ in files])
    assert [(one.path, one.content) for one in found] == files
    assert _code(errors.TooLargeError("the body is too large")) == "the body is too large"
    assert _code(errors.InvalidArgumentError("a path")) == "invalid_path"


def test_a_file_that_inspect_reads_has_no_standard_error_in_it(runner: Amalgam, noisy: Sandbox) -> None:
    pytest.importorskip("inspect_ai")
    from amalgam.integrations.inspect_ai import AmalgamSandboxEnvironment

    async def read() -> bytes:
        async with AsyncAmalgam(runner.options.url, api_key=runner.options.api_key) as client:
            environment = AmalgamSandboxEnvironment(await client.sandboxes.get(noisy.id))
            return await environment.read_file("/tmp/plain", text=False)

    assert asyncio.run(read()) == b"contents"


SERVE = "python3 -um http.server 8123 --bind 127.0.0.1 >/tmp/log 2>&1 & until grep -q Serv /tmp/log; do sleep 0.1; done"
"""Starts a web server for the files of the workspace."""


def test_a_port_is_reached_by_its_url_without_a_key(sandbox: Sandbox) -> None:
    sandbox.files.write("page.txt", "hello from inside\n")
    assert sandbox.commands.run(SERVE).exit_code == 0
    opened = sandbox.open_port(8123, timeout=60)
    assert opened.expires_at is not None
    assert opened.url.endswith(f"{opened.host}/")
    assert httpx.get(f"{opened.url}page.txt").text == "hello from inside\n"
    assert httpx.get(f"http://{sandbox.get_host(8123)}/page.txt").text == "hello from inside\n"
    closed = httpx.get(f"http://{sandbox.get_host(8124)}/")
    assert (closed.status_code, closed.json()["error"]["name"]) == (502, "PORT_UNREACHABLE")
    with pytest.raises(errors.InvalidArgumentError):
        sandbox.open_port(70_000)


def test_the_asynchronous_client_reaches_a_port_too(server: Server, sandbox: Sandbox) -> None:
    async def reach() -> int:
        async with AsyncAmalgam(server.url, api_key=server.key) as client:
            same = await client.sandboxes.get(sandbox.id)
            async with httpx.AsyncClient() as plain:
                return (await plain.get(f"http://{await same.get_host(8125)}/")).status_code

    assert asyncio.run(reach()) == 502


def test_attempts_run_in_sandboxes_and_the_best_one_is_kept(runner: Amalgam) -> None:
    ws = runner.workspaces.create(f"explored-{uuid.uuid4().hex[:8]}")
    ws.files.write("start", "5")
    ws.commit("start")

    def run(fork: Workspace, sandbox: Sandbox) -> int:
        number = int(fork.name.rsplit("-", 1)[1])
        done = sandbox.commands.run(f"echo $(($(cat start) * {number})) | tee result; id -u; exit {number % 2}")
        assert done.stdout == f"{5 * number}\n1000\n"
        return done.exit_code

    def score(fork: Workspace, code: int) -> float:
        return float(fork.files.read_text("result")) - 100 * code

    best = ws.explore(count=3, run=run, score=score, parallel=2, sandbox={"image": "host", "name": "explored"})
    assert (best.result, best.score, len(best.others)) == (0, 10.0, 2)
    assert best.snapshot is not None
    assert best.workspace.files.read_text("result") == "10\n"
    assert not [one for one in runner.sandboxes.list() if one.info.name == "explored"]
