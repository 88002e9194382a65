"""The report of an experiment: tables, numbers and plots, from the records of its swarms.

`summary.txt`, `table.md`, `table.csv` and `results.json` follow from the records alone: the same records give the same
bytes. What depends on measured processor seconds is in `costs.md`, `costs.csv` and the plots by processor seconds.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sapo_edge.experiment.files import reported
from sapo_edge.experiment.libraries import check_libraries
from sapo_edge.experiment.plan import Plan
from sapo_edge.experiment.records import SwarmCosts, SwarmRecord
from sapo_edge.experiment.statistics import (
    MARGIN,
    ArmResult,
    EqualCost,
    Estimate,
    Result,
    SettingResult,
    evaluate,
    is_accuracy,
)
from sapo_edge.experiment.tables import costs_text, report_text, summary_text
from sapo_edge.state.durable import write_atomically

SUMMARY = "summary.txt"
"""The file for a terminal."""
_COLUMNS = (
    "setting", "arm", "measure", "task", "swarms", "value", "low", "high", "iqm", "pairs", "difference",
    "difference_low", "difference_high", "difference_t_low", "difference_t_high", "verdict", "not_worse", "note",
)  # fmt: skip


def write_report(
    plan: Plan,
    records: Sequence[SwarmRecord],
    costs: Sequence[SwarmCosts],
    directory: Path,
    plots: bool = True,
) -> list[Path]:
    """Write the report of all finished swarms; missing ones are counted in its tables.

    Args:
        plan: of the experiment.
        records: of finished swarms, in any order; those of other plans are left out.
        costs: of the same swarms, or of some.
        directory: for the files; created if it is missing.
        plots: pictures too, as SVG and PNG.

    Returns:
        The files, in a fixed order.

    Raises:
        SapoError: if a library is missing.
        StateError: if a file can't be written.
        ValueError: if two records are of one swarm.
    """
    check_libraries(plots=plots)
    results = evaluate(plan, records, costs)
    files = {
        SUMMARY: summary_text(plan, results).encode(),
        "table.md": report_text(plan, results).encode(),
        "table.csv": _csv(row for result in results for row in _rows(result)),
        "results.json": _json(plan, results),
        "costs.md": costs_text(plan, results).encode(),
        "costs.csv": _csv(row for result in results for row in _cost_rows(result)),
    }
    with reported("create", directory):
        directory.mkdir(parents=True, exist_ok=True)
    paths = [_write(directory / name, data) for name, data in files.items()]
    if plots:
        from sapo_edge.experiment.plots import pictures

        paths += [_write(directory / name, data) for result in results for name, data in pictures(result)]
    return paths


def _write(path: Path, data: bytes) -> Path:
    with reported("write", path):
        write_atomically(path, data, mode=0o644)
    return path


def _rounded(value: float | None) -> float | None:
    """Six decimals: differences between processors in the last bits don't show."""
    if value is None or not math.isfinite(value):
        return None
    return round(value, 6) + 0.0  # never -0.0


def _json(plan: Plan, results: Iterable[SettingResult]) -> bytes:
    settings = [
        {
            "name": result.setting.name,
            "title": result.setting.title,
            "baseline": result.setting.baseline,
            "arms": [_arm(arm) for arm in result.arms],
        }
        for result in results
    ]
    content = {"version": 1, "scale": plan.scale, "seeds": plan.seeds, "settings": settings}
    return json.dumps(content, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def _arm(arm: ArmResult) -> dict[str, Any]:
    return {
        "name": arm.arm.name,
        "title": arm.arm.title,
        "seeds": [swarm.seed for swarm in arm.swarms],
        "measures": {name: _result(result) for name, result in arm.results.items()},
        "tasks": [
            {"measure": name, "task": task, **_result(result)} for (name, task), result in arm.tasks.items()
        ],
        "own_reward_by_task": {task: _result(result) for task, result in arm.rewards.items()},
        "own_reward_ratio": _estimate(arm.ratio),
        "equal_own_answers": _equal(arm.equal_answers),
        "worst_drawdown": _rounded(arm.worst),
        "curves": {
            str(swarm.seed): {
                "validation_by_round": _points(swarm.by_round),
                "validation_by_own_answers": _points(swarm.by_answers),
                "own_reward_by_round": _points(swarm.own_by_round),
            }
            for swarm in arm.swarms
        },
    }  # fmt: skip


def _points(series: Iterable[tuple[float, float]]) -> list[list[float | None]]:
    return [[_rounded(x), _rounded(y)] for x, y in series]


def _estimate(estimate: Estimate | None) -> dict[str, Any] | None:
    if estimate is None:
        return None
    names = ("value", "low", "high", "t_low", "t_high")
    numbers = {name: _rounded(getattr(estimate, name)) for name in names}
    return {**numbers, "count": estimate.count, "note": estimate.note}


def _result(result: Result) -> dict[str, Any]:
    difference = _estimate(result.difference)
    if difference is not None and result.difference is not None:
        difference["verdict"] = result.difference.verdict
    return {
        "values": {str(seed): _rounded(value) for seed, value in sorted(result.values.items())},
        "mean": _estimate(result.estimate),
        "iqm": _rounded(result.iqm),
        "difference": difference,
    }


def _equal(equal: EqualCost | None) -> dict[str, Any] | None:
    if equal is None:
        return None
    numbers = {name: _rounded(getattr(equal, name)) for name in ("cost", "arm", "baseline")}
    return {**numbers, "difference": {**(_estimate(equal.difference) or {}), "verdict": equal.difference.verdict}}


def _rows(result: SettingResult) -> Iterator[Mapping[str, object]]:
    for arm in result.arms:
        start = {"setting": result.setting.name, "arm": arm.arm.name}
        for name, measured in arm.results.items():
            yield {**start, "measure": name, **_cells(measured, accuracy=is_accuracy(name))}
        for (name, task), measured in arm.tasks.items():
            yield {**start, "measure": name, "task": task, **_cells(measured, accuracy=True)}
        for task, measured in arm.rewards.items():
            yield {**start, "measure": "mean own reward", "task": task, **_cells(measured)}
        if arm.ratio is not None:
            yield {**start, "measure": "ratio of cumulative own reward to the baseline", **_estimate_cells(arm.ratio)}
        if arm.equal_answers is not None:
            yield {**start, "measure": "validation at equal own answers", **_equal_cells(arm.equal_answers)}


def _cost_rows(result: SettingResult) -> Iterator[Mapping[str, object]]:
    for arm in result.arms:
        start = {"setting": result.setting.name, "arm": arm.arm.name}
        if arm.seconds is not None:
            yield {**start, "measure": "processor seconds", **_cells(arm.seconds)}
        if arm.equal_seconds is not None:
            yield {**start, "measure": "validation at equal processor seconds", **_equal_cells(arm.equal_seconds)}


def _cells(result: Result, *, accuracy: bool = False) -> dict[str, object]:
    cells = {**_estimate_cells(result.estimate), "iqm": _rounded(result.iqm)}
    return cells if result.difference is None else {**cells, **_difference_cells(result.difference, accuracy)}


def _equal_cells(equal: EqualCost) -> dict[str, object]:
    return {"swarms": equal.difference.count, "value": _rounded(equal.arm), **_difference_cells(equal.difference, True)}


def _estimate_cells(estimate: Estimate) -> dict[str, object]:
    ends = {"low": _rounded(estimate.low), "high": _rounded(estimate.high)}
    return {"swarms": estimate.count, "value": _rounded(estimate.value), **ends, "note": estimate.note}


def _difference_cells(difference: Estimate, accuracy: bool) -> dict[str, object]:
    cells: dict[str, object] = {
        "pairs": difference.count,
        "difference": _rounded(difference.value),
        "difference_low": _rounded(difference.low),
        "difference_high": _rounded(difference.high),
        "difference_t_low": _rounded(difference.t_low),
        "difference_t_high": _rounded(difference.t_high),
        "verdict": difference.verdict,
        "note": difference.note,
    }
    if accuracy and difference.low is not None:
        cells["not_worse"] = "yes" if difference.low > -MARGIN else "no"
    return cells


def _csv(rows: Iterable[Mapping[str, object]]) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, _COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()
