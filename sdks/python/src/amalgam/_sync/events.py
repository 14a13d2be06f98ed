# Generated from _async/events.py by scripts/generate_sync.py; do not edit.
"""Operations of a project: those of the past, and those that happen."""

from __future__ import annotations

import json
from collections.abc import Generator
from contextlib import closing

from .._call import BACKOFF_EXPONENT_MAX, event_call, field_of, json_call, page_of
from .._text import segment
from ..errors import ConnectError, RequestTimeoutError, UnavailableError
from ..models import Operation
from .transport import Transport, sleep

RECONNECT_DELAY_SECONDS_MAX = 30.0


class Subscription:
    """The operations after a position, as they happen.

    It reconnects by itself for as long as it is iterated, and neither leaves out nor repeats an operation. Only the
    first connection can fail.

    Attributes:
        position: The sequence number of the last operation that was returned. A later subscription goes on there.

    """

    def __init__(self, transport: Transport, position: int) -> None:
        self._transport = transport
        self.position = position
        self._has_connected = False

    def __iter__(self) -> Generator[Operation, None, None]:
        options = self._transport.options
        failures = 0
        while True:
            try:
                with closing(self._connected()) as found:
                    for operation in found:
                        failures = 0
                        self.position = operation.sequence
                        yield operation
            except (ConnectError, RequestTimeoutError, UnavailableError):
                if not self._has_connected:
                    raise
                failures += 1
            delay = options.retry_delay * options.retry_backoff ** min(max(failures - 1, 0), BACKOFF_EXPONENT_MAX)
            sleep(min(delay, RECONNECT_DELAY_SECONDS_MAX))

    def _connected(self) -> Generator[Operation, None, None]:
        call = event_call("/operations/watch", {"after": str(self.position)}, str(self.position))
        with closing(self._transport.events(call)) as found:
            for event in found:
                self._has_connected = True
                if event is not None:
                    yield Operation.from_json(json.loads(event.data)["operation"])


class Events:
    """The log of operations, as ``client.events``."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def subscribe(self, *, after: int | None = None) -> Subscription:
        """Returns the operations after a position, as they happen.

        Args:
            after: The sequence number of an operation; 0 for all there are. Unset for those from now on.

        """
        return Subscription(self._transport, self.position() if after is None else after)

    def position(self) -> int:
        """Returns the sequence number of the newest operation; 0 without any."""
        parse = page_of("operations", Operation.from_json)
        found, _ = self._transport.send(json_call("GET", "/operations", parse, query={"pageSize": 1}))
        return found[0].sequence if found else 0

    def list(self, *, workspace: str | None = None) -> Generator[Operation, None, None]:
        """Yields operations, newest first; with ``workspace`` those that touched it."""
        name = f"workspaces/{workspace}" if workspace else ""
        parse = page_of("operations", Operation.from_json)
        token = ""
        while True:
            query = {"workspace": name, "pageSize": 1000, "pageToken": token}
            found, token = self._transport.send(json_call("GET", "/operations", parse, query=query))
            for operation in found:
                yield operation
            if not token:
                return

    def get(self, sequence: int) -> Operation:
        """Returns one operation."""
        parse = field_of("operation", Operation.from_json)
        return self._transport.send(json_call("GET", f"/operations/{segment(str(sequence))}", parse))

    def undo(self, sequence: int, *, idempotency_key: str | None = None) -> Operation:
        """Takes one operation back.

        Raises:
            NotPossibleError: A name that it moved has moved since.

        """
        call = json_call(
            "POST",
            "/operations/undo",
            field_of("operation", Operation.from_json),
            body={"operation": f"operations/{sequence}"},
            has_request_id=True,
            idempotency_key=idempotency_key,
        )
        return self._transport.send(call)
