"""Cuts prompts into runs of tokens, so that what several of them begin with is computed once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from sapo_edge.backends.common.packing import common_prefix


@dataclass(frozen=True, slots=True)
class Run:
    """Tokens that one prompt has to itself up to its end, or that several prompts share.

    Attributes:
        start: position of the first token in these prompts.
        tokens: at least one.
        members: the prompts, by index; they are equal up to the run's last token.
    """

    start: int
    tokens: tuple[int, ...]
    members: tuple[int, ...]


def cut_into_runs(prompts: Sequence[Sequence[int]]) -> list[Run]:
    """The tree of what prompts begin with, each run after those that it continues.

    Each prompt is the concatenation of its runs. The last of them is its own, and its last token predicts the answers.

    Args:
        prompts: none empty; equal ones are allowed.
    """
    return _branches(prompts, sorted(range(len(prompts)), key=lambda index: list(prompts[index])), 0)


def _branches(prompts: Sequence[Sequence[int]], members: Sequence[int], start: int) -> list[Run]:
    """The runs from position `start` on of prompts that are equal before it, in sorted order."""
    runs: list[Run] = []
    for _, same in groupby(members, key=lambda index: prompts[index][start]):
        branch = tuple(same)
        # A last token is its prompt's own, even if others have it too.
        own = [index for index in branch if len(prompts[index]) == start + 1]
        shared = tuple(index for index in branch if index not in own)
        if len(shared) > 1:
            end = start + common_prefix([prompts[index][start:] for index in shared])
            runs.append(Run(start, tuple(prompts[shared[0]][start:end]), shared))
            runs += _branches(prompts, shared, end)
        else:
            own += shared
        runs += [Run(start, tuple(prompts[index][start:]), (index,)) for index in own]
    return runs
