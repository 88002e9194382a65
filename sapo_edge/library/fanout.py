"""Delivers a node's events to everyone who follows them: journal, log, user, control socket."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from sapo_edge.events import Event, Progress, to_json

Receiver = Callable[[Event], None]
_LOGGER = logging.getLogger("sapo_edge.node")


class EventFanout:
    """Delivers events from any thread.

    Args:
        show: prints an event for the user, on a terminal or a pipe that may be closed at any time.
        on_closed: called once when it is; later events are not shown any more.
        report: tells the service manager; must not raise.

    Attributes:
        publish: delivers an event to the control socket, once there is one.
        draw: draws the figures of an event, where a setting says so; must neither raise nor wait.
    """

    def __init__(
        self, journal: Receiver, show: Receiver, on_closed: Callable[[], None], report: Receiver = lambda event: None
    ) -> None:
        self._journal = journal
        self._report = report
        self._show: Receiver | None = show
        self._on_closed = on_closed
        self.publish: Receiver = lambda event: None
        self.draw: Receiver = lambda event: None
        # Re-entrant, because a signal handler may run while an event is printed.
        self._lock = threading.RLock()

    def record(self, event: Event) -> None:
        self._journal(event)
        self.deliver(event)

    def deliver(self, event: Event) -> None:
        """Deliver an event that the node records itself."""
        with self._lock:
            if not isinstance(event, Progress):
                _LOGGER.info(to_json(event))
            if self._show is not None:
                try:
                    self._show(event)
                except OSError:
                    self._show = None
                    self._on_closed()
        self._report(event)
        self.draw(event)
        self.publish(event)
