"""What attackers build their rollouts from: questions with right and wrong answers, and texts of a chosen length."""

from __future__ import annotations

import random
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count, cycle, islice

from sapo_edge.rollout import MAX_ANSWER_BYTES, Task
from sapo_edge.tasks.readings import CLOSE_TAG, OPEN_TAG
from sapo_edge.tasks.source import TaskSource

_CANDIDATES = 48
_SAMPLE = 400


@dataclass(frozen=True, slots=True)
class Public:
    """What everybody in a swarm knows, its enemies too.

    Attributes:
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

    def knows(self, task: Task) -> bool:
        """Whether a task's ground truth is a right answer; it is none where the verifier needs none."""
        return self.earns(task, wrapped(task.ground_truth))

    def all_known(self, count: int) -> list[Task]:
        """Of the first tasks of the sequence that every attacker looks at, those that can be answered."""
        return list(filter(self.knows, self.source.training_tasks(0, 0, count)[0]))

    def led_by(self, material: str, body: str) -> str:
        """`body` behind the longest beginning of `material` with which it still fits."""

        def tokens(characters: int) -> int:
            return len(self.encode(material[:characters] + body))

        characters = bisect_right(range(len(material) + 1), self.max_tokens, key=tokens) - 1
        # Token counts need not rise with every character, so the search may stop a little too late.
        while characters > 0 and not self.fits(material[:characters] + body):
            characters -= 1
        return material[: max(characters, 0)] + body


def wrong_answers(public: Public, task: Task, rng: random.Random) -> Iterator[str]:
    """Endless wrong answers that look like the right one; they repeat where few are known."""
    right = task.ground_truth
    is_integer = right.isascii() and right.removeprefix("-").isdecimal() and len(right) < 19
    candidates = _integers(int(right), rng) if is_integer else _texts(right, rng)
    texts = dict.fromkeys(islice(candidates, _CANDIDATES))
    wrong = [text for text in texts if public.source.score(task, wrapped(text)) < 1.0]
    return cycle(wrong or ["?"])


def commonest_answer(public: Public) -> str:
    """The most frequent right answer to the manifest's tasks, the same for every attacker."""
    counts = Counter(task.ground_truth for task in public.all_known(_SAMPLE))
    return min(counts, key=lambda right: (-counts[right], right))


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


def _integers(right: int, rng: random.Random) -> Iterator[str]:
    for reach in count(1):
        yield str(right + rng.choice((-1, 1)) * rng.randint(1, reach))


def _texts(right: str, rng: random.Random) -> Iterator[str]:
    while True:
        characters = list(right) or ["?"]
        position = rng.randrange(len(characters))
        characters[position] = rng.choice(["", characters[position] * 2, rng.choice("0123456789abcdefgh")])
        yield "".join(characters)
