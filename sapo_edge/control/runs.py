"""Runs for people: what each has learned, and two compared. Reads journals and checkpoints, and changes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sapo_edge.config.settings import SETTINGS
from sapo_edge.control.journal_view import COMPARABLE, last_event
from sapo_edge.control.report import Report, read_report
from sapo_edge.errors import StateError
from sapo_edge.evaluate import Gain, paired_gain
from sapo_edge.events import HeldOut, NodeStarted
from sapo_edge.state.checkpoints import Checkpoints
from sapo_edge.state.journal import HELD_OUT, read_held_out, reading
from sapo_edge.state.paths import Paths
from sapo_edge.state.runs import run_names

_SPAN = """
SELECT max(round), min(min(time), coalesce((SELECT min(time) FROM events), max(time))), max(time) FROM rounds
"""
_BEST = f"SELECT {HELD_OUT} {COMPARABLE} ORDER BY correct DESC, round LIMIT 1"


@dataclass(frozen=True, slots=True)
class RunView:
    """One run.

    Attributes:
        rounds: its last round; 0 before the first.
        began, ended: times of its first event and its last round, Unix seconds; 0 before the first round.
        manifest: SHA-256 (hex) of what it trains on; "" before the first checkpoint.
        model, backend: display names, unescaped; "" if unknown.
        best: the evaluation with most right answers; None before the first.
        report: before and now; None if nothing can be compared, see `read_report`.
        problem: why nothing is known; "" if it is.
    """

    name: str
    current: bool
    rounds: int = 0
    began: float = 0.0
    ended: float = 0.0
    manifest: str = ""
    model: str = ""
    backend: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    best: HeldOut | None = None
    report: Report | None = None
    problem: str = ""


def read_runs(paths: Paths) -> list[RunView]:
    """All runs of a state directory, in the order of `run_names`; of one that can't be read, why."""
    views = []
    for name in run_names(paths):
        try:
            views.append(read_run(paths, name))
        except StateError as error:
            views.append(RunView(name, name == paths.run_name, problem=str(error)))
    return views


def read_run(paths: Paths, name: str) -> RunView:
    """One run, whether a node runs or not; a StateError if its journal can't be read."""
    run, current = paths.run_of(name), name == paths.run_name
    if not run.journal.exists():
        return RunView(name, current)
    with reading(run.journal) as connection:
        rounds, began, ended = connection.execute(_SPAN).fetchone()
        started = last_event(connection, NodeStarted)
        best = next((read_held_out(*row) for row in connection.execute(_BEST)), None)
    model, backend, settings = ("", "", {}) if started is None else (started.model, started.backend, started.settings)
    checkpoint = Checkpoints(run.checkpoints).newest_record()
    return RunView(
        name, current, rounds or 0, began or 0.0, ended or 0.0,
        "" if checkpoint is None else checkpoint.manifest_digest,
        model, backend, settings, best, read_report(run.journal, None),
    )  # fmt: skip


def differing(one: RunView, other: RunView) -> list[tuple[str, str, str]]:
    """What two runs were made with that differs: name, and both values as text.

    Settings that only one of them has, made with another version, are left out.
    """
    not_compared = {setting.name for setting in SETTINGS.values() if not setting.compared}
    views = [
        {
            "manifest's digest": view.manifest[:12] or "?",
            "model's name": view.model or "?",
            "backend's name": view.backend or "?",
            **{name: str(value) for name, value in view.settings.items() if name not in not_compared},
        }
        for view in (one, other)
    ]
    pairs = ((name, value, views[1].get(name, value)) for name, value in views[0].items())
    return [(name, first, second) for name, first, second in pairs if first != second]


def compare_best(one: RunView, other: RunView) -> Gain | None:
    """By how much the best adapter of the other run is better, on the same questions; None if those were others."""
    first, second = one.best, other.best
    if first is None or second is None:
        return None
    asked = [(*best.asked, len(best.answers)) for best in (first, second)]
    return paired_gain(first.answers, second.answers) if asked[0] == asked[1] else None
