"""Where every policy cuts others' answers: exactly where its own sampler would have stopped, whatever they wrote."""

from __future__ import annotations

from unittest.mock import Mock

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from sapo_edge.backends.common.policy import BasePolicy
from sapo_edge.policy import STOP_TEXT, Policy
from tests.contract.conftest import MakePolicy
from tests.contract.test_policy import PROMPTS
from tests.contract.training import flatten
from tests.models import IM_END, decode_ids
from tests.tag_soup import answers

LIMITS = st.one_of(st.integers(1, 24), st.integers(25, 9000))


@pytest.fixture
def sampler(make_policy: MakePolicy) -> Policy:
    return make_policy(trainable=False)


@settings(suppress_health_check=list(HealthCheck))
@example("<answer>4</answer>\n<answer>3</answer>", True, 64)
@example("<answer>4</answer>", False, 17)
@example("é漢🜁", True, 3)
@example("\0\0" + STOP_TEXT, True, 5)
@example("", True, 1)
@given(answers(), st.booleans(), LIMITS)
def test_an_answer_is_cut_where_the_sampler_would_stop(sampler: Policy, text: str, ended: bool, limit: int) -> None:
    cut = sampler.cut(text, ended, limit)
    ids = cut.token_ids or ()
    # By the model's own table, not the policy's.
    kept = decode_ids(ids)
    assert cut.text == kept.decode(errors="replace") and len(ids) <= limit
    assert text.encode().startswith(kept)
    if not cut.ended and len(ids) < limit:
        assert kept == text.encode(), "nothing but an end or the limit shortens an answer"
    assert STOP_TEXT.encode() not in decode_ids(ids[:-1]), "nothing follows the token that completes it"
    has_stopped, has_end = STOP_TEXT in cut.text, ids[-1:] == (IM_END,)
    assert cut.ended == (has_stopped or has_end)
    assert not (has_stopped and has_end), "a sampler stops at the stop text, before it could choose the end"
    assert IM_END not in ids[:-1]
    assert not has_end or ended, "the end is the author's choice"
    again = sampler.cut(cut.text, cut.ended, limit)
    assert (again.text, again.ended) == (cut.text, cut.ended)
    # Half a character at the limit is read as a replacement character, which has tokens of its own.
    assert again == cut or kept != cut.text.encode()


def test_a_sampled_answer_passes_as_it_is(sampler: Policy) -> None:
    for sample in flatten(sampler.generate(PROMPTS, 15, 40, 1.0, 0)):
        cut = sampler.cut(sample.text, sample.ended, 4 * 40 * 9)
        assert (cut.text, cut.ended) == (sample.text, sample.ended)


@pytest.mark.parametrize("text", ["x" * 8000, "ab " * 2600, "<answer>" * 1000])
def test_a_long_answers_beginning_alone_is_encoded(sampler: Policy, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    assert isinstance(sampler, BasePolicy)
    whole, record = sampler.cut(text, True, 8000), Mock(wraps=sampler.vocabulary.tokenize)
    monkeypatch.setattr(sampler.vocabulary, "tokenize", record)
    cut = sampler.cut(text, True, 24)
    assert sum(len(call.args[0]) for call in record.call_args_list) <= 24 * 16
    assert cut.token_ids == (whole.token_ids or ())[:24] and not cut.ended
