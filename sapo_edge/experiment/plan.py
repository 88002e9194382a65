"""What an experiment compares: settings, each with arms, each run as one swarm a seed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from sapo_edge.policy import ExternalRule
from sapo_edge.rollout import MAX_ANSWERS

RESULTS: Mapping[str, int] = {"llama_cpp": 4, "auto": 4, "torch": 3}
"""By backend, 1 where it is not named. Raised when the same plan gives other records than before, so that a directory
never mixes them."""

MAX_SEEDS = 1000
"""Most swarms of each arm."""
MAX_SEED_BASE = 1_000_000
MAX_ROWS = 150_000
"""Most rounds of all members of a swarm: its record is one line, see `results.MAX_LINE`."""


@dataclass(frozen=True, slots=True)
class Training:
    """How the honest members of a swarm learn.

    Attributes:
        own, external: I and J, own and external rollouts in an update.
        cut: whether external answers are cut as own ones are, before they are scored. Without it, all answers of a
            group count, by their last pair of tags, as in versions before the cure.
        distinct: whether a pool refuses a second rollout of an author's task, and copies.
        keeps: rounds for which a pool keeps a rollout.
        origin: whose rollouts a member takes: "peers"; "frozen", those of members that do not learn.
        supervised: the first rounds, in which a member learns the known right answers to its own questions by
            `head_start.FIRST` updates each, and shares nothing.
        corrected: whether the known right answer teaches where all own ones to a question are wrong.
        share: others' rollouts to receive in a round, to which members hold each other as nodes do; 0: all are shared.
    """

    own: int = 8
    external: int = 0
    answers: int = 8
    strategy: str = "informative"
    rule: ExternalRule = field(default_factory=ExternalRule)
    cut: bool = True
    distinct: bool = True
    keeps: int = 1000
    origin: str = "peers"
    supervised: int = 0
    corrected: bool = False
    share: int = 0

    def __post_init__(self) -> None:
        if self.own + self.external < 1:
            raise ValueError("own and external are 0: an update needs rollouts")
        _check_positive(self, "keeps")
        _check_positive(self, "answers", most=MAX_ANSWERS)


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to train; its name, such as "4/4", is unique within the setting, its title says the same in plain words.

    Attributes:
        attack: what hostile members do, by its name in `hostile.ATTACKS`.
        hostile: number of hostile members, which take the place of the last honest ones.
        frozen: members besides, that generate with their model as it is and never learn.
        rounds: share of the setting's rounds that this arm runs.
        churn: share of the honest members that leave in a round; a fresh one takes the place of each.
        slowest: rounds of the fastest member in one of the slowest; the others lie between, evenly by their logarithm.
    """

    name: str
    title: str
    training: Training = field(default_factory=Training)
    attack: str = ""
    hostile: int = 0
    frozen: int = 0
    rounds: float = 1.0
    churn: float = 0.0
    slowest: float = 1.0

    def __post_init__(self) -> None:
        if self.hostile and not self.attack:
            raise ValueError(f"arm {self.name} has hostile members without an attack")
        if self.training.origin == "frozen" and not self.frozen:
            raise ValueError(f"arm {self.name} takes the rollouts of frozen members and has none")
        if self.slowest < 1.0 or not 0.0 <= self.churn <= 1.0:
            raise ValueError(f"arm {self.name} needs 1 or more as slowest, and a share from 0 to 1 as churn")

    @property
    def label(self) -> str:
        return self.name if self.title in {"", self.name} else f"{self.name}: {self.title}"


@dataclass(frozen=True, slots=True)
class Setting:
    """Arms that differ in one thing and share seeds, tasks and questions.

    Attributes:
        name: names files.
        baseline: name of the arm with which the others are compared.
        every: rounds between evaluations on the validation set.
        models: of the members, in turn: "base", the plan's; in the scale tiny one of its others, elsewhere what
            `--model` takes.
        specialised: whether each member draws only one of the manifest's tasks, in turn.
        validation, questions: of the validation set and of the test set.
        sampled: of the test set's questions, those that are answered several times as well; 0: none.
        asked: members that are examined, the first ones; 0: all.
    """

    name: str
    title: str
    arms: tuple[Arm, ...]
    baseline: str
    nodes: int = 4
    rounds: int = 60
    every: int = 10
    models: tuple[str, ...] = ("base",)
    specialised: bool = False
    validation: int = 200
    questions: int = 200
    sampled: int = 64
    asked: int = 0

    def __post_init__(self) -> None:
        names = [arm.name for arm in self.arms]
        if len(set(names)) != len(names):
            raise ValueError(f"setting {self.name} has two arms of one name")
        if self.baseline not in names:
            raise ValueError(f"setting {self.name} has no arm {self.baseline}, its baseline")
        if not self.models:
            raise ValueError(f"setting {self.name} has no models")
        _check_positive(self, "nodes", "rounds", "every", "validation", "questions")
        for arm in self.arms:
            if (rows := self.rounds * arm.rounds * (self.nodes + arm.frozen)) > MAX_ROWS:
                raise ValueError(
                    f"{rows:,.0f} rounds of members in arm {arm.name} of setting {self.name} are more than {MAX_ROWS:,}"
                )
            if arm.hostile >= self.nodes:
                raise ValueError(f"{self.nodes} members of setting {self.name} leave no honest one in arm {arm.name}")

    def arm(self, name: str) -> Arm:
        return {arm.name: arm for arm in self.arms}[name]


@dataclass(frozen=True, slots=True)
class Learning:
    """Numbers that all members of all swarms share; `max_tokens`: longest answer, 0: the manifest's."""

    learning_rate: float = 2e-4
    warmup: int = 5
    decay_after: int = 20
    rank: int = 16
    alpha: float = 32.0
    temperature: float = 1.0
    max_tokens: int = 0

    def __post_init__(self) -> None:
        _check_positive(self, "learning_rate", "rank", "alpha", "temperature")


@dataclass(frozen=True, slots=True)
class Plan:
    """A whole experiment.

    Attributes:
        seeds: swarms of each arm; in all arms they have the seeds `seed_base` and those after it.
        manifest: what the members train on: a shipped name or a file; "" for the scale's own.
        model: file or directory; "" for the scale's own.
        backend: name; "" for the scale's own.
        threads: of each process; 0: as many as are useful here.
    """

    scale: str
    settings: tuple[Setting, ...]
    seeds: int
    learning: Learning = field(default_factory=Learning)
    manifest: str = ""
    model: str = ""
    backend: str = ""
    threads: int = 1
    seed_base: int = 0

    def __post_init__(self) -> None:
        names = [setting.name for setting in self.settings]
        if len(set(names)) != len(names):
            raise ValueError("two settings have one name")
        _check_positive(self, "seeds", most=MAX_SEEDS)
        if self.seed_base > MAX_SEED_BASE:
            raise ValueError(f"seed_base is more than {MAX_SEED_BASE}")

    @property
    def jobs(self) -> list[Job]:
        """All swarms: the first of every arm, then the second of every arm, and so on."""
        return [Job(setting, arm, seed) for seed in self.numbers for setting in self.settings for arm in setting.arms]

    @property
    def numbers(self) -> range:
        return range(self.seed_base, self.seed_base + self.seeds)

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of all that determines a swarm: not of how many are run, nor of which arms and settings."""
        return _digest([RESULTS.get(self.backend, 1), _changed(self, "settings", "seeds", "seed_base")])


def swarm_digest(setting: Setting, arm: Arm) -> str:
    """SHA-256 (hex) of all that determines the swarms of an arm, given the plan's digest."""
    training = _changed(arm.training) | {"rule": arm.training.rule}
    if not arm.training.external:
        # Nothing that concerns external rollouts matters to who takes none.
        training = {name: training[name] for name in ("own", "answers", "supervised", "corrected") if name in training}
    return _digest([_changed(setting, "title", "arms", "baseline"), _changed(arm, "title", "training"), training])


@dataclass(frozen=True, slots=True)
class Job:
    setting: Setting
    arm: Arm
    seed: int

    @property
    def name(self) -> str:
        return f"{self.setting.name} {self.arm.name}, swarm {self.seed}"

    @property
    def rounds(self) -> int:
        return max(1, round(self.setting.rounds * self.arm.rounds))

    @property
    def effort(self) -> int:
        """How long it takes, in rollouts of all members."""
        training = self.arm.training
        return self.rounds * (self.setting.nodes + self.arm.frozen) * (training.own + training.external)

    @property
    def key(self) -> tuple[str, int]:
        return swarm_digest(self.setting, self.arm), self.seed

    def state(self, directory: Path) -> Path:
        digest, seed = self.key
        return directory / "running" / f"{digest}-{seed}"


def _check_positive(item: object, *names: str, most: int = 1_000_000) -> None:
    for name in names:
        if not getattr(item, name) > 0:
            raise ValueError(f"{name} is not positive")
        if getattr(item, name) > most:
            raise ValueError(f"{name} is more than {most}")


def _changed(item: Any, *without: str) -> dict[str, Any]:
    """The fields that differ from their defaults, so that a new field does not change the digest of what was there."""
    kept = [each for each in fields(item) if each.name not in without]
    defaults = {each.name: each.default if each.default_factory is MISSING else each.default_factory() for each in kept}
    return {name: getattr(item, name) for name, default in defaults.items() if getattr(item, name) != default}


def _digest(content: object) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=asdict).encode()).hexdigest()
