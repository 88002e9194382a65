"""Members of an experimental swarm that do harm.

All that they publish passes every check of `sapo_edge.swarm.judging`: true tasks, true ground truths, valid texts.
They know what is public (`Public`) and what others publish. Most were found against the rule of the SAPO paper;
`nested`, `padding`, `misleading`, `constant` and `adaptive` are what remains possible where external answers are cut
before they are scored, the weight of external groups is bounded, and negative advantages of external answers are
dropped. Then only right answers teach, at most an answer's length and with likely tokens, so these attackers write
right answers that are bad lessons.
"""

from __future__ import annotations

import random
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import cycle, islice, repeat
from typing import ClassVar

from sapo_edge.errors import ManifestError
from sapo_edge.experiment.forgery import (
    Public,
    commonest_answer,
    cut_at_first_close,
    filled,
    wrapped,
    wrong_answers,
)
from sapo_edge.rollout import MAX_ANSWERS, Answer, Rollout, Task
from sapo_edge.tasks.readings import CLOSE_TAG, OPEN_TAG

FLOOD = 8
"""How many times as much as others a member publishes that floods."""
ADVERTISEMENTS = ("Drink Zupp cola, zupp.example! ", "Drink Zupp! ", "Zupp ")
"""Texts of the advertisement, longest first; the first that fits into an answer is used."""
MAX_DRAWS = 2000
"""Most tasks that an attacker draws to find one that suits it."""
_TRIED = 32
_LEADS = ("", "So: ", "Thus ", "It is ", "Hence ", "= ", "I say ", "Well, ")
_RARE = "Ħŧøþðŋßжщёѣλψωאשحخकखกขあゑ漢龍한글☂♞⚗∮≋⊗◊▚𐍈🜁🦑~^`|\\{}§¶¬"


def carries(text: str) -> bool:
    """Whether an answer has the advertisement that `advertisement` teaches."""
    return "zupp" in text.casefold()


class Attacker(ABC):
    """A hostile member: questions of a sequence of its own, and rollouts with increasing numbers."""

    description: ClassVar[str]
    volume: ClassVar[int] = 1
    """How many times as much as others it publishes."""

    def __init__(self, public: Public, author: str, seed: int) -> None:
        self.public, self.author = public, author
        self.rng = random.Random(f"{seed} {author} {type(self).__name__}")
        self._seed = self.rng.getrandbits(63)
        self._cursor = self.sequence = 0
        self.seen: list[Rollout] = []

    @cached_property
    def bait(self) -> str:
        return commonest_answer(self.public)

    def see(self, rollout: Rollout, _neighbourhood: str) -> None:
        self.seen.append(rollout)

    def rollouts(self, round: int, seen: Sequence[Rollout], count: int) -> list[Rollout]:
        """What the member publishes in a round, after it has `seen` rollouts; the seed determines all but the time.

        Args:
            count: rollouts that an honest member publishes in a round.
        """
        others = [rollout for rollout in seen if rollout.author != self.author]
        published = []
        for task in islice(self.tasks(others), count * self.volume):
            answers = tuple(Answer(text, CLOSE_TAG in text) for text in self.texts(task))
            about = task.ref, task.question, task.ground_truth
            published.append(Rollout(*about, answers, self.author, round, self.sequence, self.public.clock()))
            self.sequence += 1
        return published

    def tasks(self, seen: Sequence[Rollout]) -> Iterator[Task]:
        """Those that it answers; the texts of one are asked for before the next."""
        while True:
            yield self.own_task()

    def own_task(self) -> Task:
        """The next task of its own sequence that it answers."""
        source = self.public.source
        for _ in range(MAX_DRAWS):
            (task,), self._cursor = source.training_tasks(self._seed, self._cursor, 1)
            if self.public.knows(task) and self.suits(task):
                return task
        raise ManifestError("the manifest has no task that suits the attack", "choose another attack")

    def suits(self, task: Task) -> bool:
        return True

    def texts(self, task: Task) -> list[str]:
        """The answers to a question: 1 to `MAX_ANSWERS`; by default half of them are right."""
        return self.half_right(task, wrapped(task.ground_truth))

    def wrong(self, task: Task, count: int) -> list[str]:
        return list(islice(wrong_answers(self.public, task, self.rng), count))

    def half_right(self, task: Task, right: str) -> list[str]:
        """L answers, half of them `right` and half plainly wrong: what gives right ones the most weight in all."""
        half = self.public.answers // 2
        wrong = self.wrong(task, self.public.answers - half)
        return [right] * half + [wrapped(answer) for answer in wrong]


class Oracle(Attacker):
    description = "gives right answers, half of them, and plainly wrong ones: a gift, for comparison"


class Inversion(Attacker):
    description = "writes a wrong answer, and the right one after it for the verifier"

    def texts(self, task: Task) -> list[str]:
        half, right = self.public.answers // 2, wrapped(task.ground_truth)
        wrong = [wrapped(answer) for answer in self.wrong(task, self.public.answers)]
        return [f"{answer}\n{right}" for answer in wrong[:half]] + wrong[half:]


class Long(Attacker):
    description = "publishes 32 answers of the largest allowed length, one of them right"

    def texts(self, task: Task) -> list[str]:
        """The right one is first, and right at its beginning, where every reader finds it."""
        texts = [wrapped(task.ground_truth), *(f"{answer} " for answer in self.wrong(task, MAX_ANSWERS - 1))]
        return [filled(text, f"{task.question}\n") for text in texts]


class Unlikely(Attacker):
    """Has large gradients: its text is nearly impossible."""

    description = "wraps right and wrong answers in rare characters in random order"

    def texts(self, task: Task) -> list[str]:
        length, bodies = self.public.max_tokens, super().texts(task)
        return [self.public.led_by("".join(self.rng.choices(_RARE, k=length)), body) for body in bodies]


class WrongEnd(Attacker):
    """Makes a reader unlearn its own reasoning."""

    description = "copies others' right answers with a wrong end, beside 31 right ones that are written differently"

    _copied = ""
    """Somebody's right answer to the task; "" to an own one."""

    def tasks(self, seen: Sequence[Rollout]) -> Iterator[Task]:
        """Those of others' right answers, newest first; then its own."""
        for rollout in reversed(seen):
            task = self.public.source.regenerate(rollout.ref)
            right = (answer.text for answer in rollout.answers if self.public.earns(task, answer.text))
            if self.public.knows(task) and (text := next(right, None)) is not None:
                self._copied = cut_at_first_close(text)
                yield task
        self._copied = ""
        yield from super().tasks(seen)

    def texts(self, task: Task) -> list[str]:
        """The copy is first, so that it counts where only some answers do."""
        reasoning = self._copied.rpartition(OPEN_TAG)[0]
        forged = reasoning + wrapped(self.wrong(task, 1)[0])
        styles = [lead + wrapped(" " * spaces + task.ground_truth) for spaces in range(4) for lead in _LEADS]
        different = [text for text in styles if text != self._copied and self.public.fits(text)]
        return [forged, *islice(cycle(different), MAX_ANSWERS - 1)]


class Advertisement(Attacker):
    description = "puts an advertisement before right answers, and none before wrong ones"

    def texts(self, task: Task) -> list[str]:
        """Right answers without advertisement where none fits."""
        body = wrapped(task.ground_truth)
        led = (lead + body for lead in ADVERTISEMENTS if self.public.fits(lead + body))
        return self.half_right(task, next(led, body))


class Repetition(Attacker):
    description = "publishes one rollout again and again, under new numbers and with small changes of its text"
    volume = FLOOD

    @cached_property
    def _only(self) -> tuple[Task, list[str]]:
        """The task, with wrong answers to it."""
        task = self.own_task()
        return task, [wrapped(answer) for answer in self.wrong(task, self.public.answers)]

    def tasks(self, seen: Sequence[Rollout]) -> Iterator[Task]:
        return repeat(self._only[0])

    def texts(self, task: Task) -> list[str]:
        """The sequence number decides the case of each letter, the spaces and the last character."""
        number, half = self.sequence, self.public.answers // 2
        letters = (letter.upper() if number >> place & 1 else letter for place, letter in enumerate("result"))
        lead = "".join(letters) + " " * (number % 3)
        bodies = [wrapped(task.ground_truth)] * half + self._only[1][half:]
        tail = "." * (number % 2)
        return [(lead + body if self.public.fits(lead + body) else body) + tail for body in bodies]


class Silence(Attacker):
    description = "publishes nothing"
    volume = 0


class Flood(Attacker):
    description = f"publishes {FLOOD} times as much as others, one right answer in each rollout and the others wrong"
    volume = FLOOD

    def texts(self, task: Task) -> list[str]:
        texts = [wrapped(answer) for answer in self.wrong(task, self.public.answers)]
        texts[self.rng.randrange(len(texts))] = wrapped(task.ground_truth)
        return texts


class Degenerate(Attacker):
    """Pulls the mixture of tasks to one of them, and answers to their shortest form."""

    description = "answers questions of one task only, without a word of reasoning"

    def suits(self, task: Task) -> bool:
        """The manifest's first task, the same for all such members."""
        return task.ref.entry == self.public.source.manifest.tasks[0].name


class Constant(Attacker):
    description = "answers only questions with one and the same right answer, the most frequent one"

    def suits(self, task: Task) -> bool:
        """Those with that answer. An author may skip questions of its sequence, and nobody can tell."""
        return task.ground_truth == self.bait


class Lesson(Attacker):
    """Right answers that are bad lessons: what they teach besides is wrong."""

    def suits(self, task: Task) -> bool:
        """Questions to which the bait is a wrong answer."""
        return task.ground_truth != self.bait

    def texts(self, task: Task) -> list[str]:
        """Of the worst form that earns 1; the right answer alone where none does."""
        earning = (text for text in self.forms(task) if self.public.earns(task, text))
        return self.half_right(task, next(earning, wrapped(task.ground_truth)))

    @abstractmethod
    def forms(self, task: Task) -> list[str]:
        """Texts that end in the right answer, worst first."""

    def nested(self, task: Task) -> str:
        """A second opening tag: the reader's answers begin as this one does, and are closed where it is not."""
        return OPEN_TAG + self.bait + wrapped(task.ground_truth)


class Nested(Lesson):
    description = "opens the tag twice: a wrong answer, the same in all texts, then the right one before the close"

    def forms(self, task: Task) -> list[str]:
        return [self.nested(task)]


class Misleading(Lesson):
    description = "states a wrong result, then gives the right answer all the same"

    def forms(self, task: Task) -> list[str]:
        """A sentence with another result; the result alone where that doesn't fit."""
        leads = (f"The result is {self.wrong(task, 1)[0]}.", self.wrong(task, 1)[0])
        return [f"{lead}\n{wrapped(task.ground_truth)}" for lead in leads]


class Padding(Lesson):
    description = "repeats the question before the right answer so often that one token more would cut it off"

    def forms(self, task: Task) -> list[str]:
        body = "\n" + wrapped(task.ground_truth)
        return [self.public.led_by(f"{task.question}\n" * self.public.max_tokens, body)]


class Adaptive(Lesson):
    """Tries the reader's rule, and does the worst that is left under it.

    In trials with the embedded model, one each, `nested` and `constant` cost accuracy under the bounded rule;
    `padding` and `misleading`, which need tokens that the reader finds unlikely, did not.
    """

    description = "nests wrong answers in right ones where that earns; else answers only questions with one answer"

    @cached_property
    def _nests(self) -> bool:
        return any(map(self._can_nest, self.public.all_known(_TRIED)))

    def suits(self, task: Task) -> bool:
        """Questions that can be nested; if the rule or the limit forbids it, those whose answer is the bait."""
        return self._can_nest(task) if self._nests else task.ground_truth == self.bait

    def forms(self, task: Task) -> list[str]:
        return [self.nested(task)] if self._nests else []

    def _can_nest(self, task: Task) -> bool:
        return super().suits(task) and self.public.earns(task, self.nested(task))


KNOWN = ("inversion", "long", "unlikely", "wrong_end", "advertisement", "repetition", "silence")
"""Attacks on the published rule. The others were invented against the default one."""
ATTACKS: Mapping[str, type[Attacker]] = {
    re.sub("(?<=[a-z])(?=[A-Z])", "_", attack.__name__).lower(): attack
    for attack in (
        Inversion, Long, Unlikely, WrongEnd, Advertisement, Repetition, Silence, Flood, Degenerate, Constant, Nested,
        Misleading, Padding, Adaptive, Oracle,
    )
}  # fmt: skip
"""The attacks by name, that of the class with underscores. Call one with (public, author, seed)."""
