"""What a run has learned, in words, bars and three questions."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from sapo_edge.control.report import Report, TaskCourse
from sapo_edge.plain import counted, printable
from sapo_edge.state.detail import Example
from sapo_edge.tasks.answers import extract_answer
from sapo_edge.tui.node.launcher import Outcome
from sapo_edge.tui.widgets.bars import add_bar, add_tasks, bar_columns, percent

EXAMPLES = 3
"""Questions shown with the answers before and now."""
MAX_QUESTION = 240
"""Most characters shown of a question."""
FAIR = "These questions chose nothing and were never trained on."
CHOSEN = "These questions chose the best checkpoint, so they flatter it a little: v asks others."
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
    _add_adapter(text, outcome)
    return text


def verdict(report: Report) -> tuple[str, str]:
    """Whether it learned.

    Returns:
        A style, and a sentence with the rise and its 95 % interval in points of a hundred.
    """
    gain = report.gain
    if gain is None:
        points = round(100 * (report.now - report.before) / max(1, report.questions))
        return "", f"{points:+d} points of 100; an earlier version did not keep what an interval needs"
    value, low, high = (f"{100 * number:+.0f}" for number in (gain.value, gain.low, gain.high))
    figures = f"{value} points of 100 (95 %: {low} to {high})"
    if gain.low > 0:
        return "green", f"▲ It got better: {figures}"
    if gain.high < 0:
        return "red", f"▼ It got worse: {figures}"
    return "yellow", f"• Too close to tell: {figures}"


def _add_total(text: Text, report: Report, width: int) -> None:
    text.append("Right answers, before training and now\n", "bold")
    bar = bar_columns(width - 32)
    for name, right in (("before", report.before), ("now", report.now)):
        text.append(f"  {name:7}")
        add_bar(text, right / max(1, report.questions), bar, "green" if name == "now" else "")
        text.append(f" {percent(right, report.questions):>5}  {right} of {report.questions}\n")
    style, sentence = verdict(report)
    text.append(f"{sentence}.\n", f"bold {style}".strip())
    text.append(f"{FAIR if report.split == 'test' else CHOSEN}\n", "dim")


def _add_tasks(text: Text, tasks: tuple[TaskCourse, ...], width: int) -> None:
    if not tasks:
        return
    text.append("\nBy task", "bold").append("  with the 95 % interval of now\n", "dim")
    add_tasks(text, tasks, width)


def _add_examples(text: Text, report: Report) -> None:
    if not report.examples:
        return
    changes = [(before.right, now.right) for before, now in report.examples]
    learned, lost = changes.count((False, True)), changes.count((True, False))
    text.append("\nQuestions, answered then and now\n", "bold")
    kept = f"{counted(len(changes), 'question is', 'questions are')} kept: {learned} became right, {lost} wrong"
    text.append(f"{kept}; changed ones first\n", "dim")
    for before, now in report.examples[:EXAMPLES]:
        question = " ".join(printable(before.question, lines=True).split())
        cut = "…" if len(question) > MAX_QUESTION else ""
        text.append(f"  {question[:MAX_QUESTION]}{cut}\n")
        for name, example in (("then", before), ("now", now)):
            text.append(f"    {name:5}")
            text.append(*(("✓ ", "bold green") if example.right else ("✗ ", "bold red")))
            text.append(f"{_answer(example)}\n")


def _answer(example: Example) -> str:
    """The answer of a model, without its explanation if it has a form."""
    answer = extract_answer(example.answer)
    if answer is not None:
        return " ".join(printable(answer, lines=True).split())[:MAX_QUESTION] or "(empty)"
    said = " ".join(printable(example.answer, lines=True).split())
    return f"no answer, it said: {said[:80]}" if said else "no answer"


def _add_adapter(text: Text, outcome: Outcome) -> None:
    text.append("\nThe adapter", "bold")
    if not outcome.adapter:
        text.append("\n  none yet: the first round saves one\n")
        return
    text.append(f"  what was learned, a small file beside the model, after round {outcome.adapter_round}\n", "dim")
    text.append(f"  {printable(outcome.adapter)}\n")


def spoken(report: Report) -> Iterator[str]:
    """The report in plain lines, to be copied or noticed."""
    yield f"right answers: {percent(report.before, report.questions)} before training, " + (
        f"{percent(report.now, report.questions)} now, of {report.questions}"
    )
    yield verdict(report)[1]
