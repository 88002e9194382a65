"""The file of results: what is written is read again, what a kill or a person left is named, nothing is mixed."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from sapo_edge.errors import StateError
from sapo_edge.experiment.results import FILE, EvaluationRecord, Results, RoundRecord, SwarmRecord, exclusive
from sapo_edge.experiment.scales import embedded

ROUND = RoundRecord(1, 0, 0.25, None, 8, 40, 40, 1, 0, 0, {"sums": (2.0, 8)}, 1.5)
EVALUATION = EvaluationRecord(1, 0, "test@8", "08")
RECORD = SwarmRecord("plain", "8/0", "d1", 3, (ROUND,), (EVALUATION,), {"test@8": ("sums", "sums")})
OTHER = replace(RECORD, seed=4)
PLAN = embedded()


def results(directory: Path) -> Results[SwarmRecord]:
    return Results(directory, lambda record: record)


def written(directory: Path) -> Results[SwarmRecord]:
    """Results with two swarms."""
    found = results(directory)
    found.claim(PLAN, {"backend": "torch"})
    found.add(RECORD)
    found.add(OTHER)
    return found


def test_what_is_written_is_read_again_and_read_on_while_it_grows(tmp_path: Path) -> None:
    one, two = results(tmp_path), results(tmp_path)
    two.read()
    assert not two.swarms
    one.claim(PLAN, {"backend": "torch"})
    for record in (RECORD, OTHER):
        one.add(record)
        two.read()
        assert two.swarms == one.swarms and two.swarms["d1", record.seed] == record
    assert two.swarms["d1", 3].rounds[0].seconds == 1.5
    assert (two.plan, two.origin) == (PLAN, {"backend": "torch"})
    size = (tmp_path / FILE).stat().st_size
    two.claim(PLAN, {"backend": "torch"})
    assert (tmp_path / FILE).stat().st_size == size
    (tmp_path / FILE).unlink()
    results(tmp_path).claim(PLAN)
    two.read()
    assert not two.swarms and not two.origin, "another experiment took its place"


@pytest.mark.parametrize("kept", [0, 1, 20])
def test_what_a_kill_left_of_a_line_costs_that_swarm_alone(tmp_path: Path, kept: int) -> None:
    written(tmp_path)
    path = tmp_path / FILE
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]) + lines[-1][:kept])
    again = results(tmp_path)
    again.claim(PLAN)
    assert list(again.swarms) == [("d1", 3)]
    again.add(OTHER)
    assert path.read_bytes() == b"".join(lines)


WRONG: list[dict[str, Any]] = [
    {"seed": "3"},
    {"rounds": [{}]},
    {"rounds": [None]},
    {"entries": {}},
    {"entries": {"test@8": ["sums"]}},
    {"evaluations": [{"round": 1, "node": 0, "questions": "test@8", "correct": "0x"}]},
    {"evaluations": [{"round": True, "node": 0, "questions": "test@8", "correct": "08"}]},
    {"arm": None},
]


@pytest.mark.parametrize("line", [
    b"", b"{", b"[]", b"\xff", b"[" * 100_000, b'{"plan": {"scale": "x"}}', b"NaN",
    *(json.dumps({"swarm": asdict(RECORD) | change}).encode() for change in WRONG),
])  # fmt: skip
def test_a_damaged_line_or_a_wrong_field_is_refused_with_its_line(tmp_path: Path, line: bytes) -> None:
    written(tmp_path)
    path = tmp_path / FILE
    path.write_bytes(b"".join([*path.read_bytes().splitlines(keepends=True)[:-1], line, b"\n"]))
    with pytest.raises(StateError, match=r"line 4 of .*results\.jsonl is damaged; remove that line"):
        results(tmp_path).read()


def test_a_directory_belongs_to_one_experiment(tmp_path: Path) -> None:
    found = results(tmp_path)
    found.claim(PLAN, {"manifest": "1", "model base": "2"})
    found.claim(replace(PLAN, seeds=9, settings=()), {"model hard": "3", "manifest": "1"})
    for other, named in (
        (replace(PLAN, manifest="starter-1"), "another manifest"),
        (replace(PLAN, scale="tiny", threads=3), "another scale and threads"),
        (replace(PLAN, learning=replace(PLAN.learning, rank=3)), "another learning"),
    ):
        with pytest.raises(StateError, match=named):
            results(tmp_path).claim(other)
    for name in ("manifest", "model base", "model hard"):
        with pytest.raises(StateError, match=f"was made with another {name}; give another directory with --to"):
            results(tmp_path).claim(PLAN, {name: "4"})


def test_what_was_appended_and_was_made_with_another_model_is_refused(tmp_path: Path) -> None:
    one, two = results(tmp_path / "one"), results(tmp_path / "two")
    for found, model in ((one, "1"), (two, "2")):
        found.directory.mkdir()
        found.claim(PLAN, {"backend": "torch", "model base": model})
    with (tmp_path / "one" / FILE).open("ab") as file:
        file.write((tmp_path / "two" / FILE).read_bytes())
    with pytest.raises(StateError, match="was made with another model base; give another directory with --to"):
        one.read()


def test_what_was_appended_while_an_experiment_runs_stays(tmp_path: Path) -> None:
    ours, theirs = results(tmp_path / "ours"), results(tmp_path / "theirs")
    for found, record in ((ours, RECORD), (theirs, OTHER)):
        found.directory.mkdir()
        found.claim(PLAN, {"backend": "torch"})
        found.add(record)
    with (tmp_path / "ours" / FILE).open("ab") as file:
        file.write((tmp_path / "theirs" / FILE).read_bytes())
    ours.add(replace(RECORD, seed=5))
    again = results(tmp_path / "ours")
    again.read()
    assert sorted(seed for _, seed in again.swarms) == [3, 4, 5]


def test_one_process_at_a_time_works_in_a_directory(tmp_path: Path) -> None:
    held = rf"another sapo experiment \(process {os.getpid()}\)"
    with exclusive(tmp_path), pytest.raises(StateError, match=held), exclusive(tmp_path):
        pass
