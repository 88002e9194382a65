"""Verifiers: right answers score 1, wrong ones 0, whatever surrounds the answer."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sapo_edge.errors import UnknownTaskError
from sapo_edge.rollout import Task, TaskRef
from sapo_edge.tasks.allowed import ALLOWED
from sapo_edge.tasks.library import make_dataset
from sapo_edge.tasks.logic import truth_table
from sapo_edge.tasks.manifest import Manifest, TaskEntry
from sapo_edge.tasks.readings import extract_answer
from sapo_edge.tasks.source import TaskSource
from sapo_edge.tasks.verifiers import OWN_VERIFIERS, verify
from tests.defences.defence import fails_without


def source_of(generator: str, partial_credit: bool = False) -> TaskSource:
    return TaskSource(Manifest("one", (TaskEntry("task", generator, partial_credit=partial_credit),)))


def tagged(answer: str) -> str:
    return f"<answer>{answer}</answer>"


@pytest.mark.parametrize("generator", sorted(ALLOWED))
def test_the_right_answer_scores_one_and_a_wrong_one_zero(generator: str) -> None:
    source = source_of(generator)
    verified = 0
    for index in range(20):
        task = source.draw(2, index)
        right = task.ground_truth or task.generated["metadata"]["example_answer"]
        if generator == "propositional_logic" and len(right) == 1:
            continue  # a bare variable is a trivial conclusion
        verified += 1
        assert source.score(task, tagged(right)) == 1.0
        assert source.score(task, f"I think so.\n<answer>\n {right} \n</answer>\n") == 1.0
        assert source.score(task, right) == 0.0
        for wrong in ("", "?", f"{right} {right}", f"{right}, and more", "-99999", "Q9"):
            assert source.score(task, tagged(wrong)) == 0.0
    assert verified >= 5 and source.verifier_errors == 0


def test_partial_credit_counts_only_where_the_manifest_says_so() -> None:
    strict, lenient = source_of("word_sorting"), source_of("word_sorting", partial_credit=True)
    task = strict.draw(0, 0)
    words = task.ground_truth.split(", ")
    swapped = tagged(", ".join([words[1], words[0], *words[2:]]))
    assert strict.score(task, swapped) == 0.0 and 0.0 < lenient.score(task, swapped) < 1.0
    assert lenient.score(task, tagged(task.ground_truth)) == 1.0


def test_a_task_without_its_record_is_regenerated_before_scoring() -> None:
    source = source_of("propositional_logic")
    task = source.draw(2, 0)
    answer = tagged(task.generated["metadata"]["example_answer"])
    assert source.score(Task(task.ref, task.question, task.ground_truth), answer) == source.score(task, answer)
    with pytest.raises(UnknownTaskError):
        source_of("gcd").score(Task(TaskRef("other", "1", 0, 0), "?", "1"), "1")


@pytest.mark.parametrize(("completion", "answer"), [
    ("<answer>7</answer>", "7"), ("so <answer> 7 \n</answer> it is", "7"),
    ("<answer>1</answer> no, <answer>2</answer>", "1"), ("<answer>1</answer> <answer>2", "1"),
    ("<answer>1<answer>2</answer>", "1<answer>2"), ("<answer>1</answer></answer>", "1"),
    ("</answer><answer>1</answer>", None), ("<answer></answer>", ""),
    ("<answer>1\x00\ud800</answer>", "1\ufffd\ufffd\ufffd\ufffd"), ("", None), ("<Answer>7</Answer>", None),
    (f"<answer>{'7' * 4096}</answer>", "7" * 4096), (f"<answer>{'7' * 4097}</answer>", None),
])  # fmt: skip
def test_the_answer_before_the_first_closing_tag_counts(completion: str, answer: str | None) -> None:
    assert extract_answer(completion) == answer


MATRIX = {"answer": "0 1\n1 2"}
BITS = {"answer": "-0x1f"}
WORDS = {"metadata": {"sorted_words": ["a", "b", "c"]}}
FRACTION = {"metadata": {"numerator": 10, "denominator": 20, "simplified_numerator": 1, "simplified_denominator": 2}}
PREMISES: dict[str, Any] = {"metadata": {"variables": ["P", "Q"], "premises": ["(P → Q)", "P"]}}
SCORES: dict[str, tuple[dict[str, Any], dict[str, float]]] = {
    # Read without evaluating it.
    "binary_matrix": (MATRIX, {
        "0 1\n1 2": 1.0, "[[0, 1], [1, 2]]": 0.1, "[[0,1],\n[1,2]]": 0.1, "[[0, 1], [1, 3]]": 0.0,
        "[[0, 1, 1, 2]]": 0.0, "[[__import__('os')]]": 0.0, "[[": 0.0, "[" * 4000: 0.0,
        "[[0, 1], [1, 2xx": 0.0, "xx0, 1], [1, 2]]": 0.0,
    }),
    "bitwise_arithmetic": (BITS, {"-0x1f": 1.0, "-31": 1.0, "0x1f": 0.0, "-0b11111": 1.0}),
    # By position: extra words, and extra letters, cost.
    "word_sorting": (WORDS, {
        "a, b, c": 1.0, "a,b,c": 1.0, "a, b, c, d": 0.75, "c, b, a": 1 / 3, "b, c, a": 0.2, "x": 0.0,
        "x, y, z": 0.0,
    }),
    "spell_backward": ({"answer": "Nus"}, {"nus": 1.0, "NUS": 1.0, "nusnus": 0.5, "nut": 2 / 3, "": 0.0}),
    # By its terms.
    "fraction_simplification": (FRACTION, {
        "1/2": 1.0, "$1 / 2$": 1.0, r"$\frac{1}{2}$": 1.0, r"\DFRAC { 1 } { 2 }": 1.0, r"\frac{1}{2} or so": 0.0,
        "1/2/1": 0.0, "0.5": 0.0, "10/3": 0.1, "3/4": 0.05,
    }),
    # If it follows from the premises.
    "propositional_logic": (PREMISES, {
        "P ∧ Q": 1.0, "(P∧Q)": 1.0, "¬¬Q": 1.0, "Q": 0.25, "(Q)": 0.25, "P ∨ ¬P": 0.25, "¬Q": 0.05, "P ∧ R": 0.0,
        "P and Q": 0.0, "P ∧": 0.0, "P Q": 0.0, "P ¬ Q": 0.0, "(P ∧ Q": 0.0, "P ∧ Q)": 0.0, "()": 0.0, "": 0.0,
        "(" * 10 + "P" + ")" * 10: 0.25, "(" * 2000 + "P" + ")" * 2000: 0.0,
        "¬" * 31 + "Q": 0.05, "¬" * 32 + "Q": 0.0, "¬" * 4000 + "Q": 0.0,
    }),
}  # fmt: skip
"""Of each verifier of our own: a task's record, and the scores of answers to it."""


@fails_without("tasks/verifiers.py", 'if len(answer) > max(SHORT_FORMULA, sum(map(len, metadata["premises"]))):')
@pytest.mark.parametrize(
    ("generator", "answer"), [(generator, answer) for generator, (_, scores) in SCORES.items() for answer in scores]
)
def test_a_verifier_of_our_own_scores(generator: str, answer: str) -> None:
    generated, scores = SCORES[generator]
    assert verify(generator, make_dataset(generator, {}), answer, generated) == scores[answer]


FORMULAS = st.recursive(
    st.sampled_from("PQRS"),
    lambda inner: st.one_of(
        inner.map(lambda one: f"¬{one}"),
        st.tuples(inner, st.sampled_from(["∧", "∨", "→", "↔"]), inner).map(lambda parts: f"({' '.join(parts)})"),
        st.tuples(inner, st.sampled_from(["∧", "∨", "→", "↔"]), inner).map("".join),
    ),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None)
@given(FORMULAS)
def test_truth_tables_agree_with_the_library(formula: str) -> None:
    from reasoning_gym.logic.propositional_logic import Expression

    table, compound = truth_table(formula, "PQRS")
    expression = Expression.from_string(formula)
    assert compound == (expression.operator is not None)
    for row in range(16):
        assignment = {name: bool(row >> position & 1) for position, name in enumerate("PQRS")}
        assert expression.evaluate(assignment) == bool(table >> row & 1)


@pytest.mark.parametrize("score", [float("nan"), float("inf"), 1.5, -0.1, "0.5"])
def test_a_verifier_that_fails_or_scores_out_of_range_counts_and_gives_nothing(
    score: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = source_of("binary_matrix", partial_credit=True)
    task = source.draw(0, 0)
    # Text is compared with no number: that raises.
    monkeypatch.setitem(OWN_VERIFIERS, "binary_matrix", lambda answer, generated: score)
    assert source.score(task, tagged("1")) == 0.0 and source.verifier_errors == 1


def test_a_conclusion_may_be_as_long_as_its_premises_together() -> None:
    generated = {"metadata": {"variables": ["P", "Q"], "premises": ["¬" * 30 + "P", "¬" * 30 + "Q"]}}
    dataset = make_dataset("propositional_logic", {})
    scores = [verify("propositional_logic", dataset, "¬" * count + "Q", generated) for count in (60, 61, 62)]
    assert scores == [1.0, 0.05, 0.0]
