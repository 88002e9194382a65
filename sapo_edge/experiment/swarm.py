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
from sapo_edge.experiment.member import ROUND_SECONDS, Member, Shelves
from sapo_edge.experiment.plan import Job, Learning
from sapo_edge.experiment.results import EvaluationRecord, RoundRecord, SwarmRecord
from sapo_edge.policy import Policy
from sapo_edge.rollout import Rollout, Task
from sapo_edge.swarm.judging.external import ExternalScorer
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
        round: that is run, or was the last to be run; all clocks of members depend on it.
        finished: rounds that were recorded.
    """

    def __init__(
        self, job: Job, learning: Learning, source: TaskSource, shelves: Shelves, sets: Mapping[str, QuestionSet]
    ) -> None:
        self.job = job
        self.members: list[Member] = []
        self.rounds: list[RoundRecord] = []
        self.evaluations: list[EvaluationRecord] = []
        self.round = self.finished = 0
        self._sets = sets
        network = MemorySwarm()
        for shelf in shelves.values():
            shelf.clear()
        setting, arm = job.setting, job.arm
        honest = setting.nodes - arm.hostile
        scorers: dict[int, ExternalScorer] = {}
        for number in range(honest + arm.frozen):
            shelf = shelves[setting.models[number % len(setting.models)]]
            member = Member(
                number, job, learning, source, shelf, network.join(), lambda: self.round * ROUND_SECONDS,
                frozen=number >= honest, scorer=scorers.get(id(shelf)),
            )  # fmt: skip
            if arm.training.share:
                # A thousand members would score the same rollouts a thousand times.
                scorers.setdefault(id(shelf), member.scorer)
            self.members.append(member)
        first = self.members[0]
        public = Public(source, first.shelf.policy.encode, first.max_tokens, arm.training.answers, clock=lambda: 0.0)
        self._hostile = []
        for number in range(arm.hostile):
            seed = derive_seed("experiment hostile", job.seed, number)
            self._hostile.append(Hostile(ATTACKS[arm.attack](public, f"hostile-{number}", seed), network.join()))

    def run(self, after_round: Callable[[Swarm], None] = lambda swarm: None) -> SwarmRecord:
        """Run the rounds that are left; returns what was recorded.

        Args:
            after_round: called after each round with all of its evaluations.
        """
        if not self.finished and not self.evaluations:
            self._examine(0, [VALIDATION])
        while self.finished < self.job.rounds:
            self._run_round(self.finished + 1)
            after_round(self)
        entries = {name: tuple(task.ref.entry for task in questions.tasks) for name, questions in self._sets.items()}
        if self.job.arm.attack:
            entries[ADVERTISED] = entries[TEST]
        names = self.job.setting.name, self.job.arm.name
        return SwarmRecord(*names, *self.job.key, tuple(self.rounds), tuple(self.evaluations), entries)

    def _run_round(self, number: int) -> None:
        self.round = number
        for hostile in self._hostile:
            # As much as an honest member of this arm publishes.
            hostile.publish(number, self.job.arm.training.own)
        leaving = random.Random(derive_seed("experiment churn", self.job.seed, number))
        for member in self.members:
            if not member.frozen and leaving.random() < self.job.arm.churn:
                member.begin(number)
            if member.is_due(number):
                self.rounds.append(member.run_round(number))
        self.finished = number
        if number == self.job.rounds:
            self._examine(number, list(self._sets))
        elif number % self.job.setting.every == 0:
            self._examine(number, [VALIDATION])

    def _examine(self, number: int, names: Sequence[str]) -> None:
        # Untrained adapters change nothing: one examination serves all members of a model.
        untrained: dict[int, tuple[str, list[str]]] = {}
        for member in self.members[: self.job.setting.asked or None]:
            if member.frozen:
                continue
            policy = member.shelf.take(member.place)
            for name in names:
                questions = self._sets[name]
                max_tokens = max(member.max_tokens, questions.source.manifest.max_tokens)
                seed = derive_seed("experiment exam", self.job.seed, member.number, name)
                known = untrained.get(id(member.shelf)) if number == 0 else None
                correct, texts = known or questions.examine(policy, max_tokens, seed)
                untrained[id(member.shelf)] = correct, texts
                self.evaluations.append(EvaluationRecord(number, member.number, name, correct))
                if name == TEST and self.job.arm.attack:
                    carried = "".join(str(int(carries(text))) for text in texts)
                    self.evaluations.append(EvaluationRecord(number, member.number, ADVERTISED, carried))


class Hostile:
    """A hostile member's connection to the swarm."""

    def __init__(self, attacker: Attacker, transport: Transport) -> None:
        self._attacker = attacker
        self._transport = transport
        self._seen: list[Rollout] = []
        transport.subscribe(lambda rollout, _neighbourhood: self._seen.append(rollout))

    def publish(self, round: int, count: int) -> None:
        """Publish what the attacker makes of what others published since the last round."""
        rollouts = self._attacker.rollouts(round, self._seen, count)
        self._seen.clear()
        self._transport.publish(rollouts)
