"""Attempts in forks of a workspace, of which the best is kept."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ..errors import AmalgamError, ExploreError
from ..models import Snapshot
from .parallel import run_each

if TYPE_CHECKING:
    from .workspace import AsyncWorkspace

R = TypeVar("R")


@dataclass
class AsyncAttempt(Generic[R]):
    """One attempt of an exploration."""

    workspace: AsyncWorkspace
    result: R | None = None
    score: float = -math.inf
    snapshot: Snapshot | None = None
    """The state after the attempt."""
    error: Exception | None = None
    """Why it has no score."""
    others: tuple[AsyncAttempt[R], ...] = field(default=(), repr=False)
    """Of the best attempt: the other ones. Their workspaces are deleted, and can be undeleted."""


async def explore(
    workspace: AsyncWorkspace,
    count: int,
    run: Callable[..., Awaitable[R]],
    score: Callable[[AsyncWorkspace, R], Awaitable[float]],
    parallel: int | None,
    keep_all: bool,
    sandbox: str | Mapping[str, Any] | None = None,
) -> AsyncAttempt[R]:
    """Forks a workspace, runs a function in each fork, and keeps the fork with the highest score."""
    options = {"image": sandbox} if isinstance(sandbox, str) else sandbox

    async def work(fork: AsyncWorkspace) -> R:
        if options is None:
            return await run(fork)
        # Its end commits what its commands changed.
        async with await fork.sandbox(**options) as started:
            return await run(fork, started)

    async def attempt(fork: AsyncWorkspace) -> AsyncAttempt[R]:
        tried: AsyncAttempt[R] = AsyncAttempt(fork)
        try:
            tried.result = await work(fork)
            tried.snapshot = (await fork.commit("attempt", kind="step")).snapshot
            tried.score = float(await score(fork, tried.result))
            if math.isnan(tried.score):
                raise ValueError("the score is not a number")
        except Exception as error:
            tried.error, tried.score = error, -math.inf
        return tried

    async def drop(tried: AsyncAttempt[R]) -> None:
        try:
            await tried.workspace.delete()
        except AmalgamError as error:
            tried.error = tried.error or error

    forks = await workspace.fork(count=count)
    attempts = await run_each(attempt, forks, parallel or count)
    scored = [tried for tried in attempts if tried.error is None]
    best = max(scored, key=lambda tried: tried.score) if scored else None
    losers = [tried for tried in attempts if tried is not best]
    if not keep_all and losers:
        await run_each(drop, losers, min(len(losers), 8))
    if best is None:
        error = ExploreError(f"all {count} attempts failed; the first one: {attempts[0].error!r}")
        error.attempts = tuple(attempts)
        raise error from attempts[0].error
    best.others = tuple(losers)
    return best
