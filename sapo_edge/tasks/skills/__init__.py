"""Generators of our own: kinds of requests that people make, each with the answer that a program understands.

A skill makes tasks for training and, in words and about things that training never shows, for the held-out sets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any, Literal, Protocol, TypeAlias

Part: TypeAlias = Literal["train", "validation", "test"]
PARTS: tuple[Part, ...] = ("train", "validation", "test")


class Skill(Protocol):
    """What makes and checks the tasks of one configuration."""

    def generate(self, seed: int, part: Part = "train") -> dict[str, Any]:
        """Question, answer and metadata: a pure function of configuration, seed (0 to 2**63 - 1) and part."""
        ...

    def __getitem__(self, index: int) -> dict[str, Any]:
        """The task for training whose seed is the index."""
        ...


@dataclass(frozen=True, slots=True)
class _Lazy:
    """A skill in a module of this package, which loads when it is first used, as its data does.

    Attributes:
        maker: name of the class of its tasks, whose arguments are the settings of a manifest.
    """

    module: str
    maker: str

    def make(self, config: Mapping[str, Any]) -> Skill:
        skill: Skill = getattr(self._load(), self.maker)(**config)
        return skill

    def version(self) -> str:
        version: str = self._load().version()
        return version

    def _load(self) -> ModuleType:
        return import_module(f"{__name__}.{self.module}")


SKILLS: Mapping[str, _Lazy] = {
    "extract": _Lazy("extract", "Extract"),
    "home": _Lazy("home", "Home"),
    "tools": _Lazy("tools", "Tools"),
}
"""By the name of the generator."""
