"""The asynchronous client of the unmodified `e2b` package: the calls that it makes in another way than the synchronous one."""

import asyncio
import os
import sys

from e2b import AsyncSandbox, CommandExitException, FileType, PtySize
from e2b.sandbox.filesystem.watch_handle import FilesystemEventType


async def until(condition, seconds=15.0):
    for _ in range(int(seconds / 0.05)):
        if condition():
            return
        await asyncio.sleep(0.05)
    raise AssertionError("it did not come about in time")


async def main():
    sandbox = await AsyncSandbox.create(timeout=120)
    try:
        results = await asyncio.gather(*(sandbox.commands.run(f"echo {number}") for number in range(8)))
        assert [result.stdout for result in results] == [f"{number}\n" for number in range(8)]
        try:
            await sandbox.commands.run("exit 4")
            raise AssertionError("a failure was not told")
        except CommandExitException as error:
            assert error.exit_code == 4

        await sandbox.files.make_dir("watched")
        events = []
        handle = await sandbox.files.watch_dir("watched", on_event=events.append, recursive=True)
        await sandbox.files.write("watched/a", "x")
        await until(lambda: any(e.name == "a" and e.type == FilesystemEventType.WRITE for e in events))
        await handle.stop()
        listed = await sandbox.files.list("watched")
        assert [(entry.name, entry.type) for entry in listed] == [("a", FileType.FILE)]

        output = bytearray()
        terminal = await sandbox.pty.create(PtySize(rows=10, cols=40), on_data=output.extend)
        await sandbox.pty.send_stdin(terminal.pid, b"stty size\n")
        await until(lambda: b"10 40" in output)
        await sandbox.pty.resize(terminal.pid, PtySize(rows=11, cols=41))
        await sandbox.pty.send_stdin(terminal.pid, b"stty size; exit\n")
        await until(lambda: b"11 41" in output)

        await sandbox.pause()
        assert not await sandbox.is_running()
        again = await AsyncSandbox.connect(sandbox.sandbox_id)
        assert await again.files.read("watched/a") == "x"
    finally:
        assert await sandbox.kill()
    print("ok     the asynchronous client")


asyncio.run(main())
# The threads of the client's HTTP library sometimes abort the interpreter when it ends by itself.
sys.stdout.flush()
os._exit(0)
