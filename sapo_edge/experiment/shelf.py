"""Many members on one model: each has an adapter and an optimizer of its own, and they take turns."""

from __future__ import annotations

import math
import shutil
from functools import lru_cache
from pathlib import Path

from sapo_edge.backends.adapter.files import ADAPTER_FILE
from sapo_edge.policy import Policy

MAX_CUT = 16384
"""Answers whose cuts are remembered: those of the last rounds."""


class Shelf:
    """One policy and the saved adapters of the members that share it.

    Args:
        policy: newly opened, so that its adapter is untrained.
        directory: where the adapters are kept; created.

    Attributes:
        policy: has the adapter of the member that took it last.
        cut: its `Policy.cut`, which depends on no adapter: all members cut the same answers, and each more than once.
    """

    def __init__(self, policy: Policy, directory: Path) -> None:
        self.policy = policy
        self.cut = lru_cache(MAX_CUT)(policy.cut)
        self._directory = directory
        self._fresh = directory / "fresh"
        self._fresh.mkdir(parents=True, exist_ok=True)
        policy.save(self._fresh)
        self._holder: int | None = None
        self._members = 0

    def clear(self) -> None:
        for number in range(self._members):
            shutil.rmtree(self.place(number), ignore_errors=True)
        self._holder, self._members = None, 0

    def add(self, seed: int) -> int:
        """A new member, whose adapter is untrained; returns its number."""
        number = self._members
        self._members += 1
        shutil.copytree(self._fresh, self.place(number))
        _initialise(self.place(number) / ADAPTER_FILE, seed)
        return number

    def place(self, number: int) -> Path:
        """The directory of a member's adapter as it was last kept."""
        return self._directory / str(number)

    def take(self, number: int) -> Policy:
        if self._holder != number:
            self._holder = None
            self.policy.load(self.place(number))
            self._holder = number
        return self.policy

    def keep(self, number: int) -> None:
        self.policy.save(self.place(number))

    def replace(self, number: int, source: Path) -> None:
        """Replace a member's adapter by the files of a directory, which are checked."""
        shutil.rmtree(self.place(number))
        shutil.copytree(source, self.place(number))
        self._holder = None
        self.take(number)


def _initialise(path: Path, seed: int) -> None:
    """Draw an adapter's A matrices again, as PEFT does: uniform within 1 / sqrt(inputs). B stays zero."""
    import numpy as np
    from safetensors.numpy import load_file, save_file

    generator = np.random.default_rng(seed)
    tensors = load_file(path)
    for name, array in sorted(tensors.items()):
        if "lora_A" in name:
            bound = 1.0 / math.sqrt(array.shape[1])
            tensors[name] = generator.uniform(-bound, bound, array.shape).astype(array.dtype)
    save_file(tensors, path, metadata={"format": "pt"})
