"""Generators of our own: kinds of requests that people make, each with the answer that a program understands.

A skill makes tasks for training and, in words and about things that training never shows, for the held-out sets. A task
is a pure function of the configuration, the part and a seed, the same on every system and version of Python.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module, resources
from typing import Any, ClassVar, Literal, TypeAlias, cast

Part: TypeAlias = Literal["train", "validation", "test"]
PARTS: tuple[Part, ...] = ("train", "validation", "test")
SKILLS: Mapping[str, str] = {"extract": "Extract", "home": "Home", "tools": "Tools"}
"""By the name of the generator, the class of its tasks, whose arguments are the settings of a manifest. Its module has
the generator's name; it loads when it is first used, as its data does. Each answer is a JSON object."""
_SLOT = re.compile(r"\{[^}]*\}")
_WORD = re.compile(r"[^\W\d_]{5,}")


class Skill(ABC):
    """What makes the tasks of one configuration. Thread-safe."""

    rules: ClassVar[int] = 1
    """Counted up when the code makes other tasks of the same data."""
    files: ClassVar[tuple[str, ...]]
    """Of its data."""

    @abstractmethod
    def generate(self, seed: int, part: Part = "train") -> dict[str, Any]:
        """Question, answer and metadata of a seed, 0 to 2**63 - 1."""

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


class Draw:
    """Draws from `getrandbits`, whose sequence Python keeps between versions; that of `choice` it may change."""

    def __init__(self, seed: int) -> None:
        self._bits = random.Random(seed).getrandbits

    def below(self, count: int) -> int:
        return self._bits(32) % count

    def of(self, items: Sequence[Any]) -> Any:
        return items[self.below(len(items))]


def read_data(file: str) -> bytes:
    return resources.files(__package__).joinpath("data", file).read_bytes()


def made(question: str, answer: Mapping[str, Any], **metadata: Any) -> dict[str, Any]:
    """A task, with its answer as JSON."""
    text = json.dumps(answer, ensure_ascii=False, separators=(",", ":"))
    return {"question": question, "answer": text, "metadata": metadata}


def misspell(draw: Draw, template: str) -> str:
    """The template with a typing error in one of its longer words; what fills its {slots} stays."""
    words = list(_WORD.finditer(_SLOT.sub(lambda slot: " " * len(slot[0]), template)))
    if not words:
        return template
    at = draw.of(words).start() + 1 + draw.below(3)
    first, second = template[at], template[at + 1]
    typed = (second + first, first, first + first + second)[draw.below(3)]
    return template[:at] + typed + template[at + 2 :]


def dress(draw: Draw, polite: Sequence[Sequence[str]], question: str, asks: bool) -> str:
    """The request as some people write it: with a please, a capital letter, a full stop; most write none."""
    before, after = polite
    if not asks and draw.below(6) == 0:
        question = draw.of(before) + question
    elif not asks and draw.below(8) == 0:
        question = question + draw.of(after)
    if draw.below(3) == 0:
        question = question[0].upper() + question[1:] + ("?" if asks else ("", ".", "!")[draw.below(3)])
    return question
