"""The `e2b` package 2.31 of PyPI, which other packages pin: the older routes, and keys of the form `e2b_` and hexadecimal digits."""

import time

from e2b import Sandbox
from e2b.sandbox.commands.command_handle import CommandExitException

sandbox = Sandbox.create(timeout=120, metadata={"old": "yes"})
try:
    assert sandbox.commands.run("echo hi").stdout == "hi\n"
    try:
        sandbox.commands.run("exit 2")
        raise AssertionError("a failure was not told")
    except CommandExitException as error:
        assert error.exit_code == 2
    sandbox.files.write("a/b", "text")
    assert sandbox.files.read("a/b") == "text"
    assert [entry.name for entry in sandbox.files.list("a")] == ["b"]
    handle = sandbox.commands.run("sleep 30", background=True)
    assert handle.pid in [process.pid for process in sandbox.commands.list()]
    assert sandbox.commands.kill(handle.pid)
    sandbox.set_timeout(300)
    assert sandbox.get_info().end_at.timestamp() - time.time() > 200
    again = Sandbox.connect(sandbox.sandbox_id)
    assert again.files.read("a/b") == "text"
    assert any(one.sandbox_id == sandbox.sandbox_id for one in Sandbox.list().next_items())
finally:
    assert sandbox.kill()
assert not sandbox.is_running()
print("ok     the older client")
