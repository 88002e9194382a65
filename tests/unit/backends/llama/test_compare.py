"""Which of llama.cpp and torch samples: measured, remembered, and overruled by a setting."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from sapo_edge.backends.backend import OpenOptions, RoundShape
from sapo_edge.backends.choose import detect
from sapo_edge.backends.choose.detect import ChosenBackend, as_learner_samples
from sapo_edge.backends.common.request import Request
from sapo_edge.backends.llama import compare as subject
from sapo_edge.backends.llama import policy as llama_policy
from sapo_edge.backends.llama import requantise
from sapo_edge.backends.llama.compare import LLAMA, TORCH, SamplerRates, compare, remembered_rates
from sapo_edge.backends.llama.policy import LlamaCppPolicy
from sapo_edge.backends.machine import measured
from sapo_edge.backends.machine.host import TorchBuild, this_host
from sapo_edge.backends.machine.nvidia import Gpu, Nvidia
from sapo_edge.backends.pytorch.place import CPU, estimate_memory
from sapo_edge.backends.pytorch.policy import TorchPolicy
from sapo_edge.errors import ModelError
from sapo_edge.policy import Sample
from tests.contract.training import STRONG, own_group
from tests.fakes import Clock
from tests.models import RANK, SHAPES, Headers, Models, opening, question, write_model

SIZE = RoundShape(rank=4, groups=8, answers=8, prompt_tokens=100, max_tokens=16, memory=10_000_000_000)
PROMPTS = [question("What is 3 + 4?"), question("Spell cat.")]

pytestmark = pytest.mark.usefixtures("quiet")


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured, "cores_in_use", lambda _seconds: 0.0)
    # A tiny model counts as one for which it matters.
    for module in (requantise, llama_policy):
        monkeypatch.setattr(module, "SMALL", 0)
    rates = {"llama": 2.0, "bf16": 1.0, "f16": 1.0, "q8_0": 1.0}
    original = requantise._decode
    monkeypatch.setattr(requantise, "_decode", lambda h, threads: (rates[h.path.stem], original(h, threads)[1]))


@pytest.fixture
def options(models: Models, tmp_path: Path) -> OpenOptions:
    return opening(models["llama"], tmp_path, lora=RANK, size=SIZE)


def answers(seconds: float, calls: list[Request], clock: Clock) -> Callable[[Request], list[list[Sample]]]:
    """A sampler that takes some time of a clock for a hundred tokens."""

    def answer(request: Request) -> list[list[Sample]]:
        calls.append(request)
        clock.now += seconds
        return [[Sample(tuple(range(100)), "", (0.0,) * 100, True)]]

    return answer


def faster(monkeypatch: pytest.MonkeyPatch, llama: float, torch: float) -> Mock:
    """Find these rates when both are measured; notes the measurements."""
    measured = Mock(side_effect=lambda *arguments: compare(*arguments) and SamplerRates(llama, torch))
    monkeypatch.setattr(llama_policy, "compare", measured)
    return measured


@pytest.mark.parametrize(("seconds", "turns"), [(0.2, 1), (0.021, 2)])
def test_a_second_turn_is_made_where_the_first_is_close(
    headers: Headers, tmp_path: Path, seconds: float, turns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: dict[str, list[Request]] = {LLAMA: [], TORCH: []}
    if turns == 2:
        monkeypatch.setattr(subject, "CLEAR", 1e9)
    clock = Clock()
    monkeypatch.setattr(subject, "time", SimpleNamespace(perf_counter=clock))
    samplers = {LLAMA: answers(seconds, calls[LLAMA], clock), TORCH: answers(0.02, calls[TORCH], clock)}
    rates = compare(headers["llama"], tmp_path, "float32", samplers, 97)
    assert [len(calls[name]) for name in samplers] == [turns, turns]
    assert (rates.llama, rates.torch, rates.faster) == (round(100 / seconds, 1), 5000, TORCH)
    assert calls[LLAMA] == calls[TORCH] and max(map(max, calls[TORCH][0].prompts)) < 97
    found = remembered_rates(headers["llama"], tmp_path, "float32")
    assert found is not None and found.llama == pytest.approx(rates.llama, abs=0.1)
    assert remembered_rates(headers["llama"], tmp_path, "bfloat16") is None


def test_both_are_measured_with_a_real_model(options: OpenOptions) -> None:
    with closing(LlamaCppPolicy(options)) as policy:
        rates = remembered_rates(policy.header, options.cache, policy.products.format)
        assert rates is not None and min(rates.llama, rates.torch) > 0
        assert str(rates) in policy.reasons[0]
        fresh = policy.generate(PROMPTS, 2, 8, 1.0, 0)
        assert policy.generate(PROMPTS, 2, 8, 1.0, 0, use_adapter=False) == fresh, "the measurement left no adapter"


def test_a_faster_torch_samples_as_its_backend_does(options: OpenOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    made = faster(monkeypatch, 1.0, 2.0)
    plain = TorchPolicy(options, place=CPU)
    with closing(LlamaCppPolicy(options)) as policy, closing(plain):
        made.assert_called_once()
        assert policy.model is None and policy.name.startswith("torch on the CPU, ")
        assert policy.reasons[0] == "sampling: torch, the faster here (tokens/s: llama.cpp 1, torch 2)"
        before = policy.generate(PROMPTS, 3, 12, 1.0, 0)
        assert before == plain.generate(PROMPTS, 3, 12, 1.0, 0)
        for each in (policy, plain):
            each.update([own_group(each, PROMPTS[0], 1)], STRONG)
        after = policy.generate(PROMPTS, 3, 12, 1.0, 0)
        assert after == plain.generate(PROMPTS, 3, 12, 1.0, 0) != before
        assert policy.generate(PROMPTS, 3, 12, 1.0, 0, use_adapter=False) == before
        assert policy._estimate(SIZE) == estimate_memory(policy.shape, SIZE, policy.place), "no memory for llama.cpp"


def test_the_remembered_faster_one_is_opened_alone(options: OpenOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llama_policy, "remembered_rates", lambda *_: SamplerRates(1.0, 2.0))
    with monkeypatch.context() as context:
        context.setattr(llama_policy, "LlamaModel", None)
        with closing(LlamaCppPolicy(options)) as policy:
            assert policy.name.startswith("torch on the CPU, ") and policy.sampler is None
    monkeypatch.setattr(llama_policy, "remembered_rates", lambda *_: SamplerRates(2.0, 1.0))
    with closing(LlamaCppPolicy(options)) as policy:
        assert policy.name.startswith("llama.cpp + torch on the CPU, ")
        assert policy.reasons[0].startswith("sampling: llama.cpp, the faster here (tokens/s: llama.cpp 2, torch 1); ")


@pytest.mark.parametrize("changes", [{"sampler": "llama_cpp"}, {"sampled": "bf16"}, {"trainable": False}])
def test_llama_cpp_samples_unmeasured_where_it_is_set_or_nothing_learns(
    options: OpenOptions, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    made = faster(monkeypatch, 1.0, 2.0)
    with closing(LlamaCppPolicy(replace(options, **changes))) as policy:
        assert policy.model is not None and not made.called


def test_a_faulty_template_is_the_models_whatever_file_is_sampled_from(tmp_path: Path) -> None:
    model = write_model(tmp_path / "mine.gguf", SHAPES["llama"], template="{{ messages[0].role }}")
    with closing(LlamaCppPolicy(opening(model, tmp_path, trainable=False, sampled="q8_0"))) as policy:
        assert policy.sampler is not None and policy.sampler.path.stem == "q8_0"
        with pytest.raises(ModelError, match="the chat template of mine leaves out"):
            policy.generate(PROMPTS, 1, 4, 1.0, 0)


def test_torch_samples_where_it_is_set_and_fits(options: OpenOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    made = faster(monkeypatch, 2.0, 1.0)
    with closing(LlamaCppPolicy(replace(options, sampler="torch"))) as policy:
        assert policy.model is None and not made.called and policy.reasons[0] == "sampling: torch, as set"
    size = replace(SIZE, memory=1_000_000)
    with pytest.raises(ModelError, match=r"torch can't answer questions here.*; .*sampler"):
        LlamaCppPolicy(replace(options, sampler="torch", size=size))
    # The weights take far less than an eighth of this; the round does not fit beside them.
    narrow = replace(SIZE, memory=100_000_000)
    assert options.model.stat().st_size < 1_000_000
    with pytest.raises(ModelError, match=r"don't fit beside the round; .*fewer or shorter answers"):
        LlamaCppPolicy(replace(options, sampler="torch", size=narrow))
    with closing(LlamaCppPolicy(replace(options, size=size))) as policy:
        assert policy.model is not None and not made.called, "it does not fit, so it is not measured"


@pytest.mark.parametrize(
    ("rates", "changes", "name"),
    [
        (SamplerRates(1.0, 2.0), {}, "torch"),
        (SamplerRates(2.0, 1.0), {}, "llama_cpp"),
        (None, {}, "llama_cpp"),
        (None, {"sampler": "torch"}, "torch"),
        (SamplerRates(1.0, 2.0), {"sampler": "llama_cpp"}, "llama_cpp"),
        (SamplerRates(1.0, 2.0), {"size": replace(SIZE, trainable=False, memory=1_000_000)}, "llama_cpp"),
        (SamplerRates(1.0, 2.0), {"size": None}, "llama_cpp"),
    ],
)
def test_what_only_evaluates_samples_as_what_learns(
    options: OpenOptions, rates: SamplerRates | None, changes: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subject, "remembered_rates", lambda *_, **_options: rates)
    asked = replace(options, **{"trainable": False, "size": replace(SIZE, trainable=False), **changes})
    assert as_learner_samples(ChosenBackend("llama_cpp", "the only one"), asked).name == name
    assert as_learner_samples(ChosenBackend("mlx", "a Mac"), asked).name == "mlx"
    # Torch would compute on the GPU that a node with this backend leaves alone.
    gpu = Nvidia((Gpu("a GPU", 24_000_000_000, 22_000_000_000),), "580.1")
    machine = replace(this_host(), torch=lambda: TorchBuild("2.13.0", cuda="12.8"), nvidia=lambda: gpu)
    monkeypatch.setattr(detect, "this_host", lambda: machine)
    assert as_learner_samples(ChosenBackend("llama_cpp", "as set"), asked).name == "llama_cpp"
