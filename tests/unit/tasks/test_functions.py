"""Answers that a function of this machine judges: only where it is given, and never for a swarm."""

from __future__ import annotations

import math
from pathlib import Path
from unittest.mock import Mock

import pytest

from sapo_edge.errors import ManifestError
from sapo_edge.events import WRONG
from sapo_edge.swarm.joining.invite import Swarm
from sapo_edge.tasks.manifest import Manifest
from sapo_edge.tasks.question_data import write_questions
from sapo_edge.tasks.source import Function, TaskSource
from tests.defences.defence import fails_without

JUDGED = Manifest.from_toml(
    'name = "judged"\n[[tasks]]\nname = "mine"\nquestions = ['
    + ", ".join(f'{{question = "q{n}", answer = "a{n}", check = "code", code = "mine"}}' for n in range(12))
    + "]\n"
)


def judged_by(function: Function) -> TaskSource:
    return TaskSource(JUDGED, {"mine": function})


def test_a_function_sees_question_expected_answer_and_the_whole_completion() -> None:
    seen = []

    def check(question: str, expected: str, completion: str) -> float:
        seen.append((question, expected, completion))
        return 0.25

    source = judged_by(check)
    task = source.held_out("test", 1)[0]
    assert source.score(task, "so, <answer>it</answer>\n") == 0.25
    assert seen == [(task.question, task.ground_truth, "so, <answer>it</answer>\n")]
    source = judged_by(lambda _, expected, text: text == expected)
    task = source.held_out("test", 1)[0]
    assert source.right_answer(task) == task.ground_truth
    assert judged_by(lambda *_: 0).right_answer(task) is None
    # One is right, and less is a reward alone.
    for given, right in ((True, True), (1, True), (0.99, False), (False, False)):
        source = judged_by(Mock(return_value=given))
        assert (source.judge(task, "x") != WRONG) is right and source.score(task, "x") == float(given)


@pytest.mark.parametrize(
    "function", [lambda *_: 1 / 0, lambda *_: 1.5, lambda *_: math.nan, lambda *_: -0.1, lambda *_: "yes"]
)
def test_a_function_that_fails_is_an_error_and_not_a_wrong_answer(function: Function) -> None:
    source = judged_by(function)
    with pytest.raises(ManifestError, match="the function mine"):
        source.score(source.held_out("test", 1)[0], "x")


@fails_without("tasks/question_data.py", "require(not is_judged,", "require(True,")
def test_without_the_function_there_is_no_source_and_no_swarm(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="judged by mine"):
        TaskSource(JUDGED)
    with pytest.raises(ManifestError, match="nobody can join"):
        Swarm.of(JUDGED)
    assert Manifest.from_bytes(JUDGED.to_bytes()).functions == {"mine"}
    (entry,) = JUDGED.tasks
    assert isinstance(entry.questions, tuple)
    data = write_questions(entry.questions, tmp_path)
    with pytest.raises(ManifestError, match="judged by a function of whoever made it"):
        data.verify(data.path(tmp_path))
