"""The soak's own judgement: planted leaks and losses have to show, and what is in order must not."""

from __future__ import annotations

import itertools
import json
import math
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sapo_edge.pool.saved import SavedPool, SavedRollout, write_pool
from sapo_edge.rollout import Answer, Rollout, TaskRef
from sapo_edge.state.journal import Journal, JournaledRollout
from sapo_edge.state.paths import Paths
from sapo_edge.state.secret import read_or_create_secret
from sapo_edge.swarm.joining.identity import Identity
from tests.fakes import round_event
from tests.soak.accounts import Account, check, deaf, read_account, silent
from tests.soak.churn import QUIET, plan
from tests.soak.records import Records, read_records
from tests.soak.report import Soaked, tables
from tests.soak.slopes import Slope, decide, fit, together

HOUR, EVERY = 3600, 10
SEATS = ("n1", "n2", "n3", "n4")


def samples(seat: str, leak: float = 0.0, noise: float = 0.3, memory: float = 0.9, **changes: Any) -> list[Any]:
    """The samples of an hour: memory that wanders as an allocator's does, and a leak in MB an hour."""
    generator = np.random.default_rng(SEATS.index(seat))
    wander, records = 0.0, []
    for second in range(0, HOUR, EVERY):
        wander = memory * wander + math.sqrt(1 - memory**2) * noise * generator.standard_normal()
        rss = 470e6 + 1e6 * (wander + leak * second / HOUR)
        figures = {"rss": rss, "uss": rss - 300e6, "pss": rss - 200e6, "files": 40, "threads": 12, "processor": second}
        record = {"kind": "sample", "time": 1000.0 + second, "seat": seat, "life": 1, "age": 60.0 + second}
        records.append(record | figures | changes)
    return records


def soaked(*more: dict[str, Any], leak: float = 0.0, **changes: Any) -> Soaked:
    options = {"minutes": 60, "nodes": 4, "attackers": 1}
    records = [
        {"kind": "start", "time": 900.0, "options": options, "machine": "m", "commit": "c"},
        {"kind": "begun", "time": 1000.0},
        *(record for seat in SEATS for record in samples(seat, leak, **changes)),
        {"kind": "ended", "time": 1000.0 + HOUR},
        {"kind": "arrivals", "time": 5000.0, "pairs": 12, "problems": []},
        *more,
    ]
    return Soaked(records)


@pytest.mark.parametrize(("leak", "decision"), [(0.0, "flat"), (5.0, "grows"), (-5.0, "flat")])
def test_a_leak_of_some_megabytes_an_hour_shows(leak: float, decision: str) -> None:
    run = soaked(leak=leak)
    growth = run.growth("uss", 1e6)
    assert growth.decision == decision and len(growth.lives) == 4
    assert growth.mean is not None and abs(growth.mean.value - leak) < 4 * growth.mean.error
    assert ("memory grows" in run.problems()) == (decision == "grows")
    assert decision in tables(run)


def test_noise_and_few_samples_decide_nothing_and_the_standard_error_covers_noise_that_wanders() -> None:
    assert soaked(leak=1.0, noise=3.0).growth("uss", 1e6).decision == "undecided"
    assert fit([0.0, 10.0], [1.0, 2.0]) is None
    assert together([]) is None and decide(None, 0, 1.0) == "undecided"
    assert together([Slope(2.0, 0.5)]) == Slope(2.0, 0.5)
    # A line through 180 samples of which each resembles the one before: least squares alone would be too sure.
    generator = np.random.default_rng(5)
    seconds = np.arange(0, HOUR / 2, EVERY)
    covered = 0
    for _ in range(100):
        values = list(itertools.accumulate(generator.standard_normal(len(seconds)), lambda last, new: 0.9 * last + new))
        slope = fit(list(seconds), values)
        assert slope is not None
        covered += abs(slope.value) < 2 * slope.error
    # 95 % if it were exact. It is 40 % with the error of least squares.
    assert covered > 85


def test_what_a_run_tells_of_short_lives_faults_and_a_break(tmp_path: Path) -> None:
    assert soaked(age=10.0).growth("rss", 1e6).lives == {}
    restarted = soaked()
    for sample in restarted.samples["n2"][-5:]:
        sample["life"] = 2
    assert set(restarted.growth("rss", 1e6).lives) == {"n1", "n3", "n4"}
    assert soaked().problems() == []
    assert "n1: 2 faults in pulls" in soaked(faults={"pulls": 2}).problems()
    assert "n1: 1 restarts of its host" in soaked(restarts=1).problems()
    broken = soaked()
    broken.records = [record for record in broken.records if record["kind"] != "arrivals"]
    assert broken.problems() == ["the run broke off before it was checked"]
    records = [record for record in soaked().records if record["kind"] not in {"ended", "arrivals"}]
    text = "".join(json.dumps(record) + "\n" for record in records[:200]) + '{"kind": "sam'
    (tmp_path / "records.jsonl").write_text(text)
    assert "| n1 |" in tables(Soaked(read_records(tmp_path)))


def life(begins: int, *rounds: int) -> list[dict[str, Any]]:
    """What a life says: each round, and that it was saved."""
    events: list[dict[str, Any]] = [{"event": "node_started", "round": begins}]
    for round in rounds:
        events += [{"event": "round", "round": round}, {"event": "checkpoint", "round": round}]
    return events


SURVIVED = {"event": "notice", "level": "warning", "text": "the swarm survived an error in its pulls (KeyError)"}
MANY = list(range(1, 31))
ALONE = {"events": life(0, *MANY), "rounds": MANY, "checkpoint": 30, "kept": {20: (0, []), 30: (0, [])}}


def account(**changes: Any) -> Account:
    """A node that was killed after its second round, which it had not saved, and ended in order."""
    values: dict[str, Any] = {
        "name": "n1", "rounds": [1, 2, 3], "sequences": [1, 2, 3], "checkpoint": 3,
        "events": [*life(0, 1), {"event": "round", "round": 2}, *life(1, 2, 3), SURVIVED | {"text": "alone"}],
        "ends": [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGTERM, 0)],
        "kept": {1: (0, []), 2: (1, ["a"]), 3: (1, ["b"])},
    }  # fmt: skip
    return Account(**(values | changes))


@pytest.mark.parametrize(("changes", "problem"), [
    ({"rounds": [1, 3]}, "the journal lacks rounds [2]"),
    ({"events": [*life(0, 1, 2), *life(1, 2, 3)]}, "a life began at round 1, and 2 was saved"),
    ({"events": life(0, 1, 3)}, "round 3 follows 1"),
    ({"checkpoint": 2}, "the newest checkpoint is of round 2, and the newest round 3"),
    ({"checkpoint": None}, "the newest checkpoint is of round None, and the newest round 3"),
    ({"events": life(0, 1, 2, 3, 4)}, "the journal ends at round 3, and 4 was saved"),
    ({"kept": {2: (1, ["a"]), 3: (1, ["a"])}}, "rollout a was trained on 2 times"),
    ({"kept": {3: (2, ["b"])}}, "round 3 counts 2 rollouts of others, and has 1"),
    ({"sequences": [1, 2, 2]}, "sequence number 2 was used 2 times"),
    ({"ends": [(0, 1)]}, "life 1 ended with 1 after signal 0"),
    ({"ends": [(signal.SIGTERM, None)]}, "life 1 ended with None after signal 15"),
    ({"faults": ["stderr: Traceback (most recent call last):"]}, "stderr: Traceback (most recent call last):"),
    ({"damaged": ["the saved pool is damaged"]}, "the saved pool is damaged"),
    ({"events": [*life(0, 1, 2, 3), SURVIVED]}, SURVIVED["text"]),
    (ALONE, "in 30 rounds it trained on nothing of others"),
])  # fmt: skip
def test_what_is_lost_or_counted_twice_is_found(changes: dict[str, Any], problem: str) -> None:
    assert account().problems() == account(**ALONE | {"kept": {20: (1, ["a"]), 30: (0, [])}}).problems() == []
    assert account(**changes).problems() == [f"n1: {problem}"]


def test_who_was_not_heard_is_named() -> None:
    first, second = Account("n1", heard={"two": 50.0}), Account("n2", heard={"one": 80.0})
    names = {"n1": "one", "n2": "two"}
    assert silent([first, second], names, 40.0) == []
    assert silent([first, second], names, 60.0) == ["n1 did not hear n2"]
    assert silent([first, Account("n2")], names, 40.0) == ["n2 did not hear n1"]
    assert deaf([first, second], names, 60.0) == ["n1 heard nobody at the end"]
    assert deaf([first, second], names, 40.0) == []


def rollout(author: str, sequence: int, time: float) -> Rollout:
    return Rollout(TaskRef("sums", "1", 1, sequence), "1 + 1?", "2", (Answer("2", True),), author, 1, sequence, time)


def make_home(path: Path, rounds: list[int], heard: str, arrived: float, events: list[dict[str, Any]]) -> str:
    """A home with these rounds in its journal, of which each took a rollout of "other"; returns its peer id."""
    paths = Paths.default(path)
    paths.create()
    journal = Journal(paths.journal)
    for round in rounds:
        event = round_event(round, groups=2, informative=1, own=1, external=1, shared=1)
        pair = [
            JournaledRollout(rollout(author, round, 100.0 + round), (1.0,), (0.0,), own)
            for author, own in (("me", True), ("other", False))
        ]
        journal.record(event, pair)
    journal.close()
    write_pool(paths.run.pool, SavedPool(rollouts=[SavedRollout(rollout(heard, 9, 1.0), arrived)]))
    (path / "stderr").write_text("fine\n")
    (path / "events.jsonl").write_text("".join(json.dumps(event, separators=(",", ":")) + "\n" for event in events))
    return Identity(read_or_create_secret(paths.identity)).peer_id


def test_homes_are_read_and_checked_with_what_the_records_tell_of_their_lives(tmp_path: Path) -> None:
    started = [{"event": "node_started", "round": 0, "time": 1001.0}]
    first = make_home(tmp_path / "n1", [], "nobody", 0.0, started)
    make_home(tmp_path / "n2", [1, 2, 4], first, 3900.0, started)
    make_home(tmp_path / "n3", [], first, 0.0, started)
    (tmp_path / "n2" / "stderr").write_text("fine\nTraceback (most recent call last):\n  File\n")
    account = read_account(tmp_path / "n2", [])
    assert account.rounds == account.sequences == [1, 2, 4] and account.checkpoint is None
    assert {round: counted for round, (counted, _) in account.kept.items()} == {1: 1, 2: 1, 4: 1}
    assert account.heard == {"other": 104.0, first: 3900.0}
    records = Records(tmp_path)
    lines: list[tuple[str, dict[str, Any]]] = [
        ("begun", {"time": 1000.0}),
        *(("life", {"seat": seat, "life": 1}) for seat in ("relay", "n1", "n2", "n3")),
        ("change", {"seat": "n3", "what": "leave", "time": 2000.0}),
        ("death", {"seat": "n1", "life": 1, "asked": 15, "code": 0}),
        ("death", {"seat": "n2", "life": 1, "asked": 0, "code": 1}),
        ("death", {"seat": "n3", "life": 1, "asked": 9, "code": -9}),
        ("ended", {"time": 4000.0}),
    ]
    for kind, more in lines:
        records.write(kind, **more)
    found: dict[str, Any] = {}
    check(tmp_path, lambda kind, **fields: found.update({f"{kind} {fields.get('seat', '')}": fields["problems"]}))
    assert found == {
        "account n1": [],
        "account n2": [
            "n2: life 1 ended with 1 after signal 0",
            "n2: the journal lacks rounds [3]",
            "n2: the newest checkpoint is of round None, and the newest round 4",
            "n2: stderr: Traceback (most recent call last):",
        ],
        "account n3": [],
        "arrivals ": ["n1 did not hear n2", "n1 heard nobody at the end"],
    }


@pytest.mark.parametrize(("minutes", "nodes"), [(60, 12), (2, 4), (3, 2)])
def test_churn_stops_by_both_signals_and_leaves_half_of_the_nodes_alone(minutes: int, nodes: int) -> None:
    changes = plan(60 * minutes, nodes)
    here = set(range(nodes))
    for change in changes:
        assert (change.seat in here) == (change.kind in {"stop", "leave"})
        (here.discard if change.kind in {"stop", "leave"} else here.add)(change.seat)
    assert here == {*range(nodes - 1), nodes}
    assert {change.by for change in changes if change.kind == "stop"} == {signal.SIGTERM, signal.SIGKILL}
    assert all(change.at <= 60 * minutes * (1 - QUIET) for change in changes)
    assert nodes == 2 or {change.seat for change in changes}.isdisjoint(range(nodes // 2))
