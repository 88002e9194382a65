"""What the skills share: drawing that is the same everywhere, typing errors, and the version of data and code."""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Iterable, Sequence
from importlib import resources
from typing import Any

from sapo_edge.tasks.skills import Part

PARTS: tuple[Part, ...] = ("train", "validation", "test")

_SLOT = re.compile(r"\{[^}]*\}")
_WORD = re.compile(r"[^\W\d_]{5,}")


class Draw:
    """Draws from `getrandbits`, whose sequence Python keeps between versions; that of `choice` it may change."""

    def __init__(self, seed: int) -> None:
        self._bits = random.Random(seed).getrandbits

    def below(self, count: int) -> int:
        return self._bits(32) % count

    def of(self, items: Sequence[Any]) -> Any:
        return items[self.below(len(items))]


def read_data(file: str) -> bytes:
    """A file of the skills' data."""
    return resources.files(__package__).joinpath("data", file).read_bytes()


def skill_version(name: str, rules: int, files: Iterable[str]) -> str:
    """Name and digest of what makes a skill's tasks: the count of its code's rules, and its files of data."""
    digest = hashlib.sha256(f"{rules}".encode())
    for file in files:
        digest.update(read_data(file))
    return f"{name}-{digest.hexdigest()[:12]}"


def misspell(draw: Draw, template: str) -> str:
    """The template with a typing error in one of its longer words; what fills its {slots} stays."""
    words = list(_WORD.finditer(_SLOT.sub(lambda slot: " " * len(slot[0]), template)))
    if not words:
        return template
    at = draw.of(words).start() + 1 + draw.below(3)
    first, second = template[at], template[at + 1]
    typed = (second + first, first, first + first + second)[draw.below(3)]
    return template[:at] + typed + template[at + 2 :]
