# Generated from _async/commands.py by scripts/generate_sync.py; do not edit.
"""Commands in a sandbox: run, streamed, started, listed and killed."""

from __future__ import annotations

import base64
import builtins
import json
import signal as signals
from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from typing import Any

from .._call import BACKOFF_EXPONENT_MAX, Call, event_call, json_call, list_of, nothing
from .._stream import CommandEventReader
from .._text import data_text, escape, segment
from ..errors import ConnectError, ProcessTimeoutError, RequestTimeoutError, UnavailableError
from ..models import CommandEvent, CommandInfo, CommandResult
from .transport import Transport, sleep

DEFAULT_TIMEOUT_SECONDS = 60.0
"""The server ends a call without a timeout after this time; the command goes on."""
ANSWER_SECONDS = 15.0
"""The time that an answer may take beyond the timeout of its command."""
RECONNECT_DELAY_SECONDS_MAX = 30.0


class Command:
    """A command that was started in a sandbox, and that may have ended. It goes on when nobody reads its output.

    The server keeps the last 8 MiB of its output.
    """

    def __init__(self, transport: Transport, sandbox_id: str, command_id: str) -> None:
        self._transport = transport
        self._sandbox_id = sandbox_id
        self.id = command_id

    def __repr__(self) -> str:
        return f"<command {self.id!r} of {self._sandbox_id!r}>"

    @property
    def _base(self) -> str:
        return f"/sandboxes/{segment(self._sandbox_id)}/process/{segment(self.id)}"

    def __iter__(self) -> Generator[CommandEvent, None, None]:
        return self.events()

    def events(self, *, offset: int = 0) -> Generator[CommandEvent, None, None]:
        """Yields output from an offset on as it comes, and ``exit`` at the end. Reconnects by itself.

        Args:
            offset: The ``next_offset`` of an earlier event; 0 for all output that the server has kept.

        """
        with closing(_events(self._transport, self._sandbox_id, CommandEventReader(self.id, offset), None)) as found:
            for event in found:
                yield event

    def wait(
        self,
        *,
        on_stdout: Callable[[str], Any] | None = None,
        on_stderr: Callable[[str], Any] | None = None,
    ) -> CommandResult:
        """Waits for the end of the command, and returns its whole output.

        Raises:
            ProcessTimeoutError: It was killed because its time was up.

        """
        with closing(self.events()) as found:
            return _collect(found, on_stdout, on_stderr)

    def write(self, data: str | bytes, *, end: bool = False) -> None:
        """Sends standard input to a command that was started with ``stdin_open``.

        Args:
            data: The input.
            end: There is no more: the command reads the end of its input.

        """
        body = {"data": _base64(data), "end": end}
        self._transport.send(json_call("POST", f"{self._base}/input", nothing, body=body))

    def kill(self, signal: int = signals.SIGTERM) -> None:
        """Sends a signal to the command and everything that it started."""
        call = json_call("POST", f"{self._base}/kill", nothing, body={"signal": int(signal)}, is_safe=True)
        self._transport.send(call)


class Commands:
    """The commands of a sandbox, as ``sandbox.commands``."""

    def __init__(self, transport: Transport, sandbox_id: str) -> None:
        self._transport = transport
        self._sandbox_id = sandbox_id

    @property
    def _base(self) -> str:
        return f"/sandboxes/{segment(self._sandbox_id)}/process"

    def run(
        self,
        command: str,
        *,
        cwd: str = "",
        envs: Mapping[str, str] | None = None,
        timeout: float | None = None,
        stdin: str | bytes = b"",
        max_output_bytes: int = 0,
        on_stdout: Callable[[str], Any] | None = None,
        on_stderr: Callable[[str], Any] | None = None,
    ) -> CommandResult:
        """Runs a command with ``/bin/sh -c``, and returns its exit code and its output. No exit code is an error.

        Args:
            command: The text for the shell.
            cwd: The working directory; ``/workspace`` if empty.
            envs: Environment variables.
            timeout: The command and everything that it started are killed after so many seconds. Without it, the call
                ends after 60 seconds with ``ProcessTimeoutError``, and the command goes on: ``get`` finds it by
                ``details["commandId"]``.
            stdin: Its standard input.
            max_output_bytes: The bytes of output to return; 0 is 1 MiB, and everything with a callback.
            on_stdout: Is called with each piece of standard output as it comes. The call then has no limit of time of
                its own.
            on_stderr: Is called with each piece of standard error as it comes.

        Raises:
            ProcessTimeoutError: It did not end in time.
            CommandFailedError: It could not be started.

        """
        body = _body(command, cwd, envs, timeout, stdin, max_output_bytes)
        if on_stdout is None and on_stderr is None:
            seconds = (DEFAULT_TIMEOUT_SECONDS if timeout is None else timeout) + ANSWER_SECONDS
            parse = CommandResult.from_json
            call = json_call("POST", f"{self._base}/run", parse, body=body, timeout=seconds)
            return self._transport.send(call)
        with closing(self._stream(body)) as found:
            return _collect(found, on_stdout, on_stderr)

    def stream(
        self,
        command: str,
        *,
        cwd: str = "",
        envs: Mapping[str, str] | None = None,
        timeout: float | None = None,
        stdin: str | bytes = b"",
        max_output_bytes: int = 0,
    ) -> Generator[CommandEvent, None, None]:
        """Runs a command, and yields ``started``, its output as it comes, and ``exit``. Arguments are those of ``run``.

        A command whose stream is left goes on. A connection that is lost is opened again at its place.
        """
        body = _body(command, cwd, envs, timeout, stdin, max_output_bytes)
        with closing(self._stream(body)) as found:
            for event in found:
                yield event

    def _stream(self, body: dict[str, Any]) -> Generator[CommandEvent, None, None]:
        first = event_call(f"{self._base}/stream", {}, verb="POST", body={**body, "binary": True})
        return _events(self._transport, self._sandbox_id, CommandEventReader(), first)

    def start(
        self,
        command: str,
        *,
        cwd: str = "",
        envs: Mapping[str, str] | None = None,
        timeout: float | None = None,
        stdin: str | bytes = b"",
        stdin_open: bool = False,
        max_output_bytes: int = 0,
    ) -> Command:
        """Starts a command, and returns without waiting for its end. Arguments are those of ``run``.

        Args:
            command: The text for the shell.
            cwd: The working directory.
            envs: Environment variables.
            timeout: Seconds after which it is killed; never if unset.
            stdin: The beginning of its standard input.
            stdin_open: ``write`` sends more standard input.
            max_output_bytes: The bytes of output to keep.

        """
        body = {**_body(command, cwd, envs, timeout, stdin, max_output_bytes), "stdinOpen": stdin_open}
        with closing(self._stream(body)) as found:
            for event in found:
                return Command(self._transport, self._sandbox_id, event.command_id)
        raise ConnectError("the stream of the command ended before the command was started")

    def get(self, command_id: str) -> Command:
        """Returns a command by its id, for example to read its output again. Does not ask the server."""
        return Command(self._transport, self._sandbox_id, command_id)

    def list(self) -> builtins.list[CommandInfo]:
        """Returns the commands that run, and the last ones that have ended."""
        parse = list_of("commands", CommandInfo.from_json)
        return self._transport.send(json_call("GET", self._base, parse))

    def kill(self, command_id: str, signal: int = signals.SIGTERM) -> None:
        """Sends a signal to a command and everything that it started.

        Raises:
            CommandNotFoundError: There is no such command.

        """
        self.get(command_id).kill(signal)


def _events(
    transport: Transport, sandbox_id: str, reader: CommandEventReader, first: Call[None] | None
) -> Generator[CommandEvent, None, None]:
    """Yields the events of a call that starts a command, and goes on with calls that attach to it."""
    options = transport.options
    failures = 0
    has_connected = False
    while True:
        path = f"/sandboxes/{segment(sandbox_id)}/process/{segment(reader.command_id or '-')}/output"
        call = first or event_call(path, {"offset": reader.offset, "binary": True})
        try:
            with closing(transport.events(call)) as found:
                for event in found:
                    has_connected = True
                    if event is None:
                        continue
                    for one in reader.read(json.loads(event.data)):
                        # The command has been started: the call must not start another one.
                        first, failures = None, 0
                        yield one
                        if one.type == "exit":
                            return
            lost: Exception = ConnectError("the stream of the command ended before the command")
        except (ConnectError, RequestTimeoutError, UnavailableError) as error:
            lost = error
        failures += 1
        if first is not None or not has_connected or failures > options.retries:
            raise lost
        delay = options.retry_delay * options.retry_backoff ** min(failures - 1, BACKOFF_EXPONENT_MAX)
        sleep(min(delay, RECONNECT_DELAY_SECONDS_MAX))


def _collect(
    events: Generator[CommandEvent, None, None],
    on_stdout: Callable[[str], Any] | None,
    on_stderr: Callable[[str], Any] | None,
) -> CommandResult:
    stdout: builtins.list[str] = []
    stderr: builtins.list[str] = []
    is_truncated = False
    for event in events:
        is_truncated = is_truncated or event.truncated
        if event.type == "stdout":
            stdout.append(event.data)
            if on_stdout is not None and event.data:
                on_stdout(event.data)
        elif event.type == "stderr":
            stderr.append(event.data)
            if on_stderr is not None and event.data:
                on_stderr(event.data)
        elif event.type == "exit":
            if event.message:
                details = {"commandId": event.command_id, "killed": "true"}
                raise ProcessTimeoutError(f"command {event.command_id}: {event.message}", details=details)
            return CommandResult(event.command_id, event.exit_code, "".join(stdout), "".join(stderr), is_truncated)
    raise ConnectError("the stream of the command ended before the command")


def _body(
    command: str,
    cwd: str,
    envs: Mapping[str, str] | None,
    timeout: float | None,
    stdin: str | bytes,
    max_output_bytes: int,
) -> dict[str, Any]:
    return {
        "command": command,
        "cwd": cwd,
        "envs": dict(envs or {}),
        "timeout": None if timeout is None else max(int(timeout * 1000), 1),
        "stdin": escape(data_text(stdin)),
        "maxOutputSize": max_output_bytes,
    }


def _base64(data: str | bytes) -> str:
    return base64.b64encode(data.encode() if isinstance(data, str) else data).decode()
