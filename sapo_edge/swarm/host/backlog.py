"""A bound on the unread bytes of all connections together; `hardening.MAX_BUFFERED` bounds those of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Protocol

from sapo_edge.swarm.tally import Tally

MAX_UNREAD = 32 * 1024 * 1024
"""Most unread bytes of all connections of a relay, but for `LOOK_BYTES` that arrive between two counts; of a node, see
`traffic.UNREAD_BYTES`."""
LOOK_BYTES = 2 * 1024 * 1024
"""Bytes after whose arrival is counted again: counting takes about a millisecond with 1,000 connections."""


class Connection(Protocol):
    """What a backlog asks of a connection."""

    @property
    def unread(self) -> int:
        """Bytes that arrived, or were announced, and that nobody has read."""

    @property
    def source(self) -> str:
        """What one machine or home holds, as `addresses.holder` names it."""

    def abort(self) -> None:
        """End it now."""


class Backlog:
    """All connections of a host. When they hold too much, the fullest one of the fullest address ends.

    Args:
        max_unread: bytes.
    """

    def __init__(self, tally: Tally, max_unread: int = MAX_UNREAD) -> None:
        self._tally = tally
        self._max_unread = max_unread
        self._look_bytes = min(LOOK_BYTES, max_unread // 8)
        self._uncounted = 0
        self._connections: set[Connection] = set()
        self.add: Callable[[Connection], None] = self._connections.add
        self.remove: Callable[[Connection], None] = self._connections.discard

    def charge(self, size: int) -> None:
        """Announce that a connection is about to receive so many bytes; may end connections, that one included."""
        self._uncounted += size
        if self._uncounted < self._look_bytes:
            return
        self._uncounted = 0
        unread = {connection: connection.unread for connection in self._connections}
        excess = sum(unread.values()) - self._max_unread
        while excess > 0:
            sources: Counter[str] = Counter()
            for connection, size in unread.items():
                sources[connection.source] += size
            fullest = max(unread, key=lambda connection: (sources[connection.source], unread[connection]))
            excess -= unread.pop(fullest)
            self.remove(fullest)
            self._tally.count("connections closed: too much unread data in all")
            fullest.abort()
