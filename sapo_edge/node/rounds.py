"""The node: trains round after round, saves and evaluates, and stops in order at any time."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any

from sapo_edge import events
from sapo_edge.backends.machine.allocator import return_freed_memory
from sapo_edge.care.stop import Stop
from sapo_edge.config.settings import Settings, head_start_limit
from sapo_edge.control.event_words import format_share
from sapo_edge.errors import Cancelled, CheckpointError, ConfigError, ModelError, StateError
from sapo_edge.events import Event, Phase
from sapo_edge.node.collapse import HOLDS, MOST_UNDONE, ROUNDS, collapsed
from sapo_edge.node.conversion import journaled_rollouts, round_settings
from sapo_edge.node.draws import Draws
from sapo_edge.node.effort import Effort
from sapo_edge.node.evaluations import Evaluations
from sapo_edge.node.guard import Guard
from sapo_edge.node.head_start import ENOUGH, FEWEST, FIRST, VAIN, HeadStart, HeadStartState, known_answer
from sapo_edge.plain import counted
from sapo_edge.policy import CallHandle, Policy
from sapo_edge.pool.pool import Pool, PoolOutcome
from sapo_edge.rollout import Rollout, ScoredRollout, Task
from sapo_edge.room import Room
from sapo_edge.sapo import RoundContext, RoundResult, RoundSettings, generate, sample_external, sapo_round
from sapo_edge.selection import SubsetSelector
from sapo_edge.state.checkpoint import Checkpoint
from sapo_edge.state.store import COLLAPSES, GENERATOR_CURSOR, GENERATOR_ROUND, ROLLED_BACK_CURSOR, Store
from sapo_edge.swarm.joining.identity import Identity
from sapo_edge.swarm.judging.external import ExternalScorer
from sapo_edge.tasks.general import rehearsed_prompts
from sapo_edge.tasks.manifest import shipped_name
from sapo_edge.tasks.source import TaskSource, derive_seed
from sapo_edge.transport import Transport

PROGRESS_INTERVAL = 0.1
"""Seconds between two progress events of one step."""
POOL_SECONDS = 60.0
"""Seconds between two saves of the pool."""
MAX_DRAWS = 100
"""Times that further questions are drawn in a round in place of those that are too long for the model."""
RECENT = 10
"""Finished rounds that a running node keeps in memory."""


class Node:
    """One node, in a swarm or alone.

    Args:
        settings: resolved; replaced while the node runs when a live setting changes.
        emit: receives every event; must not raise.
        reasons: of the choices made at startup, in words, for the first event.
        room: what the swarm accepts of others; set after each round.

    Attributes:
        phase: of the round in progress; None before the first step.
        progress: of this phase; None before the first report.
        recent: the last `RECENT` finished rounds, oldest first.
        best: the checkpoint with the best accuracy on the validation questions; None if there is none.
        head_start: the newest validation of the head start since this start; None without one.
        comparison: the last one of base model and adapter on the test questions; None before the first.
        after_first_round: called once, when all is loaded that rounds need.
        others: gives the percent of the processor that other programs use; None if unknown.
        interrupted: whether `run` lost a round in progress because it was asked to end immediately.
    """

    def __init__(
        self, settings: Settings, source: TaskSource, store: Store, policy: Policy, transport: Transport,
        emit: Callable[[Event], None], reasons: tuple[str, ...] = (), stop: Stop | None = None,
        room: Room | None = None,
    ) -> None:  # fmt: skip
        self.settings, self.source, self.store = settings, source, store
        self.policy, self.transport, self.stop = policy, transport, stop or Stop()
        self.seed = store.seed if settings.seed is None else settings.seed
        self.max_tokens = settings.max_tokens or source.manifest.max_tokens
        self.author = Identity(store.secret).peer_id
        self.pool = Pool(self.author)
        self.selector = SubsetSelector(settings.share, self.pool.authors)
        self.room = room or Room()
        self.round = self.cursor = 0
        self.phase: Phase | None = None
        self.progress: events.Progress | None = None
        self.recent: deque[events.RoundFinished] = deque(maxlen=RECENT)
        self.best: Checkpoint | None = None
        self.comparison: events.Comparison | None = None
        self.guard = Guard(store.journal)
        self.after_first_round: Callable[[], None] = lambda: None
        self.others: Callable[[], float | None] = lambda: None
        self.interrupted = self._is_in_round = self._lacks_external = False
        self._emit, self._reasons = emit, reasons
        self._started: events.NodeStarted | None = None
        self._external = ExternalScorer(
            source, lambda text, ended: policy.cut(text, ended, self.max_tokens), self._fits
        )  # fmt: skip
        self._finished = self._received = self._too_long = self._calm_until = 0
        self._pool_saved = self._checkpoint_saved = time.monotonic()
        # Finished rounds since the last checkpoint, which a crash would lose.
        self._unsaved = 0
        self._reported_counts: dict[str, int] = {}
        self._head_start: HeadStartState | None = None
        self._draws = Draws()
        self._effort = Effort(store.journal, self.stop)
        self.head_start: events.HeadStart | None = None
        self.stop.changed = lambda reasons: self.emit(events.Paused(reasons=reasons))
        self._evaluations = Evaluations(
            policy, source, store, settings.held_out, self.max_tokens, settings.thinking == "on", self.emit,
            lambda event: self.guard.judge(event, self.settings, self.best),
            lambda: self._call_handle("evaluate", "answers"),
        )  # fmt: skip
        transport.subscribe(self._receive)
        self._context = RoundContext(
            policy, self.pool, transport, self._training_tasks, source.score, self._external, self._external.cut,
            source.manifest.prompt_for, self.selector.select, self.author, right_answer=self._correction,
        )  # fmt: skip

    @property
    def trains(self) -> bool:
        """Whether the node learns; a generator does not."""
        return self.settings.role == "trainer"

    def run(self) -> events.NodeStopped:
        """Continue from the last checkpoint until the rounds are done or the node is asked to stop.

        Returns the last event, which was emitted too. After an error, everything up to the last checkpoint is saved.
        """
        self.open()
        done = False
        try:
            if not self.stop.finish.is_set():
                self._validate_at_start()
                self._take_head_start()
            while not done and not self.stop.finish.is_set():
                if not self._has_rounds_left():
                    done = self._evaluate_at_end()
                    continue
                self._wait_while_paused()
                if not self.stop.finish.is_set():
                    self.step()
                    if self._finished == 1:
                        self.after_first_round()
                    if time.monotonic() - self._pool_saved >= POOL_SECONDS:
                        self._save_pool()
                    self._undo_collapse()
                    self._roll_back_if_asked()
                    # What a round took, and the swarm during it, leaves holes that fill and move with the next one.
                    return_freed_memory()
            self._save_unsaved()
            reason = f"all {self.round} rounds are done" if done else "asked to stop"
        except Cancelled:
            self.interrupted = self._is_in_round
            # Within a round, too: the policy is then as it was before the round.
            self._save_unsaved()
            reason = f"stopped immediately; {'the round in progress' if self.interrupted else 'no round'} is lost"
        self._roll_back_if_asked()
        self._save_pool()
        best = self.best or self.store.latest
        adapter = str(best.directory) if best else None
        stopped = events.NodeStopped(reason=reason, rounds=self._finished, adapter=adapter, done=done)
        self.emit(stopped)
        return stopped

    def open(self) -> None:
        """Restore the last checkpoint, if any, and emit that the node started."""
        self._restore_checkpoint()
        self.best = self.store.checkpoints.best(self.store.latest, self.store.notices.append)
        self.comparison = self.store.journal.last_comparison()
        self.recent.extend(self.store.journal.rounds(RECENT))
        try:
            self.pool.load(self.store.run.pool)
        except StateError as error:
            self._warn(str(error))
        # The file may be older than the last rounds.
        self.pool.mark_used(self.store.journal.used_external(self.pool.limits.remembered))
        for text in self.store.notices:
            self._warn(text)
        self._started = events.NodeStarted(
            model=self.policy.name, backend=self.policy.backend, reasons=self._reasons,
            settings=self.settings.as_dict(), round=self.round,
        )  # fmt: skip
        self.emit(self._started)

    def step(self) -> None:
        """Run one round, save the checkpoint that makes it permanent, and evaluate if due.

        Raises:
            Cancelled: if the node stops immediately; nothing of the round remains unless it was saved.
        """
        self._is_in_round = True
        number = self.round + 1
        # Read once: a setting that changes during the round takes effect in the next one.
        settings = self._round_settings()
        received = self._count_received()
        result = sapo_round(
            number, self.cursor, derive_seed("round", self.seed, number),
            self.store.journal.reserve_sequences(settings.own + settings.external), self._context, settings,
            self._call_handle("generate", "answers"), self._call_handle("update", "groups"),
        )  # fmt: skip
        self._report_problems(result)
        self._draws.observe(result.own, result.corrected)
        self.round, self.cursor = number, result.cursor
        event = replace(result.event, received=received, time=time.time())
        self.recent.append(event)
        counters = self._effort.counters()
        if not self.trains:
            counters |= {GENERATOR_CURSOR: self.cursor, GENERATOR_ROUND: number}
        self.store.journal.record(event, journaled_rollouts(result, settings.update.external_rule), counters)
        self._emit(event)
        self._unsaved += self.trains
        saves = self.trains and self._must_save()
        if saves:
            self._save_checkpoint()
        self._finished += 1
        self._is_in_round = False
        if saves:
            try:
                if self._is_due(number):
                    self._validate()
            finally:
                self._emit_checkpoint()

    def emit(self, event: Event, counters: Mapping[str, int] | None = None) -> None:
        """Write an event to the journal, with counters, and pass it on."""
        self.store.journal.record(event, counters={**self._effort.counters(), **(counters or {})})
        self._emit(event)

    def _warn(self, text: str) -> None:
        self.emit(events.Notice(level="warning", text=text))

    def _inform(self, text: str) -> None:
        self.emit(events.Notice(level="info", text=text))

    def _training_tasks(self, cursor: int, count: int, seed: int | None = None) -> tuple[tuple[Task, ...], int]:
        """The next tasks whose questions the model's context can take with an answer; the others are counted."""
        tasks: list[Task] = []
        for _ in range(MAX_DRAWS):
            drawn, cursor = self._draw(cursor, count - len(tasks), self.seed if seed is None else seed)
            fitting = [task for task in drawn if self._fits(task.question)]
            self._too_long += len(drawn) - len(fitting)
            tasks += fitting
            if len(tasks) == count:
                return tuple(tasks), cursor
        raise nothing_fits(self.source, self.max_tokens)

    def _fits(self, question: str) -> bool:
        """Whether the model's context can take a question with an answer."""
        return self.policy.room(self.source.manifest.prompt_for(question)) >= self.max_tokens

    def _draw(self, cursor: int, count: int, seed: int) -> tuple[list[Task], int]:
        """The next tasks that the node takes; a generator takes all, since it does not learn."""
        tasks: list[Task] = []
        while len(tasks) < count:
            (task,), cursor = self.source.training_tasks(seed, cursor, 1)
            if not self.trains or self._draws.takes(task):
                tasks.append(task)
        return tasks, cursor

    # Received rollouts, warnings and progress.

    def _receive(self, rollout: Rollout, neighbourhood: str) -> None:
        self.pool.add(rollout, neighbourhood)

    def _count_received(self) -> int:
        """Count the rollouts of other nodes accepted since the last call, and tell SelectSubset."""
        total = self.pool.counts[PoolOutcome.ADDED]
        received, self._received = total - self._received, total
        self.selector.observe(received)
        self.room.update(self.selector.budget, self.pool.authors())
        return received

    def _report_problems(self, result: RoundResult) -> None:
        """Warn about a failed update and rejected or unscored rollouts; say when external ones are missing, once."""
        if result.statistics.informative and not result.statistics.steps:
            self._warn(f"round {result.event.round}: the gradient was not finite, the adapter is unchanged")
        counts = {f"external rollouts rejected: {reason}": count for reason, count in self._external.rejected.items()}
        counts["answers scored 0 because their verifier failed"] = self.source.verifier_errors
        counts["questions left out, too long for the model with an answer"] = self._too_long
        for text, count in counts.items():
            if count != self._reported_counts.get(text, 0):
                self._reported_counts[text] = count
                self._warn(f"round {result.event.round}: {text}: {count}")
        if (result.missing > 0) != self._lacks_external:
            self._lacks_external = result.missing > 0
            state = "own rollouts replace missing external ones" if result.missing else "no external rollout is missing"
            self._inform(f"round {result.event.round}: {state}")

    def _call_handle(self, phase: Phase, unit: str) -> CallHandle:
        return self.stop.call_handle(self._progress(phase, unit))

    def _progress(self, phase: Phase, unit: str) -> Callable[[int, int], None]:
        last = 0.0

        def progress(done: int, total: int) -> None:
            nonlocal last
            # Set here because the handles of a round are all created when it begins.
            self.phase = phase
            self.progress = events.Progress(phase=phase, done=done, total=total, unit=unit)
            now = time.monotonic()
            if done == total or now - last >= PROGRESS_INTERVAL:
                last = now
                self._emit(self.progress)

        return progress

    # Evaluations.

    def _is_due(self, round: int) -> bool:
        every = self.settings.evaluate_every
        return bool(every) and round % every == 0

    def _validate_at_start(self) -> None:
        """Validate what the run begins with, or the last checkpoint if a node that ended abruptly did not get to it.

        A run begins with the untrained model, or with an adapter of others: a checkpoint of round 0 without accuracy.
        """
        latest = self.store.latest
        if self.trains and (
            latest is None
            or (latest.round == 0 and latest.accuracy is None and self._head_start is None)
            or (latest.round > 0 and latest.round == self.round and self._is_due(self.round))
        ):
            self._validate()

    def _take_head_start(self) -> None:
        """Learn right answers before the first round, as the settings say.

        Each validation that is the best so far is saved, with the state of the head start: a node that was stopped goes
        on from there.
        """
        limit = head_start_limit(self.settings.head_start)
        latest, begun = self.store.latest, self._head_start is not None
        state = self._head_start or HeadStartState()
        if not self.trains or limit == 0 or self.round or state.over or (latest is not None and not begun):
            # One that has begun goes on to the number of today.
            if self.trains and limit and (latest is None or latest.settings.get("head_start") != str(limit)):
                self._warn(
                    f"head_start = {limit} has no effect: it counts at the start of a run: `sapo runs new` begins one"
                )
            return
        if state.updates:
            self._inform(f"the head start goes on after {counted(state.updates, 'update')}")
        update = round_settings(self.settings, self.max_tokens).update
        batch = self.settings.own + self.settings.external
        head_start = HeadStart(
            self.policy, self.source, self.seed, batch, update, self._sample_answers, rehearse=rehearsed_prompts()
        )
        base = self.store.journal.held_out_after(0, "validation")
        problem = "" if limit is not None or begun else self._needs_none(base)
        if not problem and not head_start.knows_answers:
            state = head_start.search(state, lambda: self._call_handle("generate", "answers"), self._goes_on)
            if head_start.answered < FEWEST and not self.stop.finish.is_set():
                problem = (
                    "right answers are not known, or too long for max_tokens, and the model found those to "
                    f"{counted(head_start.answered, 'question')} only"
                )
        if problem:
            self._inform(f"no head start: {problem}")
            return
        state = replace(state, vain=self.store.journal.counter(VAIN))
        if not begun and base is not None:
            # What is no better than the untrained policy is not kept.
            state = replace(state, best=base.correct, answers=base.answers)
            self._save_head_start(state, base.accuracy)
        elif latest is not None and latest.asked != self._evaluations.asked:
            # Right answers to other questions, or under other limits, tell nothing of a rise.
            result = self._evaluations.ask("validation")
            state = replace(state, best=result.right, best_updates=state.updates, vain=0, answers=result.marks)
            self._save_head_start(state, result.accuracy)
        while not state.over and not self.stop.finish.is_set():
            before = state.updates
            updates = state.next_updates(limit, head_start.seconds, self._evaluations.seconds)
            state = self._advance(head_start, state, updates)
            # Minutes of learning are worth the validation that keeps them.
            if self.stop.finish.is_set() and state.updates < before + FIRST:
                break
            result = self._evaluations.ask("validation")
            state = state.judged(result.marks, limit, head_start.wait)
            if state.best_updates == state.updates:
                self._save_head_start(state, result.accuracy)
                self._evaluations.keep_detail("validation", 0, result, ahead=True)
            if state.over:
                self._end_head_start(state)
            assert self._head_start is not None
            # When it is over, the figures are those of the adapter that goes on.
            answers = (self._head_start.answers if state.over else "") or result.marks
            right = events.count_right(answers)
            self.head_start = events.HeadStart(
                updates=state.updates, learned=len(head_start.learned),
                accuracy=right / len(answers) if answers else 0.0, correct=right, questions=len(answers),
                done=state.over, best_updates=self._head_start.updates if state.over else state.best_updates,
                answers=answers,
            )  # fmt: skip
            self.emit(self.head_start, {VAIN: state.vain + state.updates - state.best_updates})
        if not state.over:
            self._inform("head start: stopped; the next start continues from its best validation")

    def _correction(self, task: Task) -> str | None:
        """What a question teaches to which all own answers are wrong; None if that is nothing."""
        if self.settings.corrections == "off":
            return None
        return known_answer(self.source, self.policy, task, self.max_tokens)

    def _needs_none(self, base: events.HeldOut | None) -> str:
        """Why this run begins without a head start; "" if one may help."""
        if base is None:
            return "without held-out questions nothing tells when to end it; the setting head_start gives a number"
        return "the model is nearly always right already" if base.accuracy >= ENOUGH else ""

    def _sample_answers(
        self, seed: int, cursor: int, handle: CallHandle
    ) -> tuple[list[ScoredRollout], list[ScoredRollout], int]:
        """Own answers to the next training questions of a sequence, and others' from the pool, used as in a round."""
        settings = self._round_settings()
        tasks, next_cursor = self._training_tasks(cursor, settings.own + settings.external, seed)
        own = generate(0, tasks, derive_seed("round", seed, cursor), 0, self._context, settings, handle)
        self._draws.observe(own)
        external = sample_external(settings.external, self._context, settings, random.Random(cursor))
        self.pool.take([scored.rollout for scored in external])
        return own, external, next_cursor

    def _goes_on(self, _made: int) -> bool:
        self._wait_while_paused()
        return not self.stop.finish.is_set()

    def _advance(self, head_start: HeadStart, state: HeadStartState, updates: int) -> HeadStartState:
        """Make so many updates of a head start, and show how far they are."""
        progress = self._progress("head_start", "updates")

        def goes_on(made: int) -> bool:
            progress(made, updates)
            return self._goes_on(made)

        state = head_start.advance(state, updates, lambda: self.stop.call_handle(lambda _done, _total: None), goes_on)
        progress(updates, updates)
        return state

    def _save_head_start(self, state: HeadStartState, accuracy: float) -> None:
        """Save the policy before the first round, with its accuracy on the validation questions of today."""
        self._head_start = state
        self._save_checkpoint((accuracy, *self._evaluations.asked))
        self.best = self.store.checkpoints.best(self.store.latest)

    def _end_head_start(self, state: HeadStartState) -> None:
        latest, saved = self.store.latest, self._head_start
        assert latest is not None and saved is not None
        if saved.updates != state.updates:
            self.policy.load(latest.directory)
        self._save_head_start(replace(saved, over=True), latest.accuracy or 0.0)

    def _round_settings(self) -> RoundSettings:
        """The settings of a round: the learning rate falls as without a head start, and is halved for each collapse."""
        settings = round_settings(self.settings, self.max_tokens, self.guard.external(self.settings))
        update = settings.update
        ahead = self._head_start.updates if self._head_start else 0
        decay_after = update.decay_after + ahead if update.decay_after else 0
        rate = update.learning_rate / 2 ** self.store.journal.counter(COLLAPSES)
        return replace(settings, update=replace(update, decay_after=decay_after, learning_rate=rate))

    def _evaluate_at_end(self) -> bool:
        """Validate the last checkpoint, and compare the best one with the base model on the test set.

        Returns whether all is done: meanwhile the node may be asked to stop, or for more rounds or an earlier one.
        """
        self._save_unsaved()
        if self.trains and self.store.latest is not None:
            self._validate()
            if self.stop.finish.is_set():
                return False
            if self.best is not None:
                self.comparison = self._evaluations.compare(self.best, self.comparison)
        self._roll_back_if_asked()
        if not self._has_rounds_left():
            return True
        if self.store.latest is not None:
            # The comparison loaded the best one.
            self.policy.load(self.store.latest.directory)
        return False

    def _validate(self) -> None:
        self._evaluations.validate(self.round)
        self.best = self.store.checkpoints.best(self.best)

    def _undo_collapse(self) -> None:
        """Return to the best checkpoint after a collapse, and learn at half the rate from there."""
        fall = collapsed(list(self.recent)) if self.trains and self.round >= self._calm_until else None
        undone, best = self.store.journal.counter(COLLAPSES), self.best
        if fall is None or best is None or best.round >= self.round or undone >= MOST_UNDONE:
            return
        if not self.settings.held_out:
            return  # nothing tells any more whether the questions have become harder
        self._calm_until = self.round + ROUNDS
        if self._evaluations.ask("validation").accuracy >= HOLDS * (best.accuracy or 0.0):
            return  # the questions have become harder, not the answers worse
        if self.store.checkpoints.reserved:
            return  # somebody has asked for another checkpoint meanwhile
        before, now = map(format_share, fall)
        self._warn(
            f"the reward fell from {before} to {now}, hardly any question teaches, and validation fell: a collapse. "
            f"Returning to the checkpoint of round {best.round}, at half the learning rate"
        )
        self._roll_back(best.round)
        if self.round == best.round:
            self.store.journal.raise_counters({COLLAPSES: undone + 1})

    # Checkpoints and the pool.

    def _has_rounds_left(self) -> bool:
        return not self.settings.rounds or self.round < self.settings.rounds

    def _restore_checkpoint(self) -> None:
        manifest = self.source.manifest.digest
        latest = self.store.latest
        if latest and latest.manifest_digest != manifest and (name := shipped_name(latest.manifest_digest)):
            raise CheckpointError(
                f"{latest.directory} was made with another manifest, {name}",
                f"continue with --manifest {name}, or begin another run with `sapo runs new`",
            )
        checkpoint, self.round = self.store.resume(model_digest=self.policy.model_digest, manifest_digest=manifest)
        # A trainer does not repeat the questions that it answered as a generator.
        self.cursor = max(map(self.store.journal.counter, (GENERATOR_CURSOR, ROLLED_BACK_CURSOR)))
        if checkpoint is not None:
            if checkpoint.seed != self.seed:
                raise ConfigError(
                    f"this state was made with seed {checkpoint.seed}, not {self.seed}",
                    f"give --seed {checkpoint.seed}, or begin another run with `sapo runs new`",
                )
            self.policy.load(checkpoint.directory)
            self.cursor = max(self.cursor, int(checkpoint.cursor["tasks"]))
            if ahead := checkpoint.cursor.get("head_start"):
                self._head_start = HeadStartState(**ahead)
            self._draws = Draws(checkpoint.cursor.get("teaching"))

    def _wait_while_paused(self) -> None:
        """Wait until there is no reason to pause; a return to an earlier checkpoint does not wait for that."""
        asked = self.store.checkpoints.reserved
        self.stop.wait_while_paused(lambda: bool(asked))
        while asked:
            self._roll_back_if_asked()
            self.stop.wait_while_paused(lambda: bool(asked))

    def _roll_back_if_asked(self) -> None:
        if asked := self.store.checkpoints.reserved:
            self._roll_back(asked.popleft())

    def _roll_back(self, target: int) -> None:
        if target >= self.round:
            return
        # The journal forgets which external rollouts the later rounds took.
        problem = self._write_pool()
        if problem is None:
            try:
                event = self.store.roll_back(target, self.cursor)
            except CheckpointError as error:
                problem = error
        if problem is not None:
            self._warn(f"the node does not return to round {target}: {problem}")
            return
        assert self.store.latest is not None
        if self._started is not None and self._started.round > target:
            # The journal forgot this start, which says with what later rounds are trained.
            self._started = replace(self._started, round=target)
            self.store.journal.record(self._started)
        self.policy.load(self.store.latest.directory)
        self.round, self._unsaved, self._calm_until = target, 0, 0
        self._draws = Draws(self.store.latest.cursor.get("teaching"))
        self.best = self.store.checkpoints.best(self.store.latest)
        self.comparison = self.store.journal.last_comparison()
        self.recent.clear()
        self.recent.extend(self.store.journal.rounds(RECENT))
        self._emit(event)

    def _must_save(self) -> bool:
        """Whether the round that was just finished gets a checkpoint: see the setting `save_every`."""
        is_old = time.monotonic() - self._checkpoint_saved >= 60 * self.settings.save_every
        ends = self.stop.finish.is_set() or not self._has_rounds_left()
        return is_old or ends or self.store.latest is None or self._is_due(self.round)

    def _save_unsaved(self) -> None:
        """Save the rounds since the last checkpoint, before the node ends in order."""
        if self._unsaved:
            self._save_checkpoint()
            self._emit_checkpoint()

    def _save_checkpoint(self, validated: tuple[float | None, int, str] = (None, 0, "")) -> None:
        self._checkpoint_saved, self._unsaved = time.monotonic(), 0
        cursor: dict[str, Any] = {"tasks": self.cursor, "teaching": self._draws.teaching}
        if self._head_start:
            cursor["head_start"] = asdict(self._head_start)
        checkpoint = Checkpoint(
            self.round, self.policy.model_digest, self.source.manifest.digest, self.seed, cursor,
            self.settings.as_dict(), *validated,
        )  # fmt: skip
        self.store.save_checkpoint(checkpoint, self.policy.save)

    def _emit_checkpoint(self) -> None:
        """Emit that the checkpoint was saved, once it is known whether it is the best."""
        assert self.store.latest is not None
        is_best = self.best is not None and self.best.round == self.round
        self.emit(events.CheckpointSaved(round=self.round, path=str(self.store.latest.directory), best=is_best))

    def _save_pool(self) -> None:
        """Save the rollouts of other nodes; a node that works alone has none."""
        self._pool_saved = time.monotonic()
        if self.settings.network == "solo":
            return
        problem = self._write_pool()
        if problem is not None:
            self._warn(str(problem))

    def _write_pool(self) -> StateError | None:
        """Save the pool; returns what prevented it."""
        try:
            self.pool.save(self.store.run.pool)
        except StateError as error:
            return error
        return None


def nothing_fits(source: TaskSource, max_tokens: int) -> ModelError:
    """The error where `MAX_DRAWS` brought too few questions that the model's context can take with an answer."""
    return ModelError(
        f"almost no question of {source.manifest.name} fits into the model's context with an answer of "
        f"{counted(max_tokens, 'token')}",
        "lower max_tokens, use tasks with shorter questions, or take a model with a longer context",
    )
