"""A head start: a few supervised updates on the right answers of training questions, before the first round.

Where a model is never right, all its answers earn the same, and reinforcement learning has nothing to learn from. The
updates minimise the cross-entropy of the right answers with the learner of the rounds: an external answer with
advantage 1 that is trusted fully has exactly that gradient. Nothing is learned from a held-out question.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from sapo_edge.errors import ManifestError
from sapo_edge.policy import CallHandle, ExternalRule, Policy, TrainingAnswer, TrainingGroup, UpdateSettings
from sapo_edge.rollout import Task
from sapo_edge.tasks.answers import CLOSE_TAG, OPEN_TAG
from sapo_edge.tasks.source import TaskSource, derive_seed

TRUSTING = ExternalRule(patience=0.0, bounded=False)
"""External answers count fully, however unlikely they are, and however long."""


@dataclass(frozen=True, slots=True)
class HeadStart:
    """What a head start works with.

    Attributes:
        policy: learns.
        source: draws training questions, and checks that their answers are right.
        seed: of the node; the questions are drawn in another order than those of its rounds.
        batch: questions in an update.
        settings: of the node's updates.
    """

    policy: Policy
    source: TaskSource
    seed: int
    batch: int
    settings: UpdateSettings

    def run(self, updates: int, handle: Callable[[], CallHandle], goes_on: Callable[[], bool]) -> int:
        """Make so many updates.

        Args:
            updates: number of updates.
            handle: progress and cancellation of one update.
            goes_on: called before each update; False ends the head start.

        Returns:
            Number of different questions that were learned from.

        Raises:
            Cancelled: between the groups of an update, which is then undone.
            ManifestError: if there is no right answer to learn.
        """
        cursor, learned = 0, set[str]()
        for _ in range(updates):
            if not goes_on():
                break
            tasks, cursor = self.source.training_tasks(derive_seed("head start", self.seed), cursor, self.batch)
            groups = {task.question: group for task in tasks if (group := self._group(task)) is not None}
            if not groups and not learned:
                name = self.source.manifest.name
                problem = f"the questions of {name} have no right answers to learn"
                raise ManifestError(problem, "set head_start to 0, or check the questions with `sapo tasks check`")
            self.policy.update(list(groups.values()), _supervised(self.settings), handle())
            learned.update(groups)
        return len(learned)

    def _group(self, task: Task) -> TrainingGroup | None:
        """A question with its right answer; None if that is not right by its own check, or too long."""
        text = f"{OPEN_TAG}{task.ground_truth}{CLOSE_TAG}"
        limit = self.settings.max_tokens
        if self.source.score(task, text) < 1 or (limit and len(self.policy.encode(text)) > limit):
            return None
        prompt = self.source.manifest.prompt_for(task.question)
        return TrainingGroup(prompt, (TrainingAnswer(text, True, 1.0),), external=True)


def _supervised(settings: UpdateSettings) -> UpdateSettings:
    """The settings of a supervised update: one epoch, so that no ratio is clipped."""
    return replace(settings, epochs=1, kl_coefficient=0.0, external_rule=TRUSTING)
