"""The store of signed rollouts that a node serves: its bounds, and fair turns of authors."""

from __future__ import annotations

import pytest

from sapo_edge.swarm.judging import records as module
from sapo_edge.swarm.judging.records import RECORD_OVERHEAD, RecordStore
from sapo_edge.swarm.wire.messages import MAX_ROLLOUTS
from sapo_edge.swarm.wire.record import RawRecord
from tests.defences.defence import fails_without

ENOUGH = 2**20


def record(author: int, number: int, size: int = 0) -> RawRecord:
    """The beginning of a body, and a number that makes its digest unique."""
    head = b"\x8a\xa1v\x01\xa5swarm\xc4\x20" + bytes(32) + b"\xa6author\xc4\x20" + bytes([author]) * 32
    return RawRecord(head + number.to_bytes(4, "big") + bytes(size), bytes(64))


def stored(store: RecordStore, records: list[RawRecord]) -> list[RawRecord]:
    return [item for item in records if item.digest in store]


@pytest.fixture
def store() -> RecordStore:
    return RecordStore()


def test_records_are_found_by_digest_up_to_a_size(store: RecordStore) -> None:
    records = [record(1, number) for number in range(4)]
    for item in (*records, records[0]):
        store.add(item)
    digests = [item.digest for item in records]
    assert store.find([*digests, bytes(32)], ENOUGH) == records
    size = len(records[0].body) + RECORD_OVERHEAD
    assert store.find(digests, 2 * size) == records[:2] and store.find(digests, 2 * size - 1) == records[:1]


def test_the_newest_records_of_all_authors_come_in_turn(store: RecordStore) -> None:
    busy = [record(1, number) for number in range(100)]
    quiet = [record(2, number) for number in range(2)]
    for item in (*quiet, *busy):
        store.add(item)
    assert store.recent(5, ENOUGH) == [busy[99], quiet[1], busy[98], quiet[0], busy[97]]
    assert len(store.recent(1000, ENOUGH)) == MAX_ROLLOUTS
    assert RecordStore().recent(5, ENOUGH) == []


@fails_without("swarm/judging/records.py", "if self._authors[author] >= MAX_RECORDS_OF_AUTHOR:")
def test_a_busy_author_pushes_out_only_its_own_records(store: RecordStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_RECORDS_OF_AUTHOR", 3)
    quiet, busy = record(2, 0), [record(1, number) for number in range(10)]
    for item in (quiet, *busy):
        store.add(item)
    assert quiet.digest in store and stored(store, busy) == busy[-3:]


@fails_without("swarm/judging/records.py", "while len(self._records) > MAX_RECORDS or self._bytes > MAX_BYTES:")
def test_the_oldest_records_are_dropped_beyond_the_bounds(store: RecordStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_RECORDS", 5)
    records = [record(number, number) for number in range(8)]
    for item in records:
        store.add(item)
    assert stored(store, records) == records[-5:]
    monkeypatch.setattr(module, "MAX_BYTES", 10_000)
    large = record(9, 9, size=9_000)
    store.add(large)
    assert large.digest in store and stored(store, records) == records[-4:]
    store.add(record(9, 10, size=9_000))
    assert stored(store, [*records, large]) == []
