"""What the skills draw their tasks with, the same on every system and version of Python, and read their data with."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

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
