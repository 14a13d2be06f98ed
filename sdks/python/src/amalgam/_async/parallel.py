"""Runs functions side by side with asyncio. Written by hand; ``_sync/parallel.py`` is its counterpart."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import ParamSpec, TypeVar

A = TypeVar("A")
T = TypeVar("T")
P = ParamSpec("P")


async def call_in_thread(function: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
    """Calls a function that blocks."""
    return await asyncio.to_thread(function, *arguments, **options)


async def run_each(function: Callable[[A], Awaitable[T]], arguments: Sequence[A], parallel: int) -> list[T]:
    """Calls a function for each argument, at most so many at once, and returns the results in order."""
    turns = asyncio.Semaphore(parallel)

    async def one(argument: A) -> T:
        async with turns:
            return await function(argument)

    return list(await asyncio.gather(*(one(argument) for argument in arguments)))
