"""Generators of our own: kinds of requests that people make, each with the answer that a program understands.

A skill makes tasks for training and, in words and about things that training never shows, for the held-out sets.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import Any, ClassVar, Literal, TypeAlias, cast

from sapo_edge.tasks.skills.draw import read_data

Part: TypeAlias = Literal["train", "validation", "test"]
PARTS: tuple[Part, ...] = ("train", "validation", "test")
SKILLS: Mapping[str, str] = {"extract": "Extract", "home": "Home", "tools": "Tools"}
"""By the name of the generator, the class of its tasks, whose arguments are the settings of a manifest. Its module has
the generator's name; it loads when it is first used, as its data does. Each answer is a JSON object."""


class Skill(ABC):
    """What makes the tasks of one configuration. Thread-safe."""

    rules: ClassVar[int] = 1
    """Counted up when the code makes other tasks of the same data."""
    files: ClassVar[tuple[str, ...]]
    """Of its data."""

    @abstractmethod
    def generate(self, seed: int, part: Part = "train") -> dict[str, Any]:
        """Question, answer and metadata: a pure function of configuration, seed (0 to 2**63 - 1) and part."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        """The task for training whose seed is the index."""
        return self.generate(index)


def make_skill(generator: str, config: Mapping[str, Any]) -> Skill:
    return _kind_of(generator)(**config)


@cache
def version_of(generator: str) -> str:
    """Name and digest of what makes a skill's tasks: the count of its code's rules, and its files of data."""
    kind = _kind_of(generator)
    digest = hashlib.sha256(f"{kind.rules}".encode())
    for file in kind.files:
        digest.update(read_data(file))
    return f"{generator}-{digest.hexdigest()[:12]}"


def _kind_of(generator: str) -> type[Skill]:
    return cast(type[Skill], getattr(import_module(f"{__name__}.{generator}"), SKILLS[generator]))
