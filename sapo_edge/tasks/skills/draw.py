"""What the skills draw their tasks with: the same on every system and version of Python."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any


class Draw:
    """Draws from `getrandbits`, whose sequence Python keeps between versions; that of `choice` it may change."""

    def __init__(self, seed: int) -> None:
        self._bits = random.Random(seed).getrandbits

    def below(self, count: int) -> int:
        return self._bits(32) % count

    def of(self, items: Sequence[Any]) -> Any:
        return items[self.below(len(items))]


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
