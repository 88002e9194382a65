"""What prompts have in common: computed once by the sampler and by the learner."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile


def common_prefix(prompts: Sequence[Sequence[int]]) -> int:
    """Tokens that all prompts begin with, leaving each at least one of its own.

    Args:
        prompts: at least one, none empty.
    """
    alike = takewhile(lambda column: len(set(column)) == 1, zip(*prompts, strict=False))
    return min(sum(1 for _ in alike), min(map(len, prompts)) - 1)
