"""Two runs in words, and an experiment so far."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from sapo_edge.plain import counted, printable
from sapo_edge.tui.widgets.bars import add_bar, percent

if TYPE_CHECKING:
    from sapo_edge.control.runs import RunView
    from sapo_edge.experiment.watch import ArmView, ExperimentView

ONE = "There is one run. n begins another beside it: then both are compared here, and u returns to this one."
OTHER_QUESTIONS = "They were asked different questions, so their figures do not show which one is better."
NAMES = 14
"""Most columns of a task's or a setting's name."""
BAR = 20
"""Columns of the bar of an experiment's progress."""


def comparison_text(run: RunView, other: RunView | None) -> Text:
    """What one run learned, and how it differs from another one, if there is any."""
    text = Text()
    if other is None:
        text.append(f"{ONE}\n\n")
        _add_tasks(text, (run,))
        return text
    text.append(f"{printable(run.name)} against {printable(other.name)}\n", "bold")
    style, sentence = verdict(run, other)
    text.append(f"{sentence}\n\n", style)
    _add_tasks(text, (run, other))
    _add_settings(text, run, other)
    return text


def verdict(run: RunView, other: RunView) -> tuple[str, str]:
    """A style, and which run's best adapter is better."""
    from sapo_edge.control.runs import compare_best

    gain = compare_best(other, run)
    if gain is None:
        return "", OTHER_QUESTIONS
    value, low, high = (f"{100 * number:+z.0f}" for number in (gain.value, gain.low, gain.high))
    figures = f"{value} points of 100 (95 %: {low} to {high})"
    if gain.low > 0:
        return "green", f"▲ It is better: {figures}"
    return ("red", f"▼ It is worse: {figures}") if gain.high < 0 else ("yellow", f"• Too close to tell: {figures}")


def _add_tasks(text: Text, runs: Sequence[RunView]) -> None:
    tasks = [{task.name: task for task in run.report.tasks} if run.report else {} for run in runs]
    names = dict.fromkeys(name for known in tasks for name in known)
    if not names:
        return
    text.append("Right answers by task\n", "bold")
    text.append(f"  {'':{NAMES}}", "dim").append("".join(f"{printable(run.name)[:8]:>9}" for run in runs) + "\n", "dim")
    for name in names:
        text.append(f"  {printable(name)[:NAMES]:{NAMES}}")
        for known in tasks:
            task = known.get(name)
            text.append(f"{'-' if task is None else percent(task.now, task.questions):>9}")
        text.append("\n")
    text.append("\n")


def _add_settings(text: Text, run: RunView, other: RunView) -> None:
    from sapo_edge.control.runs import differing

    differences = differing(run, other)
    text.append("What differs\n", "bold")
    if not differences:
        text.append("  no setting: chance alone\n", "dim")
    for name, first, second in differences:
        text.append(f"  {printable(name)[: NAMES + 8]}: {printable(first)[:60]}")
        text.append(" | ", "dim").append(f"{printable(second)[:60]}\n")


def experiment_text(state: ExperimentView, width: int) -> Text:
    text = Text(no_wrap=True, overflow="ellipsis")
    running = sum(len(arm.running) for setting in state.settings for arm in setting.arms)
    add_bar(text, state.share, BAR, "green")
    text.append(f" {100 * state.share:.0f} %  ")
    text.append(f"{state.finished} of {counted(state.planned, 'swarm')} finished, {running} in progress\n")
    text.append("Differences are paired by seed; the report has their intervals.\n", "dim")
    for setting in state.settings:
        baseline = next(arm for arm in setting.arms if arm.name == setting.baseline)
        text.append(f"\n{printable(setting.title)}\n", "bold")
        names = min(30, max(10, width - 44), max(len(printable(arm.name)) for arm in setting.arms))
        text.append(f"  {'':{names}}  swarms  test accuracy  against {printable(setting.baseline)[:14]}\n", "dim")
        for arm in setting.arms:
            line = f"  {printable(arm.name)[:names]:{names}}  {_figures(arm, baseline, state.seeds)}"
            rounds = ", ".join(f"round {done} of {arm.rounds}" for _, done in sorted(arm.running.items()))
            fits = len(line) + 2 + len(rounds) <= width
            text.append(line if fits else line.rstrip())
            text.append(f"  {rounds}\n" if fits else f"\n    {rounds}\n", "dim")
    return text


def _figures(arm: ArmView, baseline: ArmView, seeds: int) -> str:
    accuracy = "-" if arm.accuracy is None else f"{arm.accuracy:.3f}"
    if arm is baseline:
        against = "baseline"
    else:
        difference = arm.difference(baseline)
        against = "-" if difference is None else f"{difference[0]:+z.3f} ({counted(difference[1], 'pair')})"
    return f"{f'{len(arm.accuracies)}/{seeds}':>6}  {accuracy:>13}  {against:18}"
