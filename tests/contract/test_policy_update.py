"""What every policy learns: the direction of an update, what it must not change, cancellation, counts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sapo_edge.errors import Cancelled
from sapo_edge.node.head_start import FEWEST, HeadStart, HeadStartState
from sapo_edge.policy import CallHandle, Policy, TrainingAnswer, TrainingGroup, UpdateSettings
from sapo_edge.rollout import Answer, Rollout, ScoredRollout
from sapo_edge.tasks.checks import Pattern
from sapo_edge.tasks.manifest import Manifest, TaskEntry
from sapo_edge.tasks.questions import OwnQuestion
from sapo_edge.tasks.source import TaskSource
from tests.contract.training import PROMPT, STRONG, Looks, assert_identical, limit_packs, own_group, saved
from tests.models import SHAPES, ReferenceModel, encode_prompt, encode_text, question

Reference = Callable[[str], ReferenceModel]
MakePolicy = Callable[..., Policy]


def external_group(*answers: tuple[str, bool, float]) -> TrainingGroup:
    """An external group of (text, ended, advantage)."""
    return TrainingGroup(PROMPT, tuple(TrainingAnswer(*answer) for answer in answers))


def cancel_after(reports: int) -> CallHandle:
    """A handle that is cancelled after so much reported progress; 0: from the start."""
    handle = CallHandle(lambda done, _total: handle.cancel() if done == reports else None)
    if reports == 0:
        handle.cancel()
    return handle


@pytest.mark.parametrize("model", ["llama", "llama-f16", "qwen3"])
def test_an_update_makes_good_answers_likelier_and_bad_ones_less_likely(
    make_policy: MakePolicy, reference: Reference, tmp_path: Path, model: str
) -> None:
    policy = make_policy(model)
    group = own_group(policy, PROMPT)
    for _ in range(3):
        statistics = policy.update([group], STRONG)
    assert statistics.steps == 1
    policy.save(tmp_path)
    ids = encode_prompt(PROMPT)
    for answer in group.answers:
        assert answer.token_ids is not None
        before = reference(model).logprobs(ids, answer.token_ids).sum()
        after = reference(model).logprobs(ids, answer.token_ids, adapter=tmp_path).sum()
        assert (after - before) * answer.advantage > 0.1


def test_a_head_start_teaches_an_answer_by_heart(policy: Policy) -> None:
    manifest = Manifest("own", (TaskEntry("mine", questions=(OwnQuestion("What is 3 + 4?", "7"),)),))
    head_start = HeadStart(
        policy,
        TaskSource(manifest),
        1,
        1,
        replace(STRONG, learning_rate=STRONG.learning_rate / 5, max_tokens=24),
        lambda *_: ([], [], 0),
    )
    head_start.advance(HeadStartState(), 20, CallHandle, lambda _made: True)
    for temperature in (0.0, 1.0):
        ((sample,),) = policy.generate([manifest.prompt_for("What is 3 + 4?")], 1, 24, temperature, seed=1)
        assert sample.text == "<answer>7</answer>"


def test_a_head_start_learns_from_first_right_answers_where_only_a_verifier_exists(policy: Policy) -> None:
    questions = tuple(OwnQuestion(f"Say {word}?", "?", Pattern("(?s).*[a-f].*"), "train") for word in "bcdefghijklm")
    manifest = Manifest("own", (TaskEntry("mine", questions=questions, reading="line"),))
    source = TaskSource(manifest)

    def sample(seed: int, cursor: int, _handle: CallHandle) -> tuple[list[ScoredRollout], list[ScoredRollout], int]:
        tasks, cursor = source.training_tasks(seed, cursor, 8)
        groups = policy.generate([manifest.prompt_for(task.question) for task in tasks], 8, 4, 1.0, cursor)
        rollouts = []
        for task, group in zip(tasks, groups, strict=True):
            answers = tuple(Answer(sample.text, sample.ended, sample.token_ids) for sample in group)
            rollout = Rollout(task.ref, task.question, task.ground_truth, answers, "own", 0, 0, 0.0)
            rollouts.append(ScoredRollout(rollout, tuple(source.score(task, answer.text) for answer in answers)))
        return rollouts, [], cursor

    def right() -> float:
        rewards = [reward for scored in sample(1, 0, CallHandle())[0] for reward in scored.rewards]
        return sum(rewards) / len(rewards)

    settings = replace(STRONG, learning_rate=STRONG.learning_rate / 5, max_tokens=4)
    head_start, before = HeadStart(policy, source, 7, 8, settings, sample), right()
    assert not head_start.knows_answers
    state = head_start.search(HeadStartState(), CallHandle, lambda _tried: True)
    assert before < 0.5 and len(head_start.found) >= FEWEST
    head_start.advance(state, 12, CallHandle, lambda _made: True)
    assert right() > 2 * before, "it teaches what its verifier finds right"


def test_the_next_answers_come_from_the_updated_model(policy: Policy, reference: Reference, tmp_path: Path) -> None:
    for seed in range(4):
        policy.update([own_group(policy, PROMPT, seed)], STRONG)
    policy.save(tmp_path)
    (samples,) = policy.generate([PROMPT], 8, 16, 1.0, seed=5)
    off_base = []
    for sample in samples:
        ids = encode_prompt(PROMPT)
        adapted = reference("llama-gqa").logprobs(ids, sample.token_ids, adapter=tmp_path)
        assert np.abs(adapted - sample.logprobs).max() < 0.06
        off_base.append(np.abs(reference("llama-gqa").logprobs(ids, sample.token_ids) - sample.logprobs).mean())
    assert np.mean(off_base) > 0.3


def test_without_its_adapter_the_base_model_answers(make_policy: MakePolicy) -> None:
    policy = make_policy()
    before = policy.generate([PROMPT], 6, 12, 1.0, seed=5)
    for seed in range(4):
        policy.update([own_group(policy, PROMPT, seed)], STRONG)
    adapted = policy.generate([PROMPT], 6, 12, 1.0, seed=5)
    assert policy.generate([PROMPT], 6, 12, 1.0, seed=5, use_adapter=False) == before
    assert adapted != before
    assert policy.generate([PROMPT], 6, 12, 1.0, seed=5) == adapted


def test_a_fresh_adapter_changes_nothing(make_policy: MakePolicy, tmp_path: Path) -> None:
    policy = make_policy()
    before = policy.generate([PROMPT], 6, 12, 1.0, seed=5)
    policy.save(tmp_path)
    policy.load(tmp_path)
    assert policy.generate([PROMPT], 6, 12, 1.0, seed=5) == before


def test_own_answers_are_evaluated_at_the_temperature_they_were_sampled_at(policy: Policy) -> None:
    (samples,) = policy.generate([PROMPT], 8, 16, 0.6, seed=1)
    answers = tuple(TrainingAnswer(s.text, s.ended, 1.0, s.token_ids, s.logprobs) for s in samples)
    group = TrainingGroup(PROMPT, answers)
    assert 0.0 <= policy.update([group], UpdateSettings(learning_rate=0.0, temperature=0.6)).mismatch_kl < 1e-4
    assert policy.update([group], UpdateSettings(learning_rate=0.0, temperature=1.0)).mismatch_kl > 1e-2


def test_a_round_without_a_signal_leaves_the_policy_alone(policy: Policy, tmp_path: Path) -> None:
    policy.update([own_group(policy, PROMPT)], STRONG)
    before = saved(policy, tmp_path / "before")
    statistics = policy.update([external_group(("yes", True, 0.0), ("no", True, 0.0))], STRONG)
    assert (statistics.groups, statistics.informative, statistics.steps, statistics.tokens) == (1, 0, 0, 0)
    assert policy.update([], STRONG).steps == 0
    assert_identical(before, saved(policy, tmp_path / "after"))


def test_only_groups_with_a_signal_are_trained_on(policy: Policy) -> None:
    silent = external_group(("yes", False, 0.0), ("no", False, 0.0))
    loud = external_group(("maybe", False, 1.0), ("so", False, -1.0))
    statistics = policy.update([silent, loud, silent], STRONG)
    assert (statistics.groups, statistics.informative, statistics.steps) == (3, 1, 1)
    assert statistics.tokens == len(encode_text("maybeso"))


@pytest.mark.parametrize(
    ("text", "ended", "tokens"),
    [
        ("the answer is 7", True, 16),
        ("the answer is 7", False, 15),
        ("<answer>7</answer>", True, 18),
        ("<answer>7</answer> and more", True, 27),
        ("", True, 1),
        ("ü€", True, 6),
        ("<|im_end|>", True, 11),
    ],
)
def test_external_text_gets_the_end_token_iff_its_author_chose_it(
    policy: Policy, text: str, ended: bool, tokens: int
) -> None:
    statistics = policy.update([external_group((text, ended, 1.0))], STRONG)
    assert statistics.tokens == tokens
    assert statistics.ended == float(ended)


def test_external_answers_are_cut_to_the_limit_of_own_ones(policy: Policy) -> None:
    group = external_group(("<answer>7</answer> and more", True, 1.0), ("short", False, -1.0))
    assert policy.update([group], replace(STRONG, max_tokens=8)).tokens == 8 + 5


def test_empty_external_answers_are_skipped(policy: Policy) -> None:
    statistics = policy.update([external_group(("", False, -1.0), ("7", False, 1.0))], STRONG)
    assert (statistics.steps, statistics.tokens) == (1, 1)
    assert statistics.answer_tokens == 0.5
    assert policy.update([external_group(("", False, -1.0), ("", False, 1.0))], STRONG).steps == 0


def test_counts_include_all_answers(policy: Policy) -> None:
    statistics = policy.update(
        [external_group(("four", True, 1.0), ("seven", False, 0.0)), external_group(("no", True, 0.0))], STRONG
    )
    assert statistics.ended == pytest.approx(2 / 3)
    assert statistics.answer_tokens == pytest.approx((5 + 5 + 3) / 3)


def test_learning_reports_progress(policy: Policy) -> None:
    limit_packs(policy)
    groups = [own_group(policy, question(text)) for text in ("a", "b", "c")]
    reports: list[tuple[int, int]] = []
    handle = CallHandle(lambda done, total: reports.append((done, total)))
    assert policy.update(groups, UpdateSettings(), handle).steps == 1
    assert [done for done, _ in reports] == sorted({done for done, _ in reports})
    assert reports[0][0] == 0 and reports[-1][0] == reports[-1][1]
    assert len(reports) >= 4


@pytest.mark.parametrize("cancel_at", [0, 1, 2])
def test_a_cancelled_update_leaves_everything_as_it_was(policy: Policy, tmp_path: Path, cancel_at: int) -> None:
    limit_packs(policy)
    groups = [own_group(policy, question(text)) for text in ("a", "b", "c")]
    policy.update(groups, STRONG)
    before, answers = saved(policy, tmp_path / "before"), policy.generate([PROMPT], 4, 8, 1.0, seed=5)
    with pytest.raises(Cancelled):
        policy.update(groups, STRONG, cancel_after(cancel_at))
    assert_identical(before, saved(policy, tmp_path / "after"))
    assert policy.generate([PROMPT], 4, 8, 1.0, seed=5) == answers
    assert policy.update(groups, STRONG).steps == 1


def test_an_update_can_be_cancelled_in_the_middle_of_a_pack(policy: Policy, tmp_path: Path) -> None:
    groups, looks = [own_group(policy, question("a"))], Looks()
    policy.update(groups, STRONG, looks)
    assert looks.count >= 2 * SHAPES["llama"].layers, "forward and backward through each layer"
    before = saved(policy, tmp_path / "before")
    for cancel_at in range(1, looks.count + 1):
        with pytest.raises(Cancelled):
            policy.update(groups, STRONG, Looks(cancel_at))
        assert_identical(before, saved(policy, tmp_path / str(cancel_at)))


def test_a_cancelled_update_does_not_change_the_next_one(make_policy: MakePolicy, tmp_path: Path) -> None:
    results = []
    for cancelled in (False, True):
        policy = make_policy()
        limit_packs(policy)
        groups = [own_group(policy, question(text)) for text in ("a", "b")]
        policy.update(groups, STRONG)
        if cancelled:
            with pytest.raises(Cancelled):
                policy.update(groups, STRONG, cancel_after(1))
        policy.update(groups, STRONG)
        results.append(saved(policy, tmp_path / str(cancelled)))
    assert_identical(*results)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_leaves_the_adapter_alone(policy: Policy, tmp_path: Path, bad: float) -> None:
    group = own_group(policy, PROMPT)
    policy.update([group], STRONG)
    before = saved(policy, tmp_path / "before")
    broken = replace(group, answers=(replace(group.answers[0], advantage=bad), *group.answers[1:]))
    assert policy.update([broken], STRONG).steps == 0
    assert_identical(before, saved(policy, tmp_path / "after"))
    assert policy.update([group], STRONG).steps == 1
