"""How a node is asked to rest or to end, and how its long steps hear of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from sapo_edge.policy import CallHandle


class Stop:
    """How a node is asked to rest or to end, from any thread or signal handler.

    It rests while there is at least one reason to. A reason has a key, by which it is taken back, and a text for
    people, which may change meanwhile: "on battery (71 %)".

    Args:
        changed: called with the reasons' texts whenever a reason comes or goes, from the thread that did it, one call
            at a time and in that order; must not raise.
    """

    def __init__(self, changed: Callable[[tuple[str, ...]], None] = lambda reasons: None) -> None:
        self.finish = threading.Event()
        self.changed = changed
        self._now = threading.Event()
        self._going_on = threading.Event()
        self._going_on.set()
        self._reasons: dict[str, str] = {}
        self._lock = threading.Lock()
        # Held over the call as well, so that the last that is told is how it is. Reentrant: who is told may answer.
        self._telling = threading.RLock()

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the node rests, for people; empty while it works."""
        with self._lock:
            return tuple(self._reasons.values())

    @property
    def keys(self) -> frozenset[str]:
        """The keys of these reasons."""
        with self._lock:
            return frozenset(self._reasons)

    def pause(self, key: str, text: str = "") -> None:
        """Rest, at the next check of a long step and between two steps.

        Args:
            key: of the reason; the same one a second time changes nothing.
            text: for people; without it, the key.
        """
        with self._telling:
            with self._lock:
                if key in self._reasons:
                    return
                self._reasons[key] = text or key
                self._going_on.clear()
            self.changed(self.reasons)

    def retell(self, key: str, text: str) -> None:
        """Change what people read of a reason, without an event, unless it was taken back meanwhile."""
        with self._lock:
            if key in self._reasons:
                self._reasons[key] = text

    def resume(self, key: str | None = None) -> None:
        """Take one reason back, or all; without any left the node goes on."""
        with self._telling:
            with self._lock:
                if not self._reasons or (key is not None and key not in self._reasons):
                    return
                if key is None:
                    self._reasons.clear()
                else:
                    del self._reasons[key]
                if not self._reasons:
                    self._going_on.set()
            self.changed(self.reasons)

    def after_round(self) -> None:
        """Finish the round in progress, save, and end; a node that rests goes on for that."""
        self.finish.set()
        self._going_on.set()

    def at_once(self) -> None:
        """End now; the round in progress is lost."""
        self._now.set()
        self.after_round()

    def rest(self) -> None:
        """Wait while there is a reason to; returns at once when the node is to end."""
        while not self._going_on.is_set() and not self.finish.is_set():
            # Not without a limit: Windows doesn't interrupt an endless wait for Ctrl-C.
            self._going_on.wait(1.0)

    def call_handle(self, progress: Callable[[int, int], None]) -> CallHandle:
        """A handle for a long step, cancelled by `at_once` whether that comes before, in or after the step."""
        return _StopHandle(progress, self)

    @property
    def now(self) -> bool:
        """Whether the node is to end at once."""
        return self._now.is_set()


class _StopHandle(CallHandle):
    """The handle of a node's long step: it pauses and ends with the node."""

    def __init__(self, progress: Callable[[int, int], None], stop: Stop) -> None:
        super().__init__(progress)
        self._stop = stop

    @property
    def cancelled(self) -> bool:
        """Whether this step, or the whole node, is to end."""
        return self._stop.now or super().cancelled

    def check(self) -> None:
        """Rest while there is a reason to.

        Raises:
            Cancelled: if this step, or the whole node, is to end.
        """
        begin = time.perf_counter()
        self._stop.rest()
        self.paused_seconds += time.perf_counter() - begin
        super().check()
