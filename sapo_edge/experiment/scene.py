"""What the swarms of a plan share: models, tasks and questions. Opened once in each process."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from sapo_edge.experiment.plan import Plan, Setting
from sapo_edge.experiment.shelf import Shelf
from sapo_edge.experiment.swarm import SAMPLES, TEST, VALIDATION, QuestionSet
from sapo_edge.policy import LoraSettings
from sapo_edge.tasks.held_out import SPLIT_QUESTIONS
from sapo_edge.tasks.manifest import Manifest, load_manifest
from sapo_edge.tasks.source import TaskSource

TINY = "tiny"
BASE = "base"
"""Name of the model that all members have unless a setting says otherwise."""
SAMPLED = f"test@{SAMPLES}"
HARDER, UNSEEN = "harder", "unseen"

Narrate = Callable[[str], None]


class Scene:
    """Models, tasks and questions of a plan.

    Args:
        plan: of the experiment.
        directory: of the experiment; tiny models are made there.
        cache: for files that a backend derives from a model.
        narrate: receives lines about what takes time.
    """

    def __init__(self, plan: Plan, directory: Path, cache: Path, narrate: Narrate) -> None:
        self.plan = plan
        self.source = TaskSource(training_manifest(plan))
        self._directory = directory
        self._cache = cache
        self._narrate = narrate
        self._temporary = tempfile.TemporaryDirectory(prefix="sapo-experiment-", dir=_memory_directory())
        self._shelves: dict[str, Shelf] = {}

    def shelves(self, setting: Setting) -> dict[str, Shelf]:
        """The shelves of a setting's models."""
        return {name: self._shelf(name) for name in dict.fromkeys(setting.models)}

    def question_sets(self, setting: Setting) -> dict[str, QuestionSet]:
        """What members are examined on: validation first."""
        test = self.source.held_out("test", setting.questions)
        sets = {
            VALIDATION: QuestionSet(self.source, self.source.held_out("validation", setting.validation)),
            TEST: QuestionSet(self.source, test),
            SAMPLED: QuestionSet(self.source, test[: setting.sampled], samples=SAMPLES),
        }
        if self.plan.scale == TINY:
            from sapo_edge.experiment.tiny_tasks import harder_manifest, unseen_manifest

            for name, manifest in ((HARDER, harder_manifest()), (UNSEEN, unseen_manifest())):
                source = TaskSource(manifest)
                sets[name] = QuestionSet(source, source.held_out("test", SPLIT_QUESTIONS))
        return sets

    def close(self) -> None:
        """Free the models and the adapters."""
        for shelf in self._shelves.values():
            shelf.policy.close()
        self._shelves.clear()
        self._temporary.cleanup()

    def _shelf(self, name: str) -> Shelf:
        if name not in self._shelves:
            from sapo_edge.backends.choose import detect

            plan = self.plan
            directory = Path(self._temporary.name) / name
            directory.mkdir()
            model = model_path(plan, name, self._directory, self._narrate)
            policy, _ = detect.open_policy(
                detect.detect(plan.backend, model),
                model,
                cache=self._cache,
                workspace=directory,
                lora=LoraSettings(plan.learning.rank, plan.learning.alpha),
                threads=plan.threads,
                trainable=True,
                narrate=self._narrate,
            )
            self._shelves[name] = Shelf(policy, directory / "adapters")
        return self._shelves[name]


def training_manifest(plan: Plan) -> Manifest:
    """What the members of a plan train on.

    Raises:
        ManifestError: if there is no such manifest.
    """
    if plan.manifest:
        return load_manifest(plan.manifest)
    from sapo_edge.experiment.tiny_tasks import tiny_manifest

    return tiny_manifest()


def model_path(plan: Plan, name: str, directory: Path, narrate: Narrate) -> Path:
    """A model's file or directory; a tiny one is made if it is missing.

    Raises:
        ModelError: if it is missing.
    """
    from sapo_edge.backends.model.find import find_model

    if plan.scale == TINY and not plan.model:
        from sapo_edge.experiment.tiny import make_tiny

        return make_tiny(directory / "models", "mixed" if name == BASE else name, narrate=narrate)
    return find_model(plan.model)


def _memory_directory() -> str | None:
    """A file system in memory for adapters that change hands every round; None: the system's own choice."""
    shared = Path("/dev/shm")
    return str(shared) if shared.is_dir() else None
