"""The pool over a restart: what comes back, how old it is, and damaged files."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
import pytest

from sapo_edge.errors import StateError
from sapo_edge.pool.pool import Pool, PoolLimits, PoolOutcome
from sapo_edge.pool.saved import MAGIC
from sapo_edge.rollout import MAX_ANSWERS, Answer, TaskRef
from tests.fakes import Clock, find_the_disk_full, make_rollout


def make_pool(
    started: float = 0.0, today: float = 1e9, limits: PoolLimits | None = None, own: str = "me"
) -> tuple[Pool, Clock]:
    """A pool whose monotonic clock reads `started` when the wall clock reads `today`; both advance together."""
    clock = Clock()
    clock.now = started
    return Pool(own, limits, clock, lambda: today + clock.now - started), clock


def restarted(path: Path, later: float = 0.0, **more: Any) -> Pool:
    """A pool after a restart of the computer, with the saved one loaded."""
    pool, _ = make_pool(started=5.0, today=1e9 + later, **more)
    pool.load(path)
    return pool


def written(path: Path, *parts: bytes) -> None:
    body = b"".join(msgpack.packb(part) for part in parts)
    path.write_bytes(MAGIC + hashlib.sha256(body).digest() + body)


def test_rollouts_come_back_as_text(tmp_path: Path) -> None:
    pool, clock = make_pool()
    own = Answer("ab", True, (1, 2), (-0.5, -0.25))
    rollouts = [
        make_rollout("a", 1, ["x"]), make_rollout("b", 2, ["é"] * MAX_ANSWERS),
        replace(make_rollout("c", 3), answers=(own,)), replace(make_rollout("d", 4), digest="ab" * 32),
    ]  # fmt: skip
    for rollout in rollouts:
        pool.add(rollout)
        clock.now += 1
    pool.save(tmp_path / "pool")
    again, _ = make_pool(today=1e9 + 10)
    again.load(tmp_path / "pool")
    assert again.candidates() == tuple(rollout.as_text() for rollout in rollouts)
    assert again.candidates()[-1].id == "ab" * 32, "a signed one keeps its id"
    assert again.bytes == pool.bytes and not again.counts
    assert [again.add(rollout) for rollout in rollouts] == [PoolOutcome.DUPLICATE] * 4
    assert os.stat(tmp_path / "pool").st_mode & 0o777 == 0o600
    again.load(tmp_path / "pool")
    assert len(again) == 4
    again.save(tmp_path / "again")
    pool.save(tmp_path / "pool")
    assert (tmp_path / "again").read_bytes() == (tmp_path / "pool").read_bytes()
    pool, _ = make_pool()
    pool.load(tmp_path / "none")
    pool.save(tmp_path / "empty")
    pool.load(tmp_path / "empty")
    assert len(pool) == 0


@pytest.mark.parametrize(("later", "then", "kept"), [
    (0, 0, [1, 2]), (35, 0, [2]), (35, 20, [2]), (35, 26, []), (86400, 0, []), (-86400, 59, [1, 2]),
])  # fmt: skip
def test_rollouts_age_while_the_node_is_off(tmp_path: Path, later: float, then: float, kept: list[int]) -> None:
    limits = PoolLimits(seconds=60)
    pool, clock = make_pool(limits=limits)
    pool.add(make_rollout(sequence=1))
    clock.now += 30
    pool.add(make_rollout(sequence=2))
    pool.save(tmp_path / "pool")
    # The wall's clock stands at 30 now; one that was set back makes nothing younger than new.
    again, clock = make_pool(started=5.0, today=1e9 + 30 + later, limits=limits)
    again.load(tmp_path / "pool")
    clock.now += then
    assert [rollout.sequence for rollout in again.candidates()] == kept


def test_rollouts_that_arrived_before_loading_stay_and_a_copy_is_as_old_as_the_original(tmp_path: Path) -> None:
    pool, _ = make_pool()
    for sequence in (1, 2, 3, 4):
        pool.add(make_rollout(sequence=sequence))
    pool.take([make_rollout(sequence=4)])
    pool.save(tmp_path / "pool")
    again, _ = make_pool(today=1e9 + 1, limits=PoolLimits(rollouts=3, author_share=1.0))
    for sequence in (9, 4, 2):
        again.add(make_rollout(sequence=sequence))
    again.load(tmp_path / "pool")
    assert [rollout.sequence for rollout in again.candidates()] == [2, 3, 9]


def test_the_current_limits_apply_to_a_loaded_pool(tmp_path: Path) -> None:
    pool, _ = make_pool()
    for author in "abc":
        for sequence in range(4):
            pool.add(make_rollout(author, sequence))
    pool.save(tmp_path / "pool")
    again = restarted(tmp_path / "pool", limits=PoolLimits(rollouts=20, author_share=0.1), own="c")
    kept = [(rollout.author, rollout.sequence) for rollout in again.candidates()]
    assert kept == [("a", 2), ("a", 3), ("b", 2), ("b", 3)]
    again = restarted(tmp_path / "pool", limits=PoolLimits(bytes=3 * make_rollout().size_bytes(), rollouts=99))
    assert len(again) == 3


def test_the_largest_allowed_pool_can_be_read(tmp_path: Path) -> None:
    wide, most = [], 2**63 - 1
    for sequence in range(40):
        made = make_rollout(f"{sequence:02}" + "é" * 63, sequence, [""] * MAX_ANSWERS, "e" * 128, f"{sequence}", "")
        wide.append(replace(made, ref=TaskRef("e" * 128, "v" * 128, most, most - sequence), round=most))
    limits = PoolLimits(rollouts=20, bytes=40, author_share=1.0, remembered=20)
    pool, _ = make_pool(limits=limits)
    for rollout in wide:
        pool.add(rollout, "é" * 64)
    pool.take(pool.candidates())
    for rollout in wide[:20]:
        pool.add(rollout, "é" * 64)
    pool.save(tmp_path / "pool")
    assert len(pool) == 20 and restarted(tmp_path / "pool", limits=limits).candidates() == pool.candidates()


def test_what_was_used_is_refused_after_a_restart_and_by_the_journal_after_a_kill(tmp_path: Path) -> None:
    pool, _ = make_pool()
    used, held = make_rollout("a", 1, question="q"), make_rollout("a", 2)
    pool.add(used)
    pool.add(held, "9.9.9.0/24")
    pool.take([used])
    pool.save(tmp_path / "pool")
    again = restarted(tmp_path / "pool", later=60)
    assert again.neighbourhood(held) == "9.9.9.0/24" and again.neighbourhood(used) == ""
    renumbered, copied = replace(used, sequence=9), replace(make_rollout("b", 7), question="q")
    assert again.add(used) is PoolOutcome.DUPLICATE
    assert again.add(renumbered) is PoolOutcome.SAME_TASK and again.add(copied) is PoolOutcome.SAME_TEXT
    pool, _ = make_pool()
    held, later = make_rollout("a", 1), make_rollout("a", 2)
    pool.add(held)
    pool.save(tmp_path / "pool")
    again = restarted(tmp_path / "pool")
    again.mark_used([(rollout.id, rollout.author, rollout.ref) for rollout in (held, later)])
    assert again.candidates() == ()
    assert [again.add(rollout) for rollout in (held, later)] == [PoolOutcome.DUPLICATE] * 2
    assert [again.add(replace(rollout, sequence=9)) for rollout in (held, later)] == [PoolOutcome.SAME_TASK] * 2


EMPTY = (b"", b"", b"")
GOOD: list[Any] = [1e9, "a", 1, 1, ["e", "1", 1, 1], "q", "t", [["x", True]], 1e9, "ab" * 32, "9.9.9.0/24"]


def changed(place: int, value: Any) -> bytes:
    return bytes(msgpack.packb([*GOOD[:place], value, *GOOD[place + 1 :]]))


DAMAGES: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: path.write_bytes(b""),
    "cut off": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "one bit": lambda path: path.write_bytes(path.read_bytes()[:-9] + b"\x00" + path.read_bytes()[-8:]),
    "another format": lambda path: path.write_bytes(os.urandom(5000)),
    "too large": lambda path: os.truncate(path, 10**9),
    "a directory": lambda path: (path.unlink(), path.mkdir()),
    "half an id": lambda path: written(path, b"x" * 33, b"", b""),
    "half a mark": lambda path: written(path, b"", b"x" * 17, b""),
    "half a used text": lambda path: written(path, b"", b"", b"x" * 25),
    "text": lambda path: written(path, *EMPTY, "text"),  # type: ignore[arg-type]
    "a number": lambda path: written(path, 7),  # type: ignore[arg-type]
    "too many": lambda path: written(path, *EMPTY, *[msgpack.packb(GOOD)] * 9),
    "no list": lambda path: written(path, *EMPTY, msgpack.packb(7)),
    "a map": lambda path: written(path, *EMPTY, msgpack.packb({"a": 1})),
    "too short": lambda path: written(path, *EMPTY, msgpack.packb(GOOD[:-1])),
    "two objects": lambda path: written(path, *EMPTY, msgpack.packb(GOOD) * 2),
    "deep": lambda path: written(path, *EMPTY, b"\x91" * 5000 + b"\x01"),
} | {
    f"{value!r:.20} at {place}": lambda path, place=place, value=value: written(path, *EMPTY, changed(place, value))
    for place, value in [
        (0, float("nan")), (0, 1), (1, 3), (1, "x" * 200), (2, -1), (3, True), (4, []), (4, 3), (4, ["e", "1", 1, "i"]),
        (5, "x" * 17000), (5, b"x"), (6, None), (7, []), (7, [["x", 1]]), (7, [["x"]]), (7, [["x", True]] * 33),
        (7, 5), (7, [["x" * 9000, True]]), (8, "now"), (8, float("inf")), (9, 5), (9, "a" * 65),
        (10, None), (10, "x" * 129),
    ]
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_file_is_reported_and_changes_nothing(tmp_path: Path, damage: Callable[[Path], object]) -> None:
    path, limits = tmp_path / "pool", PoolLimits(rollouts=8)
    written(path, *EMPTY, msgpack.packb(GOOD))
    assert len(restarted(path, limits=limits)) == 1
    damage(path)
    pool, _ = make_pool(limits=limits)
    pool.add(make_rollout())
    with pytest.raises(StateError):
        pool.load(path)
    assert pool.candidates() == (make_rollout(),)
    if path.is_file():
        pool.save(path)
        assert len(restarted(path, limits=limits)) == 1


def test_a_full_disk_is_reported_and_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pool, _ = make_pool()
    pool.add(make_rollout(sequence=1))
    pool.save(tmp_path / "pool")
    pool.add(make_rollout(sequence=2))
    monkeypatch.setattr(os, "replace", find_the_disk_full)
    with pytest.raises(StateError, match="No space"):
        pool.save(tmp_path / "pool")
    with pytest.raises(StateError):
        pool.save(tmp_path / "missing" / "pool")
    monkeypatch.undo()
    assert len(restarted(tmp_path / "pool")) == 1
