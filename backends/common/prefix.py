"""Prompts before they are computed: what they have in common, which sampler and learner compute once; if they fit."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from sapo_edge.errors import ModelError


def common_prefix(prompts: Sequence[Sequence[int]]) -> int:
    """Tokens that all prompts begin with, leaving each at least one of its own.

    Args:
        prompts: at least one, none empty.
    """
    alike = takewhile(lambda column: len(set(column)) == 1, zip(*prompts, strict=False))
    return min(sum(1 for _ in alike), min(map(len, prompts)) - 1)


def check_length(prompts: Sequence[Sequence[int]], max_tokens: int, context_length: int) -> None:
    """Refuse prompts that the model can't hold together with an answer.

    Raises:
        ModelError: naming the length that is possible.
    """
    longest = max(len(prompt) for prompt in prompts)
    if longest + max_tokens > context_length:
        raise ModelError(
            f"a prompt of {longest} tokens and an answer of {max_tokens} exceed the model's {context_length}",
            "lower max_tokens or use tasks with shorter questions",
        )
