"""Local rewards of other nodes' rollouts: nothing that a sender says about right and wrong is used."""

from __future__ import annotations

from collections import Counter, OrderedDict

from sapo_edge.errors import UnknownTaskError
from sapo_edge.rollout import Rollout
from sapo_edge.tasks.source import TaskSource

SCORED_EXTERNAL = 4096
"""External rollouts whose local rewards are remembered."""


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
            task = self.source.regenerate(rollout.ref)
        except UnknownTaskError as error:
            self.refused[error.message] += 1
            return None
        if task.question != rollout.question or task.ground_truth != rollout.ground_truth:
            self.refused["question or ground truth is not what the task's reference gives"] += 1
            return None
        if self.source.is_held_out(task.question):
            self.refused["the question is held out"] += 1
            return None
        return tuple(self.source.score(task, answer.text) for answer in rollout.answers)
