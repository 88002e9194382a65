"""The embedded model, and one cache for all tests that sample from it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from sapo_edge.backends.backend import OpenOptions
from sapo_edge.backends.llama.policy import LlamaCppPolicy
from sapo_edge.backends.model.find import embedded_model
from sapo_edge.policy import LoraSettings, Policy, TrainingGroup, UpdateSettings
from sapo_edge.rollout import Task
from sapo_edge.tasks.manifest import load_manifest
from tests.contract.training import own_group

MANIFEST = load_manifest("starter")
RANK = LoraSettings(rank=8, alpha=16.0, seed=3)
SETTINGS = UpdateSettings(learning_rate=1e-3, warmup=1)


@pytest.fixture(scope="session")
def model() -> Path:
    """The embedded model's file."""
    path = embedded_model()
    if path is None:
        pytest.skip("the extra `starter` is not installed")
    return path


@pytest.fixture(scope="session")
def cache(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache of which file to sample from, measured once for all processes that run tests."""
    from sapo_edge.backends.llama.requantise import choose_sampler
    from sapo_edge.backends.model.gguf_header import read_header

    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with (shared / "embedded.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        choose_sampler(read_header(model), shared / "embedded" / "cache", 1, lambda _text: None)
    return shared / "embedded" / "cache"


@pytest.fixture(scope="session")
def opened(model: Path, cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LlamaCppPolicy, Path]]:
    """The CPU backend, and what it saved at first."""
    directory, fresh = tmp_path_factory.mktemp("cpu"), tmp_path_factory.mktemp("fresh")
    with closing(LlamaCppPolicy(OpenOptions(model, cache, directory, lora=RANK, threads=1))) as policy:
        policy.save(fresh)
        yield policy, fresh


@pytest.fixture(scope="module")
def cpu(opened: tuple[LlamaCppPolicy, Path]) -> LlamaCppPolicy:
    """The CPU backend as it was opened: that takes seconds, and is done once for all files."""
    policy, fresh = opened
    policy.load(fresh)
    return policy


def groups_of(policy: Policy, tasks: Sequence[Task]) -> list[TrainingGroup]:
    """Two small groups, sampled by a policy."""
    return [own_group(policy, MANIFEST.prompt_for(task.question), seed, 4, 16) for seed, task in enumerate(tasks[:2])]
