"""The torch sampler's parts: draws, rows, and recorded steps."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from sapo_edge.backends.common import draw as categorical
from sapo_edge.backends.common.request import AnswerInProgress, Request
from sapo_edge.backends.machine.host import multiplies_bfloat16
from sapo_edge.backends.pytorch import products as products_module
from sapo_edge.backends.pytorch import steps
from sapo_edge.backends.pytorch.attention import CachedAttention, RowCache
from sapo_edge.backends.pytorch.place import CPU
from sapo_edge.backends.pytorch.policy import TorchPolicy
from sapo_edge.backends.pytorch.sampler import draw
from sapo_edge.backends.pytorch.steps import Network, Record, StepCache, Steps, cuda_recorder
from sapo_edge.errors import Cancelled, ModelError
from sapo_edge.policy import CallHandle, Message, Sample
from tests.contract.conftest import calls_of
from tests.contract.training import STRONG, Looks, flatten, own_group
from tests.models import RANK, Models, opening, question

SYSTEM = Message("system", "Answer in tags.")
PROMPTS = [(SYSTEM, *question(text)) for text in ("What is 3 + 4?", "Spell cat backward.", "x")]
Make = Callable[..., TorchPolicy]


@pytest.mark.parametrize("temperature", [0.0, 0.6, 1.0, 1.5])
def test_draws_are_the_same_as_in_numpy(temperature: float) -> None:
    generator = np.random.default_rng(0)
    logits = (3.0 * generator.standard_normal((400, 97))).astype(np.float32)
    logits[generator.random((400, 97)) < 0.5] = -np.inf
    uniforms = np.concatenate([generator.random(398), [0.0, 1.0 - 2**-53]])
    ids, logprobs = draw(torch.from_numpy(logits), temperature, torch.from_numpy(uniforms))
    expected_ids, expected = categorical.draw(logits, temperature, uniforms)
    assert ids.tolist() == expected_ids
    assert np.abs(logprobs.numpy() - expected).max() < 1e-5


def test_a_greedy_answer_has_no_random_stream(make: Make) -> None:
    vocabulary = make().vocabulary
    greedy, drawn = (AnswerInProgress(Request((), 1, 5, heat, 7, b""), vocabulary, 2, 3) for heat in (0.0, 1.0))
    assert not greedy.uniforms.any() and (drawn.uniforms == categorical.uniforms(7, 2, 3, 5)).all()


@pytest.mark.parametrize("model", ["llama-gqa", "gemma3"])
def test_what_tokens_see_is_worked_out_once_a_step_for_all_layers_alike(
    models: Models, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    windows: list[int | None] = []
    steps, work_out = calls_of(Steps, "_compute", monkeypatch), CachedAttention._sight

    def count_sights(self: CachedAttention, count: int, window: int | None, each: int) -> object:
        windows.append(window)
        return work_out(self, count, window, each)

    monkeypatch.setattr(CachedAttention, "_sight", count_sights)
    with closing(TorchPolicy(opening(models[model], lora=RANK), place=CPU)) as policy:
        policy.generate(PROMPTS, 2, 4, 1.0, 0)
    assert len(steps) > 3 and set(Counter(windows).values()) == {len(steps)}


def test_without_a_gradient_the_layers_compute_the_same_bits(make: Make) -> None:
    policy = make()
    policy.update([own_group(policy, PROMPTS[0], 0)], STRONG)
    ids = torch.tensor([[5, 3, 200, 7]])
    with torch.no_grad():
        plain = policy._model(ids).logits
    with_gradient = policy._model(ids).logits
    assert with_gradient.requires_grad and torch.equal(plain, with_gradient)


class Recorder:
    """Stands in for CUDA graphs: computes again into the same array, from the same arrays."""

    def __init__(self, fault: Callable[[torch.Tensor], torch.Tensor] | None = None) -> None:
        self.recorded = self.replayed = 0
        self.fault = fault

    def __call__(self, work: Callable[[], torch.Tensor]) -> tuple[Callable[[], None], torch.Tensor]:
        self.recorded += 1
        result = work().clone()

        def replay() -> None:
            self.replayed += 1
            logits = work()
            result.copy_(logits if self.fault is None else self.fault(logits))

        return replay, result


@pytest.fixture
def make(models: Models) -> Iterator[Make]:
    """Policies whose steps are recorded by a given recorder."""
    with ExitStack() as made:

        def make_policy(record: Record | None = None) -> TorchPolicy:
            place = replace(CPU, graphs=record is not None)
            policy = made.enter_context(closing(TorchPolicy(opening(models["llama-gqa"], lora=RANK), place=place)))
            if record is not None:
                network = Network.of(policy._model, place.products)
                policy._sampler.step_cache = StepCache(network, policy.shape, place, lambda: record)
            return policy

        yield make_policy


def assert_alike(first: list[list[Sample]], second: list[list[Sample]]) -> None:
    """The same answers; the order of sums may differ."""
    for left, right in zip(flatten(first), flatten(second), strict=True):
        assert left.token_ids == right.token_ids
        assert np.abs(np.subtract(left.logprobs, right.logprobs)).max() < 1e-4


class Inputs(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the memory that a computation reads and did not make itself."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.read: dict[int, StorageWeakRef] = {}
        self._made: set[int] = set()

    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for tensor in pytree.tree_iter((args, kwargs)):
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage()._cdata not in self._made:
                storage = tensor.untyped_storage()
                self.read.setdefault(storage._cdata, StorageWeakRef(storage))  # type: ignore[no-untyped-call]
        result = func(*args, **kwargs or {})
        for tensor in pytree.tree_iter(result):
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage()._cdata not in self.read:
                self._made.add(tensor.untyped_storage()._cdata)
        return result


def test_what_a_recording_reads_is_never_freed(make: Make) -> None:
    """CUDA replays a step on the memory that it had, whatever is there by then."""
    inputs = Inputs()

    def record(work: Callable[[], torch.Tensor]) -> tuple[Callable[[], None], torch.Tensor]:
        with inputs:
            return lambda: None, work()

    policy = make(record)
    steps = policy._sampler.step_cache.prepare(4, 64, 0, use_adapter=False)
    with policy._sampler.step_cache.network.sampling(use_adapter=False):
        steps.step([1, 2, 3], [0, 0, 0])
    gc.collect()
    freed = [storage for storage in inputs.read.values() if storage.expired()]  # type: ignore[no-untyped-call]
    assert len(inputs.read) > 10 and not freed


def test_recorded_steps_give_the_same_answers_and_are_used_again(make: Make) -> None:
    plain, recorder = make(), Recorder()
    recorded = make(recorder)
    for seed in range(2):
        assert_alike(recorded.generate(PROMPTS, 5, 40, 1.0, seed), plain.generate(PROMPTS, 5, 40, 1.0, seed))
    first = recorder.recorded
    # Rows are rounded up to powers of two, tokens to multiples of 64.
    assert 0 < first < 20 < recorder.replayed
    assert_alike(recorded.generate(PROMPTS[:2], 5, 40, 1.0, 2), plain.generate(PROMPTS[:2], 5, 40, 1.0, 2))
    assert_alike(recorded.generate(PROMPTS, 5, 40, 1.0, 0), plain.generate(PROMPTS, 5, 40, 1.0, 0))
    assert recorder.recorded <= first + 4
    assert not any("not recorded" in reason for reason in recorded.reasons)


def test_recordings_of_a_pair_of_caches_share_a_pool_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each with a pool of its own would hold what a step computes."""
    cuda = MagicMock()
    cuda.graph_pool_handle.side_effect = range(9)
    for name in ("graph_pool_handle", "synchronize", "graph", "current_stream", "stream", "CUDAGraph"):
        monkeypatch.setattr(torch.cuda, name, getattr(cuda, name))
    monkeypatch.setattr(steps, "_side_stream", MagicMock)
    first, second = cuda_recorder(), cuda_recorder()
    for record in (first, first, second):
        record(lambda: torch.zeros(1))
    assert [call.kwargs["pool"] for call in cuda.graph.call_args_list] == [0, 0, 1]


def test_a_full_memory_makes_fewer_answers_at_a_time(
    make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plain, full = make(), make(Recorder())
    original, limits = Steps.step, [5]

    def step(self: Steps, token_ids: Sequence[int], starts: Sequence[int]) -> torch.Tensor:
        if self._record is not None and len(token_ids) > limits[0]:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return original(self, token_ids, starts)

    monkeypatch.setattr(Steps, "step", step)
    expected = plain.generate(PROMPTS, 5, 16, 1.0, 0)
    for _ in range(2):
        assert_alike(full.generate(PROMPTS, 5, 16, 1.0, 0), expected)
    # 64 rows were allowed, and one try each of 32, 16, 8 failed, in the first call alone.
    assert full.place.slots == 4 and len([m for m in caplog.messages if "is full" in m]) == 4
    limits[0] = 0
    with pytest.raises(ModelError, match="is full"):
        full.generate(PROMPTS, 5, 16, 1.0, 0)


@pytest.mark.parametrize(
    ("kind", "name", "good"),
    [
        # Some answers have not begun.
        (Steps, "step", 0),
        (Steps, "step", 3),
        (Steps, "step", 7),
        # Some are complete and still have their rows.
        (RowCache, "copy_rows", 1),
        (RowCache, "copy_rows", 5),
    ],
)
def test_a_full_memory_in_the_middle_of_a_call_tells_nothing_again(
    make: Make, monkeypatch: pytest.MonkeyPatch, kind: type, name: str, good: int
) -> None:
    policy, original = make(), getattr(kind, name)
    policy._sampler.place = replace(CPU, slots=12)
    begun: list[list[int]] = [[], [65], [66, 67]]
    grown: dict[tuple[int, int], list[str]] = {}
    finished: dict[tuple[int, int], Sample] = {}
    reports: list[int] = []

    def growing(group: int, index: int, text: str, tokens: int) -> bool:
        texts = grown.setdefault((group, index), [])
        drawn = tokens - len(begun[group])
        assert drawn == len(texts) + 1 and text.startswith(texts[-1] if texts else "")
        texts.append(text)
        # Answers to different prompts are complete in one step.
        return drawn < 3 + 2 * index

    def finish(group: int, index: int, sample: Sample) -> None:
        assert finished.setdefault((group, index), sample) is sample

    def generate() -> list[list[Sample]]:
        for told in (grown, finished, reports):
            told.clear()
        handle = CallHandle(lambda done, _total: reports.append(done), growing, finish)
        return policy.generate(PROMPTS, 5, 16, 1.0, 0, handle, begun=begun)

    expected, calls = generate(), []

    def full(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == good + 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return original(*arguments)

    monkeypatch.setattr(kind, name, full)
    samples = generate()
    assert len(calls) > good + 1 and policy.place.slots == 6
    assert_alike(samples, expected)
    assert finished == {(group, index): samples[group][index] for group in range(3) for index in range(5)}
    assert reports == list(range(16))


def test_recordings_use_the_updated_adapter(make: Make) -> None:
    plain, recorded = make(), make(Recorder())
    for policy in (plain, recorded):
        before = policy.generate(PROMPTS, 4, 16, 1.0, 0)
        for seed in range(3):
            policy.update([own_group(policy, PROMPTS[0], seed)], STRONG)
        assert policy.generate(PROMPTS, 4, 16, 1.0, 0) != before
        assert_alike(policy.generate(PROMPTS, 4, 16, 1.0, 0, use_adapter=False), before)
    assert_alike(recorded.generate(PROMPTS, 4, 16, 1.0, 0), plain.generate(PROMPTS, 4, 16, 1.0, 0))


def test_sampling_can_be_cancelled_in_the_middle_of_a_prompt(make: Make) -> None:
    policy, looks, passes = make(), Looks(), 2
    expected = policy.generate(PROMPTS[:2], 1, 1, 1.0, seed=1, handle=looks)
    assert looks.count >= passes * policy.shape.layers, "in each layer, for the common prefix and for the prompts"
    for cancel_at in range(1, looks.count + 1):
        with pytest.raises(Cancelled):
            policy.generate(PROMPTS[:2], 1, 1, 1.0, seed=1, handle=Looks(cancel_at))
    assert policy.generate(PROMPTS[:2], 1, 1, 1.0, seed=1) == expected


@pytest.mark.skipif(not multiplies_bfloat16(), reason="nothing is laid out here")
def test_weights_that_are_laid_out_give_the_same_bits_and_are_gone_after_the_call(
    models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    products = MagicMock(wraps=products_module._by_copy)
    monkeypatch.setattr(products_module, "_by_copy", products)
    with ExitStack() as opened:
        answers, policies = [], []
        for roomy in (False, True):
            place = replace(CPU, weights="bfloat16", products="bfloat16", keeps_freed=roomy)
            assert place.lays_out is roomy
            policy = opened.enter_context(closing(TorchPolicy(opening(models["llama-gqa"], lora=RANK), place=place)))
            policies.append(policy)
            before = policy.generate(PROMPTS, 5, 20, 1.0, 3)
            policy.update([own_group(policy, PROMPTS[0])], STRONG)
            # As many rows as oneDNN has kernels for, and one.
            after = [policy.generate(PROMPTS[:count], count, 20, 1.0, 3) for count in (1, 2, 3)]
            answers.append([before, *after, policy.generate(PROMPTS, 5, 20, 0.0, 3, use_adapter=False)])
            assert products.called is roomy
        assert answers[0] == answers[1] and answers[1][0] != answers[1][3]
        products.reset_mock()
        with pytest.raises(Cancelled):
            policies[1].generate(PROMPTS, 5, 20, 1.0, 3, handle=Looks(cancel_at=20))
        assert products.called and not any(hasattr(p, "laid_out") for p in policies[1]._model.parameters())


def test_longer_prompts_get_larger_caches(make: Make) -> None:
    plain, recorded = make(), make(Recorder())
    for length in (1, 30, 3):
        prompts = [(SYSTEM, *question(f"{index} " * length)) for index in range(3)]
        assert_alike(recorded.generate(prompts, 3, 12, 1.0, 0), plain.generate(prompts, 3, 12, 1.0, 0))


def refuse(_work: Callable[[], torch.Tensor]) -> tuple[Callable[[], None], torch.Tensor]:
    raise RuntimeError("operation not permitted when stream is capturing\nand more")


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (refuse, "not permitted"),
        (Recorder(lambda logits: logits + 1.0), "off by"),
        (Recorder(lambda logits: logits * torch.nan), "off by"),
    ],
)
def test_a_recording_that_fails_or_differs_turns_recording_off(
    make: Make, record: Record, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    plain, recorded = make(), make(record)
    assert_alike(recorded.generate(PROMPTS, 4, 16, 1.0, 0), plain.generate(PROMPTS, 4, 16, 1.0, 0))
    assert any(reason in text for text in recorded.reasons)
    # The reasons were shown when the policy was opened.
    assert [message for message in caplog.messages if "not recorded" in message and reason in message]
    assert_alike(recorded.generate(PROMPTS, 4, 16, 1.0, 1), plain.generate(PROMPTS, 4, 16, 1.0, 1))
