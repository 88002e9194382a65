"""One swarm of an experiment, in one process: its members take turns, round after round, and are examined.

Its state is saved now and then, so that a kill costs the rounds since then. Each state is a directory that appears
under its name when it is complete; older ones are removed afterwards.
"""

from __future__ import annotations

import gc
import json
import os
import random
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from sapo_edge.errors import StateError
from sapo_edge.evaluate import evaluate
from sapo_edge.events import FORMED
from sapo_edge.experiment.forgery import Public
from sapo_edge.experiment.hostile import ATTACKS, carries
from sapo_edge.experiment.measures import TEST, VALIDATION
from sapo_edge.experiment.member import ROUND_SECONDS, Member, Shelves
from sapo_edge.experiment.plan import Job, Learning
from sapo_edge.experiment.results import EvaluationRecord, RoundRecord, SwarmRecord, decoder, reported
from sapo_edge.policy import Policy
from sapo_edge.rollout import Task
from sapo_edge.swarm.judging.external import ExternalScorer
from sapo_edge.swarm.memory import MemorySwarm
from sapo_edge.tasks.source import TaskSource, derive_seed

SAMPLES = 8
"""Answers to each question of a set whose name ends in "@8"."""
ADVERTISED = "advertised"
"""Of the test questions: which answers carry an attacker's advertisement."""
MANY = 64
"""Members above which Python must not look for garbage in all of their pools again: a third of a thousand's time."""
_STATE = "state.json"


@dataclass(frozen=True, slots=True)
class QuestionSet:
    """Questions to examine members on; `samples`: answers to each, 1: greedy."""

    source: TaskSource
    tasks: tuple[Task, ...]
    samples: int = 1

    def examine(self, policy: Policy, max_tokens: int, seed: int) -> tuple[str, list[str]]:
        """One character a question, its number of right answers; and the texts of the greedy ones."""
        prompt_for, score = self.source.manifest.prompt_for, self.source.score
        if self.samples == 1:
            # The tables count what is right in the form asked for, as the rewards of their manifests do.
            evaluation = evaluate(policy, self.tasks, prompt_for, self.source.judge, max_tokens)
            return "".join(str(int(mark == FORMED)) for mark in evaluation.marks), list(evaluation.texts)
        prompts = [prompt_for(task.question) for task in self.tasks]
        # One that is too long for the model counts as wrong, as above.
        asked = [index for index, prompt in enumerate(prompts) if policy.room(prompt) >= max_tokens]
        groups = policy.generate([prompts[index] for index in asked], self.samples, max_tokens, 1.0, seed)
        counts = [0] * len(prompts)
        for index, group in zip(asked, groups, strict=True):
            counts[index] = sum(score(self.tasks[index], sample.text) == 1.0 for sample in group)
        return "".join(map(str, counts)), []


class Swarm:
    """The members of one swarm, and what they have done so far.

    Args:
        shelves: of the models; cleared.
        sets: questions by the set's name; "validation" is asked on the way, all others at the end.

    Attributes:
        members: honest ones first, then those that never learn.
        round: that is run, or was the last to be run; all clocks of members depend on it.
    """

    def __init__(
        self, job: Job, learning: Learning, source: TaskSource, shelves: Shelves, sets: Mapping[str, QuestionSet]
    ) -> None:
        self.job = job
        self.members: list[Member] = []
        self.rounds: list[RoundRecord] = []
        self.evaluations: list[EvaluationRecord] = []
        self.round = 0
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
            attacker, transport = ATTACKS[arm.attack](public, f"hostile-{number}", seed), network.join()
            transport.subscribe(attacker.see)
            self._hostile.append((attacker, transport))

    def run(self, after_round: Callable[[Swarm], None] = lambda swarm: None) -> SwarmRecord:
        """Run the rounds that are left; `after_round` is called after each with all of its evaluations."""
        if not self.round and not self.evaluations:
            self._examine(0, [VALIDATION])
        while self.round < self.job.rounds:
            self._run_round(self.round + 1)
            after_round(self)
        gc.unfreeze()
        entries = {name: tuple(task.ref.entry for task in questions.tasks) for name, questions in self._sets.items()}
        if self.job.arm.attack:
            entries[ADVERTISED] = entries[TEST]
        names = self.job.setting.name, self.job.arm.name
        return SwarmRecord(*names, *self.job.key, tuple(self.rounds), tuple(self.evaluations), entries)

    def _run_round(self, number: int) -> None:
        self.round = number
        for attacker, transport in self._hostile:
            # As much as an honest member of this arm publishes.
            transport.publish(attacker.rollouts(number, attacker.seen, self.job.arm.training.own))
            attacker.seen.clear()
        leaving = random.Random(derive_seed("experiment churn", self.job.seed, number))
        for member in self.members:
            if not member.frozen and leaving.random() < self.job.arm.churn:
                member.begin(number)
            if member.is_due(number):
                self.rounds.append(member.run_round(number))
                if len(self.members) > MANY:
                    gc.collect()
                    gc.freeze()
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

    @property
    def can_resume(self) -> bool:
        """Whether the whole state can be saved: attackers, and how members hold each other, are not."""
        arm = self.job.arm
        return not (arm.attack or arm.churn or arm.training.share)

    def save(self, directory: Path) -> None:
        """Save the state after a round; an earlier one is untouched where that fails. For one process at a time."""
        draft = directory / ".draft"
        with reported("write", directory):
            # A kill may have left one.
            shutil.rmtree(draft, ignore_errors=True)
            draft.mkdir(parents=True)
            try:
                members = []
                for member in self.members:
                    shutil.copytree(member.shelf.place(member.place), draft / f"adapter-{member.number}")
                    member.pool.save(draft / f"pool-{member.number}")
                    members.append(_MemberState(member.cursor, member.sequence, member.received, member.rates))
                state = _State(self.round, tuple(members), tuple(self.rounds), tuple(self.evaluations))
                (draft / _STATE).write_text(json.dumps(asdict(state)))
                os.rename(draft, directory / f"round-{self.round}")
            except BaseException:
                shutil.rmtree(draft, ignore_errors=True)
                raise
        for number in saved_rounds(directory)[:-1]:
            shutil.rmtree(directory / f"round-{number}", ignore_errors=True)

    def restore(self, directory: Path) -> None:
        """Continue a new swarm from its newest state, if any; after a `StateError`, a damaged one, it can't be used."""
        path = directory / f"round-{(saved_rounds(directory) or [0])[-1]}"
        if not path.exists():
            return
        try:
            state = decoder(_State).validate_json((path / _STATE).read_bytes(), strict=True)
            # Before the pools are read: the ages of their rollouts depend on it.
            self.round = state.finished
            for member, saved in zip(self.members, state.members, strict=True):
                member.cursor, member.sequence, member.received = saved.cursor, saved.sequence, saved.received
                member.rates.update(saved.rates)
                member.shelf.replace(member.place, path / f"adapter-{member.number}")
                pool = path / f"pool-{member.number}"
                if not pool.is_file():
                    raise ValueError("a pool is missing")
                member.pool.load(pool)
            self.rounds, self.evaluations = list(state.rounds), list(state.evaluations)
        except (OSError, ValueError, StateError) as error:
            remedy = "remove it: the swarm starts again"
            raise StateError(f"the state of a swarm in {path} is damaged", remedy) from error


def saved_rounds(directory: Path) -> list[int]:
    """The rounds after which a state in a directory was saved."""
    return sorted(int(state.name.removeprefix("round-")) for state in directory.glob("round-*"))


@dataclass(frozen=True, slots=True)
class _MemberState:
    cursor: int
    sequence: int
    received: int
    rates: dict[str, float]


@dataclass(frozen=True, slots=True)
class _State:
    finished: int
    members: tuple[_MemberState, ...]
    rounds: tuple[RoundRecord, ...]
    evaluations: tuple[EvaluationRecord, ...]
