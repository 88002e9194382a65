"""The tasks of the scale `tiny`, and the mistakes that its model makes on them.

A model that half knows something errs by rules, not at random. So each part of an answer, such as a letter or a number,
has a wrong value that follows from the question by a wrong rule. Reinforcement learning has to move probability to the
right rule, which the model knows as well.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sapo_edge.rollout import Task
from sapo_edge.tasks.manifest import Manifest, TaskEntry

MAX_TOKENS = 10
"""Longest answer in tokens: the longest right one has 9."""
HARDER_MAX_TOKENS = 12
"""The same for the harder questions."""

PHRASES = (
    "Spell this word backward (example: sun -> nus): ",
    "State the final answer to the following arithmetic problem: ",
    " all numbers ",
    " than ",
    " in this list: ",
    "\nReturn the new list in the same format.",
    " + ",
    " - ",
    " =",
    "Keep",
    "Remove",
    "larger",
    "smaller",
    "['",
    "', '",
    "']",
    "[]",
    "Given a square matrix, your job is to rotate it clockwise.\n\n"
    "Your output should be a matrix in the same format as the input.\n\nRotate the matrix below by ",
    " degrees clockwise:\n",
    "Your task is to sort words in ascending or descending order using ASCII/Unicode ordering.\n\n"
    "Your output should be a comma-separated list of words, e.g. word_1, word_2, word_3\n\nNow, sort these words in ",
    "ascending",
    "descending",
    " order (using ASCII/Unicode ordering) and return them as a comma-separated list: ",
    ", ",
)
"""Parts of the questions that are one token each; everything else is one token a byte."""


def tiny_manifest() -> Manifest:
    """Four kinds of questions with thousands of questions each, so that 400 held-out ones are few of them."""
    return Manifest(
        "tiny",
        (
            TaskEntry("backward", "spell_backward", {"min_word_len": 3, "max_word_len": 4}),
            TaskEntry("sums", "chain_sum", {"min_terms": 2, "max_terms": 3, "min_digits": 1, "max_digits": 1}),
            TaskEntry("filters", "number_filtering", _filters(numbers=2)),
            TaskEntry("matrices", "rotate_matrix", _matrices(rotations=(1, 3))),
        ),
        max_tokens=MAX_TOKENS,
    )


def harder_manifest() -> Manifest:
    """Longer words, one more term, one more number, more than one turn: does what is learnt carry over?"""
    return Manifest(
        "tiny-harder",
        (
            TaskEntry("backward", "spell_backward", {"min_word_len": 5, "max_word_len": 5}),
            TaskEntry("sums", "chain_sum", {"min_terms": 4, "max_terms": 4, "min_digits": 1, "max_digits": 1}),
            TaskEntry("filters", "number_filtering", _filters(numbers=3)),
            TaskEntry("matrices", "rotate_matrix", _matrices(rotations=(5, 7))),
        ),
        max_tokens=HARDER_MAX_TOKENS,
    )


def unseen_manifest() -> Manifest:
    """A task that no manifest of a swarm has; the warm-up shows it as it shows the others."""
    config = {"min_words": 2, "max_words": 2, "min_word_length": 3, "max_word_length": 3}
    return Manifest("tiny-unseen", (TaskEntry("sorting", "word_sorting", config),), max_tokens=MAX_TOKENS)


def _filters(numbers: int) -> dict[str, int | float]:
    return {
        "min_numbers": numbers,
        "max_numbers": numbers,
        "min_decimals": 0,
        "max_decimals": 0,
        "min_value": 10.0,
        "max_value": 99.0,
    }


def _matrices(rotations: tuple[int, int]) -> dict[str, int]:
    return {"min_n": 2, "max_n": 2, "min_rotations": rotations[0], "max_rotations": rotations[1]}


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of an answer, each of which can be right or wrong on its own.

    Attributes:
        right, wrong: as many each; a part may be the same in both.
        join: makes the answer of its parts.
    """

    right: tuple[str, ...]
    wrong: tuple[str, ...]
    join: Callable[[Sequence[str]], str]

    @property
    def differing(self) -> tuple[int, ...]:
        """Positions of the parts that a mistake can change; the verifier of spelling ignores case."""
        pairs = enumerate(zip(self.right, self.wrong, strict=True))
        return tuple(position for position, (right, wrong) in pairs if right.lower() != wrong.lower())


def parts_of(task: Task) -> Parts:
    """The parts of a task's answer.

    Raises:
        KeyError: if the task's generator is none of the manifests'.
    """
    return _PARTS[task.generated["metadata"]["source_dataset"]](task)


def attempt(parts: Parts, right: float, later: float, rng: random.Random) -> str:
    """An answer that is right with a given probability.

    The first part that a mistake can change is usually wrong, each further one right with probability `later`. So the
    most likely answer is wrong, several mistakes are common, and a learner can mend one after the other.
    """
    chosen = list(parts.right)
    chance = min(1.0, right / later ** (len(parts.differing) - 1))
    for position in parts.differing:
        if rng.random() >= chance:
            chosen[position] = parts.wrong[position]
        chance = later
    return parts.join(chosen)


def _spelling(task: Task) -> Parts:
    """Letters; the wrong ones stand as in the word."""
    return Parts(tuple(task.ground_truth), tuple(task.question.rpartition(" ")[2]), "".join)


def _adding(task: Task) -> Parts:
    """One number; the wrong one is the question's digits in a row."""
    digits = "".join(re.findall(r"\d", task.question))
    if int(digits) == int(task.ground_truth):
        digits += "0"
    return Parts((task.ground_truth,), (digits,), "".join)


def _filtering(task: Task) -> Parts:
    """The numbers that stay; the wrong ones lack their last digit. Where none stays, the wrong list has all."""
    kept = re.findall(r"'(\d+)'", task.ground_truth)
    if not kept:
        return Parts(("[]",), (str(re.findall(r"'(\d+)'", task.question)),), "".join)
    return Parts(tuple(kept), tuple(number[:-1] for number in kept), lambda chosen: str(list(chosen)))


def _sorting(task: Task) -> Parts:
    """Two words; the wrong ones have the other order."""
    words = tuple(task.ground_truth.split(", "))
    return Parts(words, words[::-1], ", ".join)


def _rotating(task: Task) -> Parts:
    """Four numbers; the wrong ones stand as in the question."""
    right, wrong = task.ground_truth.split(), task.question.split()[-4:]
    return Parts(tuple(right), tuple(wrong), lambda chosen: "{} {}\n{} {}".format(*chosen))


_PARTS: dict[str, Callable[[Task], Parts]] = {
    "spell_backward": _spelling,
    "chain_sum": _adding,
    "number_filtering": _filtering,
    "word_sorting": _sorting,
    "rotate_matrix": _rotating,
}


def broken(answer: str, rng: random.Random) -> str:
    """An answer without its opening tag, without its closing one, or without both."""
    return rng.choice((f"{answer}</answer>", f"<answer>{answer}", answer))
