"""What all learners share: packs, progress, cancellation, and the statistics of an update."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy.typing as npt

from sapo_edge.backends.common.loss import LossSums, Update
from sapo_edge.backends.common.packing import (
    EncodedGroup,
    Pack,
    counted_tokens,
    pack,
    packs,
    split,
    weighted,
    without_flat_answers,
)
from sapo_edge.policy import CallHandle, UpdateSettings, UpdateStatistics


class PackedLearner(ABC):
    """A LoRA adapter on a model, and its Adam optimizer.

    Attributes:
        pack_tokens: most tokens of a pack of several groups.
        group_tokens: a larger group is split, and its prompt computed several times.
        threads_now: asked between the layers of an update for the number of CPU threads; None leaves it.
    """

    pack_tokens: int
    group_tokens: int = 1 << 20
    threads_now: Callable[[], int] | None = None

    @property
    @abstractmethod
    def steps(self) -> int:
        """Optimizer steps taken so far."""

    @abstractmethod
    def weights(self) -> Mapping[str, npt.NDArray[Any]]:
        """The adapter's weights by PEFT's names."""

    @abstractmethod
    def set_weights(self, weights: Mapping[str, npt.NDArray[Any]]) -> None:
        """Replace the adapter's weights, and nothing of the optimizer."""

    @abstractmethod
    def set_threads(self, threads: int) -> None:
        """Change the number of CPU threads, between two operations."""

    @abstractmethod
    def save(self, directory: Path) -> None:
        """Write the adapter as PEFT does, and the optimizer beside it."""

    @abstractmethod
    def load(self, directory: Path) -> None:
        """Read what `save` wrote. Without an optimizer file (an adapter from elsewhere), Adam starts from zero.

        Raises:
            CheckpointError: if a weight is missing, of another shape or not finite; nothing changes then.
        """

    @abstractmethod
    def _clear_gradient(self) -> None:
        """Forget the accumulated gradient."""

    @abstractmethod
    def _accumulate(self, layout: Pack, update: Update) -> None:
        """Add a pack's gradient."""

    @abstractmethod
    def _step(self, rate: float, settings: UpdateSettings) -> float:
        """Clip the gradient and step, unless it is not finite; returns its norm before clipping."""

    def update(self, groups: Sequence[EncodedGroup], settings: UpdateSettings, handle: CallHandle) -> UpdateStatistics:
        """One policy-gradient update; see `sapo_edge.backends.common.loss` for the loss.

        Raises:
            Cancelled: between layers; adapter and optimizer are then as they were before: the step comes last.
        """

        def check() -> None:
            handle.end_if_cancelled()
            if self.threads_now is not None:
                self.set_threads(self.threads_now())

        trained = [without_flat_answers(group) for group in weighted(groups, settings) if group.informative]
        all_tokens = counted_tokens(groups, settings)
        parts = [part for group in trained for part in split(group, self.group_tokens)]
        layouts = [pack(members) for members in packs(parts, self.pack_tokens)]
        sums, norm, steps, rate = LossSums(), 0.0, 0, 0.0
        update = Update(settings, all_tokens, sums, check)
        try:
            if layouts:
                handle.report(0, len(layouts))
                for index, layout in enumerate(layouts):
                    handle.check()
                    self._accumulate(layout, update)
                    handle.report(index + 1, len(layouts))
                rate = settings.rate(self.steps + 1)
                norm = self._step(rate, settings)
                steps = int(math.isfinite(norm))
        finally:
            self._clear_gradient()
        return UpdateStatistics(
            loss=sums.loss / all_tokens,
            gradient_norm=norm,
            entropy=sums.entropy / max(sums.tokens, 1),
            mismatch_kl=sums.mismatch_kl / max(sums.own_tokens, 1),
            groups=len(groups),
            informative=len(trained),
            tokens=sum(len(layout.targets) for layout in layouts),
            steps=steps,
            learning_rate=rate,
        )
