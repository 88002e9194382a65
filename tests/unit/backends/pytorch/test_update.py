"""The torch learner beyond the contract: its shortcuts change nothing, and nothing is left half-done."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from sapo_edge.backends.common.packing import EncodedAnswer, EncodedGroup, Pack, in_few_segments, pack
from sapo_edge.backends.model.gguf_header import GgufHeader
from sapo_edge.backends.pytorch import learner as learner_module
from sapo_edge.backends.pytorch.attention import PackAttention
from sapo_edge.backends.pytorch.learner import TorchLearner
from sapo_edge.backends.pytorch.place import CPU, PACK_TOKENS, Place
from sapo_edge.backends.pytorch.runtime import reproducible
from sapo_edge.policy import CallHandle, LoraSettings, UpdateSettings
from tests.contract.formula import Gradients, distance
from tests.models import SHAPES, Headers

SETTINGS = UpdateSettings(learning_rate=1e-2, warmup=1, temperature=0.8, max_gradient_norm=1e9)
STILL = replace(SETTINGS, learning_rate=0.0)


def make_groups() -> list[EncodedGroup]:
    """Two groups with a signal and one without, of own and external answers; the sampler is off by up to one nat."""
    generator = np.random.default_rng(0)

    def answer(advantage: float, own: bool) -> EncodedAnswer:
        ids = tuple(int(i) for i in generator.integers(0, 256, generator.integers(1, 9)))
        logprobs = tuple(float(p) for p in generator.uniform(-6.5, -4.5, len(ids)))
        return EncodedAnswer(ids, advantage, logprobs if own else None)

    def group(length: int, advantages: Sequence[float]) -> EncodedGroup:
        prompt = (1, 2, 3, *(int(i) for i in generator.integers(0, 256, length)))
        return EncodedGroup(prompt, tuple(answer(a, index % 2 == 0) for index, a in enumerate(advantages)))

    return [group(5, (1.2, -0.7, 0.0, -0.5)), group(3, (0.0, 0.0)), group(9, (-1.0, 0.4, 0.6))]


def group_of_eight(prompt: tuple[int, ...], answer: tuple[int, ...]) -> EncodedGroup:
    answers = tuple(EncodedAnswer(answer, 1.0 - 2.0 * (index % 2), None) for index in range(8))
    return EncodedGroup(prompt, answers)


GROUPS = make_groups()


class Recorder:
    """A learner with a random adapter, whose updates show their gradients."""

    def __init__(self, header: GgufHeader, monkeypatch: pytest.MonkeyPatch, place: Place = CPU) -> None:
        self.learner = TorchLearner(header, LoraSettings(rank=4, alpha=8.0), 2, place)
        generator = torch.Generator().manual_seed(1)
        for parameter in self.learner.parameters.values():
            with torch.no_grad():
                parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
        self._gradients: list[Gradients] = []
        step: Callable[..., float] = self.learner._step

        def record(*arguments: object) -> float:
            parameters = self.learner.parameters.items()
            self._gradients.append({n: p.grad.numpy().copy() for n, p in parameters if p.grad is not None})
            return step(*arguments)

        monkeypatch.setattr(self.learner, "_step", record)

    def update(self, settings: UpdateSettings = STILL, groups: Sequence[EncodedGroup] = GROUPS) -> Gradients:
        """The gradient of an update of one step."""
        assert self.learner.update(groups, settings, CallHandle()).steps == 1
        (gradient,) = self._gradients
        self._gradients.clear()
        return gradient


@pytest.fixture
def recorder(headers: Headers, monkeypatch: pytest.MonkeyPatch) -> Recorder:
    return Recorder(headers["llama-gqa"], monkeypatch)


def test_the_number_of_threads_follows_the_machines_load_in_the_midst_of_an_update(recorder: Recorder) -> None:
    free, used = iter([2, 1]), []

    def threads() -> int:
        used.append(torch.get_num_threads())
        return next(free, 1)

    before = torch.get_num_threads()
    try:
        recorder.learner.threads_now = threads
        recorder.update()
    finally:
        torch.set_num_threads(before)
    assert used[1:3] == [2, 1] and len(used) > len(recorder.learner.trunk.layers)


@pytest.mark.parametrize("place", [replace(CPU, logit_rows=3), replace(CPU, checkpointed_tokens=0)])
def test_saving_memory_changes_nothing(recorder: Recorder, place: Place) -> None:
    usual = recorder.update()
    recorder.learner.place = place
    assert distance(recorder.update(), usual) < 1e-5


def bytes_kept(compute: Callable[[], torch.Tensor]) -> int:
    """Bytes that a forward pass keeps for its backward pass."""
    sizes: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        assert compute().requires_grad
    return sum(sizes.values())


def test_a_long_pack_keeps_only_what_goes_into_its_layers(recorder: Recorder) -> None:
    layout, frozen = pack(GROUPS), 4 * recorder.learner.trunk.embed_tokens.weight.numel()
    inputs = len(layout.token_ids) * 64 * 4
    assert bytes_kept(lambda: recorder.learner._hidden(layout)) > 20 * inputs
    recorder.learner.place = replace(CPU, checkpointed_tokens=0)
    assert bytes_kept(lambda: recorder.learner._hidden(layout)) < 6 * inputs + frozen


def test_gradients_go_back_to_a_pack_as_by_torchs_indexing() -> None:
    """To the bit: what several branches take has its sum in torch's order."""
    rng = np.random.default_rng(5)
    trunk = tuple(range(20))

    def group(answers: int) -> EncodedGroup:
        lengths = rng.integers(1, 9, answers)
        made = (EncodedAnswer(tuple(range(length)), 1.0, None) for length in lengths)
        return EncodedGroup((*trunk, *rng.integers(0, 256, rng.integers(1, 30)).tolist()), tuple(made))

    layout = pack([group(answers) for answers in (1, 3, 8, 2)])
    assert any(len(segment.queries) > 2 for segment in layout.segments)
    tokens, generator = len(layout.token_ids), torch.Generator().manual_seed(3)
    inputs = [torch.randn(1, heads, tokens, 8, generator=generator) for heads in (6, 2, 2)]
    slopes = torch.randn(1, tokens, 6, 8, generator=generator)

    def gradients(attention: PackAttention) -> list[torch.Tensor]:
        leaves = [states.clone().requires_grad_() for states in inputs]
        torch.autograd.backward(attention(0, leaves[0], leaves[1], leaves[2], 0.3), slopes)
        return [leaf.grad for leaf in leaves if leaf.grad is not None]

    class Plain(PackAttention):
        def _gather(self, states: torch.Tensor, gatherings: Any) -> tuple[torch.Tensor, ...]:
            return tuple(states[gathering.indices] for gathering in gatherings)

    ours = gradients(PackAttention(layout))
    # With several threads torch adds in whatever order they come.
    torch.use_deterministic_algorithms(True)
    try:
        plain = gradients(Plain(layout))
    finally:
        torch.use_deterministic_algorithms(False)
    assert len(ours) == 3
    assert all(torch.equal(one, other) for one, other in zip(ours, plain, strict=True))


def test_the_attention_of_a_gpu_keeps_no_copy_of_a_prompt(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    """The GPU's way, on a CPU: it repeats keys and values for each branch, and computes them again for the gradient."""

    class OnGpu(PackAttention):
        def __init__(self, layout: Pack, *arguments: Any) -> None:
            super().__init__(in_few_segments(layout), *arguments)
            self._on_cpu = False

    usual = recorder.update()
    monkeypatch.setattr(learner_module, "PackAttention", OnGpu)
    assert distance(recorder.update(), usual) < 1e-5
    layout = pack([group_of_eight((5,) * 400, (1, 2, 3, 4))])
    recorder.learner.place = replace(CPU, checkpointed_tokens=1 << 20)
    kept = bytes_kept(lambda: recorder.learner._hidden(layout))
    shape = SHAPES["llama-gqa"]
    widths = 6 * shape.width + (3 * shape.heads + 6 * shape.kv_heads) * shape.head_dim + 2 * shape.inner
    # The formula of `place.activation_bytes`, and the model's frozen weights.
    frozen = sum(4 * parameter.numel() for parameter in recorder.learner.model.parameters())
    assert kept < 4 * len(layout.token_ids) * shape.layers * widths + frozen


def limit_memory(learner: TorchLearner, monkeypatch: pytest.MonkeyPatch, tokens: int) -> list[int]:
    """Let no pack of more tokens fit; returns the sizes that are tried."""
    original, sizes = learner._hidden, []

    def hidden(layout: Pack, *arguments: Any) -> torch.Tensor:
        sizes.append(len(layout.token_ids))
        if sizes[-1] > tokens:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return original(layout, *arguments)

    monkeypatch.setattr(learner, "_hidden", hidden)
    return sizes


def test_a_full_memory_makes_packs_smaller(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    usual, learner = recorder.update(), recorder.learner
    monkeypatch.setattr(learner_module, "PACK_TOKENS", 8)
    sizes, before = limit_memory(learner, monkeypatch, 21), learner.steps
    assert distance(recorder.update(), usual) < 1e-5
    assert sizes[0] > 21 >= max(sizes[-2:]) and learner.pack_tokens < 256 and learner.steps == before + 1
    limit_memory(learner, monkeypatch, 0)
    with pytest.raises(torch.OutOfMemoryError):
        recorder.update()


def test_a_full_memory_splits_groups_where_packs_are_small(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder.learner.pack_tokens = PACK_TOKENS
    groups = [group_of_eight((5,) * 20, (*range(60),))]
    whole = recorder.update(groups=groups)
    sizes = limit_memory(recorder.learner, monkeypatch, PACK_TOKENS)
    assert distance(recorder.update(groups=groups), whole) < 1e-5
    assert sizes[0] > PACK_TOKENS >= max(sizes[1:])


def test_an_operation_without_an_order_of_sums_ends_repeatability_and_not_learning(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    strict: list[bool] = []

    @contextmanager
    def reproducible(_device: str, *, strict: bool, seen: list[bool] = strict) -> Iterator[None]:
        seen.append(strict)
        if strict:
            raise RuntimeError("cumsum does not have a deterministic implementation, but you set ...")
        yield

    monkeypatch.setattr(learner_module, "reproducible", reproducible)
    for _ in range(2):
        recorder.update(SETTINGS)
    assert strict == [True, False, False] and "may differ" in caplog.text


def test_the_order_of_sums_is_fixed_in_earnest() -> None:
    # With warnings alone, torch's attention on CUDA adds up in any order.
    with reproducible("cuda"):
        assert torch.are_deterministic_algorithms_enabled()
        assert not torch.is_deterministic_algorithms_warn_only_enabled()
    assert not torch.are_deterministic_algorithms_enabled()
