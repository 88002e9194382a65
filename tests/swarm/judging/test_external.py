"""Which rollouts of others may be trained on: those whose task this node makes itself, from its own manifest."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sapo_edge.rollout import Answer, Rollout, TaskRef
from sapo_edge.swarm.judging.external import SCORED_EXTERNAL, ExternalScorer
from sapo_edge.tasks.library import library_version
from sapo_edge.tasks.manifest import load_manifest
from sapo_edge.tasks.source import TaskSource


@pytest.fixture(scope="module")
def source() -> TaskSource:
    return TaskSource(load_manifest("starter"))


@pytest.fixture
def honest(source: TaskSource) -> Rollout:
    tasks, _ = source.training_tasks(99, 0, 1)
    (task,) = tasks
    answers = (Answer(f"<answer>{task.ground_truth}</answer>", True), Answer("<answer>x</answer>", True))
    return Rollout(task.ref, task.question, task.ground_truth, answers, "other", 1, 1, 1.0)


def test_an_honest_rollout_earns_local_rewards(source: TaskSource, honest: Rollout) -> None:
    assert ExternalScorer(source)(honest) == (1.0, 0.0)


def test_the_senders_ground_truth_rewards_nothing(source: TaskSource, honest: Rollout) -> None:
    lie = replace(honest, ground_truth="x")
    assert ExternalScorer(source)(lie) is None


@pytest.mark.parametrize("question", ["", "What is 1 + 1?", "{honest} "])
def test_another_question_than_the_reference_makes_is_refused(
    source: TaskSource, honest: Rollout, question: str
) -> None:
    assert ExternalScorer(source)(replace(honest, question=question.format(honest=honest.question))) is None


def test_an_entry_that_the_manifest_does_not_have_is_refused(source: TaskSource, honest: Rollout) -> None:
    assert ExternalScorer(source)(replace(honest, ref=replace(honest.ref, entry="chain_sum"))) is None


def test_the_reference_of_another_entry_of_the_manifest_is_refused(source: TaskSource, honest: Rollout) -> None:
    other = next(entry.name for entry in source.manifest.tasks if entry.name != honest.ref.entry)
    assert ExternalScorer(source)(replace(honest, ref=replace(honest.ref, entry=other))) is None


def test_a_task_of_another_version_of_the_generator_is_refused(source: TaskSource, honest: Rollout) -> None:
    assert ExternalScorer(source)(replace(honest, ref=replace(honest.ref, version="0.0.1"))) is None


def test_a_held_out_question_is_refused_whatever_reference_makes_it(source: TaskSource, honest: Rollout) -> None:
    held_out = source.held_out(1)[0]
    rollout = replace(honest, ref=held_out.ref, question=held_out.question, ground_truth=held_out.ground_truth)
    assert ExternalScorer(source)(rollout) is None
    for index in range(5000):
        task = source.regenerate(TaskRef(held_out.ref.entry, library_version(), 12345, index))
        if task.question == held_out.question:
            again = replace(rollout, ref=task.ref, ground_truth=task.ground_truth)
            assert ExternalScorer(source)(again) is None
            return
    pytest.fail("no other reference made the question")


def test_hostile_text_is_scored_and_not_run(source: TaskSource, honest: Rollout) -> None:
    texts = ["", "<answer>", "<answer>__import__('os').abort()</answer>", "\x00" * 100, "<answer>" + "9" * 8000]
    rollout = replace(honest, answers=tuple(Answer(text, True) for text in texts))
    assert ExternalScorer(source)(rollout) == (0.0,) * len(texts)


def test_a_rollout_is_scored_once(source: TaskSource, honest: Rollout, monkeypatch: pytest.MonkeyPatch) -> None:
    scorer = ExternalScorer(source)
    first = scorer(honest)
    monkeypatch.setattr(TaskSource, "regenerate", lambda *_: pytest.fail("made anew again"))
    assert scorer(replace(honest)) == first


def test_only_so_many_scores_are_remembered(source: TaskSource, honest: Rollout) -> None:
    scorer = ExternalScorer(source)
    unknown = replace(honest, ref=replace(honest.ref, entry="none"))
    for sequence in range(SCORED_EXTERNAL + 10):
        assert scorer(replace(unknown, sequence=sequence)) is None
    assert len(scorer._known) == SCORED_EXTERNAL
