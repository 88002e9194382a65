"""A whole run for its owner: what it took, what it learned, what comes next; and what is new since somebody looked.

`sapo report` and the terminal app's results show the same. Reads journal and checkpoints, and changes nothing.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from sapo_edge.control.journal_view import COMPARABLE, reading
from sapo_edge.control.report import Report, paired, read_report
from sapo_edge.control.runs import RunView, read_run
from sapo_edge.evaluate import Gain
from sapo_edge.event_words import FEW
from sapo_edge.plain import counted
from sapo_edge.state.checkpoints import Checkpoints
from sapo_edge.state.detail import Example
from sapo_edge.state.journal import JOULES, MEASURED, WORKED
from sapo_edge.state.lock import lock_holder
from sapo_edge.state.paths import Paths
from sapo_edge.swarm.joining.membership import Membership

FLAT = 3
"""Evaluations after the best one from which a run counts as flat."""
MORE_ROUNDS = 40
"""Rounds by which a finished run is continued."""
EXAMPLES = 3
"""Most questions that are shown of those that became right, and of those that became wrong."""

_SPAN = """
SELECT min(time), max(time) FROM (SELECT time FROM rounds UNION SELECT time FROM held_out UNION SELECT time FROM events)
"""
_SUMS = """
SELECT total(json_extract(event, '$.answers')), total(json_extract(event, '$.external')),
    total(json_extract(event, '$.seconds_generate') + json_extract(event, '$.seconds_update')) FROM rounds
"""
_SINCE = f"SELECT round, questions, correct, answers {COMPARABLE} AND round <= ? ORDER BY round DESC LIMIT 1"

Pairs = Sequence[tuple[Example, Example]]


@dataclass(frozen=True, slots=True)
class Step:
    """What may come next.

    Attributes:
        reason: why, in words.
        command: of the shell; "" where nothing is to be done.
        key: that does the same on the screen Results; "" without one.
    """

    reason: str
    command: str = ""
    key: str = ""


@dataclass(frozen=True, slots=True)
class RunReport:
    """A run so far.

    Attributes:
        run: with its `report` of the adapter that `sapo export` takes.
        manifest: its name, unescaped; "" if unknown.
        running: whether a node works on it.
        began, ended: times of its first and last event, Unix seconds; 0 before the first.
        worked: seconds of work, without pauses.
        measured, joules: seconds of these whose energy was measured, and that energy; 0 where nothing measures it.
        answers: of this node.
        external: rollouts of others that were trained on.
        adapter: directory of the checkpoint that `sapo export` takes; "" before the first.
        adapter_round: its round.
        steps: what may come next.
    """

    run: RunView
    manifest: str = ""
    running: bool = False
    began: float = 0.0
    ended: float = 0.0
    worked: float = 0.0
    measured: float = 0.0
    joules: float = 0.0
    answers: int = 0
    external: int = 0
    adapter: str = ""
    adapter_round: int = 0
    steps: tuple[Step, ...] = ()

    @property
    def learned(self) -> Report | None:
        """What it has learned; None before the second evaluation."""
        return self.run.report

    def as_dict(self) -> dict[str, Any]:
        """As `sapo report --json` prints it; no gain of fewer than `FEW` questions."""
        names = ("manifest", "running", "began", "ended", "worked", "answers", "external", "adapter", "adapter_round")
        learned = self.learned
        return {
            "run": self.run.name, "model": self.run.model, "rounds": self.run.rounds,
            **{name: getattr(self, name) for name in names},
            "watt_hours": self.joules / 3600 if self.measured else None,
            "measured": self.measured,
            "learned": None if learned is None else _learned(learned),
            "next": [{"reason": step.reason, "command": step.command} for step in self.steps],
        }  # fmt: skip


def changed(pairs: Pairs) -> tuple[Pairs, Pairs]:
    """The first pairs of those that became right, and of those that became wrong."""
    right = [pair for pair in pairs if not pair[0].right and pair[1].right]
    wrong = [pair for pair in pairs if pair[0].right and not pair[1].right]
    return right[:EXAMPLES], wrong[:EXAMPLES]


def _learned(report: Report) -> dict[str, Any]:
    right, wrong = (
        [
            {"task": old.entry, "question": old.question, "expected": old.expected, "base": old.answer,
             "adapter": new.answer}
            for old, new in pairs
        ]
        for pairs in changed(report.examples)
    )  # fmt: skip
    return {
        "split": report.split, "round": report.round, "questions": report.questions,
        "base": report.before, "adapter": report.now, "gain": _gain(report.gain, report.questions),
        "base_examples": report.base_examples,
        "formed": None if report.formed is None else dict(zip(("base", "adapter"), report.formed, strict=True)),
        "tasks": [
            {"name": task.name, "base": task.before, "adapter": task.now, "questions": task.questions,
             "gain": _gain(task.gain, task.questions)}
            for task in report.tasks
        ],
        "became_right": right, "became_wrong": wrong,
    }  # fmt: skip


def _gain(gain: Gain | None, questions: int) -> dict[str, Any] | None:
    return None if gain is None or questions < FEW else asdict(gain)


def read_run_report(paths: Paths, name: str) -> RunReport:
    """A run, whether a node works on it or not.

    Raises:
        StateError: if its journal or checkpoints can't be read.
    """
    run, view = paths.run_of(name), read_run(paths, name)
    if not run.journal.exists():
        return RunReport(view, steps=tuple(_steps(RunReport(view), ())))
    checkpoints = Checkpoints(run.checkpoints)
    best = checkpoints.best() or checkpoints.latest()
    with reading(run.journal) as connection:
        # One transaction, so that all queries see the same state.
        connection.execute("BEGIN")
        began, ended = connection.execute(_SPAN).fetchone()
        answers, external, seconds = connection.execute(_SUMS).fetchone()
        evaluated = [round for (round,) in connection.execute(f"SELECT round {COMPARABLE} ORDER BY round")]
        counters = _counters(connection)
    view = replace(view, report=read_report(run.journal, None if best is None else best.round))
    report = RunReport(
        view,
        _manifest_name(paths, view),
        view.current and lock_holder(paths.lock) is not None,
        began or 0.0,
        ended or 0.0,
        # Only rounds tell in a journal of an earlier version.
        max(seconds, counters.get(WORKED, 0)),
        counters.get(MEASURED, 0),
        counters.get(JOULES, 0),
        int(answers),
        int(external),
        "" if best is None else str(best.directory),
        0 if best is None else best.round,
    )
    return replace(report, steps=tuple(_steps(report, evaluated)))


def _counters(connection: sqlite3.Connection) -> Mapping[str, int]:
    return dict(connection.execute("SELECT name, value FROM counters").fetchall())


def _manifest_name(paths: Paths, view: RunView) -> str:
    manifest = Membership(paths.state).manifest(bytes.fromhex(view.manifest)) if view.manifest else None
    return str(view.settings.get("manifest", "")) if manifest is None else manifest.name


def _steps(report: RunReport, evaluated: Sequence[int]) -> Iterator[Step]:
    """What may come next.

    Args:
        report: without its steps.
        evaluated: rounds after which the same validation questions were asked.
    """
    run, learned = report.run, report.learned
    if run.settings.get("role") == "generator":
        yield Step("a generator answers and shares, it does not learn")
        return
    if learned is None:
        every, held_out = (int(run.settings.get(name) or 0) for name in ("evaluate_every", "held_out"))
        if not held_out and run.settings:
            yield Step("nothing is compared: no questions are held out", "sapo config set held_out 200")
        due = f", the next one after every {counted(every, 'round')}" if every and run.rounds else ""
        yield from _onward(report, f"a comparison needs a second evaluation{due}")
        if report.adapter and held_out:
            yield Step("or ask base model and adapter now", "sapo eval", "y")
        return
    gain = learned.gain
    later = [round for round in evaluated if round > report.adapter_round]
    if gain is not None and gain.high < 0 and learned.questions >= FEW:
        yield Step("it answers worse than before: try other tasks, or a lower learning_rate", "sapo runs new")
    elif report.adapter and len(later) >= FLAT:
        flat = f"flat for {counted(later[-1] - report.adapter_round, 'round')}"
        yield Step(f"{flat}: take what was learned with you", "sapo export --to merged DIRECTORY", "x")
        yield Step("or teach it something else, in a run beside this one", "sapo tasks list", "9")
    else:
        is_rise = gain is not None and gain.low > 0 and learned.questions >= FEW
        yield from _onward(report, "it still rises" if is_rise else "no clear gain yet")
    if learned.split != "test":
        yield Step("ask both the test questions, by which nothing was chosen", "sapo eval", "y")
    if learned.questions < FEW:
        yield Step("hold out more questions, for a figure of the gain", "sapo config set held_out 200")


def _onward(report: RunReport, reason: str) -> Iterator[Step]:
    """How the run continues."""
    run = report.run
    if report.running:
        yield Step(f"{reason}: the node goes on by itself", "sapo status")
        return
    if not run.current:
        yield Step("to continue this run, choose it first", f"sapo runs use {run.name}")
    is_done = 0 < int(run.settings.get("rounds") or 0) <= run.rounds
    yield Step(f"{reason}: go on", "sapo run" + (f" --rounds {run.rounds + MORE_ROUNDS}" if is_done else ""), "u")


@dataclass(frozen=True, slots=True)
class News:
    """What is new since somebody looked at a run.

    Attributes:
        round: the last finished one.
        rounds: finished since.
        questions: that were asked then and since; 0 if not both is known.
        before, now: right answers at both times.
        gain: the rise with its 95 % interval; None if it is not known which answers were right.
    """

    round: int
    rounds: int
    questions: int = 0
    before: int = 0
    now: int = 0
    gain: Gain | None = None


def read_news(journal: Path, looked: int) -> News:
    """What is new since a run was looked at after a round; 0: since its beginning.

    Raises:
        StateError: if the journal can't be read.
    """
    if not journal.exists():
        return News(0, 0)
    with reading(journal) as connection:
        # One transaction, so that all queries see the same state.
        connection.execute("BEGIN")
        last = connection.execute("SELECT max(round) FROM rounds").fetchone()[0] or 0
        before, now = (connection.execute(_SINCE, (round,)).fetchone() for round in (looked, last))
    news = News(last, max(0, last - looked))
    if before is None or before[0] == now[0]:
        return news
    return replace(news, questions=now[1], before=before[2], now=now[2], gain=paired(before[3], now[3]))
