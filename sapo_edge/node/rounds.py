"""The node: round after round, with checkpoints, held-out evaluations, and an orderly end at any time."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from sapo_edge.advantage import group_advantages
from sapo_edge.care.stop import Stop
from sapo_edge.config.settings import Settings
from sapo_edge.errors import Cancelled, ConfigError, StateError
from sapo_edge.evaluate import Evaluation, evaluate
from sapo_edge.events import (
    CheckpointSaved,
    Event,
    HeldOut,
    NodeStarted,
    NodeStopped,
    Notice,
    Paused,
    Phase,
    Progress,
    RoundFinished,
)
from sapo_edge.policy import CallHandle, Policy, UpdateSettings
from sapo_edge.pool import Pool, PoolOutcome
from sapo_edge.rollout import Rollout, ScoredRollout
from sapo_edge.sapo import RoundContext, RoundResult, RoundSettings, sapo_round
from sapo_edge.selection import STRATEGIES, SubsetSelector
from sapo_edge.state.checkpoint import Checkpoint
from sapo_edge.state.journal import JournaledRollout
from sapo_edge.state.store import Store
from sapo_edge.swarm.joining.identity import Identity
from sapo_edge.swarm.judging.external import ExternalScorer
from sapo_edge.tasks.source import TaskSource, derive_seed
from sapo_edge.transport import Transport

PROGRESS_INTERVAL = 0.1
"""Seconds between two progress events of one step."""
POOL_SECONDS = 60.0
"""Time between two writes of the pool."""
RECENT = 10
"""Rounds that a running node remembers."""
GENERATOR_CURSOR = "generator_cursor"
"""Name of the journal's counter of where a generator's next questions begin; it writes no checkpoints."""

Emit = Callable[[Event], None]


def adapter_seed(seed: int) -> int:
    """The seed of the adapter's initial values, from the node's seed."""
    return derive_seed("adapter", seed)


def round_settings(settings: Settings, max_tokens: int) -> RoundSettings:
    """The numbers of a round, from the settings of a node."""
    alone = settings.network == "solo"
    return RoundSettings(
        own=settings.own + settings.external if alone else settings.own,
        external=0 if alone else settings.external,
        questions=settings.drawn,
        answers=settings.answers,
        max_tokens=max_tokens,
        temperature=settings.temperature,
        strategy=STRATEGIES[settings.strategy],
        update=UpdateSettings(
            learning_rate=settings.learning_rate,
            warmup=settings.warmup,
            decay_after=settings.decay_after,
            clip_low=settings.clip_low,
            clip_high=settings.clip_high,
            importance_cap=settings.importance_cap,
            max_gradient_norm=settings.max_gradient_norm,
            kl_coefficient=settings.kl,
            epochs=settings.epochs,
            temperature=settings.temperature,
            max_tokens=max_tokens,
        ),
        train=settings.role == "trainer",
    )


class Node:
    """One node of a swarm, or alone.

    Args:
        settings: resolved.
        source: the manifest's tasks.
        store: the opened state directory.
        policy: made with `adapter_seed(seed)`.
        transport: the swarm.
        emit: receives every event; must not raise.
        reasons: of choices made while the policy was built, for the first event.
        stop: by which somebody ends it.

    Attributes:
        round: the last finished one.
        phase: what it does; None before the first step.
        progress: how far that is; None before anything was reported.
        recent: the last `RECENT` finished rounds, oldest first.
        best: the checkpoint with the best held-out accuracy; None without any.
        interrupted: whether `run` lost a round because it had to stop immediately.
    """

    def __init__(
        self,
        settings: Settings,
        source: TaskSource,
        store: Store,
        policy: Policy,
        transport: Transport,
        emit: Emit,
        reasons: tuple[str, ...] = (),
        stop: Stop | None = None,
    ) -> None:
        self.settings = settings
        self.source = source
        self.store = store
        self.policy = policy
        self.stop = stop or Stop()
        self.seed = store.seed if settings.seed is None else settings.seed
        self.max_tokens = settings.max_tokens or source.manifest.max_tokens
        self.round = 0
        self.cursor = 0
        self._saved = 0
        self._emit = emit
        self._reasons = reasons
        self.interrupted = False
        self._evaluated: int | None = None
        self.author = Identity.from_secret(store.secret).peer_id
        self.pool = Pool(self.author)
        self.selector = SubsetSelector(settings.share, self.pool.authors)
        self.phase: Phase | None = None
        self.progress: Progress | None = None
        self.recent: deque[RoundFinished] = deque(maxlen=RECENT)
        self.best: Checkpoint | None = None
        self.between_rounds: Callable[[], None] = lambda: None
        self._external = ExternalScorer(source)
        self._seen = 0
        self._pool_saved = time.monotonic()
        self._told: dict[str, int] = {}
        self.stop.changed = lambda reasons: self.emit(Paused(reasons=reasons))
        self.transport = transport
        transport.subscribe(self._receive)
        self._context = RoundContext(
            policy,
            self.pool,
            transport,
            lambda cursor, count: source.training_tasks(self.seed, cursor, count),
            source.score,
            self._external,
            source.manifest.prompt_for,
            self.selector.select,
            self.author,
        )

    @property
    def trains(self) -> bool:
        """Whether there are updates; a generator has none."""
        return self.settings.role == "trainer"

    def run(self) -> NodeStopped:
        """Go on from the last checkpoint until the rounds are done or somebody stops it.

        Returns:
            The last event, which was emitted too.

        Raises:
            SapoError: whatever makes going on impossible; everything up to the last checkpoint is safe.
        """
        first = self.open()
        try:
            if first == 0 and self.trains:
                self._evaluate_base()
            while not self._finished() and not self.stop.finish.is_set():
                self.stop.wait_while_paused()
                self.between_rounds()
                if not self.stop.finish.is_set():
                    self.step()
                    if time.monotonic() - self._pool_saved >= POOL_SECONDS:
                        self._save_pool()
            if not self.stop.finish.is_set() and self.trains:
                self._final_evaluation()
            reason = "asked to stop" if self.stop.finish.is_set() else f"all {self.settings.rounds} rounds are done"
        except Cancelled:
            self.interrupted = True
            reason = "stopped immediately; the round in progress is lost"
        self._save_pool()
        best = self.best or self.store.latest
        stopped = NodeStopped(reason=reason, rounds=self._saved - first, adapter=str(best.directory) if best else None)
        self.emit(stopped)
        return stopped

    def emit(self, event: Event) -> None:
        """Journal an event and hand it on."""
        self.store.journal.record(event)
        self._emit(event)

    def open(self) -> int:
        """Restore the last checkpoint, if there is one, and say that the node is ready; returns its round.

        Raises:
            CheckpointError: if it belongs to another model or manifest.
            ConfigError: if another seed is asked for than it was made with.
        """
        digests = {"model_digest": self.policy.model_digest, "manifest_digest": self.source.manifest.digest}
        checkpoint = self.store.resume(**digests) if self.trains else self.store.newest(**digests)
        # Questions that were answered as a generator are not asked again.
        self.cursor = self.store.journal.counter(GENERATOR_CURSOR)
        if checkpoint is not None:
            if checkpoint.seed != self.seed:
                raise ConfigError(
                    f"this state was made with seed {checkpoint.seed}, not {self.seed}",
                    f"give --seed {checkpoint.seed}, or --home for a new state directory",
                )
            self.policy.load(checkpoint.directory)
            self.round, self.cursor = checkpoint.round, max(self.cursor, int(checkpoint.cursor["tasks"]))
        if not self.trains:
            self.round = self.store.journal.last_round() or self.round
        self._saved = self.round
        self.best = self.store.checkpoints.best()
        self.recent.extend(self.store.journal.rounds(RECENT))
        try:
            self.pool.load(self.store.paths.pool)
        except StateError as error:
            self.emit(Notice(level="warning", text=str(error)))
        for text in self.store.notices:
            self.emit(Notice(level="warning", text=text))
        self.emit(
            NodeStarted(
                model=self.policy.name,
                backend=self.policy.backend,
                reasons=self._reasons,
                settings=self.settings.as_dict(),
                round=self.round,
            )
        )
        return self.round

    def step(self) -> None:
        """One round, its evaluation if one is due, and the checkpoint that makes both permanent.

        Raises:
            Cancelled: if the node is to end at once; nothing of the round remains.
        """
        number = self.round + 1
        # Read once: a setting that changes while the round runs counts from the next one on.
        settings = round_settings(self.settings, self.max_tokens)
        received = self._receipts()
        result = sapo_round(
            number,
            self.cursor,
            derive_seed("round", self.seed, number),
            self.store.journal.reserve_sequences(max(settings.questions, settings.own + settings.external)),
            self._context,
            settings,
            self._call_handle("generate", "answers"),
            self._call_handle("update", "groups"),
        )
        if result.statistics.informative and not result.statistics.steps:
            self.emit(
                Notice(level="warning", text=f"round {number}: the gradient was not finite, the adapter is unchanged")
            )
        self._tell_counts(result)
        self.round, self.cursor = number, result.cursor
        event = finished_event(result, received)
        self.recent.append(event)
        kept = [journaled(scored, own=True) for scored in result.own]
        kept += [journaled(scored, own=False) for scored in result.external]
        self.store.journal.record(event, kept)
        self._emit(event)
        if not self.trains:
            self.store.journal.set_counter(GENERATOR_CURSOR, self.cursor)
            self._saved = self.round
            return
        every = self.settings.evaluate_every
        accuracy = self._evaluate() if every and number % every == 0 else None
        self._save(accuracy)

    def _receipts(self) -> int:
        """Rollouts of others that were admitted since the last call."""
        total = self.pool.counts[PoolOutcome.ADDED]
        received, self._seen = total - self._seen, total
        self.selector.observe(received)
        return received

    def _tell_counts(self, result: RoundResult) -> None:
        """Say what was skipped, made up for, or failed: when it changes, not in every round."""
        counts = {f"rollouts of others refused: {reason}": number for reason, number in self._external.refused.items()}
        counts["answers scored 0 because a verifier failed"] = self.source.verifier_errors
        counts["rollouts of others missing in each round, made up for by own questions"] = result.missing
        for text, number in counts.items():
            if number != self._told.get(text, 0):
                self._told[text] = number
                self.emit(Notice(level="warning", text=f"round {result.number}: {text}: {number}"))

    def _save(self, accuracy: float | None) -> None:
        state = Checkpoint(
            self.round,
            self.policy.model_digest,
            self.source.manifest.digest,
            self.seed,
            {"tasks": self.cursor},
            self.settings.as_dict(),
            accuracy,
        )
        saved = self.store.save_checkpoint(state, self.policy.save)
        self._saved = self.round
        best = self.best = self.store.checkpoints.best()
        self.emit(
            CheckpointSaved(
                round=self.round, path=str(saved.directory), best=best is not None and best.round == self.round
            )
        )

    def _finished(self) -> bool:
        return bool(self.settings.rounds) and self.round >= self.settings.rounds

    def _evaluate_base(self) -> None:
        if not self.store.journal.held_out(1):
            self._evaluate()

    def _final_evaluation(self) -> None:
        if self.round and self._evaluated != self.round and self.store.latest:
            known = self.store.journal.held_out(1, before=None)
            if known and known[-1].round == self.round:
                return
            accuracy = self._evaluate()
            if accuracy is not None:
                self.store.checkpoints.record_accuracy(self.round, accuracy)
                self.best = self.store.checkpoints.best()

    def _evaluate(self) -> float | None:
        """Held-out accuracy now; None if no questions are asked for."""
        if not self.settings.held_out:
            return None
        result = self.held_out()
        low, high = result.interval
        self._evaluated = self.round
        self.emit(
            HeldOut(
                round=self.round,
                accuracy=result.accuracy,
                correct=result.right,
                questions=result.questions,
                low=low,
                high=high,
            )
        )
        return result.accuracy

    def held_out(self) -> Evaluation:
        """Evaluate the policy as it is on the held-out questions."""
        return evaluate(
            self.policy,
            self.source.held_out(self.settings.held_out),
            self.source.manifest.prompt_for,
            self.source.score,
            self.max_tokens,
            self._call_handle("evaluate", "answers"),
        )

    def _save_pool(self) -> None:
        """Keep the rollouts of others over a restart; a node that works alone has none."""
        self._pool_saved = time.monotonic()
        if self.settings.network == "solo":
            return
        try:
            self.pool.save(self.store.paths.pool)
        except StateError as error:
            self.emit(Notice(level="warning", text=str(error)))

    def _receive(self, rollout: Rollout) -> None:
        self.pool.add(rollout)

    def _call_handle(self, phase: Phase, unit: str) -> CallHandle:
        last = 0.0

        def progress(done: int, total: int) -> None:
            nonlocal last
            # Set here because the handles of a round are all created when it begins.
            self.phase = phase
            self.progress = Progress(phase=phase, done=done, total=total, unit=unit)
            now = time.monotonic()
            if done == total or now - last >= PROGRESS_INTERVAL:
                last = now
                self._emit(self.progress)

        return self.stop.call_handle(progress)


def finished_event(result: RoundResult, received: int) -> RoundFinished:
    """The event of a finished round in which so many rollouts of others came."""
    return RoundFinished(
        round=result.number,
        reward_own=result.reward_own,
        reward_external=result.reward_external,
        groups=result.statistics.groups,
        informative=result.statistics.informative,
        own=result.statistics.groups - len(result.external) if result.statistics.groups else len(result.own),
        external=len(result.external),
        tokens=result.tokens,
        seconds_generate=result.seconds_generate,
        seconds_update=result.seconds_update,
        statistics=result.statistics.as_dict(),
        shared=result.shared,
        received=received,
    )


def journaled(scored: ScoredRollout, *, own: bool) -> JournaledRollout:
    """A rollout as the journal keeps it."""
    return JournaledRollout(scored.rollout.as_text(), scored.rewards, group_advantages(scored.rewards), own)
