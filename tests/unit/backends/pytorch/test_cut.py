"""Cutting others' answers costs little, however long they are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sapo_edge.backends.pytorch.policy import TorchPolicy
from tests.models import opening


@pytest.fixture
def policy(models: dict[str, Path]) -> Iterator[TorchPolicy]:
    policy = TorchPolicy(opening(models["llama"], trainable=False), device="cpu")
    yield policy
    policy.close()


def encoded_lengths(policy: TorchPolicy, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Lengths of the texts that are encoded from now on."""
    lengths: list[int] = []
    tokenize = policy.vocabulary.tokenize

    def record(text: str, *, special: bool) -> list[int]:
        lengths.append(len(text))
        return tokenize(text, special=special)

    monkeypatch.setattr(policy.vocabulary, "tokenize", record)
    return lengths


@pytest.mark.parametrize("text", ["x" * 8000, "ab " * 2600, "<answer>" * 1000])
def test_only_the_beginning_of_a_long_answer_is_encoded(
    policy: TorchPolicy, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    whole = policy.cut(text, True, 8000)
    lengths = encoded_lengths(policy, monkeypatch)
    cut = policy.cut(text, True, 24)
    assert sum(lengths) <= 24 * 16
    assert cut.token_ids == whole.token_ids[:24] and not cut.ended


def test_a_long_answer_of_few_tokens_is_encoded_whole(policy: TorchPolicy) -> None:
    # Two zero bytes are one token of the tests' models.
    text = "\0\0" * 20
    assert len(policy.cut(text, True, 2).token_ids) == 2
    assert policy.cut(text, True, 100).token_ids == policy.cut(text, True, 21).token_ids
