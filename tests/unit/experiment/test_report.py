"""Reports: the same bytes for the same records, every number where it belongs, missing swarms said."""

from __future__ import annotations

import csv
import json
import random
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from sapo_edge.errors import SapoError
from sapo_edge.experiment import plots
from sapo_edge.experiment.plan import Arm, Plan, Setting
from sapo_edge.experiment.report import write_report
from sapo_edge.experiment.results import SwarmRecord
from sapo_edge.experiment.statistics import Estimate, evaluate
from sapo_edge.experiment.tables import difference_cell, estimate_cell, number
from tests.unit.experiment.synthetic import swarm

ARMS = (Arm("8/0", "alone"), Arm("4/4", "as | published"))
PLAN = Plan("tiny", (Setting("plain", "Nodes that are alike", ARMS, "8/0"),), 4)


def swarms(count: int = 4, differing: float = 0.0) -> list[SwarmRecord]:
    """Seconds of a round differ by `differing` from seed to seed."""
    return [
        swarm(arm.name, seed, skill=skill, own=own, seconds=0.5 + differing * seed)
        for arm, skill, own in zip(ARMS, (0.3, 0.7), (8, 4), strict=True)
        for seed in range(count)
    ]


def files(directory: Path) -> Mapping[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("report") / "new" / "folder"
    paths = write_report(PLAN, swarms(), directory)
    assert sorted(path.name for path in paths) == sorted(files(directory))
    return directory


def test_another_order_of_records_gives_the_same_bytes_and_measured_seconds_change_costs_alone(
    report: Path, tmp_path: Path
) -> None:
    records = swarms(differing=0.3)
    write_report(PLAN, records, tmp_path / "ordered", plots=False)
    random.Random(3).shuffle(records)
    for index, record in enumerate(records):
        rounds, evaluations = list(record.rounds), list(record.evaluations)
        random.Random(index).shuffle(rounds)
        random.Random(index).shuffle(evaluations)
        records[index] = replace(record, rounds=tuple(rounds), evaluations=tuple(evaluations))
    write_report(PLAN, records, tmp_path / "shuffled")
    before, after = files(report), files(tmp_path / "shuffled")
    assert after.items() >= files(tmp_path / "ordered").items()
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"costs.md", "costs.csv", "plain-seconds.png", "plain-seconds.svg"}


def test_every_picture_comes_as_svg_and_png_and_the_table_has_a_row_for_each_arm(report: Path) -> None:
    names = {
        f"plain-{name}.{kind}" for name in ("rounds", "answers", "seconds", "reward", "test") for kind in ("svg", "png")
    }
    content = files(report)
    assert names == {name for name in content if name.startswith("plain-")}
    assert all(content[name].startswith(b"\x89PNG" if name.endswith("png") else b"<?xml") for name in names)
    assert not any(b"dc:date" in content[name] for name in names if name.endswith("svg"))
    text = (report / "table.md").read_text("utf-8")
    rows = [row for row in text.splitlines() if row.startswith(("| 8/0: alone | 4 |", "| 4/4: as \\| published | 4 |"))]
    assert len(rows) == 2 and "baseline" in rows[0] and "above" in rows[1] and "(of " not in text
    assert "2 honest learning nodes of 2 members; 20 rounds" in text and "Not finished" not in text
    assert "| sums |" in text and "second" not in text
    assert "| 8/0: alone | 4 | 20.0 (the same in all 4) | 31.25 |" in (report / "costs.md").read_text("utf-8")


def test_the_numbers_of_all_files_agree(report: Path) -> None:
    content = json.loads((report / "results.json").read_bytes())
    wanted = ("4/4", "test", "")
    (test,) = [row for row in content["rows"] if (row["arm"], row["measure"], row.get("task", "")) == wanted]
    values = [swarm["values"]["test"] for swarm in content["swarms"] if swarm["arm"] == "4/4"]
    with (report / "table.csv").open(newline="") as file:
        (cells,) = [row for row in csv.DictReader(file) if (row["arm"], row["measure"], row["task"]) == wanted]
    assert float(cells["value"]) == test["value"] == pytest.approx(sum(values) / 4, abs=1e-6)
    assert float(cells["difference_low"]) == test["difference_low"] > 0 and cells["verdict"] == "above"
    assert cells["not_worse"] == "yes" and cells["pairs"] == "4"
    assert f"{test['difference']:+.3f} [{test['difference_low']:+.3f}" in (report / "table.md").read_text("utf-8")


def test_missing_swarms_are_said_as_before_the_first_one(tmp_path: Path) -> None:
    records = [record for record in swarms() if record.arm == "8/0" or record.seed == 3]
    write_report(PLAN, records, tmp_path, plots=False)
    text = (tmp_path / "table.md").read_text("utf-8")
    assert "**Not finished: 5 of 8 swarms.**" in text and "| 4/4: as \\| published | 1 of 4 |" in text
    assert "(one swarm)" in text
    write_report(PLAN, [], tmp_path)
    text = (tmp_path / "table.md").read_text("utf-8")
    assert "No swarm is finished." in (tmp_path / "costs.md").read_text("utf-8")
    assert "No swarm is finished." in text and "| 8/0: alone | 0 of 4 | - |" in text
    assert set(files(tmp_path)) == {"summary.txt", "table.md", "table.csv", "results.json", "costs.md", "costs.csv"}


def test_many_arms_get_panels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plots, "saved", lambda stem, figure: [(stem, b"")])
    many = tuple(Arm(f"arm {index}", "") for index in range(7))
    plan = Plan("tiny", (Setting("Many/arms", "Many arms", many, "arm 0"),), 1)
    for finished in (["arm 0", "arm 6"], ["arm 0"], ["arm 6"]):
        (result,) = evaluate(plan, [swarm(name, 0, setting="Many/arms") for name in finished])
        assert {"many-arms-rounds", "many-arms-test"} <= dict(plots.pictures([result])).keys()


def test_a_missing_library_is_named_with_its_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(SapoError, match=r"matplotlib, .*install .*matplotlib>="):
        write_report(PLAN, [], tmp_path / "report")
    assert not (tmp_path / "report").exists()
    write_report(PLAN, [], tmp_path / "report", plots=False)
    monkeypatch.setitem(sys.modules, "scipy.stats", None)
    with pytest.raises(SapoError, match="scipy, "):
        write_report(PLAN, [], tmp_path / "report", plots=False)


def test_numbers_are_printed_the_same_way_everywhere() -> None:
    assert [number(value) for value in (0.5, -0.0001, -0.25, 1 / 3)] == ["0.500", "0.000", "-0.250", "0.333"]
    signed = [number(value, sign="+") for value in (0.02, -0.02, 0.0, -0.0004, 0.0004)]
    assert signed == ["+0.020", "-0.020", "0.000", "0.000", "0.000"]
    assert estimate_cell(Estimate(0.5, 0.4, 0.6, 9)) == "0.500 [0.400, 0.600]"
    assert difference_cell(None) == "no pairs"
    assert difference_cell(Estimate(-0.1, -0.2, -0.05, 9)) == "-0.100 [-0.200, -0.050] below"
