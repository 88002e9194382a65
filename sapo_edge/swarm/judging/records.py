"""The newest signed rollouts, own and accepted ones, which a node serves to others."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from itertools import zip_longest

from sapo_edge.swarm.wire.messages import MAX_ROLLOUTS
from sapo_edge.swarm.wire.record import RawRecord, read_author

MAX_RECORDS = 2048
MAX_BYTES = 16 * 1024 * 1024
"""Most bytes of their bodies."""
MAX_RECORDS_OF_AUTHOR = MAX_RECORDS // 4
"""Most records of one author, so that a busy one does not push out the others."""
RECORD_OVERHEAD = 80
"""Bytes of a record on the wire besides its body: signature and framing."""


class RecordStore:
    """The newest signed rollouts by digest. Thread-safe."""

    def __init__(self) -> None:
        self._records: OrderedDict[bytes, tuple[RawRecord, bytes]] = OrderedDict()
        self._authors: Counter[bytes] = Counter()
        self._bytes = 0
        self._lock = threading.Lock()

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._records

    def add(self, record: RawRecord) -> None:
        """Keep a record that was signed here or accepted, and drop the oldest ones beyond the bounds."""
        digest, author = record.digest, read_author(record)
        with self._lock:
            if digest in self._records:
                return
            if self._authors[author] >= MAX_RECORDS_OF_AUTHOR:
                self._remove(next(key for key, (_, other) in self._records.items() if other == author))
            self._records[digest] = (record, author)
            self._authors[author] += 1
            self._bytes += len(record.body)
            while len(self._records) > MAX_RECORDS or self._bytes > MAX_BYTES:
                self._remove(next(iter(self._records)))

    def find(self, digests: Iterable[bytes], limit: int) -> list[RawRecord]:
        """The records with these digests that are kept, up to `limit` bytes on the wire."""
        with self._lock:
            return _within([self._records[digest][0] for digest in digests if digest in self._records], limit)

    def recent(self, count: int, limit: int) -> list[RawRecord]:
        """The newest records of all authors in turn, up to `count` and to `limit` bytes on the wire."""
        with self._lock:
            queues: dict[bytes, list[RawRecord]] = {}
            for record, author in reversed(self._records.values()):
                queues.setdefault(author, []).append(record)
        records = [record for turn in zip_longest(*queues.values()) for record in turn if record is not None]
        return _within(records[: min(count, MAX_ROLLOUTS)], limit)

    def _remove(self, digest: bytes) -> None:
        record, author = self._records.pop(digest)
        self._authors[author] -= 1
        if not self._authors[author]:
            del self._authors[author]
        self._bytes -= len(record.body)


def _within(records: Sequence[RawRecord], limit: int) -> list[RawRecord]:
    """The first records that together fit in `limit` bytes."""
    fitting: list[RawRecord] = []
    for record in records:
        limit -= len(record.body) + RECORD_OVERHEAD
        if limit < 0:
            break
        fitting.append(record)
    return fitting
