"""Local rewards of other nodes' rollouts: nothing that a sender says about right and wrong is used."""

from __future__ import annotations

from collections import Counter, OrderedDict

from sapo_edge.errors import UnknownTaskError
from sapo_edge.rollout import Rollout, Task
from sapo_edge.swarm.wire.rejection import Rejection
from sapo_edge.tasks.source import TaskSource

SCORED_EXTERNAL = 4096
"""External rollouts whose local rewards are remembered."""


class RefusedError(Exception):
    """A rollout that must not be trained on.

    Args:
        reason: TASK, FORGED or HELD_OUT.
        detail: for the owner; nothing of the peer's text is in it.
    """

    def __init__(self, reason: Rejection, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


def verified_task(source: TaskSource, rollout: Rollout) -> Task:
    """The task of another node's rollout, made anew from this node's manifest and compared with what the sender says.

    Raises:
        RefusedError: if there is no such task, question or ground truth differ from it, or it is held out.
    """
    try:
        task = source.regenerate(rollout.ref)
    except UnknownTaskError as error:
        raise RefusedError(Rejection.TASK, error.message) from error
    if task.question != rollout.question or task.ground_truth != rollout.ground_truth:
        raise RefusedError(Rejection.FORGED, "question or ground truth is not what the task's reference gives")
    if source.is_held_out(task.question):
        raise RefusedError(Rejection.HELD_OUT, "the question is held out")
    return task


class ExternalScorer:
    """Local rewards of other nodes' rollouts: each task is made anew and compared before anything is scored."""

    def __init__(self, source: TaskSource) -> None:
        self.source = source
        self.refused: Counter[str] = Counter()
        self._known: OrderedDict[str, tuple[float, ...] | None] = OrderedDict()

    def __call__(self, rollout: Rollout) -> tuple[float, ...] | None:
        """Rewards of the answers, or None if the rollout must not be trained on."""
        identity = rollout.id
        if identity not in self._known:
            self._known[identity] = self._score(rollout)
            while len(self._known) > SCORED_EXTERNAL:
                self._known.popitem(last=False)
        return self._known[identity]

    def _score(self, rollout: Rollout) -> tuple[float, ...] | None:
        try:
            task = verified_task(self.source, rollout)
        except RefusedError as refused:
            self.refused[refused.detail] += 1
            return None
        return tuple(self.source.score(task, answer.text) for answer in rollout.answers)
