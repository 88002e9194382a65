"""A head start: supervised updates on the right answers of training questions, before the first round.

Reinforcement learning teaches where some answers to a question are right and others wrong. A model that is seldom right
learns sooner from right answers, where they are known. The updates minimise their cross-entropy with the learner of the
rounds: a known answer with advantage 1 has exactly that gradient. Nothing is learned from a held-out question.

Where only a verifier exists, it takes the right ones among sampled answers, own and others' (rejection sampling: STaR,
2203.14465). Others' text then counts as in the rounds: once, for half of an update at most, and less where the policy
could not have written it (`policy.ExternalRule`).

Each update also has one question of another kind, with what the base model itself answers to it: without, a model that
has learned to add has forgotten how to tell of the sea (pseudorehearsal: Robins, Connection Science 1995). And one of
its own questions is asked without system text and examples: without, the model learns to answer whoever simply asks as
it did before, and sums that it knew are wrong then.

By default the head start goes on while validation accuracy rises. It is a phase of its own: it is validated, saved and
reported at growing distances, and continues after a restart.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from sapo_edge.events import WRONG, count_right
from sapo_edge.policy import CallHandle, Policy, Prompt, TrainingAnswer, TrainingGroup, UpdateSettings
from sapo_edge.rollout import ScoredRollout, Task
from sapo_edge.tasks.source import TaskSource, derive_seed

RATE = 5.0
"""First learning rate, as a multiple of that of the rounds: right answers are a steadier signal than rewards. Twice as
much is no better on `home`, and much worse on `starter`, where the model knows something that it then forgets ..."""
CUT = 0.7
"""... and its factor at each validation that is no better than one before, once something is learned, down to ..."""
LEAST_RATE = 1.0
"""... this multiple."""
AVERAGING = 4.0
"""At a validation the policy goes on from the average of its weights since the one before, in which late ones count
most (polynomial decay, Shamir and Zhang, arXiv 1212.1824; this is its eta + 1). A high rate does no harm then."""
FIRST = 20
"""Updates before the first validation, which shows within a minute or two that something is learned; a head start that
is asked to stop is validated once more if it made as many since the last time."""
GROWTH = 1.5
"""From one validation to the next, the updates grow by this factor ..."""
MAX_SECONDS = 240.0
"""... but they are this far apart at most, or ..."""
VALIDATIONS = 4.0
"""... so many times what a validation takes: on a slow machine it would take half of all time."""
WAIT = 150
"""It ends if validation did not rise in as many updates, and in half of all: to end too early costs more than to learn
on. With 60, one of three runs of `starter` ended after 40 updates, at 0.51, where the others rose to 0.69 ..."""
WAIT_AGAIN = 60
"""... but in so many where each question was learned from more than twice: a few questions have no more to teach."""
VAIN = "head_start_vain"
"""The journal's counter of updates since its best."""
ENOUGH = 0.98
"""Share of validation questions answered right with which it ends."""
TRIES = 8
"""Where no right answers are known: most batches, each of as many answers as a round has, in which it looks for ..."""
FEWEST = 8
"""... so many questions with a right one. Fewer are too little to learn from."""
EVERY = 4
"""Updates on answers that were found, from one further batch to the next: a better policy finds more."""
MOST_FOUND = 1024
"""Most questions with an answer that was found: the newest."""
REHEARSED_TOKENS = 48
"""Most tokens of an answer that is rehearsed, where the run's answers may be as long."""
REHEARSED_AT_ONCE = 8
"""Answers to rehearse that are sampled at once, when the first of them is due."""

Sampler = Callable[[int, int, CallHandle], tuple[Sequence[ScoredRollout], Sequence[ScoredRollout], int]]
"""(seed of a task sequence, cursor in it, handle) -> scored answers to training questions: own ones, others' that were
verified; and the next cursor."""
Draw = Callable[[int, int, int], tuple[tuple[Task, ...], int]]
"""(seed of a task sequence, cursor in it, count) -> training questions, and the next cursor."""


@dataclass(frozen=True, slots=True)
class HeadStartState:
    """How far a head start is; JSON values.

    Attributes:
        cursor: position in its task sequence.
        best: right answers to the validation questions at its best.
        best_updates: updates made when it was at its best.
        answers: marks of the validation questions then, as in `events.HeldOut`; "" before it was validated.
        vain: updates since its best that earlier starts of the program made, and this one repeats.
        rate: of learning, as a multiple of that of the rounds.
    """

    updates: int = 0
    cursor: int = 0
    best: int = 0
    best_updates: int = 0
    over: bool = False
    vain: int = 0
    answers: str = ""
    rate: float = RATE

    def judged(self, answers: str, limit: int | None, wait: int = WAIT) -> HeadStartState:
        """The state after a validation.

        `limit` is what the owner asked for; if None, validation decides: it ends after `wait` updates without a rise.
        """
        state, questions = self, len(answers)
        right = count_right(answers)
        if right > self.best or (limit is not None and right == self.best):
            state = replace(self, best=right, best_updates=self.updates, vain=0, answers=answers)
        elif self.best_updates:
            state = replace(self, rate=max(LEAST_RATE, CUT * self.rate))
        if limit is not None:
            return replace(state, over=self.updates >= limit)
        stalled = self.updates - state.best_updates + state.vain
        return replace(state, over=right >= ENOUGH * questions or stalled >= max(wait, self.updates / 2))

    def next_updates(self, limit: int | None, seconds: float, validation: float) -> int:
        """Updates before the next validation, by the seconds of one update, 0 if not known yet, and of the last one.

        So the first one after a restart comes soon: many updates would be lost with a second stop.
        """
        count = FIRST
        if seconds:
            count = max(FIRST, math.ceil(self.updates * (GROWTH - 1)))
            count = min(count, max(1, int(max(MAX_SECONDS, VALIDATIONS * validation) / seconds)))
        return count if limit is None else max(0, min(count, limit - self.updates))


def known_answer(source: TaskSource, policy: Policy, task: Task, max_tokens: int) -> str | None:
    """The right answer to a task; None if none is known, or it is too long. `max_tokens`: 0 sets no limit."""
    text = source.right_answer(task)
    # An answer needs one more token to end.
    is_long = text is not None and max_tokens > 0 and len(policy.encode(text)) >= max_tokens
    return None if is_long else text


class HeadStart:
    """Makes the updates.

    Args:
        seed: of the node; the questions are drawn in another order than those of its rounds.
        sample: gives answers where the right ones are not known.
        draw: gives the questions; those of the source unless it is given.
        rehearse: questions of other kinds, to which the base's answers are learned, too; if there are any, one question
            of each update is asked plainly.

    Attributes:
        seconds: of an update, on average; 0 before the first.
        learned: different questions that were learned from, since the program started.
        found, others: question -> the newest right answer to it, those to be learned next first: own ones, and others'
            that were not learned from; empty where right answers are known.
    """

    def __init__(
        self, policy: Policy, source: TaskSource, seed: int, batch: int, settings: UpdateSettings, sample: Sampler,
        draw: Draw | None = None, rehearse: Sequence[Prompt] = (),
    ) -> None:  # fmt: skip
        self.seconds = 0.0
        self._asked = 0
        self.learned: set[str] = set()
        self.found: OrderedDict[str, TrainingGroup] = OrderedDict()
        self.others: OrderedDict[str, TrainingGroup] = OrderedDict()
        self._policy = policy
        self._source = source
        self._seed = derive_seed("head start", seed)
        self._batch = batch
        self._sample = sample
        self._draw = draw or source.training_tasks
        self._rehearse = rehearse
        self._rehearsed: dict[int, TrainingGroup] = {}
        self._settings = replace(settings, decay_after=0)

    @cached_property
    def knows_answers(self) -> bool:
        """Whether right answers to the first questions are known."""
        tasks, _ = self._draw(self._seed, 0, self._batch)
        return any(self._group(task) is not None for task in tasks)

    def search(
        self, state: HeadStartState, handle: Callable[[], CallHandle], goes_on: Callable[[int], bool]
    ) -> HeadStartState:
        """Sample answers until those to `FEWEST` questions are right, at most `TRIES` batches while it `goes_on`."""
        for tried in range(TRIES):
            if self.answered >= FEWEST or not goes_on(tried):
                break
            state = self._find(state, handle())
        return state

    @property
    def wait(self) -> int:
        """Updates without a rise after which it ends."""
        return WAIT if self._asked <= 2 * len(self.learned) else WAIT_AGAIN

    @property
    def answered(self) -> int:
        """Number of questions to which a right answer was found."""
        return len(self.found.keys() | self.others.keys())

    def advance(
        self, state: HeadStartState, updates: int, handle: Callable[[], CallHandle], goes_on: Callable[[int], bool]
    ) -> HeadStartState:
        """Make so many updates, each if `goes_on`, which is given the number of those made.

        Raises:
            Cancelled: between the groups of an update, which is then undone.
        """
        settings = replace(self._settings, learning_rate=state.rate * self._settings.learning_rate)
        spent, made, average = 0.0, 0, self._policy.weights()
        while made < updates and goes_on(made):
            begin, watch = time.monotonic(), handle()
            if self.knows_answers:
                tasks, cursor = self._draw(self._seed, state.cursor, self._batch)
                state = replace(state, cursor=cursor)
                groups = {task.question: group for task in tasks if (group := self._group(task)) is not None}
            else:
                if (state.updates + made) % EVERY == EVERY - 1:
                    state = self._find(state, watch)
                groups = self._next_found()
            self._policy.update(self._with_rehearsal(groups, state.updates + made, watch), settings, watch)
            spent += time.monotonic() - begin - watch.paused_seconds
            self.learned.update(groups)
            self._asked += len(groups)
            made += 1
            for name, array in self._policy.weights().items():
                average[name] += AVERAGING / (made - 1 + AVERAGING) * (array - average[name])
        if made:
            self._policy.set_weights(average)
            self.seconds = spent / made
        return replace(state, updates=state.updates + made)

    def _with_rehearsal(
        self, groups: Mapping[str, TrainingGroup], update: int, handle: CallHandle
    ) -> Sequence[TrainingGroup]:
        """The groups of an update, one asked plainly, and what is rehearsed in it: the question whose turn it is."""
        asked = list(groups.values())
        if not asked or not self._rehearse:
            return asked
        # Beside what is rehearsed, whose prompt begins as its own: packs keep the order.
        plain = asked.pop(update % len(asked))
        asked.append(replace(plain, prompt=plain.prompt[-1:]))
        turn = update % len(self._rehearse)
        if turn not in self._rehearsed:
            first = turn - turn % REHEARSED_AT_ONCE
            prompts = self._rehearse[first : first + REHEARSED_AT_ONCE]
            most = min(REHEARSED_TOKENS, self._settings.max_tokens or REHEARSED_TOKENS)
            sampled = self._policy.generate(prompts, 1, most, 0.0, 0, handle, use_adapter=False, stop_text="")
            for number, (prompt, (sample,)) in enumerate(zip(prompts, sampled, strict=True), start=first):
                answer = TrainingAnswer(sample.text, sample.ended, 1.0, sample.token_ids, known=True)
                self._rehearsed[number] = TrainingGroup(prompt, (answer,))
        return (*asked, self._rehearsed[turn])

    def _find(self, state: HeadStartState, handle: CallHandle) -> HeadStartState:
        """Sample a batch of answers, and keep the first right one to each question."""
        own, others, cursor = self._sample(self._seed, state.cursor, handle)
        for found, rollouts in ((self.found, own), (self.others, others)):
            for scored in rollouts:
                group = self._first_right(scored)
                if group is not None:
                    found[scored.rollout.question] = group
                    found.move_to_end(scored.rollout.question, last=False)
            while len(found) > MOST_FOUND:
                found.popitem()
        return replace(state, cursor=cursor)

    def _next_found(self) -> dict[str, TrainingGroup]:
        """The questions of an update, with answers that were found."""
        half = min(len(self.others), self._batch // 2)
        groups = dict(self.others.popitem(last=False) for _ in range(half))
        for question in list(self.found)[: self._batch - half]:
            self.found.move_to_end(question)
            groups[question] = self.found[question]
        return groups

    def _first_right(self, scored: ScoredRollout) -> TrainingGroup | None:
        rollout, task = scored.rollout, self._source.regenerate(scored.rollout.ref)
        for answer, reward in zip(rollout.answers, scored.rewards, strict=True):
            if reward and self._source.judge(task, answer.text) != WRONG:
                right = TrainingAnswer(answer.text, answer.ended, 1.0, answer.token_ids)
                return TrainingGroup(self._source.manifest.prompt_for(rollout.question), (right,), external=True)
        return None

    def _group(self, task: Task) -> TrainingGroup | None:
        """A question with its right answer; None if none is known, or one of both is too long."""
        text = known_answer(self._source, self._policy, task, self._settings.max_tokens)
        prompt = self._source.manifest.prompt_for(task.question)
        if text is None or self._policy.room(prompt) < self._settings.max_tokens:
            return None
        return TrainingGroup(prompt, (TrainingAnswer(text, True, 1.0, known=True),))
