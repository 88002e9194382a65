"""How external rollouts were scored before the cure, for arms that show what it cures."""

from __future__ import annotations

from sapo_edge.rollout import Rollout, ScoredRollout
from sapo_edge.swarm.judging.external import MAX_SCORED, RejectedError, verified_task
from sapo_edge.swarm.recent import Recent
from sapo_edge.tasks.answers import CLOSE_TAG, OPEN_TAG
from sapo_edge.tasks.source import TaskSource


def last_pair(text: str) -> str:
    """The last complete pair of answer tags with what it encloses; "" without one."""
    close = text.rfind(CLOSE_TAG)
    start = text.rfind(OPEN_TAG, 0, max(close, 0))
    return text[start : close + len(CLOSE_TAG)] if start >= 0 else ""


class UncutScorer:
    """Scores all answers of a group by their last pair of tags, and cuts none before. Remembers rewards.

    Args:
        source: regenerates tasks and scores answers.
    """

    def __init__(self, source: TaskSource) -> None:
        self._source = source
        self._rewards: Recent[str, tuple[float, ...] | None] = Recent(MAX_SCORED)

    def __call__(self, rollout: Rollout, _answers: int) -> ScoredRollout | None:
        """The rollout with its rewards, or None if it must not be trained on."""
        if rollout.id not in self._rewards:
            self._rewards[rollout.id] = self._score(rollout)
        rewards = self._rewards[rollout.id]
        return None if rewards is None else ScoredRollout(rollout, rewards)

    def cut(self, scored: ScoredRollout) -> ScoredRollout:
        return scored

    def _score(self, rollout: Rollout) -> tuple[float, ...] | None:
        try:
            task = verified_task(self._source, rollout)
        except RejectedError:
            return None
        return tuple(self._source.score(task, last_pair(answer.text)) for answer in rollout.answers)
