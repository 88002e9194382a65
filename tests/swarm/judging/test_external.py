"""External rollouts: only those whose task this node regenerates from its own manifest may be trained on."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from sapo_edge.rollout import Answer, Rollout
from sapo_edge.swarm.judging import external
from sapo_edge.swarm.judging.external import ExternalScorer, RejectedError, verified_task
from sapo_edge.swarm.wire.rejection import Rejection
from sapo_edge.tasks.manifest import load_manifest
from sapo_edge.tasks.source import TaskSource
from tests.defences.defence import fails_without
from tests.fakes import FakePolicy, drawn_held_out


@pytest.fixture(scope="module")
def source() -> TaskSource:
    return TaskSource(load_manifest("starter"))


@pytest.fixture
def honest(source: TaskSource) -> Rollout:
    tasks, _ = source.training_tasks(99, 0, 1)
    (task,) = tasks
    answers = (Answer(f"<answer>{task.ground_truth}</answer>", True), Answer("<answer>x</answer>", True))
    return Rollout(task.ref, task.question, task.ground_truth, answers, "other", 1, 1, 1.0)


def scorer_of(source: TaskSource) -> ExternalScorer:
    return ExternalScorer(source, lambda text, ended: FakePolicy().cut(text, ended, 64))


def test_honest_text_earns_local_rewards_and_hostile_text_is_not_run(source: TaskSource, honest: Rollout) -> None:
    texts = ["", "<answer>", "<answer>__import__('os').abort()</answer>", "\x00" * 100, "<answer>" + "9" * 8000]
    rollouts = honest, replace(honest, answers=tuple(Answer(text, True) for text in texts))
    scored = [scorer_of(source)(rollout, 8) for rollout in rollouts]
    assert [one and one.rewards for one in scored] == [(1.0, 0.0), (0.0,) * len(texts)]


OTHERS = [entry.name for entry in load_manifest("starter").tasks]


@fails_without("swarm/judging/external.py", "if task.question != rollout.question or", "if False and")
@pytest.mark.parametrize(
    "change",
    [
        lambda honest: {"ground_truth": "x"},
        lambda honest: {"question": ""},
        lambda honest: {"question": f"{honest.question} "},
        lambda honest: {"ref": replace(honest.ref, version="0.0.1")},
        lambda honest: {"ref": replace(honest.ref, entry="of no manifest")},
        lambda honest: {"ref": replace(honest.ref, entry=next(name for name in OTHERS if name != honest.ref.entry))},
    ],
    ids=["ground truth", "no question", "another question", "another version", "no such entry", "another entry"],
)
def test_a_rollout_that_is_not_what_its_reference_gives_is_rejected(
    source: TaskSource, honest: Rollout, change: Callable[[Rollout], dict[str, Any]]
) -> None:
    assert scorer_of(source)(replace(honest, **change(honest)), 8) is None


@fails_without("swarm/judging/external.py", "if not source.is_drawn(rollout.ref):")
def test_a_true_task_of_an_entry_that_the_manifest_does_not_draw_there_is_rejected(
    source: TaskSource, honest: Rollout
) -> None:
    """Else an author could answer questions of one entry only without even searching for them."""
    assert source.is_drawn(honest.ref)
    for other in {entry.name for entry in source.manifest.tasks} - {honest.ref.entry}:
        task = source.regenerate(replace(honest.ref, entry=other))
        chosen = replace(honest, ref=task.ref, question=task.question, ground_truth=task.ground_truth)
        with pytest.raises(RejectedError) as rejected:
            verified_task(source, chosen)
        assert rejected.value.reason is Rejection.FORGED and rejected.value.is_authors_fault
        assert scorer_of(source)(chosen, 8) is None


@fails_without("swarm/judging/external.py", "if source.is_held_out(task.question):")
def test_a_held_out_question_is_rejected_whatever_its_reference(source: TaskSource, honest: Rollout) -> None:
    for task in (source.held_out("test", 1)[0], drawn_held_out(source)):
        assert source.is_held_out(task.question)
        rollout = replace(honest, ref=task.ref, question=task.question, ground_truth=task.ground_truth)
        assert scorer_of(source)(rollout, 8) is None
    with pytest.raises(RejectedError, match="held out"):
        verified_task(source, rollout)


@fails_without("swarm/judging/external.py", "self._cut(answer.text, answer.ended).text for", "answer.text for")
def test_what_is_scored_is_what_is_trained_on(source: TaskSource, honest: Rollout) -> None:
    wrong_first = Answer(f"<answer>x</answer>\n<answer>{honest.ground_truth}</answer>", True)
    too_late = Answer("." * 64 + f"<answer>{honest.ground_truth}</answer>", True)
    scorer = scorer_of(source)
    received = scorer(replace(honest, answers=(wrong_first, too_late, honest.answers[0])), 8)
    assert received is not None
    scored = scorer.cut(received)
    assert scored.rewards == (0.0, 0.0, 1.0)
    assert scored.rollout.answers[1].text == "." * 64 and not scored.rollout.answers[1].ended
    assert scored.rollout.id == replace(honest, answers=(wrong_first, too_late, honest.answers[0])).id


@fails_without("swarm/judging/external.py", "for answer in rollout.answers[:answers]", "for answer in rollout.answers")
def test_only_the_first_answers_of_a_long_group_count(source: TaskSource, honest: Rollout) -> None:
    right, wrong = honest.answers
    scorer = scorer_of(source)
    scored = scorer(replace(honest, answers=(wrong, right, *(wrong,) * 30)), 2)
    assert scored is not None
    assert scored.rewards == (0.0, 1.0) and len(scorer.cut(scored).rollout.answers) == 2


def test_many_long_rollouts_fill_no_memory(source: TaskSource, honest: Rollout) -> None:
    scorer = ExternalScorer(source, lambda text, ended: Answer(text, ended, tuple(range(1000, 1000 + len(text)))))
    scorer(honest, 8)
    tracemalloc.start()
    try:
        for number in range(20):
            answers = tuple(Answer(f"{number} {index}".ljust(1000, "."), False) for index in range(8))
            scorer(replace(honest, answers=answers, sequence=number), 8)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 50_000, "rewards alone"


@fails_without("swarm/judging/external.py", "Recent(MAX_SCORED)", "Recent(10**9)")
def test_a_rollout_is_scored_once_and_the_oldest_rewards_are_forgotten(
    source: TaskSource, honest: Rollout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(external, "MAX_SCORED", 2)
    scorer = scorer_of(source)
    lies = [replace(honest, sequence=sequence, ground_truth="x") for sequence in range(3)]
    for lie in (*lies, lies[2], lies[0]):
        assert scorer(lie, 8) is None
    assert scorer.rejected.total() == 4, "the third was remembered, the first was not"
    first = scorer(honest, 8)
    monkeypatch.setattr(source, "regenerate", lambda _: pytest.fail("regenerated twice"))
    assert scorer(replace(honest), 8) == first
