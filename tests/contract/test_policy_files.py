"""What every policy saves, and what it refuses to load."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from sapo_edge.errors import BackendError, CheckpointError, ModelError
from sapo_edge.policy import LoraSettings, Policy, TrainingGroup, UpdateSettings
from tests.contract.conftest import Backend, MakePolicy
from tests.contract.formula import distance
from tests.contract.training import PROMPT, STRONG, assert_identical, assert_same_up_to_noise, edit, own_group, saved
from tests.models import RANK, SHAPES, Models, make_tensors, opening, question, write_model

ADAPTER = "adapter_model.safetensors"
OPTIMIZER = "optimizer.safetensors"
OTHER = replace(RANK, seed=99)


def training_set(policy: Policy) -> list[TrainingGroup]:
    return [own_group(policy, question(text)) for text in ("a", "bb")]


@pytest.fixture
def checkpoint(make_policy: MakePolicy, tmp_path: Path) -> Path:
    """What a policy saved after an update."""
    policy = make_policy()
    policy.update(training_set(policy), STRONG)
    saved(policy, tmp_path / "checkpoint")
    return tmp_path / "checkpoint"


def test_training_resumes_bit_for_bit(make_policy: MakePolicy, tmp_path: Path) -> None:
    # The last has another seed, so that nothing of the adapter could come from its own start.
    straight, first, resumed = make_policy(), make_policy(), make_policy(lora=OTHER)
    groups = training_set(straight)
    for policy, updates in ((straight, 3), (first, 2)):
        for _ in range(updates):
            policy.update(groups, UpdateSettings(learning_rate=1e-3))
    middle = saved(first, tmp_path / "middle")
    resumed.load(tmp_path / "middle")
    assert_identical(middle, saved(resumed, tmp_path / "loaded"))
    statistics = resumed.update(groups, UpdateSettings(learning_rate=1e-3))
    assert statistics.learning_rate == pytest.approx(6e-4)
    assert_identical(saved(straight, tmp_path / "straight"), saved(resumed, tmp_path / "resumed"))
    assert straight.generate([PROMPT], 4, 12, 1.0, seed=1) == resumed.generate([PROMPT], 4, 12, 1.0, seed=1)


def test_another_backend_continues_from_what_one_has_saved(
    backend: Backend, make_policy: MakePolicy, models: Models, tmp_path: Path
) -> None:
    """From llama.cpp and torch, which every installation has, and back; adapter and optimizer move bit for bit."""
    from sapo_edge.backends.llama.policy import LlamaCppPolicy

    second, settings = make_policy(lora=OTHER), UpdateSettings(learning_rate=1e-3, warmup=1)
    with closing(LlamaCppPolicy(opening(models["llama-gqa"], tmp_path, lora=RANK))) as first:
        groups = training_set(first)
        for _ in range(3):
            first.update(groups, settings)
        moved = saved(first, tmp_path / "moved")
        second.load(tmp_path / "moved")
        assert_identical(moved, saved(second, tmp_path / "arrived"))
        assert first.model_digest == second.model_digest
        statistics = [policy.update(groups, settings) for policy in (first, second)]
        stayed, went = saved(first, tmp_path / "stayed"), saved(second, tmp_path / "went")
        assert statistics[0].gradient_norm == pytest.approx(statistics[1].gradient_norm, rel=1e-3)
        moments = [{name: array for name, array in each.items() if "optimizer" in name} for each in (went, stayed)]
        assert distance(*moments) < 1e-3
        # The steps are compared loosely: Adam divides a gradient by its own size, so the smallest ones become noise.
        adapter = [name for name in moved if name.startswith("adapter")]
        assert distance(*({name: after[name] - moved[name] for name in adapter} for after in (went, stayed))) < 0.02
        if backend.name == "torch":
            assert_identical(stayed, went)
        for _ in range(3):
            second.update(groups, STRONG)
        trained = saved(second, tmp_path / "trained")
        first.load(tmp_path / "trained")
        assert_identical(trained, saved(first, tmp_path / "loaded"))
        answers = first.generate([PROMPT], 8, 16, 1.0, seed=1)
        assert_same_up_to_noise(answers, second.generate([PROMPT], 8, 16, 1.0, seed=1))
        # Without the adapter the answers differ by more than noise.
        with pytest.raises(AssertionError):
            assert_same_up_to_noise(answers, first.generate([PROMPT], 8, 16, 1.0, seed=1, use_adapter=False))


def test_a_policy_saved_before_its_first_update_loads(make_policy: MakePolicy, tmp_path: Path) -> None:
    first = saved(make_policy(), tmp_path / "first")
    policy = make_policy(lora=OTHER)
    policy.update(training_set(policy), STRONG)
    policy.load(tmp_path / "first")
    assert_identical(first, saved(policy, tmp_path / "second"))


def test_the_saved_adapter_is_pefts_and_loads_without_an_optimizer_also_to_sample_only(
    make_policy: MakePolicy, checkpoint: Path
) -> None:
    config = json.loads((checkpoint / "adapter_config.json").read_text())
    assert (config["peft_type"], config["r"], config["lora_alpha"]) == ("LORA", RANK.rank, RANK.alpha)
    names = load_file(checkpoint / ADAPTER)
    assert "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight" in names and len(names) == 2 * 2 * 7
    (checkpoint / OPTIMIZER).unlink()
    trained, sampler = make_policy(), make_policy(trainable=False)
    base = sampler.generate([PROMPT], 4, 12, 1.0, seed=1)
    for policy in (trained, sampler):
        policy.load(checkpoint)
    adapted = sampler.generate([PROMPT], 4, 12, 1.0, seed=1)
    assert adapted == trained.generate([PROMPT], 4, 12, 1.0, seed=1) != base
    statistics = trained.update(training_set(trained), UpdateSettings(learning_rate=1e-3, warmup=4))
    assert statistics.learning_rate == pytest.approx(2.5e-4)
    for learn in (lambda: sampler.update([], UpdateSettings()), lambda: sampler.save(checkpoint)):
        with pytest.raises(BackendError):
            learn()


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def shrink(arrays: dict[str, np.ndarray], ending: str) -> None:
    name = next(name for name in sorted(arrays) if name.endswith(ending))
    arrays[name] = np.ascontiguousarray(arrays[name][:-1])


def drop(arrays: dict[str, np.ndarray], beginning: str) -> None:
    del arrays[next(name for name in sorted(arrays) if name.startswith(beginning))]


def poison(arrays: dict[str, np.ndarray]) -> None:
    arrays[min(arrays)].flat[0] = np.nan


Damage = dict[str, Callable[[Path], object]]
# `tests/unit/backends/adapter/test_files.py` has more of the configuration.
ADAPTER_DAMAGE: Damage = {
    "no directory": shutil.rmtree,
    "no adapter": lambda d: (d / ADAPTER).unlink(),
    "no configuration": lambda d: (d / "adapter_config.json").unlink(),
    "truncated adapter": lambda d: truncate(d / ADAPTER),
    "empty adapter": lambda d: (d / ADAPTER).write_bytes(b""),
    "weight missing": lambda d: edit(d / ADAPTER, lambda a: drop(a, "base_model.model.model.layers.1")),
    "weight of another shape": lambda d: edit(d / ADAPTER, lambda a: shrink(a, "lora_B.weight")),
    "weight not a number": lambda d: edit(d / ADAPTER, poison),
}
OPTIMIZER_DAMAGE: Damage = {
    "truncated optimizer": lambda d: truncate(d / OPTIMIZER),
    "optimizer moment missing": lambda d: edit(d / OPTIMIZER, lambda a: drop(a, "exp_avg_sq.")),
    "optimizer step missing": lambda d: edit(d / OPTIMIZER, lambda a: drop(a, "step.")),
    "optimizer moment of another shape": lambda d: edit(d / OPTIMIZER, lambda a: shrink(a, "lora_A.weight")),
    "optimizer of another adapter": lambda d: edit(d / OPTIMIZER, lambda a: a.update({"base_model.x": np.zeros(1)})),
}


def test_damage_and_adapters_of_another_kind_are_refused_and_change_nothing(
    make_policy: MakePolicy, checkpoint: Path, tmp_path: Path
) -> None:
    trained, sampler = make_policy(), make_policy(trainable=False)
    trained.update(training_set(trained), STRONG)
    before = saved(trained, tmp_path / "before")
    answers = {policy: policy.generate([PROMPT], 4, 8, 1.0, seed=1) for policy in (trained, sampler)}
    for name, inflict in (ADAPTER_DAMAGE | OPTIMIZER_DAMAGE).items():
        inflict(damaged := Path(shutil.copytree(checkpoint, tmp_path / name)))
        for policy in (trained, sampler) if name in ADAPTER_DAMAGE else (trained,):
            with pytest.raises(CheckpointError, match=r"; ."):
                policy.load(damaged)
    assert_identical(before, saved(trained, tmp_path / "after"))
    for policy, expected in answers.items():
        assert policy.generate([PROMPT], 4, 8, 1.0, seed=1) == expected
    others: tuple[dict[str, Any], ...] = (
        {"lora": LoraSettings(rank=8, alpha=8.0)}, {"lora": LoraSettings(rank=4, alpha=16.0)},
        {"model": "qwen3"}, {"model": "qwen3", "trainable": False},
    )  # fmt: skip
    for other in others:
        with pytest.raises(CheckpointError):
            make_policy(**other).load(checkpoint)


def test_a_model_without_probabilities_answers_nothing(backend: Backend, tmp_path: Path) -> None:
    path = write_model(tmp_path / "model.gguf", SHAPES["llama-gqa"])
    norm = make_tensors(SHAPES["llama-gqa"])["output_norm.weight"]
    whole = norm.tobytes()
    norm[3] = np.nan
    assert path.read_bytes().count(whole) == 1
    path.write_bytes(path.read_bytes().replace(whole, norm.tobytes()))
    with closing(backend.make(path, tmp_path, RANK, False)) as policy:
        for temperature in (0.0, 1.0):
            with pytest.raises(ModelError, match=r"not numbers.*; .*sapo rollback"):
                policy.generate([question("hi")], 2, 4, temperature, 0)
