"""Where every policy cuts others' answers: exactly where its own sampler would have stopped, whatever they wrote."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from sapo_edge.policy import STOP_TEXT, Policy
from tests.models import IM_END, decode_ids, question
from tests.tag_soup import answers

PROMPTS = [question(text) for text in ("What is 3 + 4?", "Spell cat.", "?")]
LIMITS = st.one_of(st.integers(1, 24), st.integers(25, 9000))


@pytest.fixture
def sampler(make_policy: Callable[..., Policy]) -> Policy:
    return make_policy(trainable=False)


def check(policy: Policy, verify: Callable[[Policy, str, bool, int], None], examples: int = 150) -> None:
    """Verify a property of the cut for many texts, ends and limits."""

    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))
    @example("<answer>4</answer>\n<answer>3</answer>", True, 64)
    @example("<answer>4</answer>", False, 17)
    @example("é漢🜁", True, 3)
    @example("\0\0" + STOP_TEXT, True, 5)
    @example("", True, 1)
    @given(answers(), st.booleans(), LIMITS)
    def run(text: str, ended: bool, limit: int) -> None:
        verify(policy, text, ended, limit)

    run()


def decoded(token_ids: tuple[int, ...]) -> str:
    """The text of token ids by the model's own table, not the policy's."""
    return decode_ids(token_ids).decode(errors="replace")


def test_the_text_is_what_the_ids_decode_to(sampler: Policy) -> None:
    def verify(policy: Policy, text: str, ended: bool, limit: int) -> None:
        cut = policy.cut(text, ended, limit)
        assert cut.text == decoded(cut.token_ids)
        assert len(cut.token_ids) <= limit

    check(sampler, verify)


def test_it_is_a_beginning_of_what_was_written(sampler: Policy) -> None:
    def verify(policy: Policy, text: str, ended: bool, limit: int) -> None:
        cut = policy.cut(text, ended, limit)
        kept = decode_ids(cut.token_ids)
        assert text.encode().startswith(kept)
        if not cut.ended and len(cut.token_ids) < limit:
            assert kept == text.encode(), "nothing but an end or the limit shortens an answer"

    check(sampler, verify)


def test_it_stops_where_the_sampler_would(sampler: Policy) -> None:
    def verify(policy: Policy, text: str, ended: bool, limit: int) -> None:
        cut = policy.cut(text, ended, limit)
        assert STOP_TEXT not in decoded(cut.token_ids[:-1]), "nothing follows the token that completes the stop text"
        has_stopped, has_end = STOP_TEXT in cut.text, cut.token_ids[-1:] == (IM_END,)
        assert cut.ended == (has_stopped or has_end)
        assert not (has_stopped and has_end), "a sampler stops at the stop text, before it could choose the end"
        assert IM_END not in cut.token_ids[:-1]
        assert not has_end or ended, "the end is the author's choice"

    check(sampler, verify)


def test_cutting_again_changes_nothing(sampler: Policy) -> None:
    def verify(policy: Policy, text: str, ended: bool, limit: int) -> None:
        once = policy.cut(text, ended, limit)
        again = policy.cut(once.text, once.ended, limit)
        assert (again.text, again.ended) == (once.text, once.ended)
        if decode_ids(once.token_ids) == once.text.encode():
            # Half a character at the limit is read as a replacement character, which has tokens of its own.
            assert again == once

    check(sampler, verify)


@pytest.mark.parametrize("seed", range(3))
def test_a_sampled_answer_passes_as_it_is(sampler: Policy, seed: int) -> None:
    for group in sampler.generate(PROMPTS, 8, 40, 1.0, seed):
        for sample in group:
            cut = sampler.cut(sample.text, sample.ended, 4 * 40 * 9)
            assert (cut.text, cut.ended) == (sample.text, sample.ended)
