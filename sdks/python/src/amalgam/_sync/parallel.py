"""Runs functions side by side in threads. Written by hand; ``_async/parallel.py`` is its counterpart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

A = TypeVar("A")
T = TypeVar("T")
P = ParamSpec("P")


def call_in_thread(function: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
    """Calls a function that blocks."""
    return function(*arguments, **options)


def run_each(function: Callable[[A], T], arguments: Sequence[A], parallel: int) -> list[T]:
    """Calls a function for each argument, at most so many at once, and returns the results in order."""
    with ThreadPoolExecutor(max_workers=parallel, thread_name_prefix="amalgam-explore") as executor:
        return list(executor.map(function, arguments))
