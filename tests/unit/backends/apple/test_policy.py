"""MLX beyond the contract: the learner's shortcuts change nothing, other threads can go on, a step draws once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from sapo_edge.backends.apple.memory import kept_bytes
from sapo_edge.backends.apple.policy import MlxPolicy
from sapo_edge.backends.common.packing import encode_group, pack
from sapo_edge.backends.common.request import draw_allowed
from sapo_edge.policy import LoraSettings, Sample, UpdateSettings
from tests import needs
from tests.contract.formula import distance
from tests.contract.test_policy_gradient import batch, first_moments, randomise
from tests.contract.training import PROMPT, own_group
from tests.models import Models, opening, question

pytestmark = needs.MLX

SETTINGS = UpdateSettings(learning_rate=1e-2, warmup=1, temperature=0.8)
Make = Callable[..., MlxPolicy]


@pytest.fixture
def make(models: Models, tmp_path: Path) -> Iterator[Make]:
    with ExitStack() as made:

        def make_policy(model: str = "llama-gqa", name: str = "adapter") -> MlxPolicy:
            options = opening(models[model], lora=LoraSettings(rank=4, alpha=8.0))
            policy = made.enter_context(closing(MlxPolicy(options)))
            randomise(policy, tmp_path / name)
            return policy

        yield make_policy


@pytest.mark.parametrize("model", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize(("limit", "value"), [("KEPT_BYTES", 0), ("LOGIT_ROWS", 3)])
def test_saving_memory_changes_nothing(
    make: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, model: str, limit: str, value: int
) -> None:
    moments = []
    for name in ("before", "after"):
        policy = make(model, f"adapter {name}")
        policy.update(batch(policy), SETTINGS)
        moments.append(first_moments(policy, tmp_path / name))
        monkeypatch.setattr(f"sapo_edge.backends.apple.learner.{limit}", value)
    assert distance(*moments) < 1e-5


def test_another_thread_can_take_over(make: Make, tmp_path: Path) -> None:
    """MLX's streams belong to threads, so a call must not return lazy arrays."""
    policy = make()
    groups = batch(policy)
    policy.update(groups, SETTINGS)
    expected = policy.generate([question("a"), question("b")], 3, 8, 1.0, seed=1)

    def work() -> list[list[Sample]]:
        samples = policy.generate([question("a"), question("b")], 3, 8, 1.0, seed=1)
        policy.update(groups, SETTINGS)
        policy.save(tmp_path)
        policy.load(tmp_path)
        return samples

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(work).result() == expected
    policy.generate([PROMPT], 1, 4, 1.0, seed=1)
    policy.update(groups, SETTINGS)


def test_a_long_pack_keeps_only_each_layers_input(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = make()
    assert policy.learner is not None
    group = encode_group(policy.vocabulary, own_group(policy, PROMPT))
    pairs = sum(segment.visible.size for segment in pack([group]).segments)
    limit = kept_bytes(policy.shape, len(group.prompt) + group.answer_tokens, pairs)
    monkeypatch.setattr("sapo_edge.backends.apple.learner.KEPT_BYTES", limit)
    assert policy.learner._trunk(pack([group])).keep
    assert not policy.learner._trunk(pack([replace(group, prompt=group.prompt * 2)])).keep


def test_a_step_draws_for_all_answers_at_once(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    policy, draws = make("llama"), Mock(wraps=draw_allowed)
    monkeypatch.setattr("sapo_edge.backends.apple.sampler.draw_allowed", draws)
    policy.generate([PROMPT], answers=8, max_tokens=12, temperature=1.0, seed=0)
    # On a GPU, each call waits for the step and copies its logits.
    assert draws.call_count <= 13 and len(draws.call_args_list[0].args[0]) == 8
