"""The verifiers of allowed generators: none evaluates text, and each ends quickly on any text of bounded length.

Most generators of ReasoningGYM use its own verifier; each was read line by line for 0.1.25. Where it evaluates text, is
unbounded, or fully rewards a wrong answer, a small verifier of our own replaces it and otherwise scores the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from sapo_edge.tasks.checks import Calls, Json
from sapo_edge.tasks.library import Dataset, exact_decimals
from sapo_edge.tasks.logic import truth_table

SHORT_FORMULA = 32
"""Characters that a conclusion may always have; more where its premises together have more."""

Verifier: TypeAlias = Callable[[str, Mapping[str, Any]], float]

_LATEX_FRACTION = re.compile(r"\\d?frac\s*\{\s*(\d+)\s*\}\s*\{\s*(\d+)\s*\}", re.IGNORECASE)


def verify_binary_matrix(answer: str, generated: Mapping[str, Any]) -> float:
    """Lines of numbers score 1, a list of lists of the same numbers 0.1. ReasoningGYM calls `eval` on the answer."""
    expected = str(generated["answer"])
    if answer == expected:
        return 1.0
    packed = "".join(answer.split())
    if not (packed.startswith("[[") and packed.endswith("]]")):
        return 0.0
    rows = [row.split(",") for row in packed[2:-2].split("],[")]
    return 0.1 if "\n".join(" ".join(row) for row in rows) == expected else 0.0


def verify_bitwise_arithmetic(answer: str, generated: Mapping[str, Any]) -> float:
    """An integer, with or without a base prefix. ReasoningGYM calls `eval` on the problem."""
    return 1.0 if int(answer, 0) == int(generated["answer"], 16) else 0.0


def verify_fraction_simplification(answer: str, generated: Mapping[str, Any]) -> float:
    """The lowest terms score 1, a fraction with one unreduced term 0.1, another fraction 0.05, anything else 0.

    ReasoningGYM gives 1 to any text that begins with the fraction in LaTeX, and 0.01 to any text at all.
    """
    metadata = generated["metadata"]
    numerator, denominator = _fraction(answer.strip("$ "))
    if (numerator, denominator) == (metadata["simplified_numerator"], metadata["simplified_denominator"]):
        return 1.0
    return 0.1 if numerator == metadata["numerator"] or denominator == metadata["denominator"] else 0.05


def _fraction(text: str) -> tuple[int, int]:
    latex = _LATEX_FRACTION.fullmatch(text)
    numerator, denominator = latex.groups() if latex else text.split("/")
    return int(numerator), int(denominator)


def verify_propositional_logic(answer: str, generated: Mapping[str, Any]) -> float:
    """A formula that follows from the premises scores 1, a trivial one 0.25, another formula 0.05, anything else 0.

    ReasoningGYM accepts any text as a variable; here such text is not a formula, nor is one that is longer than its
    premises: a premise that is negated 4,000 times says no more.
    """
    metadata = generated["metadata"]
    variables = metadata["variables"]
    if len(answer) > max(SHORT_FORMULA, sum(map(len, metadata["premises"]))):
        return 0.0
    conclusion, compound = truth_table(answer, variables)
    everything = (1 << (1 << len(variables))) - 1
    premises = everything
    for premise in metadata["premises"]:
        premises &= truth_table(premise, variables)[0]
    if premises & ~conclusion:
        return 0.05
    return 1.0 if compound and conclusion != everything else 0.25


def verify_spell_backward(answer: str, generated: Mapping[str, Any]) -> float:
    """The share of letters in their place, 1 only for the word itself.

    ReasoningGYM's sum of shares of a longer answer reaches 1, and more than 1 by rounding.
    """
    expected, word = str(generated["answer"]).lower(), answer.lower()
    placed = sum(letter == right for letter, right in zip(word, expected, strict=False))
    return placed / max(len(word), len(expected))


def verify_word_sorting(answer: str, generated: Mapping[str, Any]) -> float:
    """The share of words in their place, 1 only for the list itself. ReasoningGYM ignores words after the list."""
    expected: list[str] = generated["metadata"]["sorted_words"]
    words = [word.strip() for word in answer.split(",")]
    placed = sum(word == right for word, right in zip(words, expected, strict=False))
    share = placed / max(len(words), len(expected))
    return max(share, 0.2) if sorted(words) == sorted(expected) else share


def verify_object(answer: str, generated: Mapping[str, Any]) -> float:
    """The share of the JSON object's fields that are right, as for own questions with the check `json`."""
    return Json().score(generated["answer"], answer)


def verify_tools(answer: str, generated: Mapping[str, Any]) -> float:
    """The share of right arguments in a call of the right tool, as for own questions with the check `calls`."""
    return Calls().score(str(generated["answer"]), answer)


OWN_VERIFIERS: Mapping[str, Verifier] = {
    "binary_matrix": verify_binary_matrix,
    "bitwise_arithmetic": verify_bitwise_arithmetic,
    "extract": verify_object,
    "fraction_simplification": verify_fraction_simplification,
    "home": verify_object,
    "propositional_logic": verify_propositional_logic,
    "spell_backward": verify_spell_backward,
    "tools": verify_tools,
    "word_sorting": verify_word_sorting,
}
"""Generators whose verifier is our own."""


def verify(generator: str, dataset: Dataset, answer: str, generated: Mapping[str, Any]) -> float:
    """Score an extracted answer of at most `MAX_ANSWER_CHARACTERS` characters, from 0 to 1.

    An answer without the expected form scores 0. No verifier is known to give a score outside, an ArithmeticError.
    """
    try:
        if generator in OWN_VERIFIERS:
            score = OWN_VERIFIERS[generator](answer, generated)
        else:
            with exact_decimals():
                score = dataset.score_answer(answer, dict(generated))
    except (ValueError, OverflowError):
        # From int() and float division of text that a policy wrote in place of a number.
        return 0.0
    if not 0.0 <= score <= 1.0:
        raise ArithmeticError(f"verifier of {generator} scored {score}")
    return float(score)
