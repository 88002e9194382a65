"""What llama.cpp's sampler decodes, and when; how it cuts prompts into branches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapo_edge.backends.common.packing import Branch
from sapo_edge.backends.llama.plan import SLOTS
from sapo_edge.backends.llama.policy import LlamaCppPolicy
from sapo_edge.backends.llama.runtime import LlamaContext
from sapo_edge.backends.llama.sampler import cut_into_branches
from sapo_edge.policy import Message
from tests.models import Models, opening, question

SYSTEM = Message("system", "Answer in tags.")
KINDS = ("What is the sum of {} and 4?", "Spell the word for {} backward.", "How many letters has {}?")
Decodes = list[list[tuple[int, bool]]]
"""For each decode, the runs that were added: number of tokens, and whether they predict something."""


@pytest.fixture
def policy(models: Models, tmp_path: Path) -> Iterator[LlamaCppPolicy]:
    with closing(LlamaCppPolicy(opening(models["llama-gqa"], tmp_path, trainable=False))) as policy:
        yield policy


@pytest.fixture
def decodes(monkeypatch: pytest.MonkeyPatch) -> Decodes:
    decodes: Decodes = [[]]
    add, decode = LlamaContext.add, LlamaContext.decode

    def watched_add(self: LlamaContext, tokens: Sequence[int], *where: Any, logits: bool) -> int | None:
        decodes[-1].append((len(tokens), logits))
        return add(self, tokens, *where, logits=logits)

    def watched_decode(self: LlamaContext, is_cancelled: Callable[[], bool]) -> object:
        decodes.append([])
        return decode(self, is_cancelled)

    monkeypatch.setattr(LlamaContext, "add", watched_add)
    monkeypatch.setattr(LlamaContext, "decode", watched_decode)
    return decodes


def test_what_prompts_share_is_decoded_once(policy: LlamaCppPolicy, decodes: Decodes) -> None:
    prompts = [(SYSTEM, *question(kind.format(word))) for kind in KINDS for word in ("3", "cat", "x", "7")]
    encoded = [policy.vocabulary.encode_prompt(prompt) for prompt in prompts]
    groups = policy.generate(prompts, 2, 1, 1.0, seed=3)
    distinct = {tuple(tokens[:end]) for tokens in encoded for end in range(1, len(tokens))}
    assert sum(length for decode in decodes for length, _ in decode) == len(distinct) + len(prompts)
    # The answers are those to the prompts alone.
    for index, prompt in enumerate(prompts):
        alone = policy.generate([*[prompt] * (index + 1)], 2, 1, 1.0, seed=3)[index]
        assert [sample.token_ids for sample in groups[index]] == [sample.token_ids for sample in alone]


def test_a_step_has_fewer_rows_than_make_llama_cpps_attention_slow(policy: LlamaCppPolicy, decodes: Decodes) -> None:
    prompts = [(SYSTEM, *question(f"What is {number}?")) for number in range(100)]
    policy.generate(prompts, 1, 6, 1.0, seed=1)
    steps = [decode for decode in decodes if decode and all(run == (1, True) for run in decode)]
    assert max(map(len, steps)) == SLOTS < 64
    # Prompts come in a few decodes of many, not one by one as single answers end.
    assert len([decode for decode in decodes if any(length > 1 for length, _ in decode)]) <= 1 + 1 + 3


PROMPTS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=9), min_size=1, max_size=12)


@given(PROMPTS)
def test_each_prompt_is_made_of_branches_and_only_its_last_token_may_be_there_again(prompts: list[list[int]]) -> None:
    branches = list(cut_into_branches(prompts))
    made: list[list[int]] = [[] for _ in prompts]
    last: dict[int, Branch] = {}
    for branch in branches:
        for index in branch.members:
            # A branch starts where those before it end: a decoder may go through them in this order.
            assert branch.start == len(made[index])
            assert index not in last or set(branch.members) <= set(last[index].members)
            made[index] += prompts[branch.number][branch.start : branch.end]
            last[index] = branch
    assert made == prompts
    assert all(last[index].members == (index,) and not last[index].following for index in range(len(prompts)))
    shared = {tuple(prompt[:end]) for prompt in prompts for end in range(1, len(prompt))}
    assert sum(branch.end - branch.start for branch in branches) == len(shared) + len(prompts)


def test_many_equal_prompts_are_no_deep_recursion() -> None:
    equal = cut_into_branches([list(range(500))] * 300)
    assert [branch.end - branch.start for branch in equal] == [499] + [1] * 300
    staircase = cut_into_branches([[1] * length for length in range(1, 300)])
    assert sum(branch.end - branch.start for branch in staircase) == 298 + 299
