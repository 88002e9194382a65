"""What every policy learns: the direction of an update, what it must not change, cancellation, counts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from sapo_edge.backends.common.policy import BasePolicy
from sapo_edge.errors import Cancelled
from sapo_edge.node.head_start import HeadStart, HeadStartState
from sapo_edge.policy import CallHandle, Policy, TrainingAnswer, TrainingGroup, UpdateSettings
from sapo_edge.tasks.manifest import Manifest, TaskEntry
from sapo_edge.tasks.questions import OwnQuestion
from sapo_edge.tasks.source import TaskSource
from tests.contract.conftest import MakePolicy, Reference
from tests.contract.training import LOGPROB_MAX, PROMPT, STRONG, Looks, assert_identical, limit_packs, own_group, saved
from tests.models import SHAPES, encode_prompt, encode_text, question


def external_group(*answers: tuple[str, bool, float]) -> TrainingGroup:
    """An external group of (text, ended, advantage)."""
    return TrainingGroup(PROMPT, tuple(TrainingAnswer(*answer) for answer in answers))


def cancel_after(reports: int) -> CallHandle:
    """A handle that is cancelled after so much reported progress."""
    handle = CallHandle(lambda done, _total: handle.cancel() if done == reports else None)
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
    for answer in group.answers:
        assert answer.token_ids is not None
        before, after = (
            reference(model).logprobs(encode_prompt(PROMPT), answer.token_ids, adapter=adapter).sum()
            for adapter in (None, tmp_path)
        )
        assert (after - before) * answer.advantage > 0.1


def test_a_head_start_teaches_an_answer_by_heart(policy: Policy) -> None:
    manifest = Manifest("own", (TaskEntry("mine", questions=(OwnQuestion("What is 3 + 4?", "7"),)),))
    settings = replace(STRONG, learning_rate=STRONG.learning_rate / 5, max_tokens=24)
    head_start = HeadStart(policy, TaskSource(manifest), 1, 1, settings, lambda *_: ([], [], 0))
    head_start.advance(HeadStartState(), 20, CallHandle, lambda _made: True)
    for temperature in (0.0, 1.0):
        ((sample,),) = policy.generate([manifest.prompt_for("What is 3 + 4?")], 1, 24, temperature, seed=1)
        assert sample.text == "<answer>7</answer>"


def test_answers_come_from_the_updated_model_and_without_its_adapter_from_the_base(
    policy: Policy, reference: Reference, tmp_path: Path
) -> None:
    before = policy.generate([PROMPT], 8, 16, 1.0, seed=5)
    for seed in range(4):
        policy.update([own_group(policy, PROMPT, seed)], STRONG)
    policy.save(tmp_path)
    adapted, model, ids = policy.generate([PROMPT], 8, 16, 1.0, seed=5), reference("llama-gqa"), encode_prompt(PROMPT)
    off_base = []
    for sample in adapted[0]:
        expected = model.logprobs(ids, sample.token_ids, adapter=tmp_path)
        assert np.abs(expected - sample.logprobs).max() < LOGPROB_MAX
        off_base.append(np.abs(model.logprobs(ids, sample.token_ids) - sample.logprobs).mean())
    assert np.mean(off_base) > 0.3
    assert policy.generate([PROMPT], 8, 16, 1.0, seed=5, use_adapter=False) == before
    assert policy.generate([PROMPT], 8, 16, 1.0, seed=5) == adapted


def test_other_programs_load_is_looked_at_within_an_update(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(policy, BasePolicy)
    loads = Mock(return_value=1)
    monkeypatch.setattr(policy.governor, "current", loads)
    policy.update([own_group(policy, PROMPT)], STRONG)
    assert loads.call_count > 1


def test_own_answers_are_evaluated_at_the_temperature_they_were_sampled_at(policy: Policy) -> None:
    group = own_group(policy, PROMPT, answers=8, temperature=0.6)
    assert 0.0 <= policy.update([group], UpdateSettings(learning_rate=0.0, temperature=0.6)).mismatch_kl < 1e-4
    assert policy.update([group], UpdateSettings(learning_rate=0.0, temperature=1.0)).mismatch_kl > 1e-2


def test_only_a_signal_is_trained_on_and_all_answers_are_counted(policy: Policy, tmp_path: Path) -> None:
    before = saved(policy, tmp_path / "before")
    silent = external_group(("yes", True, 0.0), ("no", False, 0.0))
    for groups in ([silent], [external_group(("", False, -1.0), ("", False, 1.0))], []):
        statistics = policy.update(groups, STRONG)
        assert statistics.groups == len(groups)
        assert statistics.informative == statistics.steps == statistics.tokens == 0
    assert_identical(before, saved(policy, tmp_path / "after"))
    loud = external_group(("maybe", True, 1.0), ("so", False, -1.0), ("", False, -1.0))
    statistics = policy.update([silent, loud, silent], STRONG)
    assert (statistics.groups, statistics.informative, statistics.steps) == (3, 1, 1)
    assert statistics.tokens == len(encode_text("maybeso")) + 1
    assert statistics.ended == pytest.approx(3 / 7)
    assert statistics.answer_tokens == pytest.approx((4 + 2 + 6 + 2 + 0 + 4 + 2) / 7)


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
def test_external_text_has_an_end_iff_its_author_chose_it(policy: Policy, text: str, ended: bool, tokens: int) -> None:
    group = external_group((text, ended, 1.0))
    statistics = policy.update([group], STRONG)
    assert (statistics.tokens, statistics.ended) == (tokens, float(ended))
    assert policy.update([group], replace(STRONG, max_tokens=8)).tokens == min(tokens, 8)


def test_learning_reports_progress(policy: Policy) -> None:
    limit_packs(policy)
    groups = [own_group(policy, question(text)) for text in ("a", "b", "c")]
    reports: list[tuple[int, int]] = []
    handle = CallHandle(lambda done, total: reports.append((done, total)))
    assert policy.update(groups, UpdateSettings(), handle).steps == 1
    assert [done for done, _ in reports] == sorted({done for done, _ in reports})
    assert reports[0][0] == 0 and reports[-1][0] == reports[-1][1] and len(reports) >= 4


def test_a_cancelled_update_leaves_everything_as_it_was_and_does_not_change_the_next_one(
    make_policy: MakePolicy, tmp_path: Path
) -> None:
    undisturbed, policy = make_policy(), make_policy()
    groups = [own_group(policy, question(text)) for text in ("a", "b", "c")]
    for each in (undisturbed, policy):
        limit_packs(each)
        each.update(groups, STRONG)
    before, answers = saved(policy, tmp_path / "before"), policy.generate([PROMPT], 4, 8, 1.0, seed=5)
    for reports in range(3):
        with pytest.raises(Cancelled):
            policy.update(groups, STRONG, cancel_after(reports))
        assert_identical(before, saved(policy, tmp_path / f"cancelled-{reports}"))
    assert policy.generate([PROMPT], 4, 8, 1.0, seed=5) == answers
    for each in (undisturbed, policy):
        assert each.update(groups, STRONG).steps == 1
    assert_identical(saved(undisturbed, tmp_path / "expected"), saved(policy, tmp_path / "after"))


def test_an_update_can_be_cancelled_in_the_middle_of_a_pack(policy: Policy, tmp_path: Path) -> None:
    groups, looks = [own_group(policy, question("a"))], Looks()
    policy.update(groups, STRONG, looks)
    assert looks.count >= 2 * SHAPES["llama"].layers, "forward and backward through each layer"
    before = saved(policy, tmp_path / "before")
    for cancel_at in range(1, looks.count + 1):
        with pytest.raises(Cancelled):
            policy.update(groups, STRONG, Looks(cancel_at))
        assert_identical(before, saved(policy, tmp_path / str(cancel_at)))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_leaves_the_adapter_alone(policy: Policy, tmp_path: Path, bad: float) -> None:
    group = own_group(policy, PROMPT)
    policy.update([group], STRONG)
    before = saved(policy, tmp_path / "before")
    broken = replace(group, answers=(replace(group.answers[0], advantage=bad), *group.answers[1:]))
    assert policy.update([broken], STRONG).steps == 0
    assert_identical(before, saved(policy, tmp_path / "after"))
    assert policy.update([group], STRONG).steps == 1
