"""Tests that run in trio's event loop."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import ParamSpec

import trio
import trio.testing

from sapo_edge.swarm.tally import innermost

LIMIT, JUMPED_LIMIT = 120.0, 7200.0
"""Seconds that a test may take, and by a clock that jumps."""

P = ParamSpec("P")


def in_trio(jumps: float | None = None) -> Callable[[Callable[P, Awaitable[None]]], Callable[P, None]]:
    """Run an async test in an event loop of its own. What it reports is the first error of a group.

    With `jumps`, the clock jumps after so many idle seconds to the next moment that something waits for.
    """

    def decorate(test: Callable[P, Awaitable[None]]) -> Callable[P, None]:
        @functools.wraps(test)
        def run(*args: P.args, **kwargs: P.kwargs) -> None:
            async def limited() -> None:
                with trio.fail_after(LIMIT if jumps is None else JUMPED_LIMIT):
                    await test(*args, **kwargs)

            try:
                trio.run(limited, clock=None if jumps is None else trio.testing.MockClock(autojump_threshold=jumps))
            except BaseExceptionGroup as error:
                raise innermost(error) from None

        return run

    return decorate


@asynccontextmanager
async def meanwhile(*functions: Callable[[], Awaitable[object]]) -> AsyncIterator[trio.Nursery]:
    """Run these, and what the nursery starts, until the end of this context."""
    async with trio.open_nursery() as nursery:
        for function in functions:
            nursery.start_soon(function)
        yield nursery
        nursery.cancel_scope.cancel()
