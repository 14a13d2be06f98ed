"""The unmodified `e2b` package of PyPI against an Amalgam server, with the synchronous client.

E2B_API_URL, E2B_SANDBOX_URL and E2B_API_KEY say where the server is. Every function is one test; names as arguments select some.
"""

import io
import json
import sys
import threading
import time
import traceback
import urllib.error
import urllib.request

from e2b import (
    AuthenticationException,
    CommandExitException,
    FileType,
    InvalidArgumentException,
    NotFoundException,
    PtySize,
    Sandbox,
    SandboxException,
    SandboxQuery,
    SandboxState,
    TimeoutException,
)
from e2b.sandbox.filesystem.watch_handle import FilesystemEventType


def fetched(url, data=None):
    """Sends a request without any key, as a browser does. Returns the status and the body."""
    request = urllib.request.Request(url, data=data, method="GET" if data is None else "POST")
    if data is not None:
        request.add_header("Content-Type", "application/octet-stream")
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def refused(kind, call, *words):
    """Calls something that must fail, and returns the error."""
    try:
        call()
    except kind as error:
        for word in words:
            assert word in str(error), (word, str(error))
        return error
    raise AssertionError(f"not refused: {words}")


def until(condition, seconds=15.0):
    """Waits until something holds, and returns it."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError("it did not come about in time")


def sandbox_is_created_found_listed_and_killed():
    sandbox = Sandbox.create(timeout=120, metadata={"user": "ann b", "odd%": "a&b=c"}, envs={"GREETING": "hi"})
    assert sandbox.is_running()
    info = sandbox.get_info()
    assert info.sandbox_id == sandbox.sandbox_id and info.template_id == "base"
    assert info.metadata == {"user": "ann b", "odd%": "a&b=c"}
    assert info.state == SandboxState.RUNNING
    assert 100 < (info.end_at - info.started_at).total_seconds() < 140
    assert info.cpu_count >= 1 and info.memory_mb > 0
    assert sandbox.commands.run("echo $GREETING").stdout == "hi\n"
    listed = Sandbox.list(query=SandboxQuery(metadata={"user": "ann b", "odd%": "a&b=c"})).next_items()
    assert [one.sandbox_id for one in listed] == [sandbox.sandbox_id]
    assert Sandbox.list(query=SandboxQuery(metadata={"user": "bob"})).next_items() == []
    metrics = until(lambda: sandbox.get_metrics())
    assert metrics[0].mem_total > 0
    assert sandbox.kill() is True
    assert sandbox.kill() is False
    assert sandbox.is_running() is False
    refused(SandboxException, sandbox.get_info, "not found")


def list_has_pages(a, b):
    paginator = Sandbox.list(limit=1, query=SandboxQuery(metadata={"test": "pages"}))
    seen = []
    while paginator.has_next:
        page = paginator.next_items()
        assert len(page) <= 1
        seen += [one.sandbox_id for one in page]
    assert sorted(seen) == sorted([a.sandbox_id, b.sandbox_id])


def lists_have_pages():
    with Sandbox.create(metadata={"test": "pages"}) as a, Sandbox.create(metadata={"test": "pages"}) as b:
        list_has_pages(a, b)


def commands_run(sandbox):
    result = sandbox.commands.run("echo out; echo err >&2", envs={"A": "b"})
    assert (result.stdout, result.stderr, result.exit_code) == ("out\n", "err\n", 0)
    assert sandbox.commands.run("echo $A-$HOME; pwd", envs={"A": "x y"}).stdout == "x y-/workspace\n/workspace\n"
    assert sandbox.commands.run("pwd", cwd="/tmp").stdout == "/tmp\n"
    error = refused(CommandExitException, lambda: sandbox.commands.run("echo no >&2; exit 3"))
    assert (error.exit_code, error.stderr) == (3, "no\n")
    refused(InvalidArgumentException, lambda: sandbox.commands.run("true", cwd="/nowhere"))
    refused(InvalidArgumentException, lambda: sandbox.commands.run("true", user="root"), "root")
    many = sandbox.commands.run("head -c 3000000 /dev/zero | tr '\\0' x").stdout
    assert len(many) == 3_000_000
    assert sandbox.commands.run("echo \"it's\"; printf '%s' 'a\\b $HOME'").stdout == "it's\na\\b $HOME"
    assert sandbox.commands.run("printf 'gr\\303\\274n'").stdout == "gr\u00fcn"


def output_is_streamed(sandbox):
    seen = []
    started = time.monotonic()
    sandbox.commands.run(
        "echo one; sleep 1; echo two >&2",
        on_stdout=lambda text: seen.append(("out", text, time.monotonic() - started)),
        on_stderr=lambda text: seen.append(("err", text, time.monotonic() - started)),
    )
    assert [(stream, text) for stream, text, _ in seen] == [("out", "one\n"), ("err", "two\n")]
    assert seen[0][2] < 0.9 <= seen[1][2], seen


def background_commands(sandbox):
    handle = sandbox.commands.run("echo begun; sleep 60", background=True)
    assert handle.pid > 1
    processes = {process.pid: process for process in sandbox.commands.list()}
    assert processes[handle.pid].cmd == "/bin/bash"
    assert processes[handle.pid].args[-1] == "echo begun; sleep 60"
    # The number is the one that the process has in the sandbox.
    assert sandbox.commands.run(f"test -d /proc/{handle.pid} && echo yes").stdout == "yes\n"
    assert handle.kill() is True
    error = refused(CommandExitException, handle.wait)
    assert error.exit_code != 0
    until(lambda: handle.pid not in [process.pid for process in sandbox.commands.list()])
    assert sandbox.commands.kill(handle.pid) is False
    assert sandbox.commands.kill(99_999) is False


def commands_are_connected_to_again(sandbox):
    handle = sandbox.commands.run("read line; echo got $line; sleep 0.2; echo last", background=True, stdin=True)
    handle.disconnect()
    again = sandbox.commands.connect(handle.pid)
    sandbox.commands.send_stdin(handle.pid, "words\n")
    result = again.wait()
    assert result.stdout == "got words\nlast\n", result
    # One that has ended still tells its end.
    assert sandbox.commands.connect(handle.pid).wait().exit_code == 0
    refused(NotFoundException, lambda: sandbox.commands.connect(99_999))


def standard_input(sandbox):
    handle = sandbox.commands.run("cat", background=True, stdin=True)
    sandbox.commands.send_stdin(handle.pid, "one ")
    sandbox.commands.send_stdin(handle.pid, b"two")
    big = "x" * 2_000_000
    sandbox.commands.send_stdin(handle.pid, big)
    sandbox.commands.close_stdin(handle.pid)
    assert handle.wait().stdout == "one two" + big
    handle = sandbox.commands.run("wc -c", background=True, stdin=True)
    sandbox.commands.stream_input(handle.pid, (b"y" * 1000 for _ in range(50)))
    sandbox.commands.close_stdin(handle.pid)
    assert handle.wait().stdout.strip() == "50000"
    # Without it a command reads nothing.
    assert sandbox.commands.run("cat; echo end").stdout == "end\n"


def time_outs_of_commands_kill(sandbox):
    refused(TimeoutException, lambda: sandbox.commands.run("sleep 59.5 & sleep 60", timeout=1))
    until(lambda: sandbox.commands.run("pgrep -f 'sleep 59[.]5' || echo none", timeout=10).stdout == "none\n")


def files_are_written_read_and_removed(sandbox):
    for path in ["a.txt", "dir/b.txt", "/tmp/c.txt", "/sandbox/d.txt", "/workspace/e.txt", "~/f.txt", "/tmp/sp ace/'q\".txt"]:
        written = sandbox.files.write(path, "text of " + path)
        assert written.path.startswith("/") and written.name == path.rsplit("/", 1)[-1]
        assert sandbox.files.read(path) == "text of " + path
        assert sandbox.files.exists(path)
    assert sandbox.files.get_info("a.txt").path == "/workspace/a.txt"
    assert sandbox.commands.run("cat dir/b.txt").stdout == "text of dir/b.txt"
    sandbox.files.write("a.txt", b"\x00\xff bytes")
    assert bytes(sandbox.files.read("a.txt", format="bytes")) == b"\x00\xff bytes"
    sandbox.files.write("empty", "")
    assert sandbox.files.read("empty") == ""
    many = sandbox.files.write_files([{"path": f"many/{i}", "data": str(i)} for i in range(5)])
    assert [one.path for one in many] == [f"/workspace/many/{i}" for i in range(5)]
    assert sandbox.files.read("many/3") == "3"
    sandbox.files.remove("many")
    assert not sandbox.files.exists("many/3")
    sandbox.files.remove("never/there")
    noted = sandbox.files.write("noted", "x", metadata={"Owner": "ann b"})
    assert noted.metadata == {"owner": "ann b"} == sandbox.files.get_info("noted").metadata
    refused(NotFoundException, lambda: sandbox.files.read("no/such"))
    refused(NotFoundException, lambda: sandbox.files.get_info("no/such"))
    refused(InvalidArgumentException, lambda: sandbox.files.read("dir"))
    refused(SandboxException, lambda: sandbox.files.write("/usr/x", "read-only"))
    refused(InvalidArgumentException, lambda: sandbox.files.write("/workspace/dir", "a directory"))


def large_files_are_streamed(sandbox):
    blob = bytes(range(256)) * (11 << 12)  # 11 MiB
    sandbox.files.write("/tmp/blob", io.BytesIO(blob))
    assert bytes(sandbox.files.read("/tmp/blob", format="bytes")) == blob
    assert b"".join(sandbox.files.read("/tmp/blob", format="stream")) == blob
    sandbox.files.write("blob.gz", blob, gzip=True)
    assert sandbox.commands.run("cmp blob.gz /tmp/blob && echo same").stdout == "same\n"
    sandbox.files.write("form", blob)
    assert sandbox.files.get_info("form").size == len(blob)
    sandbox.files.write("script", "#!/bin/sh\necho ran\n")
    sandbox.commands.run("chmod +x script")
    sandbox.files.write("script", "#!/bin/sh\necho ran again\n")
    assert sandbox.commands.run("./script").stdout == "ran again\n"


def signed_urls(sandbox):
    status, body = fetched(sandbox.upload_url("by url", use_signature_expiration=600), b"sent")
    assert status == 200, body
    assert sandbox.files.read("by url") == "sent"
    for url in [
        sandbox.download_url("by url"),
        sandbox.download_url("by url", use_signature_expiration=600),
        sandbox.download_url("by url", user="user", use_signature_expiration=600),
    ]:
        assert fetched(url) == (200, b"sent"), url
    good = sandbox.download_url("by url")
    for url, data in [
        (sandbox.download_url("by url", use_signature_expiration=-10), None),
        (good.replace("by%20url", "other"), None),
        (good + "&username=user", None),
        (good, b"changed"),
        (sandbox.upload_url("by url"), None),
        (good.replace("signature=v1_", "signature=v1_x"), None),
    ]:
        status, body = fetched(url, data)
        assert (status, json.loads(body)["code"]) == (401, 401), (url, status, body)
    assert sandbox.files.read("by url") == "sent"
    sandbox.files.remove("by url")


def directories(sandbox):
    assert sandbox.files.make_dir("tree/x/y") is True
    assert sandbox.files.make_dir("tree/x/y") is False
    sandbox.files.write("tree/file", "12345")
    sandbox.commands.run("ln -s file tree/link; ln -s nowhere tree/broken; chmod 640 tree/file")
    flat = {entry.name: entry for entry in sandbox.files.list("tree")}
    assert sorted(flat) == ["broken", "file", "link", "x"]
    assert flat["x"].type == FileType.DIR and flat["file"].type == FileType.FILE
    assert flat["file"].size == 5 and flat["file"].mode == 0o640 and flat["file"].permissions == "-rw-r-----"
    assert flat["link"].symlink_target == "/workspace/tree/file"
    assert flat["file"].path == "/workspace/tree/file" and flat["file"].owner
    assert abs(flat["file"].modified_time.timestamp() - time.time()) < 300
    deep = {entry.path for entry in sandbox.files.list("tree", depth=3)}
    assert "/workspace/tree/x/y" in deep
    refused(InvalidArgumentException, lambda: sandbox.files.list("tree/file"))
    refused(NotFoundException, lambda: sandbox.files.list("tree/none"))
    moved = sandbox.files.rename("tree/file", "new/place/file")
    assert moved.path == "/workspace/new/place/file"
    assert sandbox.files.read("new/place/file") == "12345"
    across = sandbox.files.rename("new", "/tmp/across")
    assert across.type == FileType.DIR and sandbox.files.read("/tmp/across/place/file") == "12345"
    refused(NotFoundException, lambda: sandbox.files.rename("none", "other"))


def directories_are_watched(sandbox):
    for root in ["watched", "/tmp/watched"]:
        sandbox.files.make_dir(root)
        watcher = sandbox.files.watch_dir(root, recursive=True, include_entry=True)
        sandbox.files.write(f"{root}/a", "1")
        sandbox.commands.run(f"mkdir {root}/sub && echo x > {root}/sub/b && mv {root}/sub/b {root}/sub/c && rm {root}/a")
        events = []

        def seen(kind, name):
            events.extend(watcher.get_new_events())
            return any(event.type == kind and event.name == name for event in events)

        for kind, name in [
            (FilesystemEventType.CREATE, "a"),
            (FilesystemEventType.WRITE, "a"),
            (FilesystemEventType.CREATE, "sub"),
            (FilesystemEventType.CREATE, "sub/c"),
            (FilesystemEventType.REMOVE, "a"),
        ]:
            until(lambda: seen(kind, name))
        with_entry = [event for event in events if event.name == "sub" and event.entry is not None]
        assert with_entry and with_entry[0].entry.type == FileType.DIR
        watcher.stop()
        refused(SandboxException, watcher.get_new_events)
    refused(NotFoundException, lambda: sandbox.files.watch_dir("nowhere"))


def terminals(sandbox):
    output = bytearray()
    terminal = sandbox.pty.create(PtySize(rows=24, cols=80), envs={"PS1": "$ "}, cwd="/tmp", timeout=60)
    reader = threading.Thread(target=lambda: terminal.wait(on_pty=output.extend), daemon=True)
    reader.start()
    sandbox.pty.send_stdin(terminal.pid, b"stty size; pwd; tty\n")
    until(lambda: b"24 80" in output and b"/tmp" in output and b"/dev/pts/" in output)
    sandbox.pty.resize(terminal.pid, PtySize(rows=40, cols=132))
    sandbox.pty.send_stdin(terminal.pid, b"stty size\n")
    until(lambda: b"40 132" in output)
    assert terminal.pid in [process.pid for process in sandbox.commands.list()]
    assert str(terminal.pid).encode() + b"\r\n" not in output, "the number of the process is no output"
    sandbox.pty.send_stdin(terminal.pid, b"exit\n")
    reader.join(10)
    assert not reader.is_alive()
    again = sandbox.pty.create(PtySize(rows=24, cols=80), timeout=60)
    assert sandbox.pty.kill(again.pid) is True
    until(lambda: again.pid not in [process.pid for process in sandbox.commands.list()])
    assert sandbox.pty.kill(again.pid) is False


def time_outs_end_sandboxes():
    sandbox = Sandbox.create(timeout=60)
    sandbox.set_timeout(2)
    until(lambda: not sandbox.is_running())
    refused(SandboxException, sandbox.get_info, "not found")
    refused(SandboxException, lambda: Sandbox.connect(sandbox.sandbox_id), "not found")
    kept = Sandbox.create(timeout=2, lifecycle={"on_timeout": "pause"})
    kept.files.write("kept", "by a pause")
    until(lambda: kept.get_info().state == SandboxState.PAUSED)
    again = kept.connect(timeout=60)
    assert again.files.read("kept") == "by a pause"
    assert again.kill()


def pause_and_connect():
    sandbox = Sandbox.create(timeout=60, metadata={"test": "pause"}, envs={"KEPT": "too"})
    sandbox.files.write("note", "before")
    refused(SandboxException, lambda: sandbox.pause(keep_memory=True), "memory")
    assert sandbox.is_running()
    assert sandbox.pause() is True
    assert sandbox.pause() is False
    assert sandbox.is_running() is False
    assert sandbox.get_info().state == SandboxState.PAUSED
    paused = Sandbox.list(query=SandboxQuery(metadata={"test": "pause"}, state=[SandboxState.PAUSED])).next_items()
    assert [one.sandbox_id for one in paused] == [sandbox.sandbox_id]
    refused(SandboxException, lambda: sandbox.commands.run("true"))
    again = Sandbox.connect(sandbox.sandbox_id, timeout=200)
    assert again.sandbox_id == sandbox.sandbox_id
    assert again.files.read("note") == "before"
    assert again.commands.run("echo $KEPT").stdout == "too\n"
    left = (again.get_info().end_at.timestamp()) - time.time()
    assert 150 < left <= 201, left
    # A running one only gets more time.
    Sandbox.connect(sandbox.sandbox_id, timeout=20)
    assert again.get_info().end_at.timestamp() - time.time() > 150
    assert again.kill()


def snapshots():
    with Sandbox.create() as sandbox:
        sandbox.files.write("state", "one")
        first = sandbox.create_snapshot()
        sandbox.files.write("state", "two")
        named = sandbox.create_snapshot(name="second")
        assert named.names == ["second"]
        refused(SandboxException, lambda: sandbox.create_snapshot(mode="full"), "memory")
        listed = {one.snapshot_id for one in sandbox.list_snapshots().next_items()}
        assert listed == {first.snapshot_id, "second"}
        with Sandbox.create(first.snapshot_id) as old, Sandbox.create("second") as new:
            assert (old.files.read("state"), new.files.read("state")) == ("one", "two")
            old.files.write("state", "changed")
        assert sandbox.files.read("state") == "two"
        for snapshot in [first.snapshot_id, "second"]:
            assert Sandbox.delete_snapshot(snapshot) is True
            assert Sandbox.delete_snapshot(snapshot) is False
        refused(SandboxException, lambda: Sandbox.create(first.snapshot_id), "not found")
    with Sandbox.create() as untouched:
        empty = untouched.create_snapshot()
        with Sandbox.create(empty.snapshot_id) as copy:
            assert copy.files.list("/workspace") == []
        assert Sandbox.delete_snapshot(empty.snapshot_id)


def forks():
    with Sandbox.create(metadata={"test": "fork"}, envs={"E": "f"}) as sandbox:
        sandbox.files.write("shared", "before")
        running = sandbox.commands.run("sleep 30", background=True)
        copies = sandbox.fork(count=2, timeout=60)
        assert len(copies) == 2
        for number, copy in enumerate(copies):
            assert isinstance(copy, Sandbox), copy
            assert copy.files.read("shared") == "before"
            assert copy.commands.run("echo $E").stdout == "f\n"
            copy.files.write("shared", f"copy {number}")
        assert sandbox.files.read("shared") == "before"
        assert running.pid in [process.pid for process in sandbox.commands.list()], "the original goes on"
        assert [copy.files.read("shared") for copy in copies] == ["copy 0", "copy 1"]
        assert all(copy.kill() for copy in copies)


def what_is_not_served_is_refused_by_name():
    refused(SandboxException, lambda: Sandbox.create("no-such-template"), "not found")
    refused(SandboxException, lambda: Sandbox.create(network={"deny_out": ["1.1.1.1"]}), "network")
    refused(SandboxException, lambda: Sandbox.create(allow_internet_access=True), "network")
    with Sandbox.create() as sandbox:
        refused(SandboxException, lambda: sandbox.update_network({"deny_out": ["1.1.1.1"]}), "/network")
    for api_key in ["e2b_" + "0" * 84, "nonsense"]:
        refused(AuthenticationException, lambda: Sandbox.create(api_key=api_key))


def shared():
    """Tests that share one sandbox."""
    with Sandbox.create(timeout=600) as sandbox:
        for test in [
            commands_run,
            output_is_streamed,
            background_commands,
            commands_are_connected_to_again,
            standard_input,
            time_outs_of_commands_kill,
            files_are_written_read_and_removed,
            large_files_are_streamed,
            signed_urls,
            directories,
            directories_are_watched,
            terminals,
        ]:
            run(test, sandbox)


failed = []


def run(test, *arguments):
    began = time.monotonic()
    try:
        test(*arguments)
    except Exception:
        failed.append(test.__name__)
        traceback.print_exc()
        print(f"FAILED {test.__name__}", flush=True)
    else:
        print(f"ok     {test.__name__} ({time.monotonic() - began:.1f} s)", flush=True)


if __name__ == "__main__":
    tests = [
        sandbox_is_created_found_listed_and_killed,
        shared,
        lists_have_pages,
        time_outs_end_sandboxes,
        pause_and_connect,
        snapshots,
        forks,
        what_is_not_served_is_refused_by_name,
    ]
    for test in tests:
        if not sys.argv[1:] or test.__name__ in sys.argv[1:]:
            run(test)
    if failed:
        sys.exit(f"{len(failed)} failed: {', '.join(failed)}")
