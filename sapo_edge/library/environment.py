"""A manifest as an environment of the package `verifiers`, for its own evaluation and for prime-rl.

The package finds an environment as an installed module that names its taskset in `__all__`. So this is a whole one, in
a file `my_sums.py` that Python finds:

    from sapo_edge.library.environment import SapoTaskset

    __all__ = ["SapoTaskset"]

It is then `my-sums` to `vf-eval`, with `--env.taskset.manifest`, `--env.taskset.split` and `--env.taskset.questions`.
Importing this module imports `verifiers`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import verifiers.v1 as vf

from sapo_edge.errors import ConfigError
from sapo_edge.events import WRONG
from sapo_edge.rollout import Task
from sapo_edge.tasks.manifest import load_manifest
from sapo_edge.tasks.skills import Part
from sapo_edge.tasks.source import TaskSource


class SapoConfig(vf.TasksetConfig):
    """Which questions are asked."""

    manifest: str = "starter"
    """A shipped manifest's name, or the path of a file."""
    split: Part = "test"
    """Held-out questions (at most 200), or those that are trained on."""
    questions: int = 200
    """Most of them; of generators there are always more to train on."""
    seed: int = 0
    """Of the questions to train on."""


class SapoData(vf.TaskData):
    """Where a question stands, so that any process can make it again, and its answer, which nobody is shown."""

    answer: str
    manifest: str
    split: Part
    questions: int
    seed: int
    place: int


class SapoTask(vf.Task[SapoData]):
    """A question of a manifest."""

    @vf.reward(weight=1.0)
    async def reward(self, trace: vf.Trace) -> float:
        """The reward of a round, 0 to 1."""
        source, task = self._judged()
        return source.score(task, trace.last_reply)

    @vf.metric
    async def right(self, trace: vf.Trace) -> float:
        """1 if the answer is right by its content, in whatever form."""
        source, task = self._judged()
        return float(source.judge(task, trace.last_reply) != WRONG)

    def _judged(self) -> tuple[TaskSource, Task]:
        data = self.data
        source, tasks = questions_of(data.manifest, data.split, data.questions, data.seed)
        return source, tasks[data.place]


class SapoTaskset(vf.Taskset[SapoTask, SapoConfig]):
    """The questions of a manifest, with its prompt and limits of length left to the evaluation."""

    def load(self) -> Iterator[SapoTask]:
        chosen = (self.config.manifest, self.config.split, self.config.questions, self.config.seed)
        source, tasks = questions_of(*chosen)
        for place, task in enumerate(tasks):
            turns = source.manifest.prompt_for(task.question)
            system = turns[0].content if turns[0].role == "system" else None
            prompt = [{"role": turn.role, "content": turn.content} for turn in turns if turn.role != "system"]
            yield SapoTask(
                SapoData(
                    prompt=prompt, system_prompt=system, answer=task.ground_truth, manifest=chosen[0], split=chosen[1],
                    questions=chosen[2], seed=chosen[3], place=place,
                ),
                self.config.task,
            )  # fmt: skip


@lru_cache(maxsize=8)
def questions_of(manifest: str, split: Part, count: int, seed: int) -> tuple[TaskSource, tuple[Task, ...]]:
    """The tasks of a part of a manifest, the same in every process; a ConfigError if there are none."""
    source = TaskSource(load_manifest(manifest))
    tasks = source.training_tasks(seed, 0, count)[0] if split == "train" else source.held_out(split, count)
    if not tasks:
        raise ConfigError(f"{manifest} has no questions for {split}", "name another split, or ask for 1 or more")
    return source, tasks
