"""The honest members of an experimental swarm: each runs the product's own rounds on a model that many share."""

from __future__ import annotations

import math
import random
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path

from sapo_edge.advantage import informative
from sapo_edge.backends.adapter.files import ADAPTER_FILE
from sapo_edge.errors import ConfigError
from sapo_edge.experiment.plan import Job, Learning
from sapo_edge.experiment.results import RoundRecord
from sapo_edge.node.head_start import FIRST, HeadStart, HeadStartState, known_answer
from sapo_edge.node.rounds import MAX_DRAWS, nothing_fits
from sapo_edge.policy import CallHandle, Policy, UpdateSettings
from sapo_edge.pool.pool import Pool, PoolLimits, PoolOutcome
from sapo_edge.rollout import MAX_ANSWERS, Answer, Rollout, ScoredRollout, Task
from sapo_edge.room import Room
from sapo_edge.sapo import RoundContext, RoundSettings, sapo_round
from sapo_edge.selection import STRATEGIES, SubsetSelector
from sapo_edge.swarm.bucket import Buckets, TokenBucket
from sapo_edge.swarm.judging.external import ExternalScorer
from sapo_edge.tasks.readings import CLOSE_TAG, OPEN_TAG
from sapo_edge.tasks.source import TaskSource, derive_seed
from sapo_edge.transport import Transport

FROZEN = "frozen"
"""What the ids of members that never learn begin with."""
ROUND_SECONDS = 20.0
"""Of a clock that nodes take for theirs."""
MAX_HEARD = 4096
"""Authors whose rates a member keeps."""
MAX_CUT = 16384
"""Answers whose cuts are remembered: those of the last rounds."""


class Shelf:
    """One policy and the saved adapters of the members that share it: each has its own, and they take turns.

    Args:
        policy: newly opened, so that its adapter is untrained.
        directory: where the adapters are kept; created.
    """

    def __init__(self, policy: Policy, directory: Path) -> None:
        self.policy = policy
        # It depends on no adapter: all members cut the same answers, and each more than once.
        self.cut = lru_cache(MAX_CUT)(policy.cut)
        self._directory, self._fresh = directory, directory / "fresh"
        self._fresh.mkdir(parents=True, exist_ok=True)
        policy.save(self._fresh)
        self._holder: int | None = None
        self._members = 0

    def clear(self) -> None:
        for number in range(self._members):
            shutil.rmtree(self.place(number), ignore_errors=True)
        self._holder, self._members = None, 0

    def add(self, seed: int) -> int:
        """A new member, whose adapter is untrained; returns its number."""
        number = self._members
        self._members += 1
        shutil.copytree(self._fresh, self.place(number))
        _initialise(self.place(number) / ADAPTER_FILE, seed)
        return number

    def place(self, number: int) -> Path:
        """The directory of a member's adapter as it was last kept."""
        return self._directory / str(number)

    def take(self, number: int) -> Policy:
        if self._holder != number:
            self._holder = None
            self.policy.load(self.place(number))
            self._holder = number
        return self.policy

    def keep(self, number: int) -> None:
        self.policy.save(self.place(number))

    def replace(self, number: int, source: Path) -> None:
        """Replace a member's adapter by the files of a directory, which are checked."""
        shutil.rmtree(self.place(number))
        shutil.copytree(source, self.place(number))
        self._holder = None
        self.take(number)


Shelves = Mapping[str, Shelf]
"""Shelves by the name of their model."""


class Member:
    """A member that answers and shares, and learns unless it is frozen.

    Args:
        clock: seconds. It gives all rounds one length: how long a round takes must not change a result.
        scorer: what all members of a model have in common; without one it has its own.
    """

    def __init__(
        self, number: int, job: Job, learning: Learning, source: TaskSource, shelf: Shelf, transport: Transport,
        clock: Callable[[], float], *, frozen: bool = False, scorer: ExternalScorer | None = None,
    ) -> None:  # fmt: skip
        self.number, self.frozen, self.shelf = number, frozen, shelf
        self.cursor = self.sequence = 0
        self._source, self._transport, self._clock = source, transport, clock
        self._training = training = job.arm.training
        self._seed = seed = job.seed
        self._task_seed = derive_seed("experiment tasks", seed, number)
        self._period = job.arm.slowest ** random.Random(derive_seed("experiment speed", seed, number)).random()
        entries = source.manifest.tasks
        self._only = entries[number % len(entries)].name if job.setting.specialised else None
        self.max_tokens = learning.max_tokens or source.manifest.max_tokens
        cut = partial(shelf.cut, max_tokens=self.max_tokens)
        self.scorer = scorer or (ExternalScorer(source, cut, self._fits) if training.cut else UncutScorer(source))
        update = UpdateSettings(
            learning_rate=learning.learning_rate,
            warmup=learning.warmup,
            # As long at its height as without a head start.
            decay_after=learning.decay_after and learning.decay_after + FIRST * training.supervised,
            temperature=learning.temperature,
            max_tokens=self.max_tokens,
            external_rule=training.rule,
        )
        self._head_start = HeadStart(
            shelf.policy, source, self._task_seed, training.own + training.external, update,
            lambda _seed, cursor, _handle: ((), (), cursor), self._draw,
        )  # fmt: skip
        self._settings = RoundSettings(
            own=training.own,
            external=training.external,
            answers=training.answers,
            strategy=STRATEGIES[training.strategy],
            update=update,
            train=not frozen,
        )
        self.begin(0)
        transport.subscribe(self._receive)

    def begin(self, round: int) -> None:
        """Begin, in round 0, or later as a newcomer in the place of somebody who left."""
        again = (round,) if round else ()
        self.author = "-".join(map(str, (FROZEN if self.frozen else "node", self.number, *again)))
        self.place = self.shelf.add(derive_seed("experiment adapter", self._seed, self.number, *again))
        training, clock, policy = self._training, self._clock, self.shelf.policy
        seconds = training.keeps * ROUND_SECONDS
        known = partial(known_answer, self._source, policy, max_tokens=self.max_tokens)
        self.pool = Pool(self.author, PoolLimits(seconds=seconds, distinct=training.distinct), clock, clock)
        self._selector = SubsetSelector(training.share, self.pool.authors)
        self._room = Room(clock)
        self._heard = Buckets(MAX_HEARD, lambda: TokenBucket(0.0, 1.0, clock))
        self._added = self.received = 0
        self._context = RoundContext(
            policy,
            self.pool,
            self._transport,
            partial(self._draw, self._task_seed),
            self._source.score,
            self.scorer,
            self.scorer.cut,
            self._source.manifest.prompt_for,
            self._selector.select if training.share else lambda own, _rng: [scored.rollout for scored in own],
            self.author,
            right_answer=known if training.corrected else lambda _task: None,
        )

    def run_round(self, number: int) -> RoundRecord:
        """One round; the adapter is kept."""
        added, received = self.pool.counts[PoolOutcome.ADDED], self.received
        if self._training.share:
            self._selector.observe(added - self._added)
            self._room.update(self._training.share, self.pool.authors())
        self._added, self.received = added, 0
        self.shelf.take(self.place)
        start = time.process_time()
        is_supervised = number <= self._training.supervised and not self.frozen
        record = self._learn_known(number) if is_supervised else self._run_round(number)
        seconds = time.process_time() - start
        if not self.frozen:
            self.shelf.keep(self.place)
        return replace(record, seconds=seconds, received=received)

    def _learn_known(self, number: int) -> RoundRecord:
        if not self._head_start.knows_answers:
            raise ConfigError("supervised: no right answers are known", "leave it out, or take another manifest")
        state = HeadStartState(cursor=self.cursor)
        self.cursor = self._head_start.advance(state, FIRST, CallHandle, lambda _made: True).cursor
        return RoundRecord(number, self.number, 0.0, None, 0, 0, 0, 0, 0, 0, {})

    def _run_round(self, number: int) -> RoundRecord:
        seed = derive_seed("experiment round", self._seed, self.number, number)
        result = sapo_round(
            number, self.cursor, seed, self.sequence, self._context, self._settings, CallHandle(), CallHandle()
        )
        self.cursor = result.cursor
        self.sequence += len(result.own)
        tasks: dict[str, tuple[float, int]] = {}
        for scored in result.own:
            earned, answers = tasks.get(scored.rollout.ref.entry, (0.0, 0))
            tasks[scored.rollout.ref.entry] = earned + sum(scored.rewards), answers + len(scored.rewards)
        return RoundRecord(
            round=number,
            node=self.number,
            own=result.event.reward_own,
            external=result.event.reward_external,
            generated=result.event.answers,
            tokens=result.event.tokens,
            trained=result.statistics.tokens,
            informative_own=sum(informative(scored.rewards) for scored in result.own),
            informative_external=sum(informative(scored.rewards) for scored in result.external),
            taken=len(result.external),
            tasks=tasks,
        )

    def is_due(self, number: int) -> bool:
        """Whether a member of its speed begins a round while the fastest one begins this one."""
        return int(number / self._period) > int((number - 1) / self._period)

    @property
    def rates(self) -> dict[str, float]:
        """How often its own groups of each task had an advantage lately."""
        return self._context.rates.rates

    def _receive(self, rollout: Rollout, _neighbourhood: str) -> None:
        taken = self._training.external and (self._training.origin == "peers" or rollout.author.startswith(FROZEN))
        if taken and self._has_room(rollout.author) and self.pool.add(rollout) == PoolOutcome.ADDED:
            self.received += rollout.size_bytes()

    def _has_room(self, author: str) -> bool:
        """Whether an author sends no more than its part, as admission holds a peer to it in a large swarm."""
        if not self._training.share or self._room.author == math.inf:
            return True
        bucket = self._heard.of(author)
        bucket.rate, bucket.burst = self._room.author, max(1.0, self._room.author * ROUND_SECONDS)
        return bucket.take()

    def _draw(self, seed: int, cursor: int, count: int) -> tuple[tuple[Task, ...], int]:
        """The next tasks of its own whose questions its model can take with an answer."""
        tasks: list[Task] = []
        for _ in range(MAX_DRAWS * count):
            (task,), cursor = self._source.training_tasks(seed, cursor, 1)
            if self._only in (None, task.ref.entry) and self._fits(task.question):
                tasks.append(task)
            if len(tasks) == count:
                return tuple(tasks), cursor
        raise nothing_fits(self._source, self.max_tokens)

    def _fits(self, question: str) -> bool:
        return self.shelf.policy.room(self._source.manifest.prompt_for(question)) >= self.max_tokens


class UncutScorer(ExternalScorer):
    """How external rollouts were scored before the cure: all answers of a group, by their last pair of tags, uncut."""

    def __init__(self, source: TaskSource) -> None:
        super().__init__(source, _last_pair)

    def __call__(self, rollout: Rollout, _answers: int) -> ScoredRollout | None:
        return super().__call__(rollout, MAX_ANSWERS)

    def cut(self, scored: ScoredRollout) -> ScoredRollout:
        return scored


def _last_pair(text: str, ended: bool) -> Answer:
    """The last complete pair of answer tags with what it encloses; "" without one."""
    close = text.rfind(CLOSE_TAG)
    start = text.rfind(OPEN_TAG, 0, max(close, 0))
    return Answer(text[start : close + len(CLOSE_TAG)] if start >= 0 else "", ended, ())


def _initialise(path: Path, seed: int) -> None:
    """Draw an adapter's A matrices again, as PEFT does: uniform within 1 / sqrt(inputs). B stays zero."""
    import numpy as np
    from safetensors.numpy import load_file, save_file

    generator = np.random.default_rng(seed)
    tensors = load_file(path)
    for name, array in sorted(tensors.items()):
        if "lora_A" in name:
            bound = 1.0 / math.sqrt(array.shape[1])
            tensors[name] = generator.uniform(-bound, bound, array.shape).astype(array.dtype)
    save_file(tensors, path, metadata={"format": "pt"})
