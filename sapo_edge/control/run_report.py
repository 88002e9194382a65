"""A whole run for its owner: what it took, what it learned, what comes next; and what is new since somebody looked.

`sapo report` and the terminal app's results show the same. Reads journal and checkpoints, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from sapo_edge.control.event_words import FEW, format_gain
from sapo_edge.control.journal_view import COMPARABLE
from sapo_edge.control.report import Report, read_report
from sapo_edge.control.report_words import MORE_ROUNDS
from sapo_edge.control.runs import RunView, read_run
from sapo_edge.evaluate import paired_gain
from sapo_edge.plain import counted
from sapo_edge.state.checkpoints import Checkpoints
from sapo_edge.state.detail import Example
from sapo_edge.state.journal import JOULES, MEASURED, WORKED, reading
from sapo_edge.state.lock import lock_holder
from sapo_edge.state.paths import Paths
from sapo_edge.state.runs import read_origin
from sapo_edge.swarm.joining.membership import Membership

FLAT = 3
"""Evaluations after the best one from which a run counts as flat."""
EXAMPLES = 3
"""Most questions that are shown of those that became right, and of those that became wrong."""

_SUMS = """
SELECT total(json_extract(event, '$.answers')), total(json_extract(event, '$.external')) FROM rounds
"""
_SINCE = f"SELECT round, questions, correct, answers {COMPARABLE} AND round <= ? ORDER BY round DESC LIMIT 1"

Pairs = Sequence[tuple[Example, Example]]


@dataclass(frozen=True, slots=True)
class Step:
    """What may come next: why, the command of the shell, and the key on the screen Results; "" without them."""

    reason: str
    command: str = ""
    key: str = ""


@dataclass(frozen=True, slots=True)
class RunReport:
    """A run so far.

    Attributes:
        run: with its `report` of the adapter that `sapo export` takes.
        manifest: its name, unescaped; "" if unknown.
        worked: seconds of work, without pauses.
        measured: seconds of these whose energy was measured.
        watt_hours: that energy; None where nothing measures it.
        external: rollouts of others that were trained on.
        adapter: directory of the checkpoint that `sapo export` takes; "" before the first.
        origin: adapter of others that it began with, in words; "" for the untrained model.
    """

    run: RunView
    manifest: str = ""
    running: bool = False
    worked: float = 0.0
    measured: float = 0.0
    watt_hours: float | None = None
    answers: int = 0
    external: int = 0
    adapter: str = ""
    adapter_round: int = 0
    steps: tuple[Step, ...] = ()
    origin: str = ""

    @property
    def learned(self) -> Report | None:
        """What it has learned; None if nothing can be compared, see `read_report`."""
        return self.run.report

    def as_dict(self) -> dict[str, Any]:
        """As `sapo report --json` prints it; no gain of fewer than `FEW` questions."""
        record = asdict(self)
        view = record.pop("run")
        learned = view["report"]
        if self.learned is not None:
            for course in (learned, *learned["tasks"]):
                course["gain"] = course["gain"] if course["questions"] >= FEW else None
            right, wrong = changed(self.learned.examples)
            del learned["examples"], learned["own"]
            learned |= {"became_right": [*map(_pair, right)], "became_wrong": [*map(_pair, wrong)]}
        names = ("model", "rounds", "began", "ended")
        return {"run": view["name"], **{name: view[name] for name in names}, **record, "learned": learned}


def changed(pairs: Pairs) -> tuple[Pairs, Pairs]:
    """The first pairs of those that became right, and of those that became wrong."""
    right = [pair for pair in pairs if not pair[0].right and pair[1].right]
    wrong = [pair for pair in pairs if pair[0].right and not pair[1].right]
    return right[:EXAMPLES], wrong[:EXAMPLES]


def _pair(pair: tuple[Example, Example]) -> dict[str, Any]:
    return {"before": asdict(pair[0]), "now": asdict(pair[1])}


def read_run_report(paths: Paths, name: str) -> RunReport:
    """A run, whether a node works on it or not."""
    run, view = paths.run_of(name), read_run(paths, name)
    if not run.journal.exists():
        return replace(report := RunReport(view), steps=tuple(_steps(report, ())))
    checkpoints = Checkpoints(run.checkpoints)
    best = checkpoints.to_use()
    with reading(run.journal) as connection:
        answers, external = connection.execute(_SUMS).fetchone()
        evaluated = [round for (round,) in connection.execute(f"SELECT round {COMPARABLE} ORDER BY round")]
        counters = dict(connection.execute("SELECT name, value FROM counters").fetchall())
    manifest = Membership(paths.state).manifest(bytes.fromhex(view.manifest)) if view.manifest else None
    measured = counters.get(MEASURED, 0)
    report = RunReport(
        replace(view, report=read_report(run.journal, None if best is None else best.round)),
        str(view.settings.get("manifest", "")) if manifest is None else manifest.name,
        view.current and lock_holder(paths.lock) is not None,
        counters.get(WORKED, 0),
        measured,
        counters.get(JOULES, 0) / 3600 if measured else None,
        int(answers),
        int(external),
        "" if best is None else str(best.directory),
        0 if best is None else best.round,
        origin=read_origin(run),
    )
    return replace(report, steps=tuple(_steps(report, evaluated)))


def _steps(report: RunReport, evaluated: Sequence[int]) -> Iterator[Step]:
    """What may come next, by the rounds after which the same validation questions were asked."""
    learned, settings = report.learned, report.run.settings
    later = [round for round in evaluated if round > report.adapter_round]
    few = Step("hold out more questions, for a figure of the gain", "sapo config set held_out 200")
    if learned is not None and learned.questions < int(settings.get("held_out", 0)):
        few = Step("add questions, for a figure of the gain: a third of them is held out")
    if settings.get("role") == "generator":
        yield Step("a generator answers and shares, it does not learn")
        return
    if not report.run.current:
        yield Step("the commands below use the current run: choose this one first", f"sapo runs use {report.run.name}")
    if learned is None:
        asked_others = "before training other questions were asked, or in another way"
        yield from _onward(report, asked_others if len(evaluated) > 1 else "a comparison needs a second evaluation")
        if not settings.get("held_out", 1):
            yield few
        elif report.adapter:
            yield Step("or ask base model and adapter now", "sapo eval", "y")
    else:
        gain = learned.gain if learned.questions >= FEW else None
        is_rise = gain is not None and gain.low > 0
        if report.adapter and len(later) >= FLAT:
            flat = f"flat for {counted(later[-1] - report.adapter_round, 'round')}"
            if is_rise:
                yield Step(f"{flat}: take what was learned with you", "sapo export --to merged DIRECTORY", "x")
                flat = "or"
            yield Step(f"{flat}: teach it something else, in a new run", "sapo tasks list", "9")
        else:
            yield from _onward(report, "it still rises" if is_rise else "no clear gain yet")
        if learned.split != "test":
            yield Step("ask both the test questions, by which nothing was chosen", "sapo eval", "y")
        if learned.questions < FEW:
            yield few


def _onward(report: RunReport, reason: str) -> Iterator[Step]:
    run = report.run
    if report.running:
        yield Step(f"{reason}: the node goes on by itself", "sapo status")
        return
    is_done = 0 < int(run.settings.get("rounds") or 0) <= run.rounds
    yield Step(f"{reason}: go on", "sapo run" + (f" --rounds {run.rounds + MORE_ROUNDS}" if is_done else ""), "u")


def read_news(journal: Path, looked: int) -> tuple[int, str]:
    """The last finished round, and what was learned since a round that somebody saw; "" if none was finished since."""
    if not journal.exists():
        return 0, ""
    with reading(journal) as connection:
        last = connection.execute("SELECT max(round) FROM rounds").fetchone()[0] or 0
        before, now = (connection.execute(_SINCE, (round,)).fetchone() for round in (looked, last))
        if last <= looked:
            return last, ""
        text = f"{counted(last - looked, 'round')} since you last looked"
        if before is None or before[0] == now[0]:
            return last, f"{text}, without an evaluation"
        gain = paired_gain(before[3], now[3])
        figures = format_gain(gain.value, gain.low, gain.high, now[1])
        return last, f"{text}: {before[2]} → {now[2]} of {now[1]} new questions right; {figures}"
