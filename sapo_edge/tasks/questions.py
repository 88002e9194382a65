"""People's own questions: what a manifest holds of them, and which of them are held out of training."""

from __future__ import annotations

import hashlib
import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgpack

from sapo_edge.errors import ManifestError
from sapo_edge.tasks.allowed import nearest
from sapo_edge.tasks.checks import CHECKS, Check, Exact
from sapo_edge.tasks.texts import check_text, require

MAX_QUESTIONS = 4096
"""Most questions of an entry."""
SHARE = 3
"""At most one in `SHARE` of an entry's distinct questions is held out, unless its file says more."""
SPLIT_QUESTIONS = 200
"""Questions of each held-out set; fewer where a manifest's tasks have few distinct ones."""
SPLITS = ("", "train", "validation", "test")
"""What a question may be for; "" leaves it to `split_questions`."""


@dataclass(frozen=True, slots=True)
class OwnQuestion:
    """A question with its answer.

    Attributes:
        answer: the expected answer, without tags; items of a set are separated by commas.
        split: one of `SPLITS`.
    """

    question: str
    answer: str
    check: Check = field(default_factory=Exact)
    split: str = ""

    def __post_init__(self) -> None:
        require(check_text("question", self.question).strip() != "", "question is empty", "write a question")
        self.check.check_expected(check_text("answer", self.answer))
        known = isinstance(self.split, str) and self.split in SPLITS
        require(known, "split is not known", "choose train, validation, test or example, or leave it out")

    def score(self, answer: str) -> float:
        """The score of an answer without tags, 0 to 1."""
        return self.check.score(self.answer, answer)

    @property
    def check_name(self) -> str:
        return next(name for name, kind in CHECKS.items() if type(self.check) is kind)

    def as_list(self) -> list[Any]:
        """The question as it is encoded in a manifest: question, answer, split, name of the check, its option."""
        return [self.question, self.answer, self.split, self.check_name, self.check.value]

    @classmethod
    def from_list(cls, raw: object) -> OwnQuestion:
        """Read what `as_list` wrote."""
        shaped = isinstance(raw, list) and len(raw) == 5
        require(shaped, "it is not a list of 5 fields", "fetch the manifest again")
        assert isinstance(raw, list)
        question, answer, split, name, value = raw
        return cls(question, answer, make_check(name, value), split)


class SplitQuestions(NamedTuple):
    """An entry's questions by their use; none occurs in two of them."""

    train: Sequence[OwnQuestion]
    validation: Sequence[OwnQuestion]
    test: Sequence[OwnQuestion]


def make_check(name: object, value: object) -> Check:
    """The check of a name, with its option (None: the default)."""
    if not isinstance(name, str) or name not in CHECKS:
        raise ManifestError("check is not known", nearest(str(name)[:64], CHECKS))
    kind: Any = CHECKS[name]
    if value is None:
        require(not kind.needs_option(), f"{kind.option} is missing", f"add {kind.option}")
        return kind()  # type: ignore[no-any-return]
    require(kind.option != "", f"check {name} has no option", "leave it out")
    return kind(value)  # type: ignore[no-any-return]


def split_questions(questions: Sequence[OwnQuestion]) -> SplitQuestions:
    """Which questions are trained on, and which are held out; the same on every node.

    A question is where its file says. Of the n distinct others, those with the lowest hashes are held out, n / 3 in
    all: every second one for validation, the others for the test, none for a set that the file fills itself. So 20
    questions give 14, 3 and 3; fewer than 6 have no test set, and fewer than 3 are all trained on. A question that
    occurs twice is in one set only: test before validation before training.
    """
    marks = [(mark_of(question.question), question.split) for question in questions]
    return SplitQuestions(*(tuple(questions[place] for place in places) for places in split_places(marks)))


def require_training(split: SplitQuestions) -> SplitQuestions:
    """The same, if there is a question to train on."""
    require(bool(split.train), "the manifest has no question to train on", "add questions that are not held out")
    return split


def split_places(marks: Iterable[tuple[bytes, str]]) -> tuple[list[int], list[int], list[int]]:
    """The places of the questions that are trained on, for validation, and for the test, by marks and splits."""
    sets: dict[str, dict[bytes, int]] = {split: {} for split in SPLITS}
    last: dict[bytes, int] = {}
    for number, (mark, split) in enumerate(marks):
        sets[split].setdefault(mark, number)
        last[mark] = number
    test, validation = sets["test"], _without(sets["validation"], sets["test"])
    free = _without(sets[""], test, validation, sets["train"])
    ranked = heapq.nsmallest(min(len(free) // SHARE, 2 * SPLIT_QUESTIONS), free.items())
    for filled, chosen in ((validation, ranked[::2]), (test, ranked[1::2])):
        if not filled:
            filled |= dict(chosen)
    # In the order of marks each prefix of a held-out set is a sample.
    held = ([number for _, number in sorted(part.items())] for part in (validation, test))
    return (list(_without(last, test, validation).values()), *held)  # type: ignore[return-value] # a pair of lists


def mark_of(question: str) -> bytes:
    """What decides whether a question is held out: 32 bytes of its text."""
    return hashlib.sha256(msgpack.packb(["sapo-edge split", question])).digest()


def place(position: int, count: int, offset: int, step: int) -> int:
    """The place of a position in an order of `count` questions, in which each occurs once."""
    step %= count
    while math.gcd(step, count) != 1:
        step += 1
    return (offset + step * position) % count


def _without(questions: dict[bytes, int], *others: dict[bytes, int]) -> dict[bytes, int]:
    return {mark: number for mark, number in questions.items() if not any(mark in other for other in others)}
