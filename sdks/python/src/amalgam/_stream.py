"""Reads the events of a command from the JSON of a stream. Does no I/O."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from typing import Any

from ._text import unescape_bytes
from .errors import CommandFailedError
from .models import CommandEvent


class CommandEventReader:
    """Reads events in their order. A character that is cut between two of them comes with the second one."""

    def __init__(self, command_id: str = "", offset: int = 0) -> None:
        self.command_id = command_id
        self.offset = offset
        self._decoders = {name: codecs.getincrementaldecoder("utf-8")("replace") for name in ("stdout", "stderr")}

    def read(self, value: Any) -> Iterator[CommandEvent]:
        """Yields the event of a message, and before the last one the output that was held back.

        Raises:
            CommandFailedError: The command could not be started.

        """
        kind = value.get("type", "")
        self.command_id = value.get("commandId", "") or self.command_id
        self.offset = value.get("nextOffset", 0) or self.offset
        if kind == "error":
            raise CommandFailedError(value.get("message", ""), details={"commandId": self.command_id})
        if kind == "exit":
            yield from self._rest()
        output = unescape_bytes(value.get("output", ""))
        yield CommandEvent(
            type=kind,
            command_id=self.command_id,
            data=self._decoders[kind].decode(output) if output else "",
            output=output,
            exit_code=value.get("exitCode", 0),
            message=value.get("message", ""),
            next_offset=self.offset,
            truncated=value.get("truncated", False),
        )

    def _rest(self) -> Iterator[CommandEvent]:
        if rest := self._decoders["stdout"].decode(b"", final=True):
            yield CommandEvent("stdout", self.command_id, rest, next_offset=self.offset)
        if rest := self._decoders["stderr"].decode(b"", final=True):
            yield CommandEvent("stderr", self.command_id, rest, next_offset=self.offset)
