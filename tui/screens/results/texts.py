"""What a run has learned, in words, bars and three questions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from sapo_edge.control.event_words import describe_place
from sapo_edge.control.report_words import CHOSEN, FAIR, counts, describe_work, exact, verdict
from sapo_edge.plain import printable
from sapo_edge.tui.widgets.bars import add_bar, add_tasks, bar_columns
from sapo_edge.tui.widgets.then_and_now import NOTHING, Pairs, add_examples, changes_text

if TYPE_CHECKING:
    from sapo_edge.control.report import Report, TaskCourse
    from sapo_edge.control.run_report import RunReport

EXAMPLES = 3
"""Questions shown with the answers before and now."""


def report_text(run: RunReport, report: Report | None, width: int) -> Text:
    """All that the screen says about a run, and what it has learned by the questions that were asked last."""
    text = Text()
    if report is None:
        text.append(f"{NOTHING}\n")
    else:
        _add_total(text, report, width)
        _add_tasks(text, report.tasks, width)
        _add_examples(text, "Questions, answered then and now", report.examples, EXAMPLES)
        # Whether the owner's questions that were trained on were learned, not whether others were.
        _add_examples(text, "Your questions that it was trained on", report.own)
    _add_steps(text, run)
    _add_adapter(text, run)
    return text


def _add_total(text: Text, report: Report, width: int) -> None:
    text.append("Right answers, in whatever form, before training and now\n", "bold")
    bar = bar_columns(width - 32)
    for name, right in (("before", report.before), ("now", report.now)):
        text.append(f"  {name:7}")
        add_bar(text, right / max(1, report.questions), bar, "green" if name == "now" else "")
        text.append(f" {exact(right / max(1, report.questions)):>5} %  {right} of {report.questions}\n")
    style, sentence = verdict(report)
    text.append(f"{sentence}.\n", f"bold {style}".strip())
    for line in counts(report):
        text.append(f"{line}\n")
    text.append(f"{FAIR if report.split == 'test' else CHOSEN}\n", "dim")


def _add_tasks(text: Text, tasks: tuple[TaskCourse, ...], width: int) -> None:
    if not tasks:
        return
    text.append("\nBy task", "bold").append("  with the 95 % interval of the rise\n", "dim")
    add_tasks(text, tasks, width)


def _add_examples(text: Text, title: str, pairs: Pairs, most: int | None = None) -> None:
    if pairs:
        text.append(f"\n{title}\n", "bold")
        text.append(f"{changes_text(pairs)}; changed ones first\n", "dim")
        add_examples(text, pairs[:most])


def _add_steps(text: Text, run: RunReport) -> None:
    if run.run.rounds:
        text.append("\nThe run\n", "bold").append("".join(f"  {line}\n" for line in describe_work(run)))
    text.append("\nWhat comes next\n", "bold")
    for step in run.steps:
        text.append(f"  {step.key:2}", "bold").append(f"{step.reason}\n")


def _add_adapter(text: Text, run: RunReport) -> None:
    text.append("\nThe adapter", "bold")
    if not run.adapter:
        text.append("\n  none yet: the first round saves one\n")
        return
    text.append(
        f"  what was learned, a small file beside the model, after {describe_place(run.adapter_round)}\n", "dim"
    )
    text.append(f"  {printable(run.adapter)}\n")
