"""The update: its gradient and its figures are those of the formula, computed plainly.

The reference is written as the formula reads: one padded batch for each group, no packing, no shortcuts, in float64 (or
in float32, where only the packing is in question).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from peft.tuners.lora import Linear as PeftLinear

from sapo_edge.backends.common.packing import EncodedAnswer, EncodedGroup
from sapo_edge.backends.model.gguf_header import GgufHeader
from sapo_edge.backends.pytorch.layers import AdaptedLinear
from sapo_edge.backends.pytorch.learner import TorchLearner
from sapo_edge.backends.pytorch.place import CPU, Place
from sapo_edge.errors import Cancelled
from sapo_edge.policy import CallHandle, LoraSettings, UpdateSettings, UpdateStatistics

SETTINGS = UpdateSettings(learning_rate=1e-2, warmup=1, temperature=0.8, max_gradient_norm=1e9)
Gradients = dict[str, torch.Tensor]


def make_groups(seed: int = 0) -> list[EncodedGroup]:
    """Two groups with a signal, one without; own answers with a sampler that is off by up to one nat, external ones."""
    generator = np.random.default_rng(seed)

    def answer(advantage: float, own: bool) -> EncodedAnswer:
        ids = tuple(int(i) for i in generator.integers(0, 256, generator.integers(1, 9)))
        logprobs = tuple(float(p) for p in generator.uniform(-6.5, -4.5, len(ids)))
        return EncodedAnswer(ids, advantage, logprobs if own else None)

    def group(length: int, advantages: Sequence[float]) -> EncodedGroup:
        prompt = (1, 2, 3, *(int(i) for i in generator.integers(0, 256, length)))
        return EncodedGroup(prompt, tuple(answer(a, index % 2 == 0) for index, a in enumerate(advantages)))

    return [group(5, (1.2, -0.7, 0.0, -0.5)), group(3, (0.0, 0.0)), group(9, (-1.0, 0.4, 0.6))]


@dataclass
class Sums:
    """What the reference adds up over tokens."""

    loss: torch.Tensor
    clipped: float = 0.0
    entropy: float = 0.0
    mismatch: float = 0.0
    reference: float = 0.0
    own: int = 0
    tokens: int = 0


def distributions(model: torch.nn.Module, group: EncodedGroup, temperature: float) -> list[torch.Tensor]:
    """(tokens, vocabulary) log-probabilities at each answer's tokens, from one right-padded batch."""
    rows = [[*group.prompt, *answer.token_ids] for answer in group.answers]
    width = max(map(len, rows))
    ids = torch.tensor([row + [0] * (width - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
    logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits / temperature
    first = len(group.prompt) - 1
    return [torch.log_softmax(logits[i, first : len(row) - 1], dim=-1) for i, row in enumerate(rows)]


def reference_update(
    model: torch.nn.Module, before: torch.nn.Module, groups: list[EncodedGroup], settings: UpdateSettings
) -> tuple[Gradients, Sums]:
    """Gradient and sums of one epoch over all groups; `before` is the learner as it was before the first epoch."""
    dtype = next(model.parameters()).dtype
    sums = Sums(torch.zeros((), dtype=dtype))
    total = sum(len(answer.token_ids) for group in groups for answer in group.answers)
    for group in groups:
        with torch.no_grad():
            old_rows = distributions(before, group, settings.temperature)
            with model.disable_adapter():
                base_rows = distributions(model, group, settings.temperature)
        new_rows = distributions(model, group, settings.temperature)
        # The KL term has a gradient in every group.
        trained = settings.kl_coefficient > 0 or any(answer.advantage != 0.0 for answer in group.answers)
        for answer, new, old, base in zip(group.answers, new_rows, old_rows, base_rows, strict=True):
            for k, token in enumerate(answer.token_ids):
                ratio = torch.exp(new[k, token] - old[k, token])
                bounded = ratio.clamp(1 - settings.clip_low, 1 + settings.clip_high)
                weight = 1.0
                if answer.logprobs is not None:
                    weight = min(float(torch.exp(old[k, token] - answer.logprobs[k])), settings.importance_cap)
                sums.loss = sums.loss - weight * torch.minimum(ratio * answer.advantage, bounded * answer.advantage)
                difference = base[k, token] - new[k, token]
                divergence = torch.exp(difference) - 1 - difference
                if trained:
                    sums.loss = sums.loss + settings.kl_coefficient * divergence
                    sums.reference += divergence.item()
                    sums.clipped += (bounded * answer.advantage < ratio * answer.advantage).item()
                    sums.entropy -= (new[k].exp() * new[k]).sum().item()
                    sums.tokens += 1
                    if answer.logprobs is not None:
                        gap = float(old[k, token]) - answer.logprobs[k]
                        sums.mismatch += float(np.exp(gap)) - 1 - gap
                        sums.own += 1
    sums.loss = sums.loss / total
    model.zero_grad()
    sums.loss.backward()
    names = {name.replace(".default.", "."): parameter for name, parameter in model.named_parameters()}
    return {name: p.grad.clone() for name, p in names.items() if p.grad is not None}, sums


class Recorder:
    """A learner with a random adapter whose gradients and weights are kept before each step."""

    def __init__(self, header: GgufHeader, monkeypatch: pytest.MonkeyPatch) -> None:
        self.learner = TorchLearner(header, LoraSettings(rank=4, alpha=8.0), 1)
        generator = torch.Generator().manual_seed(1)
        for parameter in self.learner.parameters.values():
            with torch.no_grad():
                parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
        self.gradients: list[Gradients] = []
        self.models: list[torch.nn.Module] = []
        step: Callable[..., float] = self.learner._step

        def record(*arguments: object) -> float:
            self.gradients.append({name: p.grad.clone() for name, p in self.learner.parameters.items()})
            self.models.append(self.copy(torch.float64))
            return step(*arguments)

        monkeypatch.setattr(self.learner, "_step", record)

    def copy(self, dtype: torch.dtype) -> torch.nn.Module:
        """The model as transformers and PEFT compute it by themselves."""
        model = copy.deepcopy(self.learner.model)
        model.zero_grad()
        model.set_attn_implementation("sdpa")
        for module in model.modules():
            if isinstance(module, AdaptedLinear):
                module.__class__ = PeftLinear
            module.__dict__.pop("forward", None)
        return model.to(dtype)

    def update(self, groups: list[EncodedGroup], settings: UpdateSettings) -> UpdateStatistics:
        return self.learner.update(groups, settings, CallHandle())


@pytest.fixture
def recorder(headers: dict[str, GgufHeader], monkeypatch: pytest.MonkeyPatch) -> Recorder:
    return Recorder(headers["llama-gqa"], monkeypatch)


def distance(first: Gradients, second: Gradients) -> float:
    """Relative L2 distance of two gradients."""
    assert first.keys() == second.keys()
    flat = [torch.cat([g[name].double().flatten() for name in sorted(g)]) for g in (first, second)]
    return float((flat[0] - flat[1]).norm() / flat[1].norm())


@pytest.mark.parametrize("name", ["llama", "llama-gqa", "qwen2", "qwen3"])
def test_packing_gives_the_padded_batchs_gradient(
    headers: dict[str, GgufHeader], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    recorder = Recorder(headers[name], monkeypatch)
    plain = recorder.copy(torch.float32)
    expected, _ = reference_update(plain, plain, make_groups(), SETTINGS)
    recorder.update(make_groups(), SETTINGS)
    assert distance(recorder.gradients[0], expected) < 1e-5


@pytest.mark.parametrize(
    "settings",
    [
        SETTINGS,
        replace(SETTINGS, temperature=1.0),
        replace(SETTINGS, importance_cap=1.0),
        replace(SETTINGS, importance_cap=100.0),
        replace(SETTINGS, kl_coefficient=0.3),
    ],
)
def test_the_gradient_is_that_of_the_formula(recorder: Recorder, settings: UpdateSettings) -> None:
    statistics = recorder.update(make_groups(), settings)
    expected, sums = reference_update(recorder.models[0], recorder.models[0], make_groups(), settings)
    assert distance(recorder.gradients[0], expected) < 1e-5
    assert statistics.loss == pytest.approx(sums.loss.item(), rel=1e-4)
    assert statistics.clip_fraction == sums.clipped == 0.0
    assert statistics.entropy == pytest.approx(sums.entropy / sums.tokens, rel=1e-5)
    assert statistics.mismatch_kl == pytest.approx(sums.mismatch / sums.own, rel=1e-4)
    reference = sums.reference / sums.tokens if settings.kl_coefficient else 0.0
    assert statistics.reference_kl == pytest.approx(reference, rel=1e-3)
    norm = torch.cat([g.flatten() for g in expected.values()]).norm()
    assert statistics.gradient_norm == pytest.approx(float(norm), rel=1e-4)
    assert (statistics.groups, statistics.informative, statistics.tokens) == (3, 2, sums.tokens)


@pytest.mark.parametrize("coefficient", [0.0, 0.3])
def test_later_epochs_use_the_logprobs_from_before_the_first(recorder: Recorder, coefficient: float) -> None:
    settings = replace(SETTINGS, epochs=3, kl_coefficient=coefficient, clip_low=0.1, clip_high=0.15)
    statistics = recorder.update(make_groups(), settings)
    losses, clipped = [], 0.0
    for model, gradient in zip(recorder.models, recorder.gradients, strict=True):
        expected, sums = reference_update(model, recorder.models[0], make_groups(), settings)
        assert distance(gradient, expected) < 1e-4
        losses.append(sums.loss.item())
        clipped += sums.clipped / sums.tokens / 3
    assert statistics.steps == 3
    assert statistics.loss == pytest.approx(np.mean(losses), rel=1e-3)
    assert clipped > 0.05
    assert statistics.clip_fraction == pytest.approx(clipped)


def test_leaving_out_groups_without_a_signal_changes_nothing(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    loud = [group for group in make_groups() if any(answer.advantage for answer in group.answers)]
    silent = [group for group in make_groups() if group not in loud]
    weight = [sum(len(a.token_ids) for group in groups for a in group.answers) for groups in (loud, loud + silent)]
    settings = replace(SETTINGS, learning_rate=0.0)
    recorder.update(loud, settings)
    recorder.update(loud + silent, settings)
    # The silent ones' tokens count in the mean, as if their (zero) gradient had been computed.
    scaled = {name: gradient * weight[0] / weight[1] for name, gradient in recorder.gradients[0].items()}
    assert distance(recorder.gradients[1], scaled) < 1e-6


@pytest.mark.parametrize("place", [replace(CPU, logit_rows=3), replace(CPU, checkpointed_tokens=0)])
def test_saving_memory_changes_nothing(recorder: Recorder, place: Place) -> None:
    settings = replace(SETTINGS, learning_rate=0.0, kl_coefficient=0.1)
    recorder.update(make_groups(), settings)
    recorder.learner.place = place
    recorder.update(make_groups(), settings)
    assert distance(recorder.gradients[1], recorder.gradients[0]) < 1e-5


@pytest.mark.parametrize("tokens", [1, 45])
def test_the_size_of_packs_changes_nothing(recorder: Recorder, tokens: int) -> None:
    settings = replace(SETTINGS, learning_rate=0.0)
    recorder.update(make_groups(), settings)
    recorder.learner.pack_tokens = tokens
    recorder.update(make_groups(), settings)
    assert distance(recorder.gradients[1], recorder.gradients[0]) < 1e-5


def test_logprobs_are_those_of_the_padded_batch(recorder: Recorder) -> None:
    group = make_groups()[0]
    rows = distributions(recorder.copy(torch.float64), group, 0.8)
    expected = [row[k, i].item() for row, a in zip(rows, group.answers, strict=True) for k, i in enumerate(a.token_ids)]
    assert np.abs(recorder.learner.logprobs(group, 0.8) - expected).max() < 1e-4


def test_the_gradient_is_scaled_down_to_its_limit(recorder: Recorder) -> None:
    """Adam's first moment after one step is (1 - beta) times the gradient it was given."""
    statistics = recorder.update(make_groups(), replace(SETTINGS, max_gradient_norm=0.01))
    assert statistics.gradient_norm > 0.1
    moments = [state["exp_avg"].flatten() for state in recorder.learner.optimizer.state.values()]
    assert float(torch.cat(moments).norm()) == pytest.approx(0.01 * (1 - SETTINGS.betas[0]), rel=1e-3)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("epochs", [1, 2])
def test_a_gradient_that_is_not_finite_leaves_the_adapter_alone(recorder: Recorder, bad: float, epochs: int) -> None:
    recorder.update(make_groups(), SETTINGS)
    before = {name: array.copy() for name, array in recorder.learner._state().items()}
    group = make_groups()[0]
    broken = replace(group, answers=(replace(group.answers[0], advantage=bad), *group.answers[1:]))
    statistics = recorder.update([broken], replace(SETTINGS, epochs=epochs))
    assert statistics.steps == 0
    after = recorder.learner._state()
    assert all(array.tobytes() == after[name].tobytes() for name, array in before.items())
    assert recorder.update(make_groups(), SETTINGS).steps == 1


def test_a_cancelled_update_leaves_no_gradient(recorder: Recorder) -> None:
    handle = CallHandle(lambda done, _total: handle.cancel())
    recorder.learner.pack_tokens = 1
    with pytest.raises(Cancelled):
        recorder.learner.update(make_groups(), SETTINGS, handle)
    assert all(parameter.grad is None for parameter in recorder.learner.parameters.values())
    assert recorder.learner.steps == 0
