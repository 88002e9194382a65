"""The pool against a model that counts everything anew, and sampling from it, over any order of events and restarts."""

from __future__ import annotations

import itertools
import random
import tempfile
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sapo_edge.policy import UpdateSettings
from sapo_edge.pool.pool import Pool, PoolLimits, PoolOutcome
from sapo_edge.rollout import Answer, Rollout, ScoredRollout, TaskRef
from sapo_edge.sapo import RoundContext, RoundSettings, sample_external
from sapo_edge.selection import STRATEGIES
from sapo_edge.transport import Solo
from tests.fakes import RIGHT, WRONG, Clock, FakePolicy, ask, numbered_tasks
from tests.machines import machine_settings

OWN = "m"
AUTHORS = st.sampled_from("aabbcdm")
NETWORKS = {"": "", "a": "9.9.9.0/24", "b": "9.9.9.0/24", "c": "8.8.8.0/24", "d": ""}
TEXTS = ([RIGHT, WRONG], [WRONG, RIGHT], [RIGHT, WRONG, WRONG], [WRONG, WRONG], [RIGHT, WRONG, "x" * 70])
REMEMBERED = 12
"""Most ids and used tasks that the pool remembers."""
LIMITS = PoolLimits(rollouts=7, bytes=360, author_share=0.5, seconds=60.0, remembered=REMEMBERED, used_texts=REMEMBERED)
EXTERNAL, OWN_ROLLOUTS = 3, 3


@dataclass
class Entry:
    rollout: Rollout
    arrival: float
    network: str


def remembered(keys: tuple[Hashable, ...], key: Hashable) -> tuple[Hashable, ...]:
    """The keys that were added last, at most `REMEMBERED`, with one more."""
    return (*(other for other in keys if other != key), key)[-REMEMBERED:]


@dataclass
class Model:
    """What a pool holds and remembers, in plain lists; `textless` are the removed ones of which it has the id alone."""

    held: list[Entry] = field(default_factory=list)
    removed: tuple[Hashable, ...] = ()
    textless: set[Hashable] = field(default_factory=set)
    tasks: tuple[Hashable, ...] = ()
    texts: tuple[Hashable, ...] = ()

    def copy(self) -> Model:
        return replace(self, held=[replace(entry) for entry in self.held], textless=set())

    def expire(self, now: float) -> None:
        for entry in [entry for entry in self.held if entry.arrival < now - LIMITS.seconds]:
            self.drop(entry)

    def drop(self, entry: Entry) -> None:
        self.held.remove(entry)
        self.removed = remembered(self.removed, entry.rollout.id)
        self.textless.discard(entry.rollout.id)

    def add(self, rollout: Rollout, network: str, now: float) -> PoolOutcome:
        refusal = self.refusal(rollout)
        if refusal is not None:
            return refusal
        for entry in [entry for entry in self.held if question(entry.rollout) == question(rollout)]:
            self.drop(entry)
        size = rollout.size_bytes()
        while mine := [entry for entry in self.held if entry.rollout.author == rollout.author]:
            most = int(LIMITS.rollouts * LIMITS.author_share)
            if len(mine) < most and total(mine) + size <= LIMITS.bytes * LIMITS.author_share:
                break
            self.drop(mine[0])
        while len(self.held) >= LIMITS.rollouts or total(self.held) + size > LIMITS.bytes:
            self.drop(self.first_of_largest(by_bytes=len(self.held) < LIMITS.rollouts))
        self.held.append(Entry(rollout, now, network))
        return PoolOutcome.ADDED

    def first_of_largest(self, by_bytes: bool) -> Entry:
        sizes: Counter[str] = Counter()
        for entry in self.held:
            sizes[entry.network] += entry.rollout.size_bytes() if by_bytes else 1
        return next(entry for entry in self.held if sizes[entry.network] == max(sizes.values()))

    def refusal(self, rollout: Rollout) -> PoolOutcome | None:
        held = [entry.rollout for entry in self.held]
        if rollout.author == OWN:
            return PoolOutcome.OWN
        if rollout.id in self.removed or rollout.id in [other.id for other in held]:
            return PoolOutcome.DUPLICATE
        if task(rollout) in [*self.tasks, *map(task, held)]:
            return PoolOutcome.SAME_TASK
        if text(rollout) in [*self.texts, *map(text, held)]:
            return PoolOutcome.SAME_TEXT
        return PoolOutcome.TOO_LARGE if rollout.size_bytes() > LIMITS.bytes else None

    def use(self, rollout: Rollout) -> None:
        is_held = rollout.id in [entry.rollout.id for entry in self.held]
        is_known = is_held or (rollout.id in self.removed and rollout.id not in self.textless)
        keys: list[Callable[[Rollout], Hashable]] = [attrgetter("id"), task, *([text] if is_known else [])]
        for key in keys:
            for entry in [entry for entry in self.held if key(entry.rollout) == key(rollout)]:
                self.drop(entry)
        self.tasks = remembered(self.tasks, task(rollout))
        if is_known:
            self.texts = remembered(self.texts, text(rollout))


def total(entries: list[Entry]) -> int:
    return sum(entry.rollout.size_bytes() for entry in entries)


def task(rollout: Rollout) -> Hashable:
    return rollout.author, rollout.ref


def question(rollout: Rollout) -> Hashable:
    return rollout.author, rollout.question


def text(rollout: Rollout) -> Hashable:
    return rollout.question, *sorted(answer.text for answer in rollout.answers)


@st.composite
def rollouts(draw: st.DrawFn) -> Rollout:
    """Few tasks, questions and texts, under any number: much of it was there before."""
    index = draw(st.integers(0, 4))
    answers = tuple(Answer(text, True) for text in draw(st.sampled_from(TEXTS)))
    ref = TaskRef("sums", "1", 7, index + 5 * draw(st.sampled_from([0, 0, 1])))
    rollout = Rollout(ref, f"question {index}?", "", answers, draw(AUTHORS), 1, draw(st.integers(0, 3)), 1.5)
    # Else the id is computed at every comparison.
    return replace(rollout, digest=rollout.id)


class PoolMachine(RuleBasedStateMachine):
    """A node's pool, with peers that send whatever they like."""

    @initialize()
    def start(self) -> None:
        self.clock, self.wall = Clock(), Clock()
        self.wall.now = 1e9
        self.directory = tempfile.TemporaryDirectory()
        self.path = Path(self.directory.name) / "pool"
        self.pool, self.model, self.saved = self.open(), Model(), Model()
        self.journal: list[Rollout] = []
        self.sampled: list[ScoredRollout] | None = None

    def open(self) -> Pool:
        return Pool(OWN, LIMITS, self.clock, self.wall)

    @rule(arriving=st.lists(rollouts(), min_size=1, max_size=8))
    def receive(self, arriving: list[Rollout]) -> None:
        for rollout in arriving:
            network = NETWORKS.get(rollout.author, "")
            self.model.expire(self.clock.now)
            assert self.pool.add(rollout, network) == self.model.add(rollout, network, self.clock.now)

    @rule(seconds=st.sampled_from([1.0, 20.0, 61.0]))
    def wait(self, seconds: float) -> None:
        self.clock.now += seconds
        self.wall.now += seconds

    @rule(days=st.sampled_from([-1, 1]))
    def set_the_clock(self, days: int) -> None:
        self.wall.now += 86_400 * days

    @precondition(lambda self: self.sampled is None)
    @rule(strategy=st.sampled_from(sorted(STRATEGIES)), seed=st.integers(0, 3))
    def begin_a_round(self, strategy: str, seed: int) -> None:
        self.strategy, self.seed = strategy, seed
        self.sampled = self.sample()

    @precondition(lambda self: self.sampled is None)
    @rule(strategy=st.sampled_from(sorted(STRATEGIES)), seed=st.integers(0, 3))
    def a_round(self, strategy: str, seed: int) -> None:
        self.begin_a_round(strategy, seed)
        self.end_the_round()

    @precondition(lambda self: self.sampled is not None)
    @rule()
    def end_the_round(self) -> None:
        assert self.sampled is not None
        # As `sapo_round` does.
        again = self.sample()[: len(self.sampled)]
        external = again if len(again) == len(self.sampled) else self.sampled
        self.sampled = None
        trained = [scored.rollout for scored in external]
        for number, rollout in enumerate(trained):
            recent = [*self.journal, *trained[:number]][-REMEMBERED:]
            assert not [other for other in recent if task(other) == task(rollout)], "a task is trained on twice"
        self.journal += trained
        self.pool.take(trained)
        for rollout in trained:
            self.model.use(rollout)

    @precondition(lambda self: self.sampled is not None)
    @rule()
    def lose_the_round(self) -> None:
        self.sampled = None

    @rule(which=st.sets(st.integers(0, 6), max_size=2))
    def reject(self, which: set[int]) -> None:
        self.model.expire(self.clock.now)
        entries = [entry for number, entry in enumerate(self.model.held) if number in which]
        self.pool.reject([entry.rollout for entry in entries])
        for entry in entries:
            self.model.drop(entry)

    @rule()
    def save(self) -> None:
        self.model.expire(self.clock.now)
        self.pool.save(self.path)
        self.saved = self.model.copy()
        for entry in self.saved.held:
            entry.arrival += self.wall.now - self.clock.now

    @rule(killed=st.booleans())
    def restart(self, killed: bool) -> None:
        if not killed:
            self.save()
        self.sampled = None
        self.pool, self.model = self.open(), self.saved.copy()
        self.pool.load(self.path)
        self.model.textless = set(self.model.removed)
        # Over a restart only the date tells how old a rollout is. A date that was set back makes none younger than new.
        for entry in self.model.held:
            entry.arrival = self.clock.now - max(0.0, self.wall.now - entry.arrival)
        self.model.held = [entry for entry in self.model.held if self.is_fresh(entry)]
        used = self.journal[-REMEMBERED:]
        self.pool.mark_used([(rollout.id, rollout.author, rollout.ref) for rollout in used])
        for rollout in used:
            self.model.use(rollout)
            self.model.removed = remembered(self.model.removed, rollout.id)
            self.model.textless.add(rollout.id)

    def is_fresh(self, entry: Entry) -> bool:
        return entry.arrival >= self.clock.now - LIMITS.seconds

    def sample(self) -> list[ScoredRollout]:
        self.model.expire(self.clock.now)
        numbers = RoundSettings(OWN_ROLLOUTS, EXTERNAL, 8, STRATEGIES[self.strategy], UpdateSettings(max_tokens=8))
        sample = sample_external(EXTERNAL, self.context(), numbers, random.Random(self.seed))
        chosen = [scored.rollout for scored in sample]
        held = [entry.rollout for entry in self.model.held]
        assert len(chosen) <= EXTERNAL and all(rollout in held for rollout in chosen)
        pairs = itertools.combinations(chosen, 2)
        assert not [(one, other) for one, other in pairs if task(one) == task(other) or text(one) == text(other)]
        return sample

    def context(self) -> RoundContext:
        def score(rollout: Rollout, _answers: int) -> ScoredRollout:
            return ScoredRollout(rollout, tuple(float(answer.text == RIGHT) for answer in rollout.answers))

        return RoundContext(
            FakePolicy(), self.pool, Solo(), numbered_tasks, lambda *_: 0.0, score, lambda scored: scored, ask,
            lambda own, rng: [], OWN,
        )  # fmt: skip

    @invariant()
    def it_holds_what_the_model_holds(self) -> None:
        assert self.pool.candidates() == tuple(entry.rollout for entry in self.model.held if self.is_fresh(entry))

    @invariant()
    def bounds_hold(self) -> None:
        held = self.pool.candidates()
        assert len(held) == len(self.pool) <= LIMITS.rollouts
        assert self.pool.bytes == sum(rollout.size_bytes() for rollout in held) <= LIMITS.bytes
        for author, count in Counter(rollout.author for rollout in held).items():
            size = sum(rollout.size_bytes() for rollout in held if rollout.author == author)
            assert count == 1 or (count <= 3 and size <= LIMITS.bytes / 2)
        for memory in (self.pool._removed, self.pool._used_tasks, self.pool._used_texts):
            assert len(memory) <= REMEMBERED

    def teardown(self) -> None:
        if hasattr(self, "directory"):
            self.directory.cleanup()


TestPool = PoolMachine.TestCase
TestPool.settings = machine_settings(examples=15, steps=20, long=5000)
