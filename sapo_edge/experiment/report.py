"""The report of an experiment: tables, numbers and plots, from the records of its swarms.

`summary.txt`, `table.md`, `table.csv` and `results.json` follow from the records alone: the same records give the same
bytes. What depends on measured processor seconds is in `costs.md`, `costs.csv` and the plots by processor seconds.
"""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path

from sapo_edge.errors import SapoError
from sapo_edge.experiment.law import law_csv, law_pictures, law_text, sizes
from sapo_edge.experiment.measures import is_accuracy
from sapo_edge.experiment.plan import Plan
from sapo_edge.experiment.results import SwarmRecord, reported
from sapo_edge.experiment.scales import LAW
from sapo_edge.experiment.statistics import MARGIN, ArmResult, EqualCost, Estimate, Result, SettingResult, evaluate
from sapo_edge.experiment.tables import costs_text, csv_text, report_text, summary_text
from sapo_edge.installing import how_to_install_extra
from sapo_edge.state.durable import write_atomically

SUMMARY = "summary.txt"
"""The file for a terminal."""
_COLUMNS = (
    "setting", "arm", "measure", "task", "swarms", "value", "low", "high", "iqm", "pairs", "difference",
    "difference_low", "difference_high", "difference_t_low", "difference_t_high", "verdict", "not_worse", "note",
)  # fmt: skip
_Row = Mapping[str, object]


def write_report(plan: Plan, records: Sequence[SwarmRecord], directory: Path, plots: bool = True) -> list[Path]:
    """Write the report of all finished swarms into a directory, which is created; its tables count missing ones.

    Args:
        records: of finished swarms, in any order; those of other plans are left out.
        plots: pictures too, as SVG and PNG.
    """
    check_libraries(plots=plots)
    results = evaluate(plan, records)
    rows = _rows(results, _measured)
    files = {
        SUMMARY: summary_text(plan, results).encode(),
        "table.md": report_text(plan, results).encode(),
        "table.csv": csv_text(_COLUMNS, rows),
        "results.json": _json(plan, results, rows),
        "costs.md": costs_text(plan, results).encode(),
        "costs.csv": csv_text(_COLUMNS, _rows(results, _costs)),
    }
    with reported("create", directory):
        directory.mkdir(parents=True, exist_ok=True)
    by_size = sizes(results) if plan.scale == LAW else {}
    if by_size:
        files |= {SUMMARY: law_text(by_size).encode(), "law.csv": law_csv(by_size)}
    drawn: Iterable[tuple[str, bytes]] = ()
    if plots:
        from sapo_edge.experiment.plots import pictures

        drawn = law_pictures(by_size) if by_size else pictures(results)
    paths = []
    for name, data in chain(files.items(), drawn):
        paths.append(directory / name)
        with reported("write", paths[-1]):
            write_atomically(paths[-1], data, mode=0o644)
    return paths


def check_libraries(*, plots: bool = True) -> None:
    """Check that the libraries of a report can be loaded: before hours of work rather than after."""
    purposes = {"scipy.stats": "the intervals", **({"matplotlib.figure": "the plots"} if plots else {})}
    for module, purpose in purposes.items():
        try:
            importlib.import_module(module)
        except (ImportError, OSError) as error:
            name = module.partition(".")[0]
            raise SapoError(
                f"{name}, which {purpose} of an experiment need, can't be loaded ({error})",
                how_to_install_extra("experiment"),
            ) from error


def _rounded(value: float | None) -> float | None:
    """Six decimals: differences between processors in the last bits don't show."""
    if value is None or not math.isfinite(value):
        return None
    return round(value, 6) + 0.0  # never -0.0


def _json(plan: Plan, results: Iterable[SettingResult], rows: Sequence[Mapping[str, object]]) -> bytes:
    """The rows of `table.csv`, and the values and curves of each swarm."""
    swarms = [
        {
            "setting": result.setting.name,
            "arm": arm.arm.name,
            "seed": swarm.seed,
            "values": {name: _rounded(value) for name, value in swarm.values.items()},
            "validation_by_round": _points(swarm.by_round),
            "validation_by_own_answers": _points(swarm.by_answers),
            "own_reward_by_round": _points(swarm.own_by_round),
        }
        for result in results
        for arm in result.arms
        for swarm in arm.swarms
    ]
    content = {"version": 2, "scale": plan.scale, "seeds": plan.seeds, "rows": rows, "swarms": swarms}
    return json.dumps(content, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def _points(series: Iterable[tuple[float, float]]) -> list[list[float | None]]:
    return [[_rounded(x), _rounded(y)] for x, y in series]


def _rows(results: Iterable[SettingResult], of: Callable[[ArmResult], Iterator[_Row]]) -> list[_Row]:
    return [
        {"setting": result.setting.name, "arm": arm.arm.name, **row}
        for result in results
        for arm in result.arms
        for row in of(arm)
    ]


def _measured(arm: ArmResult) -> Iterator[_Row]:
    for name, measured in arm.results.items():
        yield {"measure": name, **_cells(measured, is_accuracy(name))}
    for (name, task), measured in arm.tasks.items():
        yield {"measure": name, "task": task, **_cells(measured, is_accuracy(name))}
    if arm.ratio is not None:
        yield {"measure": "ratio of cumulative own reward to the baseline", **_estimate_cells(arm.ratio)}
    if arm.equal_answers is not None:
        yield {"measure": "validation at equal own answers", **_equal_cells(arm.equal_answers)}


def _costs(arm: ArmResult) -> Iterator[_Row]:
    if arm.seconds is not None:
        yield {"measure": "processor seconds", **_cells(arm.seconds, False)}
    if arm.equal_seconds is not None:
        yield {"measure": "validation at equal processor seconds", **_equal_cells(arm.equal_seconds)}


def _cells(result: Result, accuracy: bool) -> dict[str, object]:
    cells = {**_estimate_cells(result.estimate), "iqm": _rounded(result.iqm)}
    return cells if result.difference is None else {**cells, **_difference_cells(result.difference, accuracy)}


def _equal_cells(equal: EqualCost) -> dict[str, object]:
    return {"swarms": equal.difference.count, "value": _rounded(equal.arm), **_difference_cells(equal.difference, True)}


def _estimate_cells(estimate: Estimate) -> dict[str, object]:
    ends = {"low": _rounded(estimate.low), "high": _rounded(estimate.high)}
    return {"swarms": estimate.count, "value": _rounded(estimate.value), **ends, "note": estimate.note}


def _difference_cells(difference: Estimate, accuracy: bool) -> dict[str, object]:
    ends = {name: _rounded(getattr(difference, name)) for name in ("low", "high", "t_low", "t_high")}
    cells: dict[str, object] = {
        "pairs": difference.count,
        "difference": _rounded(difference.value),
        **{f"difference_{name}": end for name, end in ends.items()},
        "verdict": difference.verdict,
        "note": difference.note,
    }
    if accuracy and difference.low is not None:
        cells["not_worse"] = "yes" if difference.low > -MARGIN else "no"
    return cells
