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

from sapo_edge.errors import CheckpointError, ModelError
from sapo_edge.policy import LoraSettings, Policy, TrainingGroup, UpdateSettings
from tests.contract.conftest import Backend, MakePolicy
from tests.contract.training import PROMPT, STRONG, assert_identical, edit, own_group, saved
from tests.models import RANK, SHAPES, make_tensors, question, write_model

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


def test_a_policy_saved_before_its_first_update_loads(make_policy: MakePolicy, tmp_path: Path) -> None:
    first = saved(make_policy(), tmp_path / "first")
    policy = make_policy(lora=OTHER)
    policy.update(training_set(policy), STRONG)
    policy.load(tmp_path / "first")
    assert_identical(first, saved(policy, tmp_path / "second"))


def test_the_saved_adapter_is_pefts(checkpoint: Path) -> None:
    config = json.loads((checkpoint / "adapter_config.json").read_text())
    assert (config["peft_type"], config["r"], config["lora_alpha"]) == ("LORA", RANK.rank, RANK.alpha)
    names = load_file(checkpoint / ADAPTER)
    assert "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight" in names and len(names) == 2 * 2 * 7


def test_an_adapter_without_an_optimizer_loads(make_policy: MakePolicy, checkpoint: Path) -> None:
    (checkpoint / OPTIMIZER).unlink()
    policy = make_policy()
    policy.load(checkpoint)
    statistics = policy.update(training_set(policy), UpdateSettings(learning_rate=1e-3, warmup=4))
    assert statistics.learning_rate == pytest.approx(2.5e-4)


def test_a_policy_that_only_samples_loads_an_adapter(make_policy: MakePolicy, checkpoint: Path) -> None:
    trained, sampler = make_policy(), make_policy(trainable=False)
    base = sampler.generate([PROMPT], 4, 12, 1.0, seed=1)
    for policy in (trained, sampler):
        policy.load(checkpoint)
    adapted = sampler.generate([PROMPT], 4, 12, 1.0, seed=1)
    assert adapted == trained.generate([PROMPT], 4, 12, 1.0, seed=1) != base


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


def test_damage_is_refused_and_changes_nothing(make_policy: MakePolicy, checkpoint: Path, tmp_path: Path) -> None:
    trained, sampler = make_policy(), make_policy(trainable=False)
    trained.update(training_set(trained), STRONG)
    before = saved(trained, tmp_path / "before")
    answers = {policy: policy.generate([PROMPT], 4, 8, 1.0, seed=1) for policy in (trained, sampler)}
    for name, inflict in (ADAPTER_DAMAGE | OPTIMIZER_DAMAGE).items():
        inflict(damaged := Path(shutil.copytree(checkpoint, tmp_path / name)))
        for policy in (trained, sampler) if name in ADAPTER_DAMAGE else (trained,):
            with pytest.raises(CheckpointError, match=r"; ."):
                policy.load(damaged)
            assert policy.generate([PROMPT], 4, 8, 1.0, seed=1) == answers[policy], name
        assert_identical(before, saved(trained, tmp_path / f"after {name}"))


@pytest.mark.parametrize(
    "other",
    [{"lora": LoraSettings(rank=8, alpha=8.0)}, {"lora": LoraSettings(rank=4, alpha=16.0)},
     {"model": "qwen3"}, {"model": "qwen3", "trainable": False}],
    ids=["rank", "scale", "model", "model, sampling only"],
)  # fmt: skip
def test_an_adapter_of_another_kind_is_refused(make_policy: MakePolicy, checkpoint: Path, other: Any) -> None:
    with pytest.raises(CheckpointError):
        make_policy(**other).load(checkpoint)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_model_without_probabilities_answers_nothing(backend: Backend, tmp_path: Path, temperature: float) -> None:
    path = write_model(tmp_path / "model.gguf", SHAPES["llama-gqa"])
    norm = make_tensors(SHAPES["llama-gqa"])["output_norm.weight"]
    whole = norm.tobytes()
    norm[3] = np.nan
    assert path.read_bytes().count(whole) == 1
    path.write_bytes(path.read_bytes().replace(whole, norm.tobytes()))
    with closing(backend.make(path, tmp_path, RANK, False)) as policy:
        with pytest.raises(ModelError, match="not numbers") as caught:
            policy.generate([question("hi")], 2, 4, temperature, 0)
        assert "sapo rollback" in caught.value.remedy
