"""The swarms of a plan, and the files of their results."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from sapo_edge.experiment.plan import Arm, Plan, Setting, swarm_digest
from sapo_edge.experiment.records import SwarmCosts, SwarmRecord, read_costs, read_record


@dataclass(frozen=True, slots=True)
class Job:
    """One swarm to run.

    Attributes:
        setting, arm: what it is.
        seed: of it.
    """

    setting: Setting
    arm: Arm
    seed: int

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.setting.name} {self.arm.name}, swarm {self.seed}"

    @property
    def rounds(self) -> int:
        """Rounds of the swarm."""
        return self.setting.rounds_of(self.arm)

    @property
    def effort(self) -> int:
        """How long it takes, in rollouts of all members."""
        training = self.arm.training
        return self.rounds * (self.setting.nodes + self.arm.frozen) * (training.own + training.external)

    def path(self, directory: Path) -> Path:
        """Of its record, without the suffix; another definition of the arm gives another path."""
        arm = f"{slug(self.arm.name)}-{swarm_digest(self.setting, self.arm)[:8]}"
        return directory / "swarms" / slug(self.setting.name) / arm / str(self.seed)

    def record(self, directory: Path) -> Path:
        """The file of its record."""
        return self.path(directory).with_suffix(".json")

    def costs(self, directory: Path) -> Path:
        """The file of its costs."""
        return self.path(directory).with_suffix(".costs.json")

    def state(self, directory: Path) -> Path:
        """The directory of its state while it runs."""
        return self.path(directory).with_suffix(".partial")

    def is_done(self, directory: Path) -> bool:
        """Whether its files are there."""
        return self.record(directory).is_file() and self.costs(directory).is_file()


def jobs_of(plan: Plan) -> list[Job]:
    """The swarms of a plan: the first of every arm, then the second of every arm, and so on."""
    return [Job(setting, arm, seed) for seed in range(plan.seeds) for setting in plan.settings for arm in setting.arms]


def read_results(directory: Path, plan: Plan) -> tuple[list[SwarmRecord], list[SwarmCosts]]:
    """Records and costs of the finished swarms of a plan.

    Raises:
        StateError: if a file is damaged.
    """
    done = [job for job in jobs_of(plan) if job.is_done(directory)]
    return [read_record(job.record(directory)) for job in done], [read_costs(job.costs(directory)) for job in done]


def slug(name: str) -> str:
    """The name of a setting or an arm in the name of a directory."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", name)
