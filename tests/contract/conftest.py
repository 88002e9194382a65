"""The backends under test, and tiny models for them."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import pytest

from sapo_edge.policy import LoraSettings, Policy
from tests.directories import reference_for
from tests.models import RANK, SHAPES, Models, ReferenceModel, opening
from tests.unit.backends.conftest import models

__all__ = ["models"]

Reference = Callable[[str], ReferenceModel]
MakePolicy = Callable[..., Policy]


@dataclass(frozen=True, slots=True)
class Backend:
    """How the suite makes a policy, and controls the few things that the contract does not show.

    Attributes:
        name: for the test's id.
        make: (model, working directory, adapter shape, trainable) to a policy that computes on one thread.
        limit_slots: make later calls decode at most so many answers in parallel.
        limit_batch: make later policies decode at most so many tokens in one pass.
        count_decodes: returns a list that grows by one element with every decode step.
    """

    name: str
    make: Callable[[Path, Path, LoraSettings, bool], Policy]
    limit_slots: Callable[[pytest.MonkeyPatch, int], None]
    limit_batch: Callable[[pytest.MonkeyPatch, int], None]
    count_decodes: Callable[[pytest.MonkeyPatch], list[int]]


def calls_of(kind: type, name: str, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that grows by one element with every call of a method."""
    calls: list[int] = []
    original = getattr(kind, name)

    def method(self: object, *arguments: object, **options: object) -> object:
        calls.append(1)
        return original(self, *arguments, **options)

    monkeypatch.setattr(kind, name, method)
    return calls


def _llama_cpp() -> Backend:
    from sapo_edge.backends.llama import policy as llama_cpp
    from sapo_edge.backends.llama.runtime import LlamaContext
    from sapo_edge.backends.llama.sampler import sampling_shape

    def make(model: Path, directory: Path, lora: LoraSettings, trainable: bool) -> Policy:
        return llama_cpp.LlamaCppPolicy(opening(model, directory, lora=lora, trainable=trainable))

    def limit_slots(monkeypatch: pytest.MonkeyPatch, slots: int) -> None:
        monkeypatch.setattr(llama_cpp, "sampling_shape", lambda request, _slots: sampling_shape(request, slots))

    return Backend(
        "llama_cpp",
        make,
        limit_slots,
        lambda monkeypatch, tokens: monkeypatch.setattr(llama_cpp, "BATCH", tokens),
        lambda monkeypatch: calls_of(LlamaContext, "decode", monkeypatch),
    )


def _mlx() -> Backend:
    if importlib.util.find_spec("mlx_lm") is None:
        pytest.skip("mlx-lm is not installed")
    from sapo_edge.backends.apple import policy as mlx

    def make(model: Path, _directory: Path, lora: LoraSettings, trainable: bool) -> Policy:
        return mlx.MlxPolicy(opening(model, lora=lora, trainable=trainable))

    def count_decodes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
        from mlx_lm.models.llama import Model

        return calls_of(Model, "__call__", monkeypatch)

    return Backend(
        "mlx",
        make,
        lambda monkeypatch, slots: monkeypatch.setattr(mlx, "SLOTS", slots),
        lambda monkeypatch, tokens: monkeypatch.setattr(mlx, "BATCH", tokens),
        count_decodes,
    )


def _torch(device: str) -> Backend:
    import torch

    from sapo_edge.backends.model.source import open_source, shape_of
    from sapo_edge.backends.pytorch import policy as torch_policy
    from sapo_edge.backends.pytorch import sampler as torch_sampler
    from sapo_edge.backends.pytorch.runtime import choose_place
    from sapo_edge.backends.pytorch.steps import Steps

    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("torch has no CUDA device here")

    def make(model: Path, _directory: Path, lora: LoraSettings, trainable: bool) -> Policy:
        # The suite's limits are those of float32; `tests/unit/backends/pytorch/test_place.py` has those of bfloat16.
        place = replace(choose_place(shape_of(open_source(model)), device), weights="float32")
        return torch_policy.TorchPolicy(opening(model, lora=lora, trainable=trainable), place=place)

    def count_decodes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
        decodes: list[int] = []
        for name in ("forward", "step"):
            original = getattr(Steps, name)

            def decode(*arguments: object, original: Callable[..., object] = original, **options: object) -> object:
                before = len(decodes)
                result = original(*arguments, **options)
                # A step that is not recorded is a forward pass, and counts once.
                if len(decodes) == before:
                    decodes.append(1)
                return result

            monkeypatch.setattr(Steps, name, decode)
        return decodes

    return Backend(
        "torch" if device == "cpu" else f"torch-{device}",
        make,
        lambda monkeypatch, slots: monkeypatch.setattr(torch_sampler, "slots_for", lambda *_: slots),
        lambda monkeypatch, tokens: monkeypatch.setattr(torch_sampler, "BATCH", tokens),
        count_decodes,
    )


BACKENDS: dict[str, Callable[[], Backend]] = {
    "llama_cpp": _llama_cpp,
    "mlx": _mlx,
    "torch": lambda: _torch("cpu"),
    "torch-cuda": lambda: _torch("cuda"),
}
"""Every implementation of the contract."""


@pytest.fixture(scope="session", params=list(BACKENDS))
def backend(request: pytest.FixtureRequest) -> Backend:
    return BACKENDS[request.param]()


@pytest.fixture(scope="session")
def reference(models: Models) -> Reference:
    """The same models as transformers computes them."""
    return cache(lambda name: reference_for(models[name], SHAPES[name]))


@pytest.fixture
def make_policy(backend: Backend, models: Models, tmp_path: Path) -> Iterator[MakePolicy]:
    """Makes policies and closes them after the test."""
    with ExitStack() as made:

        def make(model: str = "llama-gqa", lora: LoraSettings = RANK, trainable: bool = True) -> Policy:
            directory = Path(mkdtemp(dir=tmp_path))
            return made.enter_context(closing(backend.make(models[model], directory, lora, trainable)))

        yield make


@pytest.fixture
def policy(make_policy: MakePolicy) -> Policy:
    """A fresh trainable policy of the model `llama-gqa`."""
    return make_policy()
