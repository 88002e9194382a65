"""Pausing and stopping a node, from any thread, also in the middle of a long step."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from sapo_edge.policy import CallHandle


class _Flag:
    """As `threading.Event`, with a lock that is re-entrant.

    A signal's handler runs in the main thread, also while that thread holds the lock to wait here: it would wait for
    itself. What it sets then is seen when the wait's time is over.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition(threading.RLock())
        self._value = False

    def is_set(self) -> bool:
        return self._value

    def set(self) -> None:
        with self._condition:
            self._value = True
            self._condition.notify_all()

    def clear(self) -> None:
        with self._condition:
            self._value = False

    def wait(self, seconds: float) -> bool:
        with self._condition:
            if not self._value:
                self._condition.wait(seconds)
            return self._value


class Stop:
    """Pauses and stops a node. Thread-safe; `after_round` and `immediately` may be called from a signal handler.

    The node pauses while there is at least one reason. A reason has a key, by which it is removed, and a text for
    people, which may change: "on battery (71 %)".

    Args:
        changed: called with the reasons' texts after a reason was added or removed, in the thread that did it; calls
            come one at a time and in order. Must not raise.

    Attributes:
        finish: set once the node is asked to stop.
        alive: called by the thread that works wherever it looks whether it should pause or stop, which is many times a
            round and every second of a pause. Must return at once and not raise.
    """

    def __init__(self, changed: Callable[[tuple[str, ...]], None] = lambda reasons: None) -> None:
        self.finish = _Flag()
        self.changed = changed
        self.alive: Callable[[], None] = lambda: None
        self._immediately = _Flag()
        self._unpaused = _Flag()
        self._unpaused.set()
        self._reasons: dict[str, str] = {}
        self._lock = threading.Lock()
        # Callbacks run in order under this lock. It is re-entrant because a callback may change the reasons again.
        self._callback_lock = threading.RLock()

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the node pauses, in words; empty while it works."""
        with self._lock:
            return tuple(self._reasons.values())

    @property
    def keys(self) -> frozenset[str]:
        """The keys of these reasons."""
        with self._lock:
            return frozenset(self._reasons)

    def pause(self, key: str, text: str = "") -> None:
        """Add a reason to pause, once for a key, which is its default text. A running step pauses at its next check."""
        with self._callback_lock:
            with self._lock:
                if key in self._reasons:
                    return
                self._reasons[key] = text or key
                self._unpaused.clear()
            self.changed(self.reasons)

    def update_text(self, key: str, text: str) -> None:
        """Change the text of a reason without calling `changed`; does nothing if the reason was removed."""
        with self._lock:
            if key in self._reasons:
                self._reasons[key] = text

    def resume(self, key: str | None = None) -> None:
        """Remove one reason, or all; the node resumes when none is left."""
        with self._callback_lock:
            with self._lock:
                if not self._reasons or (key is not None and key not in self._reasons):
                    return
                if key is None:
                    self._reasons.clear()
                else:
                    del self._reasons[key]
                if not self._reasons:
                    self._unpaused.set()
            self.changed(self.reasons)

    def after_round(self) -> None:
        """Finish the round in progress, save and stop; a paused node resumes for that."""
        self.finish.set()
        self._unpaused.set()

    def immediately(self) -> None:
        """Stop now; the round in progress is lost."""
        self._immediately.set()
        self.after_round()

    @property
    def is_immediate(self) -> bool:
        """Whether the node stops without finishing its round."""
        return self._immediately.is_set()

    def wait_while_paused(self, is_needed: Callable[[], bool] = lambda: False) -> None:
        """Block while there is a reason to pause; return when the node is asked to stop, or soon after it is needed."""
        self.alive()
        while not self._unpaused.is_set() and not self.finish.is_set() and not is_needed():
            self.alive()
            # With a timeout: nothing wakes it when it is needed, and it says that it is alive.
            self._unpaused.wait(1.0)

    def call_handle(self, progress: Callable[[int, int], None]) -> CallHandle:
        """The handle of one long step: it pauses with the node, and `immediately` cancels it."""
        return _StopHandle(progress, self)


class _StopHandle(CallHandle):
    def __init__(self, progress: Callable[[int, int], None], stop: Stop) -> None:
        super().__init__(progress)
        self._stop = stop

    @property
    def cancelled(self) -> bool:
        return self._stop.is_immediate or super().cancelled

    def check(self) -> None:
        begin = time.perf_counter()
        self._stop.wait_while_paused()
        self.paused_seconds += time.perf_counter() - begin
        super().check()
