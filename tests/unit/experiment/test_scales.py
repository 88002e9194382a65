"""The shipped experiments: every arm of each is valid, and the first rounds of the larger two run on a small model."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from sapo_edge.backends.llama import requantise
from sapo_edge.backends.llama.policy import LlamaCppPolicy
from sapo_edge.backends.pytorch.policy import TorchPolicy
from sapo_edge.experiment.hostile import ATTACKS, KNOWN
from sapo_edge.experiment.plan import Job
from sapo_edge.experiment.results import Results
from sapo_edge.experiment.runner import run_job
from sapo_edge.experiment.scales import SCALES
from sapo_edge.experiment.scene import Scene, training_manifest
from sapo_edge.selection import STRATEGIES
from tests.models import SHAPES, write_model


@pytest.mark.parametrize("name", list(SCALES))
def test_every_arm_of_a_scale_can_be_run_and_is_read_as_it_was_written(tmp_path: Path, name: str) -> None:
    plan = SCALES[name]()
    assert plan.scale == name and training_manifest(plan).tasks
    results, again = Results(tmp_path, lambda record: None), Results(tmp_path, lambda record: None)
    results.claim(plan)
    again.check(plan, {})
    assert again.plan == plan
    keys = [job.key for job in replace(plan, seeds=1).jobs]
    assert len(set(keys)) == len(keys)
    for setting in plan.settings:
        for arm in setting.arms:
            training = arm.training
            assert training.own + training.external == 8 and training.strategy in STRATEGIES
            assert bool(arm.attack) == bool(arm.hostile) and (not arm.attack or arm.attack in ATTACKS)


def test_the_scale_tiny_has_each_attack_by_a_quarter_and_known_ones_by_half_and_as_published() -> None:
    hostile = next(setting for setting in SCALES["tiny"]().settings if setting.name == "hostile")
    for attack in ATTACKS:
        shares = {arm.hostile / hostile.nodes for arm in hostile.arms if arm.attack == attack and arm.training.cut}
        assert shares >= ({0.25, 0.5} if attack in KNOWN else {0.25})
        published = any(arm.attack == attack and arm.training.strategy == "published" for arm in hostile.arms)
        assert published == (attack in KNOWN)


@pytest.mark.parametrize(("name", "arm"), [("paper", "2/6"), ("embedded", "4/4")])
def test_the_first_rounds_run_on_a_small_model(tmp_path: Path, name: str, arm: str) -> None:
    pytest.importorskip("torch")
    plan = SCALES[name]()
    (setting,) = plan.settings
    small = replace(
        setting, nodes=2, rounds=2, validation=3, questions=3, sampled=1, arms=(setting.arm(arm),), baseline=arm
    )
    model = write_model(tmp_path / "model.gguf", SHAPES["llama"])
    # The tiny model ends few answers by itself, and the manifests allow hundreds of tokens.
    learning = replace(plan.learning, max_tokens=8)
    plan = replace(plan, settings=(small,), seeds=1, model=str(model), backend="torch", threads=1, learning=learning)
    results = tmp_path / "results"
    with closing(Scene(plan, tmp_path / "cache", tmp_path / "work", lambda text: None)) as scene:
        record = run_job(Job(small, small.arms[0], 0), scene, results, lambda finished: None)
        policies = [shelf.policy for shelf in scene.shelves(small).values()]
        # Not what is fastest here: elsewhere it may be another format, with other results.
        assert [policy.place.products for policy in policies if isinstance(policy, TorchPolicy)] == ["float32"]
    assert record.arm == arm
    assert [(row.round, row.node) for row in record.rounds] == [(1, 0), (1, 1), (2, 0), (2, 1)]
    assert all(0 < row.tokens <= 8 * row.generated for row in record.rounds)
    assert {row.questions for row in record.evaluations} == {"validation", "test", "test@8"}


def test_members_sample_from_one_format_whatever_is_fastest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("llama_cpp")
    pytest.importorskip("torch")
    monkeypatch.setattr(requantise, "SMALL", 0)
    monkeypatch.setattr(requantise, "_decode", lambda *_: pytest.fail("measured, so that another machine may differ"))
    plan = SCALES["embedded"]()
    model = write_model(tmp_path / "model.gguf", SHAPES["llama-gqa"])
    plan = replace(plan, model=str(model), backend="llama_cpp", threads=1)
    with closing(Scene(plan, tmp_path / "cache", tmp_path / "work", lambda text: None)) as scene:
        (policy,) = [shelf.policy for shelf in scene.shelves(plan.settings[0]).values()]
        assert isinstance(policy, LlamaCppPolicy) and policy.sampler is not None and policy.sampler.format == "bf16"
