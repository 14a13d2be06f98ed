# Generated from _async/explore.py by scripts/generate_sync.py; do not edit.
"""Attempts in forks of a workspace, of which the best is kept."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ..errors import AmalgamError, ExploreError
from ..models import Snapshot
from .parallel import run_each

if TYPE_CHECKING:
    from .workspace import Workspace

R = TypeVar("R")


@dataclass
class Attempt(Generic[R]):
    """One attempt of an exploration."""

    workspace: Workspace
    result: R | None = None
    score: float = -math.inf
    snapshot: Snapshot | None = None
    """The state after the attempt."""
    error: Exception | None = None
    """Why it has no score."""
    others: tuple[Attempt[R], ...] = field(default=(), repr=False)
    """Of the best attempt: the other ones. Their workspaces are deleted, and can be undeleted."""


def explore(
    workspace: Workspace,
    count: int,
    run: Callable[..., R],
    score: Callable[[Workspace, R], float],
    parallel: int | None,
    keep_all: bool,
    sandbox: str | Mapping[str, Any] | None = None,
) -> Attempt[R]:
    """Forks a workspace, runs a function in each fork, and keeps the fork with the highest score."""
    options = {"image": sandbox} if isinstance(sandbox, str) else sandbox

    def work(fork: Workspace) -> R:
        if options is None:
            return run(fork)
        # Its end commits what its commands changed.
        with fork.sandbox(**options) as started:
            return run(fork, started)

    def attempt(fork: Workspace) -> Attempt[R]:
        tried: Attempt[R] = Attempt(fork)
        try:
            tried.result = work(fork)
            tried.snapshot = (fork.commit("attempt", kind="step")).snapshot
            tried.score = float(score(fork, tried.result))
            if math.isnan(tried.score):
                raise ValueError("the score is not a number")
        except Exception as error:
            tried.error, tried.score = error, -math.inf
        return tried

    def drop(tried: Attempt[R]) -> None:
        try:
            tried.workspace.delete()
        except AmalgamError as error:
            tried.error = tried.error or error

    forks = workspace.fork(count=count)
    attempts = run_each(attempt, forks, parallel or count)
    scored = [tried for tried in attempts if tried.error is None]
    best = max(scored, key=lambda tried: tried.score) if scored else None
    losers = [tried for tried in attempts if tried is not best]
    if not keep_all and losers:
        run_each(drop, losers, min(len(losers), 8))
    if best is None:
        error = ExploreError(f"all {count} attempts failed; the first one: {attempts[0].error!r}")
        error.attempts = tuple(attempts)
        raise error from attempts[0].error
    best.others = tuple(losers)
    return best
