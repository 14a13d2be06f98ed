"""Episodes: the steps of runs, recorded and queried."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Literal

from .._call import (
    LineSplitter,
    Revision,
    field_of,
    json_call,
    list_of,
    nothing,
    page_of,
    revision_text,
)
from .._text import segment
from ..edits import Edit
from ..models import EpisodeInfo, Step, StepComparison, data_of
from .transport import AsyncTransport

PAGE_SIZE = 1000


class AsyncEpisode:
    """The steps of one run. ``client.episodes`` makes and finds them.

    Attributes:
        info: The episode as the server described it last.

    """

    def __init__(self, transport: AsyncTransport, info: EpisodeInfo) -> None:
        self._transport = transport
        self.info = info

    @property
    def name(self) -> str:
        """The name, which may hold slashes."""
        return self.info.name

    @property
    def _base(self) -> str:
        return f"/episodes/{segment(self.name)}"

    def __repr__(self) -> str:
        return f"<episode {self.name!r}: {self.info.state}>"

    async def record(
        self,
        revision: Revision | None = None,
        *,
        edits: Sequence[Edit] = (),
        parent: int | Step = 0,
        reward: float | None = None,
        visits: int = 0,
        total: float = 0.0,
        message: str = "",
        metadata: Mapping[str, str] | None = None,
        workspace: str | None = None,
        buffered: bool = False,
        idempotency_key: str | None = None,
    ) -> Step:
        """Records a step: a snapshot, or edits on one, which are committed in the same transaction.

        Args:
            revision: The snapshot of the step, or that the edits are made on; unset for that of the parent step.
            edits: Edits of ``amalgam.edits``; none to record the snapshot itself.
            parent: The step before it, or its number; 0 for a root.
            reward: The reward of its state.
            visits: How often a search visited it.
            total: The sum of the rewards of these visits.
            message: The message of the snapshot that the edits make.
            metadata: Further small values.
            workspace: The workspace that ``@`` in the revision stands for.
            buffered: Return before the step is on disk.
            idempotency_key: The same call with the same key again returns the first result.

        """
        body = {
            "revision": revision_text(revision),
            "edits": [edit.to_json() for edit in edits],
            "parent": parent.number if isinstance(parent, Step) else parent,
            "reward": reward,
            "visits": visits,
            "total": total,
            "message": message,
            "metadata": dict(metadata or {}),
            "workspace": f"workspaces/{workspace}" if workspace else "",
            "buffered": buffered,
        }
        call = json_call(
            "POST",
            f"{self._base}/steps",
            field_of("step", Step.from_json),
            body=body,
            has_request_id=True,
            idempotency_key=idempotency_key,
        )
        return await self._transport.send(call)

    async def update(
        self, steps: Sequence[Step], *, buffered: bool = False, idempotency_key: str | None = None
    ) -> None:
        """Sets the reward, visits and total of steps, all or none. ``dataclasses.replace`` makes changed steps."""
        updates = [
            {
                "number": step.number,
                "visits": step.visits,
                "total": step.total,
                **({"reward": step.reward} if step.reward is not None else {}),
            }
            for step in steps
        ]
        call = json_call(
            "PATCH",
            f"{self._base}/steps",
            nothing,
            body={"updates": updates, "buffered": buffered},
            has_request_id=True,
            idempotency_key=idempotency_key,
        )
        await self._transport.send(call)

    async def steps(self, *, parent: int | Step | None = None) -> AsyncGenerator[Step, None]:
        """Yields the steps by number; with ``parent`` only its children, with 0 only the roots."""
        number = parent.number if isinstance(parent, Step) else parent
        query = {"parent": None if number is None else str(number), "pageSize": PAGE_SIZE}
        parse = page_of("steps", Step.from_json)
        token = ""
        while True:
            call = json_call("GET", f"{self._base}/steps", parse, query={**query, "pageToken": token})
            found, token = await self._transport.send(call)
            for step in found:
                yield step
            if not token:
                return

    async def best(self, *, order: Literal["leaf", "reward", "mean"] = "leaf", count: int = 1) -> list[Step]:
        """Returns the best steps, best first: the leaf with the highest reward, or by reward or mean of all steps."""
        query = {
            "order": None if order == "leaf" else f"STEP_ORDER_{order.upper()}",
            "count": count,
        }
        call = json_call("GET", f"{self._base}/best", list_of("steps", Step.from_json), query=query)
        return await self._transport.send(call)

    async def path(self, step: int | Step) -> list[Step]:
        """Returns the steps from a root to a step."""
        query = {"number": step.number if isinstance(step, Step) else step}
        call = json_call("GET", f"{self._base}/path", list_of("steps", Step.from_json), query=query)
        return await self._transport.send(call)

    async def compare(self, before: int | Step, after: int | Step) -> StepComparison:
        """Compares two steps: their last common step, the steps to each, and the difference of their trees."""
        query = {
            "before": before.number if isinstance(before, Step) else before,
            "after": after.number if isinstance(after, Step) else after,
        }
        call = json_call("GET", f"{self._base}/compare", StepComparison.from_json, query=query)
        return await self._transport.send(call)

    async def export(self) -> AsyncGenerator[dict[str, Any], None]:
        """Yields the lines of the exported episode: a header, then each step."""
        splitter = LineSplitter()
        call = json_call("GET", f"{self._base}/export", nothing)
        async with aclosing(self._transport.messages(call)) as found:
            async for message in found:
                for line in splitter.feed(data_of(message)):
                    yield json.loads(line)
        for line in splitter.end():
            yield json.loads(line)

    async def finish(self, *, idempotency_key: str | None = None) -> None:
        """Finishes the episode: it is kept, and cannot be dropped until it is released."""
        await self._change("finish", idempotency_key)

    async def release(self, *, idempotency_key: str | None = None) -> None:
        """Releases a finished episode, so that it can be dropped."""
        await self._change("release", idempotency_key)

    async def _change(self, verb: str, idempotency_key: str | None) -> None:
        call = json_call(
            "POST",
            f"{self._base}/{verb}",
            field_of("episode", EpisodeInfo.from_json),
            body={},
            has_request_id=True,
            idempotency_key=idempotency_key,
        )
        self.info = await self._transport.send(call)

    async def drop(self, *, idempotency_key: str | None = None) -> int:
        """Drops the episode, so that it no longer keeps its snapshots. Returns the number of its steps."""
        call = json_call(
            "DELETE",
            self._base,
            field_of("steps", int),
            has_request_id=True,
            idempotency_key=idempotency_key,
        )
        return await self._transport.send(call)


class AsyncEpisodes:
    """The episodes of a project, as ``client.episodes``."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def begin(
        self,
        name: str,
        *,
        metadata: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
    ) -> AsyncEpisode:
        """Begins an episode without steps."""
        call = json_call(
            "POST",
            "/episodes",
            field_of("episode", EpisodeInfo.from_json),
            body={"episodeId": name, "metadata": dict(metadata or {})},
            has_request_id=True,
            idempotency_key=idempotency_key,
        )
        return AsyncEpisode(self._transport, await self._transport.send(call))

    async def get(self, name: str) -> AsyncEpisode:
        """Returns an episode."""
        parse = field_of("episode", EpisodeInfo.from_json)
        call = json_call("GET", f"/episodes/{segment(name)}", parse)
        return AsyncEpisode(self._transport, await self._transport.send(call))

    async def list(self, prefix: str = "") -> AsyncGenerator[AsyncEpisode, None]:
        """Yields the episodes by name."""
        parse = page_of("episodes", EpisodeInfo.from_json)
        token = ""
        while True:
            query = {"prefix": prefix, "pageSize": PAGE_SIZE, "pageToken": token}
            found, token = await self._transport.send(json_call("GET", "/episodes", parse, query=query))
            for info in found:
                yield AsyncEpisode(self._transport, info)
            if not token:
                return
