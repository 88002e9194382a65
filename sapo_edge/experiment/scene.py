"""What the swarms of a plan share: models, tasks and questions. Opened once in each process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from sapo_edge.errors import ConfigError
from sapo_edge.experiment.measures import TEST, VALIDATION
from sapo_edge.experiment.member import Shelf
from sapo_edge.experiment.plan import Plan, Setting
from sapo_edge.experiment.scales import LAW
from sapo_edge.experiment.swarm import SAMPLES, QuestionSet
from sapo_edge.experiment.tiny import harder_manifest, tiny_manifest, tiny_model, unseen_manifest
from sapo_edge.policy import LoraSettings, Policy
from sapo_edge.tasks.manifest import Manifest, load_manifest
from sapo_edge.tasks.questions import SPLIT_QUESTIONS
from sapo_edge.tasks.source import TaskSource

TINY = "tiny"
BASE = "base"
"""Name of the model that all members have unless a setting says otherwise."""
SAMPLED = f"test@{SAMPLES}"
HARDER, UNSEEN = "harder", "unseen"
SAMPLED_FROM = "bf16"
"""The number format that llama.cpp samples from, also where another one would be faster."""

Narrate = Callable[[str], None]


@dataclass
class Scene:
    """Models, tasks and questions of a plan.

    Attributes:
        workspace: a directory of its own, for adapters.
        tell_origin: receives what the results are made with, by name.
        opening: held while a model is opened. What one process derives from a model, such as the file to sample from,
            the next one finds in the cache.
    """

    plan: Plan
    cache: Path
    workspace: Path
    narrate: Narrate
    tell_origin: Callable[[Mapping[str, str]], None] = lambda origin: None
    opening: AbstractContextManager[object] = field(default_factory=nullcontext)

    def __post_init__(self) -> None:
        self.source = TaskSource(training_manifest(self.plan))
        self._shelves: dict[str, Shelf] = {}

    def shelves(self, setting: Setting) -> dict[str, Shelf]:
        return {name: self._shelf(name) for name in dict.fromkeys(setting.models)}

    def question_sets(self, setting: Setting) -> dict[str, QuestionSet]:
        """What members are examined on: validation first."""
        test = self.source.held_out("test", setting.questions)
        sets = {
            VALIDATION: QuestionSet(self.source, self.source.held_out("validation", setting.validation)),
            TEST: QuestionSet(self.source, test),
        }
        if setting.sampled:
            sets[SAMPLED] = QuestionSet(self.source, test[: setting.sampled], samples=SAMPLES)
        if self.plan.scale == TINY and not self.plan.manifest:
            for name, manifest in ((HARDER, harder_manifest()), (UNSEEN, unseen_manifest())):
                source = TaskSource(manifest)
                sets[name] = QuestionSet(source, source.held_out("test", SPLIT_QUESTIONS))
        return sets

    def close(self) -> None:
        for shelf in self._shelves.values():
            shelf.policy.close()
        self._shelves.clear()

    def _shelf(self, name: str) -> Shelf:
        if name not in self._shelves:
            directory = self.workspace / name
            directory.mkdir(parents=True)
            with self.opening:
                policy = self._open(name, directory)
            self.tell_origin({f"model {name}": policy.model_digest, "backend": policy.backend})
            self._shelves[name] = Shelf(policy, directory / "adapters")
        return self._shelves[name]

    def _open(self, name: str, workspace: Path) -> Policy:
        from sapo_edge.backends.backend import OpenOptions
        from sapo_edge.backends.choose import detect
        from sapo_edge.backends.machine.threads import available_cores, most_threads

        plan = self.plan
        model, lora = model_path(plan, name), LoraSettings(plan.learning.rank, plan.learning.alpha)
        options = OpenOptions(
            model, self.cache, workspace, lora,
            # A fixed number: with another one the sums of a step differ in their last bits.
            threads=plan.threads or most_threads(available_cores()),
            # So that the results do not depend on whether a machine multiplies bfloat16, nor on what it measures.
            precision="float32",
            sampled=SAMPLED_FROM,
            narrate=self.narrate,
        )  # fmt: skip
        policy, _ = detect.open_policy(detect.detect(plan.backend, model), options)
        return policy


def training_manifest(plan: Plan) -> Manifest:
    """What the members of a plan train on."""
    return load_manifest(plan.manifest) if plan.manifest else tiny_manifest()


def is_tiny(plan: Plan) -> bool:
    """Whether the models that come with the program are trained."""
    return plan.scale in (TINY, LAW) and not plan.model


def model_path(plan: Plan, name: str) -> Path:
    """A model's file or directory."""
    from sapo_edge.backends.model.find import find_model

    if is_tiny(plan):
        return tiny_model(name)
    if name != BASE:
        raise ConfigError(
            f"there is no model {name}: only the scale {TINY} has several, which --model replaces by one",
            "leave out --model, or choose other settings with --setting",
        )
    return find_model(plan.model)
