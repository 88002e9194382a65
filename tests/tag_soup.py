"""Texts that a hostile author might write: pieces of tags, numbers and characters that tokenizers find hard."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from sapo_edge.rollout import MAX_ANSWER_BYTES

PIECES = (
    "<answer>", "</answer>", "</ans", "wer>", "<", ">", "/", "answer", "</answer", "<answer></answer>",
    "0", "3", "4", "12", "-", ".", " ", "  ", "\n", "\r\n", "\t", "\0", "\0\0", "So it is ",
    "é", "漢", "🜁", "\ufffd", "\u200b", "\u0301", "<|im_end|>", "<|endoftext|>", "</s>", "＜answer＞", "\ue000",
)  # fmt: skip


def answers(extra: Sequence[str] = ()) -> st.SearchStrategy[str]:
    """Any text that a rollout may hold: tag soup of these pieces too, arbitrary text, and long runs of one piece."""
    common = st.sampled_from(PIECES)
    pieces = st.one_of(common, common, st.sampled_from(extra)) if extra else common
    soup = st.lists(pieces, max_size=12).map("".join)
    anything = st.text(st.characters(exclude_categories=["Cs"]), max_size=64)
    runs = st.tuples(soup, pieces, st.integers(1, 2000), soup).map(lambda part: part[0] + part[1] * part[2] + part[3])
    mixed = st.lists(st.one_of(soup, anything), max_size=4).map("".join)
    return st.one_of(soup, mixed, runs).filter(lambda text: len(text.encode()) <= MAX_ANSWER_BYTES)
