"""What attackers build their rollouts from: questions with right and wrong answers, and texts of a chosen length."""

from __future__ import annotations

import random
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count, cycle, islice

from sapo_edge.rollout import MAX_ANSWER_BYTES, Rollout, Task
from sapo_edge.tasks.answers import CLOSE_TAG, OPEN_TAG
from sapo_edge.tasks.source import TaskSource

_CANDIDATES = 48
_SAMPLE = 400


@dataclass(frozen=True, slots=True)
class Public:
    """What everybody in a swarm knows, its enemies too.

    Attributes:
        source: tasks, ground truths and verifiers of the manifest.
        encode: token ids of a text by the victims' tokenizer.
        answers: L, answers of an honest rollout.
        clock: Unix seconds, the time of a rollout.
    """

    source: TaskSource
    encode: Callable[[str], list[int]]
    max_tokens: int
    answers: int = 8
    clock: Callable[[], float] = time.time

    def fits(self, text: str) -> bool:
        """Whether a text is short enough that its reader keeps all of it."""
        return len(self.encode(text)) <= self.max_tokens and len(text.encode()) <= MAX_ANSWER_BYTES

    def earns(self, task: Task, text: str) -> bool:
        """Whether an answer earns 1 from readers who cut it before they score it."""
        return self.fits(text) and self.source.score(task, cut_at_first_close(text)) == 1.0

    def led_by(self, material: str, body: str) -> str:
        """`body` behind the longest beginning of `material` with which it still fits."""

        def tokens(characters: int) -> int:
            return len(self.encode(material[:characters] + body))

        characters = bisect_right(range(len(material) + 1), self.max_tokens, key=tokens) - 1
        # Token counts need not rise with every character, so the search may stop a little too late.
        while characters > 0 and not self.fits(material[:characters] + body):
            characters -= 1
        return material[: max(characters, 0)] + body


@dataclass(frozen=True, slots=True)
class Question:
    """A task that an attacker answers, with an answer that earns 1 and, if it copies somebody, that answer's text."""

    task: Task
    right: str
    copied: str = ""


def answered(public: Public, task: Task) -> Question | None:
    """A task with its right answer; None if its ground truth is not an answer, as where the verifier needs none."""
    return Question(task, task.ground_truth) if public.earns(task, wrapped(task.ground_truth)) else None


def copied(public: Public, rollout: Rollout) -> Question | None:
    """The question of another member's rollout, with the first of its answers that earns 1; None without one."""
    task = public.source.regenerate(rollout.ref)
    question = answered(public, task)
    if question is None:
        return None
    for answer in rollout.answers:
        if public.earns(task, answer.text):
            return Question(task, question.right, cut_at_first_close(answer.text))
    return None


def wrong_answers(public: Public, question: Question, rng: random.Random) -> Iterator[str]:
    """Endless wrong answers that look like the right one; they repeat where few are known."""
    candidates = _integers(int(question.right), rng) if _is_integer(question.right) else _texts(question.right, rng)
    wrong = [
        text
        for text in dict.fromkeys(islice(candidates, _CANDIDATES))
        if public.source.score(question.task, wrapped(text)) < 1.0
    ]
    return cycle(wrong or ["?"])


def common_answers(public: Public) -> list[str]:
    """The right answers of the manifest's tasks, most frequent first, the same for every attacker."""
    tasks, _ = public.source.training_tasks(0, 0, _SAMPLE)
    counts = Counter(question.right for task in tasks if (question := answered(public, task)) is not None)
    return sorted(counts, key=lambda right: (-counts[right], right))


def wrapped(answer: str) -> str:
    return f"{OPEN_TAG}{answer}{CLOSE_TAG}"


def cut_at_first_close(text: str) -> str:
    """A text up to the first closing tag, where an honest sampler stops."""
    before, tag, _ = text.partition(CLOSE_TAG)
    return before + tag


def filled(text: str, material: str) -> str:
    """A text of `MAX_ANSWER_BYTES`: repeated material behind it."""
    room = MAX_ANSWER_BYTES - len(text.encode())
    filler = (material * (room // len(material.encode()) + 1)).encode()[:room].decode(errors="ignore")
    # A character that was cut in the middle leaves up to three bytes.
    return text + filler + " " * (room - len(filler.encode()))


def _is_integer(text: str) -> bool:
    return text.removeprefix("-").isdecimal() and text.isascii() and len(text) < 19


def _integers(right: int, rng: random.Random) -> Iterator[str]:
    for reach in count(1):
        yield str(right + rng.choice((-1, 1)) * rng.randint(1, reach))


def _texts(right: str, rng: random.Random) -> Iterator[str]:
    while True:
        characters = list(right) or ["?"]
        position = rng.randrange(len(characters))
        characters[position] = rng.choice(["", characters[position] * 2, rng.choice("0123456789abcdefgh")])
        yield "".join(characters)
