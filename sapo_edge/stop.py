"""How a node is asked to end, and how its long steps hear of it."""

from __future__ import annotations

import threading
from collections.abc import Callable

from sapo_edge.policy import Control


class Stop:
    """How a node is asked to end, from any thread or signal handler."""

    def __init__(self) -> None:
        self.finish = threading.Event()
        self._now = threading.Event()

    def after_round(self) -> None:
        """Finish the round in progress, save, and end."""
        self.finish.set()

    def at_once(self) -> None:
        """End now; the round in progress is lost."""
        self.finish.set()
        self._now.set()

    def control(self, progress: Callable[[int, int], None]) -> Control:
        """A control for a long step, cancelled by `at_once` whether that comes before, in or after the step."""
        return _StopControl(progress, self._now)


class _StopControl(Control):
    """A control that all long steps of a node share the end of."""

    def __init__(self, progress: Callable[[int, int], None], now: threading.Event) -> None:
        super().__init__(progress)
        self._now = now

    @property
    def cancelled(self) -> bool:
        """Whether this step, or the whole node, is to end."""
        return self._now.is_set() or super().cancelled
