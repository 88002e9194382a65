"""Result files: what is written is read again, byte for byte the same, and damage is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sapo_edge.errors import StateError
from sapo_edge.experiment.records import (
    EvaluationRecord,
    RoundRecord,
    SwarmCosts,
    SwarmRecord,
    read_costs,
    read_record,
    write_costs,
    write_record,
)

ROUND = RoundRecord(1, 0, 0.25, None, 8, 40, 40, 1, 0, 0, {"sums": (2.0, 8)})
EVALUATION = EvaluationRecord(1, 0, "test@8", "08")
RECORD = SwarmRecord("plain", "8/0", 3, (ROUND,), (EVALUATION,), {"test@8": ("sums", "sums")})
COSTS = SwarmCosts("plain", "8/0", 3, ((1, 0, 1.5), (1, 1, 0.25)))


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    write_record(first, RECORD)
    assert read_record(first) == RECORD
    write_record(second, read_record(first))
    assert first.read_bytes() == second.read_bytes()


def test_costs_are_read_as_they_were_written(tmp_path: Path) -> None:
    write_costs(tmp_path / "costs.json", COSTS)
    assert read_costs(tmp_path / "costs.json") == COSTS


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"{}", b"\xff", b"[" * 100_000])
def test_a_damaged_file_is_named_with_its_remedy(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "record.json"
    path.write_bytes(data)
    for read in (read_record, read_costs):
        with pytest.raises(StateError, match=r"record\.json is damaged: .*; remove that file"):
            read(path)


@pytest.mark.parametrize(
    "change",
    [
        {"seed": -1},
        {"rounds": [{}]},
        {"rounds": [None]},
        {"entries": {}},
        {"entries": {"test@8": ["sums"]}},
        {"evaluations": [{"round": 1, "node": 0, "questions": "test@8", "correct": "0x"}]},
        {"arm": None},
    ],
)
def test_a_wrong_field_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    path = tmp_path / "record.json"
    write_record(path, RECORD)
    path.write_text(json.dumps({**json.loads(path.read_bytes()), **change}))
    with pytest.raises(StateError, match="is damaged"):
        read_record(path)


def test_a_missing_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="can't read"):
        read_record(tmp_path / "none.json")
