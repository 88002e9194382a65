"""What Ctrl-C, SIGTERM and SIGHUP do to programs that run for long."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

from sapo_edge.plain import narrate

if TYPE_CHECKING:
    import asyncio

    from sapo_edge.care.stop import Stop

T = TypeVar("T")
AGAIN_SECONDS = 1.0
"""Earliest time after the first Ctrl-C or SIGTERM at which another one stops the node immediately."""


def ending_signals() -> list[signal.Signals]:
    """SIGINT, SIGTERM and SIGHUP, without those that were ignored at startup and stay so, as SIGHUP under `nohup`.

    A shell without job control ignores SIGINT for its background jobs, to protect them from a Ctrl-C that is meant for
    another program. Without a terminal there is no Ctrl-C: whoever sends SIGINT means this process.
    """
    numbers = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    ignored = [number for number in numbers if signal.getsignal(number) is signal.SIG_IGN]
    if signal.SIGINT in ignored and not _has_terminal():
        ignored.remove(signal.SIGINT)
    return [number for number in numbers if number not in ignored]


async def until_signal(function: Callable[[], Awaitable[T]], stopping: str = "") -> T:
    """The result of a coroutine of a trio program.

    The first of `ending_signals` cancels it: then `stopping` is said, and a KeyboardInterrupt raised. Its own errors
    come in trio's ExceptionGroup, which the end of each command takes off.
    """
    import trio

    results: list[T] = []

    async def watch(*, task_status: Any) -> None:
        with trio.open_signal_receiver(*ending_signals()) as signals:
            task_status.started()
            async for _ in signals:
                nursery.cancel_scope.cancel()
                # The terminal may be closed.
                with contextlib.suppress(OSError):
                    if stopping:
                        narrate(stopping)

    async with trio.open_nursery() as nursery:
        await nursery.start(watch)
        results.append(await function())
        nursery.cancel_scope.cancel()
    if not results:
        raise KeyboardInterrupt
    return results[0]


def ending_event() -> asyncio.Event:
    """An event of the running program of asyncio that is set at the first of `ending_signals`."""
    import asyncio

    ended, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in ending_signals():
        loop.add_signal_handler(number, ended.set)
    return ended


@contextlib.contextmanager
def handling(
    numbers: Iterable[signal.Signals], handler: Callable[[int, FrameType | None], object] | signal.Handlers
) -> Iterator[None]:
    """Handle some signals so until the block ends."""
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


@contextlib.contextmanager
def tidying() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the block as Ctrl-C does, by an exception: what is half-written is then removed."""
    numbers = [number for number in ending_signals() if number is not signal.SIGINT]
    with handling(numbers, lambda number, _frame: sys.exit(128 + number)):
        yield


class StopSignals:
    """Signal handler: the first signal finishes the round and saves; a later Ctrl-C or SIGTERM stops immediately.

    A closing terminal, a service manager or an impatient finger can send several signals within milliseconds; they
    count as one. SIGHUP never stops immediately, because nobody sees what it would lose.
    """

    def __init__(self, stop: Stop, say: Callable[[str], None]) -> None:
        self._stop = stop
        self._say = say
        self._first: float | None = None

    def install(self) -> None:
        for number in ending_signals():
            signal.signal(number, self)

    def __call__(self, number: int, _frame: FrameType | None) -> None:
        now = time.monotonic()
        if number in (signal.SIGINT, signal.SIGTERM):
            if self._first is not None:
                if now - self._first >= AGAIN_SECONDS:
                    self._stop.immediately()
                return
            self._first = now
        elif self._stop.finish.is_set():
            return
        self._stop.after_round()
        # The signal may interrupt a line that is being written, or the terminal may be closed.
        with contextlib.suppress(OSError, RuntimeError):
            self._say("finishing this step and saving it; press again to stop immediately and lose it")


def _has_terminal() -> bool:
    """Whether a terminal controls this process."""
    if sys.platform == "win32":
        return False
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True
