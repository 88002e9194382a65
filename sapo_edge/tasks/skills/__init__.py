"""Generators of our own: kinds of requests that people make, each with the answer that a program understands.

A skill makes tasks for training and, in words and about things that training never shows, for the held-out sets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

Part: TypeAlias = Literal["train", "validation", "test"]


class Skill(Protocol):
    """What makes and checks the tasks of one configuration."""

    def generate(self, seed: int, part: Part = "train") -> dict[str, Any]:
        """Question, answer and metadata: a pure function of configuration, seed (0 to 2**63 - 1) and part."""
        ...

    def __getitem__(self, index: int) -> dict[str, Any]:
        """The task for training whose seed is the index."""
        ...


@dataclass(frozen=True, slots=True)
class _Home:
    def make(self, config: Mapping[str, Any]) -> Skill:
        from sapo_edge.tasks.skills.home import Home

        return Home(**config)

    def version(self) -> str:
        from sapo_edge.tasks.skills import home

        return home.version()


SKILLS: Mapping[str, _Home] = {"home": _Home()}
"""By the name of the generator; each loads its data when it is first used."""
