"""Validations as a node journals them, from the marks of their questions."""

from __future__ import annotations

from collections.abc import Sequence

from sapo_edge.evaluate import Evaluation
from sapo_edge.events import FORMED, WRONG, HeldOut
from sapo_edge.state.detail import Detail, Example
from sapo_edge.state.journal import Journal


def detail(marks: str, tasks: Sequence[str]) -> Detail:
    """Details of an evaluation whose questions are of these tasks."""
    examples = tuple(
        Example(name, f"question {number}", "7", f"answer {mark}", mark != WRONG, mark == FORMED)
        for number, (name, mark) in enumerate(zip(tasks, marks, strict=True))
    )
    return Detail(Evaluation(marks, ("",) * len(marks), tuple(tasks)).marks_by_entry(), examples)


def evaluation(round: int, marks: str, question_set: str = "a", split: str = "validation") -> HeldOut:
    """An evaluation whose questions have these marks."""
    right = len(marks) - marks.count(WRONG)
    return HeldOut(
        round=round, accuracy=right / len(marks), correct=right, questions=len(marks), low=0, high=1,
        split=split, answers=marks, question_set=question_set, time=1e9 + round,
    )  # fmt: skip


def validate(journal: Journal, round: int, marks: str, tasks: Sequence[str], question_set: str = "a") -> None:
    """Journal an evaluation with its details."""
    journal.record(evaluation(round, marks, question_set))
    journal.record_detail("validation", round, detail(marks, tasks))
