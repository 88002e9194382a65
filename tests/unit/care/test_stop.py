"""Pausing and stopping a node: reasons, their callbacks, and the handles of long steps."""

from __future__ import annotations

import sys
import threading
import time
from contextlib import nullcontext
from itertools import pairwise
from types import FrameType

import pytest

from sapo_edge.care.stop import Stop
from sapo_edge.errors import Cancelled
from tests.waiting import wait_until


def test_an_immediate_stop_cancels_steps_that_began_before_and_after_it() -> None:
    stop = Stop()
    generating, updating = stop.call_handle(lambda *_: None), stop.call_handle(lambda *_: None)
    stop.after_round()
    assert not generating.cancelled and not updating.cancelled
    updating.cancel()
    assert not generating.cancelled and updating.cancelled
    stop.immediately()
    assert generating.cancelled and stop.call_handle(lambda *_: None).cancelled


def test_a_step_pauses_while_there_is_a_reason_and_measures_how_long() -> None:
    calls: list[tuple[str, ...]] = []
    looks: list[float] = []
    stop = Stop(calls.append)
    handle = stop.call_handle(lambda *_: None)
    handle.check()
    assert handle.paused_seconds < 0.05
    stop.alive = lambda: looks.append(time.perf_counter())
    stop.pause("asked")
    stop.pause("asked")
    stop.pause("battery")
    checking = threading.Thread(target=handle.check)
    checking.start()
    stop.resume("asked")
    checking.join(0.1)
    assert checking.is_alive() and stop.reasons == ("battery",)
    wait_until(lambda: looks)
    paused = time.perf_counter() - looks[0]
    stop.resume()
    checking.join(5)
    assert not checking.is_alive() and paused <= handle.paused_seconds < 20
    assert calls == [("asked",), ("asked", "battery"), ("battery",), ()]


@pytest.mark.parametrize("immediately", [True, False])
def test_a_paused_node_can_be_stopped(immediately: bool) -> None:
    stop = Stop()
    handle = stop.call_handle(lambda *_: None)
    stop.pause("asked")
    threading.Timer(0.05, stop.immediately if immediately else stop.after_round).start()
    with pytest.raises(Cancelled) if immediately else nullcontext():
        handle.check()


def test_a_signal_while_the_wait_holds_its_lock_blocks_nothing() -> None:
    """A handler runs between any two lines of the thread that waits; here it runs at the first ones of the wait."""
    stop = Stop()
    stop.pause("asked")

    def handle(frame: FrameType, _event: str, _argument: object) -> None:
        if frame.f_code is threading.Condition.wait.__code__:
            sys.settrace(None)
            stop.immediately()

    def wait() -> None:
        sys.settrace(handle)
        stop.wait_while_paused()

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    waiting.join(5)
    assert not waiting.is_alive() and stop.is_immediate


def test_callbacks_of_several_threads_come_in_order() -> None:
    calls: list[tuple[str, ...]] = []
    stop = Stop(calls.append)

    def flip(key: str) -> None:
        for _ in range(300):
            stop.pause(key)
            stop.resume(key)

    threads = [threading.Thread(target=flip, args=(key,)) for key in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(calls) == 1800 and calls[-1] == stop.reasons == ()
    assert all(abs(len(before) - len(after)) == 1 for before, after in pairwise(calls))


def test_updating_the_text_of_a_removed_reason_does_not_add_it_again() -> None:
    calls: list[tuple[str, ...]] = []
    stop = Stop(calls.append)
    stop.pause("battery", "on battery (71 %)")
    stop.update_text("battery", "on battery (70 %)")
    stop.pause("battery", "on battery (69 %)")
    assert stop.reasons == ("on battery (70 %)",) and stop.keys == {"battery"}
    stop.resume("on battery (70 %)")
    assert stop.keys == {"battery"}
    stop.resume("battery")
    stop.update_text("battery", "on battery (70 %)")
    assert not stop.reasons and calls == [("on battery (71 %)",), ()]
