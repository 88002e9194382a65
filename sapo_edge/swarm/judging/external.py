"""Rollouts of other nodes, checked and rewarded by this node alone: a sender's word on right and wrong is not used."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from sapo_edge.errors import SapoError, UnknownTaskError
from sapo_edge.recent import Recent
from sapo_edge.rollout import Answer, Rollout, ScoredRollout, Task
from sapo_edge.swarm.wire.rejection import Rejection
from sapo_edge.tasks.bounded import BoundedWorker, NotStartedError, OvertimeError
from sapo_edge.tasks.source import TaskSource

MAX_SCORED = 4096
"""External rollouts whose rewards are remembered."""
TASK_SECONDS = 5.0
"""Time limit to regenerate one task. An honest one takes milliseconds, even on a slow machine."""
BLAMED_SHARE = 0.2
"""Share of that time for which the processor worked on the task, from which its author is to blame. Below it the
machine slept, or had others to serve."""
WARM_UP_SECONDS = 300.0
"""Time limit to load the generators and generate the held-out questions, once."""

_log = logging.getLogger(__name__)


class RejectedError(Exception):
    """A rollout that must not be trained on.

    Args:
        reason: TASK, FORGED, HELD_OUT or SLOW.
        detail: for the log, without any text of the peer.
        is_authors_fault: whether its author is certainly responsible.
    """

    def __init__(self, reason: Rejection, detail: str, is_authors_fault: bool = True) -> None:
        super().__init__(detail)
        self.reason = reason
        self.is_authors_fault = is_authors_fault


def verified_task(source: TaskSource, rollout: Rollout) -> Task:
    """The task of another node's rollout: regenerated from this node's manifest, and equal to what the rollout says.

    Raises:
        RejectedError: if there is no such task, its seed and index draw another entry, its question or ground truth
            differs, or the question is held out.
    """
    try:
        task = source.regenerate(rollout.ref)
    except UnknownTaskError as error:
        raise RejectedError(Rejection.TASK, error.message) from error
    if not source.is_drawn(rollout.ref):
        raise RejectedError(Rejection.FORGED, "the reference's seed and index draw another entry")
    if task.question != rollout.question or task.ground_truth != rollout.ground_truth:
        raise RejectedError(Rejection.FORGED, "question or ground truth is not what the task's reference gives")
    if source.is_held_out(task.question):
        raise RejectedError(Rejection.HELD_OUT, "the question is held out")
    return task


class TaskCheck:
    """Verifies tasks with a time limit, in a thread of its own. Thread-safe."""

    def __init__(self, source: TaskSource) -> None:
        self._source = source
        self._worker = BoundedWorker()
        self._is_warm = False

    @property
    def busy(self) -> float:
        """Seconds of processor time that all checks took, in threads of their own."""
        return self._worker.busy

    def run(self, rollout: Rollout) -> None:
        """Verify the task of a rollout, in milliseconds to seconds; a RejectedError if it is not verified in time."""
        try:
            if not self._is_warm:
                # Loading a library must not be interrupted, and how long it takes is nobody's fault.
                self._worker.run(lambda: self._source.held_out("validation", 0), WARM_UP_SECONDS)
                self._is_warm = True
        except (OvertimeError, SapoError) as error:
            _log.warning("tasks can't be generated: %s", error)
            raise RejectedError(Rejection.TASK, "tasks can't be generated", is_authors_fault=False) from error
        try:
            self._worker.run(lambda: verified_task(self._source, rollout), TASK_SECONDS)
        except RejectedError:
            raise
        except NotStartedError as error:
            raise RejectedError(Rejection.SLOW, "earlier tasks still run", is_authors_fault=False) from error
        except OvertimeError as error:
            was_busy = error.busy >= BLAMED_SHARE * TASK_SECONDS
            raise RejectedError(Rejection.SLOW, "the task took too long", is_authors_fault=was_busy) from error
        except Exception as error:
            # A bug; one rollout must not end the swarm's checks.
            _log.error("a task could not be checked: %s", type(error).__name__)
            raise RejectedError(Rejection.TASK, "the check failed", is_authors_fault=False) from error


Cut = Callable[[str, bool], Answer]
"""(text, ended) -> the answer as this node's own sampler would have stopped."""


class ExternalScorer:
    """Rewards of other nodes' rollouts. Each task is verified before anything is scored.

    Answers are cut first: what is scored is exactly what `cut` returns to be trained on. Only rewards are kept from
    round to round, because the texts and token ids of thousands of rollouts would fill the memory. `rejected` counts
    the rollouts that are not scored, by their reason in words. `fits` tells whether the model can take a question: the
    author's model may have a longer context.
    """

    def __init__(self, source: TaskSource, cut: Cut, fits: Callable[[str], bool] = lambda question: True) -> None:
        self.source = source
        self.rejected: Counter[str] = Counter()
        self._cut, self._fits = cut, fits
        self._rewards: Recent[tuple[str, int], tuple[float, ...] | None] = Recent(MAX_SCORED)

    def __call__(self, rollout: Rollout, answers: int) -> ScoredRollout | None:
        """The rollout with the rewards of its first `answers` answers, cut; None if it must not be trained on."""
        key = rollout.id, answers
        if key not in self._rewards:
            self._rewards[key] = self._score(rollout, answers)
        rewards = self._rewards[key]
        return None if rewards is None else ScoredRollout(rollout, rewards)

    def cut(self, scored: ScoredRollout) -> ScoredRollout:
        """A scored rollout with its answers as they were scored, to be trained on."""
        received = scored.rollout.answers[: len(scored.rewards)]
        answers = tuple(self._cut(answer.text, answer.ended) for answer in received)
        # The id stays that of the rollout as it was received.
        return replace(scored, rollout=replace(scored.rollout, answers=answers, digest=scored.rollout.id))

    def _score(self, rollout: Rollout, answers: int) -> tuple[float, ...] | None:
        try:
            task = verified_task(self.source, rollout)
        except RejectedError as error:
            self.rejected[str(error)] += 1
            return None
        if not self._fits(task.question):
            self.rejected["the question is too long for the model with an answer"] += 1
            return None
        texts = (self._cut(answer.text, answer.ended).text for answer in rollout.answers[:answers])
        return tuple(self.source.score(task, text) for text in texts)
