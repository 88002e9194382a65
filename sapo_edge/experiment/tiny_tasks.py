"""The tasks of the scale `tiny`, and the mistakes that its model makes on them.

A model that is asked something it half knows answers in one of a few wrong ways, not at random. So each task has a few
misconceptions: answers that follow from the question by a wrong rule. Reinforcement learning has to move probability
from them to the right rule, which the model knows as well.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable

from sapo_edge.rollout import Task
from sapo_edge.tasks.manifest import Manifest, TaskEntry

MAX_TOKENS = 10
"""Longest answer in tokens: the longest right one has 9."""
HARDER_MAX_TOKENS = 12
"""The same for the harder questions."""

WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)
PHRASES = (
    "Spell this word backward (example: sun -> nus): ",
    "State the final answer to the following arithmetic problem: ",
    " all numbers ",
    " than ",
    " in this list: ",
    "\nReturn the new list in the same format.",
    "Keep",
    "Remove",
    "larger",
    "smaller",
    "['",
    "', '",
    "']",
    "[]",
    "If today is ",
    "Starting from ",
    "Count forward ",
    "Count backward ",
    ", which weekday falls after a ",
    ", which weekday was it ",
    ", what day of the week will it be in ",
    ", what day of the week was it ",
    ", 2022",
    " days? ",
    " days ago? ",
    " days before? ",
    " days from ",
    "-day jump? ",
    " - what's the weekday? ",
    "Answer with the weekday's name (e.g., Monday, Tuesday, etc.).",
    "Provide the full name of the weekday.",
    "State the weekday (Monday through Sunday).",
    "Give the weekday name in full.",
    "Reply with just the weekday name.",
    "Write out the full weekday name.",
    "Respond with the weekday (Monday-Sunday).",
    "Answer using the complete weekday name.",
    "Name the day of the week in full.",
    "Given a square matrix, your job is to rotate it clockwise.\n\n"
    "Your output should be a matrix in the same format as the input.\n\nRotate the matrix below by ",
    " degrees clockwise:\n",
    *WEEKDAYS,
    *MONTHS,
)
"""Parts of the questions that are one token each; everything else is one token a byte."""


def tiny_manifest() -> Manifest:
    """Four kinds of questions with thousands of questions each, so that 400 held-out ones are few of them."""
    return Manifest(
        "tiny",
        (
            TaskEntry("backward", "spell_backward", {"min_word_len": 3, "max_word_len": 4}),
            TaskEntry("sums", "chain_sum", {"min_terms": 2, "max_terms": 2, "min_digits": 2, "max_digits": 2}),
            TaskEntry("weekdays", "calendar_arithmetic", {"tasks": ("weekday_offset",), "offset_upper_bound": 6}),
            TaskEntry("filters", "number_filtering", _filters(numbers=2)),
        ),
        max_tokens=MAX_TOKENS,
    )


def harder_manifest() -> Manifest:
    """Longer words, one more term, more days, one more number: does what is learnt carry over?"""
    return Manifest(
        "tiny-harder",
        (
            TaskEntry("backward", "spell_backward", {"min_word_len": 5, "max_word_len": 5}),
            TaskEntry("sums", "chain_sum", {"min_terms": 3, "max_terms": 3, "min_digits": 1, "max_digits": 1}),
            TaskEntry("weekdays", "calendar_arithmetic", {"tasks": ("weekday_offset",), "offset_upper_bound": 13}),
            TaskEntry("filters", "number_filtering", _filters(numbers=3)),
        ),
        max_tokens=HARDER_MAX_TOKENS,
    )


def unseen_manifest() -> Manifest:
    """A task that no manifest of a swarm has; the warm-up shows it as it shows the others."""
    config = {"min_n": 2, "max_n": 2, "min_rotations": 0, "max_rotations": 3}
    return Manifest("tiny-unseen", (TaskEntry("matrices", "rotate_matrix", config),), max_tokens=MAX_TOKENS)


def _filters(numbers: int) -> dict[str, int | float]:
    return {
        "min_numbers": numbers,
        "max_numbers": numbers,
        "min_decimals": 0,
        "max_decimals": 0,
        "min_value": 10.0,
        "max_value": 99.0,
    }


def misconceptions(task: Task) -> tuple[str, ...]:
    """Wrong answers to a task, the most usual first: distinct, each by a rule, none of them right.

    There are none where all rules give the right answer, as for a matrix of equal numbers.

    Raises:
        KeyError: if the task's generator is none of the manifests'.
    """
    metadata = task.generated["metadata"]
    answers = _MISTAKES[metadata["source_dataset"]](task)
    # The verifier of spelling ignores case.
    right = task.ground_truth.lower()
    return tuple(answer for answer in dict.fromkeys(answers) if answer and answer.lower() != right)


def _spelling(task: Task) -> list[str]:
    """The word itself; reversed without its first letter; reversed between its ends; its first letter moved behind."""
    word = task.question.rpartition(" ")[2]
    return [word, task.ground_truth[:-1], word[0] + word[-2:0:-1] + word[-1], word[1:] + word[0]]


def _adding(task: Task) -> list[str]:
    """The other operation; one too many; ten too few; the first number."""
    terms = [int(term.replace(" ", "")) for term in re.findall(r"[+-]? ?\d+", task.question.partition(":")[2])]
    first, rest = terms[0], sum(terms[1:])
    right = first + rest
    return [str(first - rest), str(right + 1), str(right - 10 if right > 0 else right + 10), str(first)]


def _counting_days(task: Task) -> list[str]:
    """The other direction; one day too many; one too few; today."""
    today = next(day for day in re.findall("|".join(WEEKDAYS), task.question))
    start, right = WEEKDAYS.index(today), WEEKDAYS.index(task.ground_truth)
    days = (2 * start - right, right + 1, right - 1)
    return [WEEKDAYS[day % 7] for day in days] + [today]


def _filtering(task: Task) -> list[str]:
    """The numbers that had to go; the whole list; none; the first number."""
    numbers = re.findall(r"'(\d+)'", task.question)
    right = re.findall(r"'(\d+)'", task.ground_truth)
    wrong = [number for number in numbers if number not in right]
    return [str(wrong), str(numbers), "[]", str(numbers[:1])]


def _rotating(task: Task) -> list[str]:
    """The other direction; not at all; mirrored."""
    rows = [line.split() for line in task.question.strip().splitlines()[-2:]]
    (a, b), (c, d) = rows
    degrees = int(re.findall(r"(\d+) degrees", task.question)[0]) // 90 % 4
    turned = [((a, b), (c, d)), ((b, d), (a, c)), ((d, c), (b, a)), ((c, a), (d, b))][degrees]
    return ["\n".join(" ".join(row) for row in matrix) for matrix in (turned, rows, ((b, a), (d, c)))]


_MISTAKES: dict[str, Callable[[Task], list[str]]] = {
    "spell_backward": _spelling,
    "chain_sum": _adding,
    "calendar_arithmetic": _counting_days,
    "number_filtering": _filtering,
    "rotate_matrix": _rotating,
}


def broken(answer: str, rng: random.Random) -> str:
    """An answer without its opening tag, without its closing one, or without both."""
    return rng.choice((f"{answer}</answer>", f"<answer>{answer}", answer))
