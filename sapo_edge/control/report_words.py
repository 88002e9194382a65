"""What a run has learned, in sentences, for shell and terminal app alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from sapo_edge.control.event_words import FEW, TOO_FEW, describe_form, format_gain
from sapo_edge.plain import counted, duration, energy, format_time, printable
from sapo_edge.state.detail import Example
from sapo_edge.tasks.readings import extract_answer

if TYPE_CHECKING:
    # The terminal app's screens load without the journal.
    from sapo_edge.control.report import Report, TaskCourse
    from sapo_edge.control.run_report import RunReport

MORE_ROUNDS = 40
"""Rounds by which a finished run is continued."""
NAME = 24
"""Most characters of a task's name."""
FAIR = "These questions chose nothing and were never trained on."
CHOSEN = "The best checkpoint was chosen by these questions, so its figure may be a little too high."


def describe_work(run: RunReport) -> Iterator[str]:
    """What was done, when, and what it took. Energy is measured of more than the node."""
    external = counted(run.external, "rollout")
    rounds = counted(run.run.rounds, "round")
    yield f"{rounds}, {counted(run.answers, 'own answer')}, {external} of others trained on"
    began, ended = (format_time(moment)[:16] for moment in (run.run.began, run.run.ended))
    # In a head start there is no round yet, and so no span.
    span = f"{began} to {ended[11:] if began[:10] == ended[:10] else ended}: " if run.run.ended else ""
    yield f"{span}{duration(run.worked)} of work; {describe_energy(run)}"


def describe_energy(run: RunReport) -> str:
    if run.watt_hours is None:
        return "energy not measured: no counter here that this user may read"
    part = "" if run.measured >= 0.95 * run.worked else f" in {duration(run.measured)} of it"
    return f"{energy(run.watt_hours)} measured{part}, other programs included"


def describe_task(task: TaskCourse) -> str:
    """The gain of one task, if there are enough questions for a figure."""
    if task.questions < FEW:
        return "too few questions for a figure"
    return format_gain(task.gain.value, task.gain.low, task.gain.high, task.questions)


def task_lines(tasks: Sequence[TaskCourse]) -> Iterator[str]:
    for task in tasks:
        course = f"{task.before:3} -> {task.now:3} of {task.questions:<3}"
        yield f"  {printable(task.name)[:NAME]:{NAME}} {course}  {describe_task(task)}".rstrip()


def verdict(report: Report) -> tuple[str, str]:
    """Whether it learned: a style, and a sentence with the rise and its 95 % interval in points of a hundred."""
    gain = report.gain
    if report.questions < FEW:
        return "yellow", f"• {report.before} → {report.now} of {report.questions}: {TOO_FEW}"
    low, high = (f"{100 * number:+z.0f}" for number in (gain.low, gain.high))
    figures = f"{exact(gain.value, '+')} points of 100 (95 %: {low} to {high})"
    if gain.low > 0:
        return "green", f"▲ It got better: {figures}"
    if gain.high < 0:
        return "red", f"▼ It got worse: {figures}"
    return "yellow", f"• Too close to tell: {figures}"


def exact(share: float, sign: str = "") -> str:
    """In hundredths, with one decimal place unless it is 0: so shares of 200 questions and their rise agree."""
    return f"{100 * share:{sign}z.1f}".removesuffix(".0")


def counts(report: Report) -> Iterator[str]:
    """What changed, and the form, which is no part of the gain."""
    yield f"{report.gain.gained} became right, {report.gain.lost} became wrong."
    yield describe_form(*report.formed, report.questions).capitalize() + "."
    if report.base_examples:
        yield f"Before: the base model, shown {report.base_examples} more worked examples, with which it answers best."


def spoken(report: Report) -> Iterator[str]:
    """The report in plain lines."""
    before, now = (exact(right / max(1, report.questions)) for right in (report.before, report.now))
    yield f"right answers: {before} % before training, {now} % now, of {report.questions}"
    yield verdict(report)[1]
    yield from counts(report)


def one_line(text: str, limit: int) -> str:
    """A text of a question or a model in one printable line of at most so many characters, and an ellipsis."""
    line = " ".join(printable(text, lines=True).split())
    return line if len(line) <= limit else f"{line[:limit]}…"


def said(example: Example, limit: int = 80) -> str:
    """What a model said: in its own words, or what stands in its tags."""
    tagged = extract_answer(example.answer)
    words = one_line(example.answer if tagged is None else tagged, limit)
    if not words:
        return "no answer" if tagged is None else "(empty)"
    return f"{words}  (right, in another form)" if example.right and not example.formed else words
