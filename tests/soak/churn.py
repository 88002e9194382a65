"""When who is stopped, started again, leaves for good and joins."""

from __future__ import annotations

import signal
from dataclasses import dataclass

PERIOD, SHORTEST, AWAY = 180.0, 40.0, 25.0
"""Seconds from one stop to the next, the least of them in a short soak, and until the node is started again."""
QUIET = 0.1
"""Last part of the time, in which nobody comes or goes: what is published then has to reach everybody."""


@dataclass(frozen=True, slots=True)
class Change:
    """One change, so many seconds after the beginning; the one that joins has the number of nodes as its seat."""

    at: float
    seat: int
    kind: str
    by: signal.Signals = signal.SIGTERM


def plan(seconds: float, nodes: int) -> list[Change]:
    """All changes, in order of time.

    The second half of the nodes, without the last one, is stopped in turn, by SIGTERM and SIGKILL; the first half
    stays. The last node leaves for good after a third of the time, and a fresh one joins.
    """
    period = min(PERIOD, max(SHORTEST, seconds / 6))
    away = min(AWAY, period / 4)
    leaves = seconds / 3 + period / 4
    changes = [Change(leaves, nodes - 1, "leave", signal.SIGKILL), Change(leaves + away, nodes, "join")]
    restless = list(range(nodes // 2, nodes - 1)) or [0]
    turn, at = 0, period / 2
    while at + away < seconds * (1 - QUIET):
        lap, place = divmod(turn, len(restless))
        seat = restless[place]
        # Each seat by the one and the other.
        by = (signal.SIGTERM, signal.SIGKILL)[(place + lap) % 2]
        changes += [Change(at, seat, "stop", by), Change(at + away, seat, "start")]
        turn, at = turn + 1, at + period
    return sorted(changes, key=lambda change: change.at)
