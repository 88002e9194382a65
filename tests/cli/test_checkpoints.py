"""`sapo checkpoints` on the checkpoints of a small run."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from sapo_edge.state.lock import StateLock
from sapo_edge.state.paths import Paths
from sapo_edge.state.store import Store
from tests.cli.inprocess import Invoke
from tests.cli.process import assert_refused


def listed(invoke: Invoke, home: Path) -> dict[str, dict[str, Any]]:
    rows = invoke("checkpoints", "list", "--home", home, "--json").record["checkpoints"]
    return {row["name"]: row for row in rows}


def test_checkpoints_are_listed_with_their_marks(invoke: Invoke, home: Path) -> None:
    rows = listed(invoke, home)
    rounds = [row["round"] for row in rows.values()]
    assert rounds == sorted(rounds) and "newest" in rows[f"round-{max(rounds):06d}"]["marks"]
    assert sum("best" in row["marks"] for row in rows.values()) == 1
    best = next(row for row in rows.values() if "best" in row["marks"])
    accuracies = [row["accuracy"] for row in rows.values() if row["accuracy"] is not None]
    assert best["accuracy"] == max(accuracies) and best["questions"] > 0
    assert all(row["bytes"] > 1000 and row["time"] > 1e9 for row in rows.values())
    text = invoke("checkpoints", "list", "--home", home).out.splitlines()
    assert text[0].split() == ["checkpoint", "validation", "written", "size"]
    assert [line.split()[0] for line in text[1:]] == list(rows) and "newest" in text[-1]


def test_what_nobody_needs_is_removed_and_nothing_else(invoke: Invoke, home: Path) -> None:
    rows = listed(invoke, home)
    spare = next(row for row in rows.values() if not row["marks"])
    marked = next(row for row in rows.values() if row["marks"])
    assert_refused(invoke("checkpoints", "remove", str(marked["round"]), "--home", home), 1, "is the ")
    with StateLock(Paths.default(home).lock):
        assert_refused(invoke("checkpoints", "remove", str(spare["round"]), "--home", home), 1, "uses")
    assert listed(invoke, home) == rows
    assert invoke("checkpoints", "remove", str(spare["round"]), "--home", home).code == 0
    assert listed(invoke, home) == {name: row for name, row in rows.items() if row != spare}


def test_what_becomes_the_newest_meanwhile_stays(invoke: Invoke, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spare = next(row for row in listed(invoke, home).values() if not row["marks"])
    acquire = StateLock.acquire

    def roll_back_before(lock: StateLock) -> None:
        monkeypatch.setattr(StateLock, "acquire", acquire)
        with Store(Paths.default(home)) as store:
            store.roll_back(spare["round"])
        acquire(lock)

    monkeypatch.setattr(StateLock, "acquire", roll_back_before)
    assert_refused(invoke("checkpoints", "remove", str(spare["round"]), "--home", home), 1, "is the newest")
    assert "newest" in listed(invoke, home)[spare["name"]]["marks"]


def test_what_was_set_aside_is_listed_and_removed(invoke: Invoke, home: Path) -> None:
    rows = listed(invoke, home)
    rounds = sorted(int(str(row["round"])) for row in rows.values())
    used = invoke("checkpoints", "use", str(rounds[0]), "--home", home, "--json")
    assert used.record["to"] == rounds[0]
    aside = [name for name, row in listed(invoke, home).items() if row["round"] is None]
    assert aside == [f"round-{number:06d}.rolled-back" for number in rounds[1:]]
    assert invoke("checkpoints", "remove", "--aside", "--home", home).code == 0
    assert list(listed(invoke, home)) == [f"round-{rounds[0]:06d}"]
    assert_refused(invoke("checkpoints", "remove", "--aside", "--home", home), 1, "nothing was set aside")
    name = next(iter(listed(invoke, home)))
    (Paths.default(home).checkpoints / name / "checkpoint.json").write_text("{")
    row = listed(invoke, home)[name]
    assert "damaged" in row["marks"]
    assert invoke("checkpoints", "remove", str(row["round"]), "--home", home).code == 0
    assert name not in listed(invoke, home)


def test_mistakes_are_answered_and_create_nothing(invoke: Invoke, tmp_path: Path, home: Path) -> None:
    fresh = tmp_path / "fresh"
    assert "train first" in invoke("checkpoints", "list", "--home", fresh).err
    assert_refused(invoke("checkpoints", "remove", "3", "--home", fresh), 1, "no checkpoint of round 3")
    assert not fresh.exists()
    assert_refused(invoke("checkpoints", "remove", "--home", home), 2, "not clear what to remove")
    assert_refused(invoke("checkpoints", "remove", "3", "--aside", "--home", home), 2, "not clear what to remove")
    shutil.rmtree(Paths.default(home).checkpoints)
    assert "train first" in invoke("checkpoints", "list", "--home", home).err
