"""Rollouts: their bounds and their ids."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapo_edge.rollout import (
    MAX_ANSWER_BYTES,
    MAX_ANSWERS,
    MAX_INTEGER,
    MAX_NAME_BYTES,
    MAX_QUESTION_BYTES,
    Answer,
    Rollout,
    Task,
    TaskRef,
)
from tests.fakes import make_rollout

REF = TaskRef("sums", "0.1", 1, 2)
ROLLOUT = Rollout(REF, "2 + 2?", "4", (Answer("4", True), Answer("5", False)), "me", 3, 4, 5.0)


def test_the_bounds_themselves_are_allowed() -> None:
    ref = TaskRef("é" * (MAX_NAME_BYTES // 2), "v" * MAX_NAME_BYTES, MAX_INTEGER, MAX_INTEGER)
    answers = (Answer("x" * MAX_ANSWER_BYTES, True),) * MAX_ANSWERS
    text = "q" * MAX_QUESTION_BYTES
    rollout = Rollout(ref, text, text, answers, "a" * MAX_NAME_BYTES, MAX_INTEGER, 0, 0)
    assert rollout.size_bytes() == 2 * MAX_QUESTION_BYTES + MAX_ANSWERS * MAX_ANSWER_BYTES
    task = Task(REF, "q", "a", {"answer": "secret"})
    assert task == Task(REF, "q", "a") and "secret" not in repr(task)
    for name in ("question", "ground_truth"):
        with pytest.raises(ValueError, match=name):
            replace(task, **{name: text + "q"})  # type: ignore[arg-type]


NO_INTEGERS = (-1, MAX_INTEGER + 1, 1.0, "1", True, None)
NO_NAMES = ("e" * (MAX_NAME_BYTES + 1), "\ud800", None, 1)


@pytest.mark.parametrize(("name", "values"), [
    ("question", ("q" * (MAX_QUESTION_BYTES + 1), "é" * (MAX_QUESTION_BYTES // 2 + 1), None, b"2 + 2?", "\ud800")),
    ("ground_truth", ("4" * (MAX_QUESTION_BYTES + 1), 4, "\udfff")),
    ("answers", ((), (Answer("4", True),) * (MAX_ANSWERS + 1))),
    ("time", (float("nan"), float("inf"), "now", True, None)),
    *((name, NO_NAMES) for name in ("author", "entry", "version")),
    *((name, NO_INTEGERS) for name in ("round", "sequence", "seed", "index")),
])  # fmt: skip
def test_a_rollout_or_its_reference_outside_its_bounds_cannot_be_built(name: str, values: tuple[Any, ...]) -> None:
    good: Any = REF if hasattr(REF, name) else ROLLOUT
    for value in values:
        with pytest.raises(ValueError, match=f"^({name} |a rollout holds 1 to .* {name})"):
            replace(good, **{name: value})


@pytest.mark.parametrize("values", [
    *((text, True) for text in ("x" * (MAX_ANSWER_BYTES + 1), "\ud800", None)),
    *(("x", ended) for ended in (1, None)),
    *(("x", True, ids, (-0.5,)) for ids in (None, (1, 2))),
])  # fmt: skip
def test_an_answer_outside_its_bounds_cannot_be_built(values: tuple[Any, ...]) -> None:
    with pytest.raises(ValueError):
        Answer(*values)


def test_the_id_is_a_fixed_function_of_what_is_shared() -> None:
    # Written down once: another value would make two versions of the program take each other's copies for new ones.
    assert ROLLOUT.id == "bbb9efdc30c830cc8fb4316c27e294d1139454a227f67ec6f3bffdff75277de1"
    assert replace(ROLLOUT).id == replace(ROLLOUT, time=5).id == ROLLOUT.id
    own = replace(ROLLOUT, answers=(Answer("4", True, (9, 1), (-0.25, -0.5)), Answer("5", False, (8,), (-1.0,))))
    shared = own.as_text()
    assert all(answer.token_ids is None and answer.logprobs is None for answer in shared.answers)
    assert [(answer.text, answer.ended) for answer in shared.answers] == [("4", True), ("5", False)]
    assert shared.id == own.id and shared == ROLLOUT


@pytest.mark.parametrize("changed", [
    {"question": "2 + 3?"}, {"ground_truth": "5"}, {"author": "you"}, {"round": 4}, {"sequence": 5}, {"time": 5.5},
    {"ref": TaskRef("sums", "0.1", 1, 3)}, {"ref": TaskRef("sums", "0.2", 1, 2)},
    {"answers": (Answer("5", False), Answer("4", True))},
    {"answers": (Answer("4", False), Answer("5", False))}, {"answers": (Answer("4", True),)},
])  # fmt: skip
def test_every_shared_field_is_part_of_the_id(changed: dict[str, Any]) -> None:
    assert replace(ROLLOUT, **changed).id != ROLLOUT.id


@given(st.text(max_size=50), st.text(max_size=50))
def test_texts_cannot_be_shifted_between_fields(first: str, second: str) -> None:
    whole = make_rollout(question=first + second, texts=[""])
    split = make_rollout(question=first, ground_truth=second, texts=[""])
    assert (whole.id == split.id) == (second == "")
