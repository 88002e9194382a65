"""One swarm of an experiment, in one process: its members take turns, round after round, and are examined."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from sapo_edge.evaluate import evaluate
from sapo_edge.events import FORMED
from sapo_edge.experiment.forgery import Public
from sapo_edge.experiment.hostile import ATTACKS, Attacker, carries
from sapo_edge.experiment.measures import TEST, VALIDATION
from sapo_edge.experiment.member import Clock, Member, Scorer, Shelves
from sapo_edge.experiment.plan import Arm, Learning, Setting, swarm_digest
from sapo_edge.experiment.results import EvaluationRecord, RoundRecord, SwarmRecord
from sapo_edge.policy import Policy
from sapo_edge.rollout import Rollout, Task
from sapo_edge.swarm.memory import MemorySwarm
from sapo_edge.tasks.source import TaskSource, derive_seed
from sapo_edge.transport import Transport

SAMPLES = 8
"""Answers to each question of a set whose name ends in "@8"."""
ADVERTISED = "advertised"
"""Of the test questions: which answers carry an attacker's advertisement."""


@dataclass(frozen=True, slots=True)
class QuestionSet:
    """Questions to examine members on.

    Attributes:
        samples: answers to each; 1: greedy.
    """

    source: TaskSource
    tasks: tuple[Task, ...]
    samples: int = 1

    def examine(self, policy: Policy, max_tokens: int, seed: int) -> tuple[str, list[str]]:
        """Answer every question.

        Returns:
            One character a question: the number of right answers; and the texts of the greedy ones.
        """
        prompt_for, score = self.source.manifest.prompt_for, self.source.score
        if self.samples == 1:
            # The tables count what is right in the form asked for, as the rewards of their manifests do.
            evaluation = evaluate(policy, self.tasks, prompt_for, self.source.judge, max_tokens)
            return "".join(str(int(mark == FORMED)) for mark in evaluation.marks), list(evaluation.texts)
        prompts = [prompt_for(task.question) for task in self.tasks]
        groups = policy.generate(prompts, self.samples, max_tokens, 1.0, seed)
        counts = [
            sum(score(task, sample.text) == 1.0 for sample in group)
            for task, group in zip(self.tasks, groups, strict=True)
        ]
        return "".join(map(str, counts)), []


class Swarm:
    """The members of one swarm, and what they have done so far.

    Args:
        shelves: of the models; cleared.
        sets: questions by the set's name; "validation" is asked on the way, all others at the end.

    Attributes:
        members: honest ones first, then those that never learn.
    """

    def __init__(
        self,
        setting: Setting,
        arm: Arm,
        learning: Learning,
        seed: int,
        source: TaskSource,
        shelves: Shelves,
        sets: Mapping[str, QuestionSet],
    ) -> None:
        self.setting, self.arm, self.seed = setting, arm, seed
        self.members: list[Member] = []
        self.rounds: list[RoundRecord] = []
        self.evaluations: list[EvaluationRecord] = []
        self.finished = 0
        self._sets = sets
        self._clock = Clock()
        network = MemorySwarm()
        for shelf in shelves.values():
            shelf.clear()
        honest = setting.nodes - arm.hostile
        scorers: dict[int, Scorer] = {}
        for number in range(honest + arm.frozen):
            shelf = shelves[setting.models[number % len(setting.models)]]
            member = Member(
                number, setting, arm, learning, seed, source, shelf, network.join(), self._clock,
                frozen=number >= honest, scorer=scorers.get(id(shelf)),
            )  # fmt: skip
            if arm.training.share:
                # A thousand members would score the same rollouts a thousand times.
                scorers.setdefault(id(shelf), member.scorer)
            self.members.append(member)
        policy = self.members[0].shelf.policy
        max_tokens = self.members[0].max_tokens
        public = Public(source, policy.encode, max_tokens, arm.training.answers, clock=lambda: 0.0)
        self._hostile = [
            Hostile(
                ATTACKS[arm.attack](public, f"hostile-{number}", derive_seed("experiment hostile", seed, number)),
                network.join(),
                # As much as an honest member of this arm publishes.
                arm.training.own,
            )
            for number in range(arm.hostile)
        ]

    @property
    def last(self) -> int:
        return self.setting.rounds_of(self.arm)

    def run(self, after_round: Callable[[Swarm], None] = lambda swarm: None) -> SwarmRecord:
        """Run the rounds that are left; returns what was recorded.

        Args:
            after_round: called after each round with all of its evaluations.
        """
        if not self.finished and not self.evaluations:
            self._examine(0, [VALIDATION])
        while self.finished < self.last:
            self._run_round(self.finished + 1)
            after_round(self)
        entries = {name: tuple(task.ref.entry for task in questions.tasks) for name, questions in self._sets.items()}
        if self.arm.attack:
            entries[ADVERTISED] = entries[TEST]
        digest = swarm_digest(self.setting, self.arm)
        return SwarmRecord(
            self.setting.name, self.arm.name, digest, self.seed, tuple(self.rounds), tuple(self.evaluations), entries
        )

    def set_round(self, number: int) -> None:
        self._clock.round = number

    def _run_round(self, number: int) -> None:
        self.set_round(number)
        for hostile in self._hostile:
            hostile.publish(number)
        leaving = random.Random(derive_seed("experiment churn", self.seed, number))
        for member in self.members:
            if not member.frozen and leaving.random() < self.arm.churn:
                member.begin(number)
            if member.is_due(number):
                self.rounds.append(member.run_round(number))
        self.finished = number
        if number == self.last:
            self._examine(number, list(self._sets))
        elif number % self.setting.every == 0:
            self._examine(number, [VALIDATION])

    def _examine(self, number: int, names: Sequence[str]) -> None:
        # Untrained adapters change nothing: one examination serves all members of a model.
        untrained: dict[int, tuple[str, list[str]]] = {}
        for member in self.members[: self.setting.asked or None]:
            if member.frozen:
                continue
            policy = member.shelf.take(member.place)
            for name in names:
                questions = self._sets[name]
                max_tokens = max(member.max_tokens, questions.source.manifest.max_tokens)
                seed = derive_seed("experiment exam", self.seed, member.number, name)
                known = untrained.get(id(member.shelf)) if number == 0 else None
                correct, texts = known or questions.examine(policy, max_tokens, seed)
                untrained[id(member.shelf)] = correct, texts
                self.evaluations.append(EvaluationRecord(number, member.number, name, correct))
                if name == TEST and self.arm.attack:
                    carried = "".join(str(int(carries(text))) for text in texts)
                    self.evaluations.append(EvaluationRecord(number, member.number, ADVERTISED, carried))


class Hostile:
    """A hostile member's connection to the swarm.

    Args:
        count: rollouts that an honest member publishes in a round.
    """

    def __init__(self, attacker: Attacker, transport: Transport, count: int) -> None:
        self._attacker = attacker
        self._transport = transport
        self._count = count
        self._seen: list[Rollout] = []
        transport.subscribe(lambda rollout, _neighbourhood: self._seen.append(rollout))

    def publish(self, round: int) -> None:
        seen = list(self._seen)
        self._seen.clear()
        self._transport.publish(self._attacker.rollouts(round, seen, self._count))
