"""Cutting prompts into runs of tokens: every prompt is there in full, and what prompts share is there once."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from sapo_edge.backends.llama.sampler import Run, cut_into_runs

PROMPTS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=9), min_size=1, max_size=12)


@given(PROMPTS)
def test_each_prompt_is_made_of_its_runs_and_ends_with_one_of_its_own(prompts: list[list[int]]) -> None:
    made: list[list[int]] = [[] for _ in prompts]
    last: dict[int, Run] = {}
    for run in cut_into_runs(prompts):
        for index in run.members:
            # A run starts where those before it end: a decoder may go through them in this order.
            assert run.start == len(made[index])
            assert index not in last or set(run.members) <= set(last[index].members)
            made[index] += run.tokens
            last[index] = run
    assert made == prompts
    assert all(last[index].members == (index,) for index in range(len(prompts)))


@given(PROMPTS)
def test_only_last_tokens_appear_more_than_once(prompts: list[list[int]]) -> None:
    runs = cut_into_runs(prompts)
    shared = {tuple(prompt[:end]) for prompt in prompts for end in range(1, len(prompt))}
    assert sum(len(run.tokens) for run in runs) == len(shared) + len(prompts)


def test_many_equal_prompts_are_no_deep_recursion() -> None:
    runs = cut_into_runs([list(range(500))] * 300)
    assert [len(run.tokens) for run in runs] == [499] + [1] * 300
    staircase = [[1] * length for length in range(1, 300)]
    assert sum(len(run.tokens) for run in cut_into_runs(staircase)) == 298 + 299


def test_prompts_that_share_nothing_are_their_own_runs() -> None:
    prompts = [list(p) for p in itertools.permutations((1, 2, 3)) if p[0] != 2][::2]
    assert cut_into_runs(prompts) == [Run(0, tuple(prompt), (index,)) for index, prompt in enumerate(prompts)]
