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


class Maker(Protocol):
    """What makes the tasks of a skill; its data is read when it is first used."""

    def make(self, config: Mapping[str, Any]) -> Skill:
        """The skill as configured."""
        ...

    def version(self) -> str:
        """Version of its code and data, as in the references of its tasks."""
        ...


@dataclass(frozen=True, slots=True)
class _Home:
    def make(self, config: Mapping[str, Any]) -> Skill:
        from sapo_edge.tasks.skills.home import Home

        return Home(**config)

    def version(self) -> str:
        from sapo_edge.tasks.skills import home

        return home.version()


@dataclass(frozen=True, slots=True)
class _Extract:
    def make(self, config: Mapping[str, Any]) -> Skill:
        from sapo_edge.tasks.skills.extract import Extract

        return Extract(**config)

    def version(self) -> str:
        from sapo_edge.tasks.skills import extract

        return extract.version()


SKILLS: Mapping[str, Maker] = {"extract": _Extract(), "home": _Home()}
"""By the name of the generator; each loads its data when it is first used."""
