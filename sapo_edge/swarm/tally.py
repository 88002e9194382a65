"""Counters of the swarm's thread, and notices to the owner about its faults."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable

from sapo_edge.events import Event, Level, Notice

NOTICE_INTERVAL = 300.0
"""Seconds for which one kind of notice is not repeated: a hostile peer must not fill the owner's log."""
MAX_DETAIL = 200
"""Characters of an error's text that are logged; it may quote a peer."""

OTHER_VERSION = "another version of the protocol"
"""Name of the counter of peers and messages of another version."""

_log = logging.getLogger(__name__)


class Tally:
    """Counters and notices. Thread-safe."""

    def __init__(
        self, emit: Callable[[Event], None] = lambda event: None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._emit = emit
        self._clock = clock
        self._counts: Counter[str] = Counter()
        self._faults: Counter[str] = Counter()
        self._last_notice: dict[str, float] = {}
        self._lock = threading.Lock()

    def count(self, name: str, number: int = 1) -> None:
        """Count something that was skipped, dropped, served or repaired."""
        with self._lock:
            self._counts[name] += number

    def fault(self, place: str, error: BaseException) -> None:
        """Count and log an exception that no peer should be able to cause, and notify the owner now and then.

        `place` is in our own words. The error's type is shown; its text goes to the log only, escaped and cut.
        """
        with self._lock:
            self._faults[place] += 1
        cause = innermost(error)
        _log.warning("%s: %s: %s", place, type(cause).__name__, ascii(str(cause))[:MAX_DETAIL])
        self.notice("warning", f"the swarm survived an error in its {place} ({type(cause).__name__})", place)

    def notice(self, level: Level, text: str, kind: str) -> None:
        """Notify the owner, unless a notice of the same kind was sent recently."""
        now = self._clock()
        with self._lock:
            if now - self._last_notice.get(kind, -NOTICE_INTERVAL) < NOTICE_INTERVAL:
                return
            self._last_notice[kind] = now
        try:
            self._emit(Notice(level=level, text=text))
        except Exception as error:  # noqa: BLE001 - a listener must not end the swarm
            _log.error("a notice could not be delivered: %s", type(error).__name__)

    def other_version(self) -> None:
        """Count a peer, or a message, of another version of the protocol; notify the owner of the first one."""
        with self._lock:
            self._counts[OTHER_VERSION] += 1
            is_first = self._counts[OTHER_VERSION] == 1
        if is_first:
            # Anybody can claim it, so it is told once, and as what it is.
            text = "a peer speaks another version of the protocol; if there is a newer sapo-edge, update it"
            self.notice("warning", text, OTHER_VERSION)

    @property
    def counts(self) -> dict[str, int]:
        with self._lock:
            return dict(self._counts)

    @property
    def faults(self) -> dict[str, int]:
        with self._lock:
            return dict(self._faults)


def innermost(error: BaseException) -> BaseException:
    """The first leaf of an exception group, which is the cause; any other exception itself."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
