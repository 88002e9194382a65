"""Signed rollouts that a node can hand to others: its own and those it admitted, the newest ones."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence

from sapo_edge.swarm.wire.messages import MAX_ROLLOUTS
from sapo_edge.swarm.wire.record import RawRecord, read_author

MAX_RECORDS = 2048
"""Most records that are kept."""
MAX_BYTES = 16 * 1024 * 1024
"""Most bytes of them."""
AUTHOR_SHARE = 0.25
"""Largest share of the records that one author may have, so that a busy one does not push out the others."""
RECORD_OVERHEAD = 80
"""Bytes of a record on the wire beside its body: signature and framing."""


class RecordStore:
    """The newest signed rollouts by digest. Thread-safe.

    Args:
        records: most of them.
        size: most bytes of them.
    """

    def __init__(self, records: int = MAX_RECORDS, size: int = MAX_BYTES) -> None:
        self._most, self._most_bytes = records, size
        self._held: OrderedDict[bytes, tuple[RawRecord, bytes]] = OrderedDict()
        self._authors: Counter[bytes] = Counter()
        self._total = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._held

    @property
    def size(self) -> int:
        """Bytes of all bodies."""
        return self._total

    def add(self, record: RawRecord) -> None:
        """Keep a record that was signed here or admitted; older ones give way."""
        digest, author = record.digest, read_author(record)
        with self._lock:
            if digest in self._held:
                return
            if self._authors[author] >= max(1, int(self._most * AUTHOR_SHARE)):
                self._remove(next(key for key, (_, of) in self._held.items() if of == author))
            self._held[digest] = (record, author)
            self._authors[author] += 1
            self._total += len(record.body)
            while len(self._held) > self._most or self._total > self._most_bytes:
                self._remove(next(iter(self._held)))

    def find(self, digests: Iterable[bytes], limit: int) -> list[RawRecord]:
        """Those of `digests` that are held, as many as `limit` bytes of a response can take."""
        with self._lock:
            return _within([self._held[digest][0] for digest in digests if digest in self._held], limit)

    def recent(self, count: int, limit: int) -> list[RawRecord]:
        """The newest records of all authors in turn, at most `count` and `limit` bytes."""
        with self._lock:
            queues: dict[bytes, list[RawRecord]] = {}
            for record, author in reversed(self._held.values()):
                queues.setdefault(author, []).append(record)
        chosen: list[RawRecord] = []
        for position in range(max(map(len, queues.values()), default=0)):
            chosen += [queue[position] for queue in queues.values() if position < len(queue)]
            if len(chosen) >= count:
                break
        return _within(chosen[: min(count, MAX_ROLLOUTS)], limit)

    def _remove(self, digest: bytes) -> None:
        record, author = self._held.pop(digest)
        self._authors[author] -= 1
        if not self._authors[author]:
            del self._authors[author]
        self._total -= len(record.body)


def _within(records: Sequence[RawRecord], limit: int) -> list[RawRecord]:
    chosen: list[RawRecord] = []
    for record in records:
        limit -= len(record.body) + RECORD_OVERHEAD
        if limit < 0:
            break
        chosen.append(record)
    return chosen
