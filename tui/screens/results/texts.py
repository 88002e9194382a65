"""What a run has learned, in words, bars and three questions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.text import Text

from sapo_edge.event_words import FEW, TOO_FEW, describe_form, describe_place
from sapo_edge.plain import printable
from sapo_edge.tui.node.launcher import Outcome
from sapo_edge.tui.widgets.bars import add_bar, add_tasks, bar_columns
from sapo_edge.tui.widgets.then_and_now import add_examples, changes_text

if TYPE_CHECKING:
    from sapo_edge.control.report import Report, TaskCourse

EXAMPLES = 3
"""Questions shown with the answers before and now."""
FAIR = "These questions chose nothing and were never trained on."
CHOSEN = (
    "The best checkpoint was chosen by these questions, so its figure may be a little too high. y asks both models "
    "questions by which nothing was chosen."
)
NOTHING = (
    "Nothing can be compared yet: the questions are asked before training, every few rounds, and after the last one."
)


def report_text(outcome: Outcome, width: int) -> Text:
    """All that the screen says about a run.

    Args:
        outcome: of the run.
        width: columns of a line.
    """
    text = Text()
    report = outcome.report
    if report is None:
        text.append(f"{NOTHING}\n")
    else:
        _add_total(text, report, width)
        _add_tasks(text, report.tasks, width)
        _add_examples(text, report)
        _add_own(text, report)
    _add_adapter(text, outcome)
    return text


def verdict(report: Report) -> tuple[str, str]:
    """Whether it learned.

    Returns:
        A style, and a sentence with the rise and its 95 % interval in points of a hundred.
    """
    gain = report.gain
    if report.questions < FEW:
        return "yellow", f"• {report.before} → {report.now} of {report.questions}: {TOO_FEW}"
    if gain is None:
        points = _exact((report.now - report.before) / max(1, report.questions), "+")
        return "", f"{points} points of 100; an earlier version did not keep what an interval needs"
    low, high = (f"{100 * number:+.0f}" for number in (gain.low, gain.high))
    figures = f"{_exact(gain.value, '+')} points of 100 (95 %: {low} to {high})"
    if gain.low > 0:
        return "green", f"▲ It got better: {figures}"
    if gain.high < 0:
        return "red", f"▼ It got worse: {figures}"
    return "yellow", f"• Too close to tell: {figures}"


def _exact(share: float, sign: str = "") -> str:
    """In hundredths, with one decimal place unless it is 0: so shares of 200 questions and their rise agree."""
    return f"{100 * share:{sign}.1f}".removesuffix(".0")


def _add_total(text: Text, report: Report, width: int) -> None:
    form = "" if report.formed is None else ", in whatever form"
    text.append(f"Right answers{form}, before training and now\n", "bold")
    bar = bar_columns(width - 32)
    for name, right in (("before", report.before), ("now", report.now)):
        text.append(f"  {name:7}")
        add_bar(text, right / max(1, report.questions), bar, "green" if name == "now" else "")
        text.append(f" {_exact(right / max(1, report.questions)):>5} %  {right} of {report.questions}\n")
    style, sentence = verdict(report)
    text.append(f"{sentence}.\n", f"bold {style}".strip())
    for line in counts(report):
        text.append(f"{line}\n")
    text.append(f"{FAIR if report.split == 'test' else CHOSEN}\n", "dim")


def counts(report: Report) -> Iterator[str]:
    """What changed, and the form, which is no part of the gain."""
    if report.gain is not None and report.formed is not None:
        yield f"{report.gain.gained} became right, {report.gain.lost} became wrong."
    if report.formed is not None:
        yield describe_form(*report.formed, report.questions).capitalize() + "."
    if report.base_examples:
        yield f"Before: the base model, shown {report.base_examples} more worked examples, with which it answers best."


def _add_tasks(text: Text, tasks: tuple[TaskCourse, ...], width: int) -> None:
    if not tasks:
        return
    text.append("\nBy task", "bold").append("  with the 95 % interval of now\n", "dim")
    add_tasks(text, tasks, width)


def _add_examples(text: Text, report: Report) -> None:
    if not report.examples:
        return
    text.append("\nQuestions, answered then and now\n", "bold")
    text.append(f"{changes_text(report.examples)}; changed ones first\n", "dim")
    add_examples(text, report.examples[:EXAMPLES])


def _add_own(text: Text, report: Report) -> None:
    """The owner's questions that were trained on: whether they were learned, not whether others were."""
    if not report.own:
        return
    text.append("\nYour questions that it was trained on\n", "bold")
    text.append(f"{changes_text(report.own)}; changed ones first\n", "dim")
    add_examples(text, report.own)


def _add_adapter(text: Text, outcome: Outcome) -> None:
    text.append("\nThe adapter", "bold")
    if not outcome.adapter:
        text.append("\n  none yet: the first round saves one\n")
        return
    text.append(
        f"  what was learned, a small file beside the model, after {describe_place(outcome.adapter_round)}\n", "dim"
    )
    text.append(f"  {printable(outcome.adapter)}\n")


def spoken(report: Report) -> Iterator[str]:
    """The report in plain lines, to be copied or noticed."""
    before, now = (_exact(right / max(1, report.questions)) for right in (report.before, report.now))
    yield f"right answers: {before} % before training, {now} % now, of {report.questions}"
    yield verdict(report)[1]
    yield from counts(report)
