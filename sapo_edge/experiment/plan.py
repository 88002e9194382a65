"""What an experiment compares: settings, each with arms, each run as one swarm a seed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to train, within a setting.

    Attributes:
        name: unique within the setting, for example "4/4".
        title: the same in plain words, for tables and plots.
    """

    name: str
    title: str


@dataclass(frozen=True, slots=True)
class Setting:
    """Arms that differ in one thing and share seeds, tasks and questions.

    Attributes:
        name: unique within the plan; names files.
        title: the same in plain words.
        arms: in the order of the tables.
        baseline: name of the arm with which the others are compared.
    """

    name: str
    title: str
    arms: tuple[Arm, ...]
    baseline: str

    def __post_init__(self) -> None:
        names = [arm.name for arm in self.arms]
        if len(set(names)) != len(names):
            raise ValueError(f"setting {self.name} has two arms of one name")
        if self.baseline not in names:
            raise ValueError(f"setting {self.name} has no arm {self.baseline}, its baseline")


@dataclass(frozen=True, slots=True)
class Plan:
    """A whole experiment.

    Attributes:
        scale: "tiny", "embedded" or "paper".
        settings: in the order of the report; names are unique.
        seeds: swarms of each arm; their seeds are the same in all arms.
    """

    scale: str
    settings: tuple[Setting, ...]
    seeds: int
