"""The learner: LoRA updates in torch, on any device."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.checkpoint import checkpoint

from sapo_edge.backends.adapter.files import ADAPTER_FILE, OPTIMIZER_FILE, Arrays, read_checked, write_tensors
from sapo_edge.backends.common.learner import PackedLearner
from sapo_edge.backends.common.loss import PackLoss, Update
from sapo_edge.backends.common.packing import EncodedGroup, Pack
from sapo_edge.backends.machine.allocator import keeping_freed_memory, return_freed_memory
from sapo_edge.backends.model.source import ModelSource
from sapo_edge.backends.pytorch.attention import PackAttention, go_on
from sapo_edge.backends.pytorch.model import adapter_parameters, add_adapter, head_of, load_base, set_adapter
from sapo_edge.backends.pytorch.place import CPU, LOGIT_ROWS, LOGIT_SLICE, PACK_TOKENS, Place
from sapo_edge.backends.pytorch.products import by_onednn
from sapo_edge.backends.pytorch.runtime import prepare_device, release_device_memory, reproducible, use_threads
from sapo_edge.policy import CallHandle, LoraSettings, UpdateSettings, UpdateStatistics

_LOGGER = logging.getLogger(__name__)
Tensor = torch.Tensor


class TorchLearner(PackedLearner):
    """A base model with a LoRA adapter and its Adam optimizer; `threads` are torch's, for this process."""

    def __init__(self, source: ModelSource, lora: LoraSettings, threads: int, place: Place = CPU) -> None:
        return_freed_memory()
        torch.set_num_threads(threads)
        prepare_device(place)
        self.place = place
        self.model = add_adapter(load_base(source, place), lora, source.model_name)
        self.parameters = adapter_parameters(self.model)
        causal = self.model.base_model.model
        self.trunk: Any = causal.model
        self.head = head_of(causal, self.place.products)
        for layer in self.trunk.layers:
            # Not by transformers' own switch, whose name differs between its versions.
            layer.forward = partial(self._layer, layer.forward)
        self._checkpointed, self._repeatable = False, True
        # On a CPU the other ways take their square roots from MKL, where they differ from processor to processor.
        self.optimizer = torch.optim.Adam(
            list(self.parameters.values()), lr=0.0, fused=True if place.device == "cpu" else None
        )
        self.pack_tokens, self.group_tokens = place.pack_tokens, place.group_tokens

    def set_threads(self, threads: int) -> None:
        use_threads(threads)

    @property
    def steps(self) -> int:
        states = list(self.optimizer.state.values())
        return int(states[0]["step"].item()) if states else 0

    def weights(self) -> Arrays:
        return {name: parameter.detach().cpu().numpy() for name, parameter in self.parameters.items()}

    def set_weights(self, weights: Mapping[str, npt.NDArray[Any]]) -> None:
        set_adapter(self.parameters, weights)

    def update(self, groups: Sequence[EncodedGroup], settings: UpdateSettings, handle: CallHandle) -> UpdateStatistics:
        while True:
            try:
                with (
                    reproducible(self.place.device, strict=self._repeatable),
                    keeping_freed_memory(self.place.keeps_freed),
                ):
                    return super().update(groups, settings, handle)
            except torch.OutOfMemoryError:
                if not self._take_less():
                    raise
            except RuntimeError as error:
                # Some device may lack an order for what others have one for; it can learn all the same.
                if not self._repeatable or "deterministic" not in str(error):
                    raise
                self._repeatable = False
                _LOGGER.warning("repeated updates may differ in the last bits here: %s", str(error).partition("\n")[0])
            # Only here is what the failed pass had computed let go of.
            release_device_memory(self.place.device)

    def _take_less(self) -> bool:
        """Learn in packs of half the size from now on, and split groups; False if all is as small as on a CPU."""
        tokens = max(PACK_TOKENS, self.pack_tokens // 2)
        if self.pack_tokens <= tokens >= self.group_tokens:
            return False
        _LOGGER.warning(
            "the memory of %s is full: learning in packs of %d tokens from now on", self.place.device, tokens
        )
        self.pack_tokens, self.group_tokens = tokens, min(tokens, self.group_tokens)
        self.place = replace(self.place, checkpointed_tokens=0, logit_rows=min(LOGIT_ROWS, self.place.logit_rows))
        return True

    def _clear_gradient(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)

    def _accumulate(self, layout: Pack, update: Update) -> None:
        hidden, targets = self._hidden(layout, update.check), self._tensor(layout.targets)
        loss = PackLoss(torch, self._tensor, layout, update)
        # The gradient of the logits is collected on this leaf, rows at a time, and goes through the trunk once.
        leaf = hidden.detach().requires_grad_()
        with by_onednn(self.place.products):
            for start in range(0, len(targets), self.place.logit_rows):
                self._rows(leaf, targets, slice(start, start + self.place.logit_rows), loss)
        assert leaf.grad is not None
        torch.autograd.backward(hidden, leaf.grad)
        del hidden, leaf
        if self.place.on_cpu and not self.place.keeps_freed:
            return_freed_memory()

    def _rows(self, leaf: Tensor, targets: Tensor, rows: slice, loss: PackLoss) -> None:
        """Add loss and gradient of some rows."""
        ids, update, temperature = targets[rows, None], loss.update, loss.update.settings.temperature
        update.check()
        logits = self.head(leaf[rows])
        update.check()
        # One array is logits, log-probabilities, probabilities and, at last, the gradient of the logits in turn.
        distribution = _to_logprobs(logits.detach(), temperature)
        logprobs = distribution.gather(1, ids)[:, 0].requires_grad_()
        parts = zip(_slices(distribution), _slices(ids), strict=True)
        entropies, tails = torch.cat([_to_probabilities(part, some) for part, some in parts], dim=1)
        update.sums.entropy += float(entropies.sum())
        losses = loss.add(rows, logprobs, logprobs.detach(), tails)
        torch.autograd.backward(losses.sum() / update.all_tokens)
        assert logprobs.grad is not None
        slopes = logprobs.grad[:, None]
        distribution.mul_(-slopes).scatter_add_(1, ids, slopes)
        update.check()
        torch.autograd.backward(logits, distribution if temperature == 1.0 else distribution.div_(temperature))

    def _hidden(self, layout: Pack, check: Callable[[], None] = go_on) -> Tensor:
        """(m, width) final states at the positions that predict an answer token."""
        self._checkpointed = len(layout.token_ids) > self.place.checkpointed_tokens
        states = self.trunk(
            input_ids=self._tensor(layout.token_ids)[None],
            position_ids=self._tensor(layout.positions)[None],
            use_cache=False,
            attention=PackAttention(layout, self.place.device, check),
        ).last_hidden_state
        selected: Tensor = states[0, self._tensor(layout.predictors)]
        return selected

    def _tensor(self, array: npt.NDArray[Any]) -> Tensor:
        return torch.from_numpy(array).to(self.place.device)

    def _layer(self, forward: Callable[..., Tensor], *states: Tensor, **options: Any) -> Tensor:
        """A decoder layer. For a long pack it keeps only its input, and is computed again in the backward pass."""
        if self._checkpointed and torch.is_grad_enabled():
            kept: Tensor = checkpoint(forward, *states, use_reentrant=False, preserve_rng_state=False, **options)
            return kept
        return forward(*states, **options)

    def _step(self, rate: float, settings: UpdateSettings) -> float:
        norm = float(torch.nn.utils.clip_grad_norm_(self.parameters.values(), settings.max_gradient_norm))
        if math.isfinite(norm):
            for group in self.optimizer.param_groups:
                group["lr"], group["betas"] = rate, settings.betas
            self.optimizer.step()
        return norm

    def save(self, directory: Path) -> None:
        self.model.peft_config["default"].save_pretrained(str(directory))
        optimizer = {
            f"{key}.{name}": values.cpu().numpy()
            for name, parameter in self.parameters.items()
            for key, values in self.optimizer.state.get(parameter, {}).items()
        }
        write_tensors(directory / ADAPTER_FILE, self.weights())
        write_tensors(directory / OPTIMIZER_FILE, optimizer)

    def load(self, directory: Path) -> None:
        shapes = {name: tuple(parameter.shape) for name, parameter in self.parameters.items()}
        adapter, optimizer = read_checked(directory, shapes)
        self.set_weights(adapter)
        self.optimizer.state.clear()
        if not optimizer:
            return
        for name, parameter in self.parameters.items():
            moments = {key: self._tensor(np.array(optimizer[f"{key}.{name}"])) for key in ("exp_avg", "exp_avg_sq")}
            # torch keeps the number of steps in the computer's memory, whatever the device.
            step = torch.from_numpy(np.array(optimizer[f"step.{name}"])).reshape(())
            self.optimizer.state[parameter] = {"step": step, **moments}


def _to_logprobs(logits: Tensor, temperature: float) -> Tensor:
    """Turn (n, vocabulary) logits into log-probabilities in place: with a large vocabulary, a second array is a lot."""
    if temperature != 1.0:
        logits.div_(temperature)
    for part in _slices(logits):
        part.copy_(torch.log_softmax(part, dim=-1))
    return logits


def _to_probabilities(logprobs: Tensor, ids: Tensor) -> Tensor:
    """Turn (n, vocabulary) log-probabilities into probabilities in place.

    Returns (2, n): entropies in nats, and the probabilities of all that is no likelier than each row's of (n, 1) ids.
    """
    probabilities = logprobs.exp()
    negentropies = torch.linalg.vecdot(probabilities, logprobs)
    logprobs.copy_(probabilities)
    likelier = probabilities > probabilities.gather(1, ids)
    return torch.stack([-negentropies, probabilities.masked_fill_(likelier, 0.0).sum(1)])


def _slices(rows: Tensor) -> tuple[Tensor, ...]:
    return torch.split(rows, LOGIT_SLICE)
