"""Plans: the fastest that fits into the memory is taken, and kept to."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapo_edge.backends.backend import RoundShape
from sapo_edge.backends.llama.backend import open_policy
from sapo_edge.backends.llama.plan import DEFAULT, PLANS, WIDE_SHARE, estimate_memory, fitting_plan
from sapo_edge.backends.llama.policy import LlamaCppPolicy
from sapo_edge.backends.model.gguf_header import GgufHeader
from sapo_edge.backends.model.shape import ModelShape
from sapo_edge.backends.pytorch.place import CPU_SHARE, PACK_TOKENS, weight_bytes
from tests.models import Headers, Models, opening, question

SIZE = RoundShape(rank=16, groups=8, answers=8, prompt_tokens=200, max_tokens=64)


def big(header: GgufHeader) -> GgufHeader:
    """The header of a model that is wider, deeper and has a large vocabulary, on the file of a tiny one."""
    sizes = {"embedding_length": 2048, "feed_forward_length": 6144, "block_count": 28, "attention.key_length": 128}
    table = replace(header.tensors["token_embd.weight"], shape=(150_000, 2048))
    metadata = header.metadata | {f"{header.architecture}.{key}": value for key, value in sizes.items()}
    return replace(header, metadata=metadata, tensors=header.tensors | {"token_embd.weight": table})


def test_each_plan_needs_less_than_the_one_before(headers: Headers) -> None:
    header = big(headers["llama"])
    needs = [estimate_memory(header, SIZE, plan) for plan in PLANS]
    assert needs == sorted(needs, reverse=True) and len(set(needs)) == len(needs)


@given(st.integers(0, 200_000_000_000))
def test_the_first_plan_that_fits_is_taken(headers: Headers, free: int) -> None:
    """The very first only where wide weights take a small part of the memory."""
    header = big(headers["llama"])
    has_room = free * WIDE_SHARE >= weight_bytes(ModelShape.of_gguf(header), "float32")
    needs = [estimate_memory(header, SIZE, plan) / CPU_SHARE for plan in PLANS]
    fitting = [plan for plan, needed in zip(PLANS, needs, strict=True) if needed <= free]
    fitting = fitting if has_room else fitting[PLANS[0] in fitting :]
    assert fitting_plan(header, SIZE, free) == (fitting or PLANS[-1:])[0]


def test_packs_are_larger_where_there_is_room_and_the_same_without_a_size(models: Models, tmp_path: Path) -> None:
    assert (PLANS[0].place.pack_tokens, DEFAULT.place.pack_tokens) == (768, PACK_TOKENS)
    for size, tokens in ((replace(SIZE, memory=10_000_000_000), 768), (None, PACK_TOKENS)):
        with closing(LlamaCppPolicy(opening(models["llama"], tmp_path, size=size))) as policy:
            assert policy.learner is not None and policy.learner.pack_tokens == tokens


def test_a_policy_keeps_to_its_plan(models: Models, headers: Headers, tmp_path: Path) -> None:
    memory = int(estimate_memory(headers["llama"], SIZE, PLANS[-1]) / CPU_SHARE) + 1
    options = opening(models["llama"], tmp_path, precision="bfloat16", size=replace(SIZE, memory=memory))
    with closing(LlamaCppPolicy(options)) as policy:
        assert policy.plan == PLANS[-1].with_products("bfloat16") and policy.learner is not None
        assert policy.learner.place == replace(PLANS[-1].place, products="bfloat16")
        assert policy.learner.group_tokens == PLANS[-1].place.group_tokens
        assert policy.sampler is not None and policy.sampler.path == models["llama"]
        assert len(policy.generate([question("a"), question("b")], 12, 4, 1.0, 1)) == 2


@pytest.mark.parametrize(
    ("plan", "trainable", "price"),
    [
        (0, True, ""),
        (1, True, ""),
        (2, True, "learning in small packs"),
        (2, False, ""),
        (3, True, "sampling from the model's own file, learning in small packs"),
        (3, False, "sampling from the model's own file"),
    ],
)
def test_a_policy_says_what_its_plan_costs_and_of_learning_only_if_it_learns(
    models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plan: int, trainable: bool, price: str
) -> None:
    monkeypatch.setattr("sapo_edge.backends.llama.policy.fitting_plan", lambda *_: PLANS[plan])
    with closing(open_policy(opening(models["llama"], tmp_path, trainable=trainable, size=SIZE))) as policy:
        assert policy.name.startswith("llama.cpp + torch on the CPU, " if trainable else "llama.cpp on the CPU, ")
        costs = [reason for reason in policy.reasons if reason.startswith("to fit into the memory")]
        assert costs == ([f"to fit into the memory: {price}"] if price else [])
        assert any("learning" in word for word in policy.reasons) == trainable
