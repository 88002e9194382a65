"""What the swarms of a plan share: models, tasks and questions. Opened once in each process.

The scale `tiny` has four models that come with the program, and questions that they half know: a fresh node knows the
right rules but seldom follows them, as a language model before reinforcement learning does.
`tests/benchmarks/tiny_models.py` made the models; held-out questions were not in their warm-up.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path

from sapo_edge.errors import ConfigError
from sapo_edge.experiment.measures import TEST, VALIDATION
from sapo_edge.experiment.member import Shelf
from sapo_edge.experiment.plan import Plan, Setting
from sapo_edge.experiment.scales import LAW, TINY
from sapo_edge.experiment.swarm import SAMPLES, QuestionSet
from sapo_edge.policy import LoraSettings
from sapo_edge.tasks.manifest import Manifest, TaskEntry, load_manifest
from sapo_edge.tasks.questions import SPLIT_QUESTIONS
from sapo_edge.tasks.source import TaskSource

BASE = "base"
"""Name of the model that all members have unless a setting says otherwise."""
KINDS: Mapping[str, str] = {BASE: "mixed", "mixed": "mixed", "hard": "hard", "small": "small", "trained": "trained"}
"""mixed: a node alone learns; hard: it earns next to nothing; small: a smaller mixed one; trained: it is ahead."""
MAX_TOKENS = 10
"""Longest answer of a tiny model: the longest right one has 9."""

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
        for name in setting.models:
            if name not in self._shelves:
                with self.opening:
                    self._shelves[name] = self._open(name)
        return {name: self._shelves[name] for name in setting.models}

    def question_sets(self, setting: Setting) -> dict[str, QuestionSet]:
        """What members are examined on: validation first."""
        test = self.source.held_out("test", setting.questions)
        sets = {
            VALIDATION: QuestionSet(self.source, self.source.held_out("validation", setting.validation)),
            TEST: QuestionSet(self.source, test),
        }
        if setting.sampled:
            sets[f"{TEST}@{SAMPLES}"] = QuestionSet(self.source, test[: setting.sampled], samples=SAMPLES)
        if self.plan.scale == TINY and not self.plan.manifest:
            for name, manifest in (("harder", harder_manifest()), ("unseen", unseen_manifest())):
                source = TaskSource(manifest)
                sets[name] = QuestionSet(source, source.held_out("test", SPLIT_QUESTIONS))
        return sets

    def close(self) -> None:
        for shelf in self._shelves.values():
            shelf.policy.close()
        self._shelves.clear()

    def _open(self, name: str) -> Shelf:
        from sapo_edge.backends.backend import OpenOptions
        from sapo_edge.backends.choose import detect
        from sapo_edge.backends.machine.threads import available_cores, most_threads

        # Not by its name, which may be a path.
        plan, directory = self.plan, self.workspace / str(len(self._shelves))
        directory.mkdir(parents=True)
        model = model_path(plan, name)
        options = OpenOptions(
            model, self.cache, directory, LoraSettings(plan.learning.rank, plan.learning.alpha),
            # A fixed number: with another one the sums of a step differ in their last bits.
            threads=plan.threads or most_threads(available_cores()),
            # So that the results do not depend on whether a machine multiplies bfloat16, nor on what it measures.
            precision="float32",
            # Also where llama.cpp would sample faster from another format.
            sampled="bf16",
            narrate=self.narrate,
        )  # fmt: skip
        policy, _ = detect.open_policy(detect.detect(plan.backend, model), options)
        self.tell_origin({f"model {name}": policy.model_digest, "backend": policy.backend})
        return Shelf(policy, directory / "adapters")


def training_manifest(plan: Plan) -> Manifest:
    return load_manifest(plan.manifest) if plan.manifest else tiny_manifest()


def is_tiny(plan: Plan) -> bool:
    """Whether the models that come with the program are trained."""
    return plan.scale in (TINY, LAW) and not plan.model


def model_path(plan: Plan, name: str) -> Path:
    from sapo_edge.backends.model.find import find_model

    if is_tiny(plan):
        return tiny_model(name)
    if name in KINDS and name != BASE:
        raise ConfigError(
            f"there is no model {name}: only the scale {TINY} has several, which --model replaces by one",
            "leave out --model, or choose other settings with --setting",
        )
    return find_model(plan.model if name == BASE else name)


def tiny_model(name: str) -> Path:
    if name not in KINDS:
        raise ConfigError(f"there is no tiny model {name}", f"choose {', '.join(KINDS)}")
    return Path(__file__).parent / "models" / KINDS[name]


def fix_instructions() -> None:
    """Make sums, and so bytes, as with AVX2 where there is AVX-512, too; call it before torch is loaded."""
    with suppress(OSError):
        if "avx2" in Path("/proc/cpuinfo").read_text().split():
            os.environ.update({"ATEN_CPU_CAPABILITY": "avx2", "MKL_CBWR": "COMPATIBLE"})


def tiny_manifest(
    name: str = "tiny", letters: tuple[int, int] = (3, 4), terms: tuple[int, int] = (2, 3), numbers: int = 2,
    rotations: tuple[int, int] = (1, 3), max_tokens: int = MAX_TOKENS,
) -> Manifest:  # fmt: skip
    """Four kinds of questions with thousands of questions each, so that 400 held-out ones are few of them."""
    filters = {
        "min_numbers": numbers, "max_numbers": numbers, "min_decimals": 0, "max_decimals": 0, "min_value": 10.0,
        "max_value": 99.0,
    }  # fmt: skip
    sums = {"min_terms": terms[0], "max_terms": terms[1], "min_digits": 1, "max_digits": 1}
    matrices = {"min_n": 2, "max_n": 2, "min_rotations": rotations[0], "max_rotations": rotations[1]}
    entries = (
        TaskEntry("backward", "spell_backward", {"min_word_len": letters[0], "max_word_len": letters[1]}),
        TaskEntry("sums", "chain_sum", sums),
        TaskEntry("filters", "number_filtering", filters),
        TaskEntry("matrices", "rotate_matrix", matrices),
    )
    return Manifest(name, entries, max_tokens=max_tokens)


def harder_manifest() -> Manifest:
    """Longer words, one more term, one more number, more than one turn: does what is learnt carry over?"""
    return tiny_manifest("tiny-harder", (5, 5), (4, 4), 3, (5, 7), MAX_TOKENS + 2)


def unseen_manifest() -> Manifest:
    """A task that no manifest of a swarm has; the warm-up shows it as it shows the others."""
    config = {"min_words": 2, "max_words": 2, "min_word_length": 3, "max_word_length": 3}
    return Manifest("tiny-unseen", (TaskEntry("sorting", "word_sorting", config),), max_tokens=MAX_TOKENS)
