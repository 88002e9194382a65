"""Generators of our own: kinds of requests that people make, each with the answer that a program understands.

A skill makes tasks for training and, in words and about things that training never shows, for the held-out sets.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from importlib import import_module
from typing import Any, Literal, TypeAlias, cast

Part: TypeAlias = Literal["train", "validation", "test"]
PARTS: tuple[Part, ...] = ("train", "validation", "test")
SKILLS: Mapping[str, str] = {"extract": "Extract", "home": "Home", "tools": "Tools"}
"""By the name of the generator, the class of its tasks, whose arguments are the settings of a manifest. Its module has
the generator's name and a function `version`; it loads when it is first used, as its data does."""


class Skill(ABC):
    """What makes the tasks of one configuration. Thread-safe."""

    @abstractmethod
    def generate(self, seed: int, part: Part = "train") -> dict[str, Any]:
        """Question, answer and metadata: a pure function of configuration, seed (0 to 2**63 - 1) and part."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        """The task for training whose seed is the index."""
        return self.generate(index)


def make_skill(generator: str, config: Mapping[str, Any]) -> Skill:
    return cast(Skill, getattr(import_module(f"{__name__}.{generator}"), SKILLS[generator])(**config))


def version_of(generator: str) -> str:
    return cast(str, import_module(f"{__name__}.{generator}").version())
