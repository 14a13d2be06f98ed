# Generated from _async/terminals.py by scripts/generate_sync.py; do not edit.
"""Terminals in a sandbox."""

from __future__ import annotations

import base64
import json
from collections.abc import Generator, Mapping
from contextlib import closing

from .._call import event_call, json_call, nothing
from .._text import segment
from ..errors import CommandFailedError, ConnectError, RequestTimeoutError, UnavailableError
from .transport import Transport, sleep

RECONNECT_DELAY_SECONDS_MAX = 30.0


class Terminal:
    """A shell on a terminal in a sandbox. ``sandbox.pty.create`` makes one.

    Attributes:
        id: ``pty-...``.
        offset: The number of bytes of output that ``output`` has yielded.
        exit_code: The exit code of the shell; ``None`` until ``output`` has come to its end.

    """

    def __init__(self, transport: Transport, sandbox_id: str, pty_id: str) -> None:
        self._transport = transport
        self._base = f"/sandboxes/{segment(sandbox_id)}/pty/{segment(pty_id)}"
        self.id = pty_id
        self.offset = 0
        self.exit_code: int | None = None

    def __repr__(self) -> str:
        return f"<terminal {self.id!r}>"

    def __iter__(self) -> Generator[bytes, None, None]:
        return self.output()

    def output(self, *, offset: int | None = None) -> Generator[bytes, None, None]:
        """Yields output as it comes, until the shell ends. Reconnects by itself.

        Args:
            offset: Where to begin; after the bytes that were yielded before if unset.

        """
        if offset is not None:
            self.offset = offset
        options = self._transport.options
        failures = 0
        has_connected = False
        while True:
            try:
                call = event_call(f"{self._base}/output", {"offset": self.offset})
                with closing(self._transport.events(call)) as found:
                    for event in found:
                        has_connected = True
                        if event is None:
                            continue
                        failures = 0
                        value = json.loads(event.data)
                        kind = value.get("type")
                        if kind == "exit":
                            self.exit_code = value.get("exitCode", 0)
                            return
                        if kind == "error":
                            raise CommandFailedError(value.get("message", ""), details={"ptyId": self.id})
                        self.offset = value.get("nextOffset", self.offset)
                        yield base64.b64decode(value.get("data", ""))
                lost: Exception = ConnectError("the stream of the terminal ended before its shell")
            except (ConnectError, RequestTimeoutError, UnavailableError) as error:
                lost = error
            failures += 1
            if not has_connected or failures > options.retries:
                raise lost
            delay = options.retry_delay * options.retry_backoff ** (failures - 1)
            sleep(min(delay, RECONNECT_DELAY_SECONDS_MAX))

    def write(self, data: str | bytes) -> None:
        """Types input."""
        text = base64.b64encode(data.encode() if isinstance(data, str) else data).decode()
        self._transport.send(json_call("POST", f"{self._base}/input", nothing, body={"data": text}))

    def resize(self, cols: int, rows: int) -> None:
        """Sets the size."""
        body = {"cols": cols, "rows": rows}
        self._transport.send(json_call("POST", f"{self._base}/resize", nothing, body=body, is_safe=True))

    def kill(self) -> None:
        """Ends the shell and its processes."""
        self._transport.send(json_call("DELETE", self._base, nothing))


class Terminals:
    """The terminals of a sandbox, as ``sandbox.pty``. A sandbox has at most five."""

    def __init__(self, transport: Transport, sandbox_id: str) -> None:
        self._transport = transport
        self._sandbox_id = sandbox_id

    def create(
        self,
        *,
        cols: int = 80,
        rows: int = 24,
        shell: str = "",
        cwd: str = "",
        envs: Mapping[str, str] | None = None,
    ) -> Terminal:
        """Starts a shell on a terminal.

        Args:
            cols: The width.
            rows: The height.
            shell: ``/bin/bash`` if empty, or ``/bin/sh`` where there is none.
            cwd: The working directory; ``/workspace`` if empty.
            envs: Environment variables.

        Raises:
            PTYLimitExceededError: The sandbox has five terminals.

        """
        body = {"cols": cols, "rows": rows, "shell": shell, "cwd": cwd, "envs": dict(envs or {})}
        path = f"/sandboxes/{segment(self._sandbox_id)}/pty"
        made = self._transport.send(json_call("POST", path, lambda value: str(value["id"]), body=body))
        return self.get(made)

    def get(self, pty_id: str) -> Terminal:
        """Returns a terminal by its id. Does not ask the server."""
        return Terminal(self._transport, self._sandbox_id, pty_id)

    def resize(self, pty_id: str, cols: int, rows: int) -> None:
        """Sets the size of a terminal."""
        self.get(pty_id).resize(cols, rows)

    def kill(self, pty_id: str) -> None:
        """Ends a terminal and its processes.

        Raises:
            PTYNotFoundError: There is no such terminal.

        """
        self.get(pty_id).kill()
