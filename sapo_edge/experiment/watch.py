"""What an experiment has found so far, read from its directory while it runs. Nothing is written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from sapo_edge.errors import StateError
from sapo_edge.experiment.measures import TEST
from sapo_edge.experiment.plan import Arm, Setting, state_of, swarm_digest
from sapo_edge.experiment.results import Results, SwarmRecord
from sapo_edge.experiment.resume import saved_rounds


@dataclass(frozen=True, slots=True)
class ArmView:
    """An arm so far.

    Attributes:
        accuracies: seed -> mean test accuracy of the honest learning nodes of that swarm; of finished swarms.
        running: seed -> rounds of a swarm in progress that were saved.
    """

    name: str
    accuracies: Mapping[int, float]
    running: Mapping[int, int]
    rounds: int

    @property
    def accuracy(self) -> float | None:
        return fmean(self.accuracies.values()) if self.accuracies else None

    def difference(self, baseline: ArmView) -> tuple[float, int] | None:
        """Mean difference from a baseline over the seeds that both have, and how many those are."""
        seeds = sorted(self.accuracies.keys() & baseline.accuracies.keys())
        if not seeds:
            return None
        return fmean(self.accuracies[seed] - baseline.accuracies[seed] for seed in seeds), len(seeds)


@dataclass(frozen=True, slots=True)
class SettingView:
    """A setting so far: the baseline is the name of one of its arms."""

    title: str
    baseline: str
    arms: tuple[ArmView, ...]


@dataclass(frozen=True, slots=True)
class ExperimentView:
    """An experiment so far; `seeds`: swarms of each arm."""

    seeds: int
    settings: tuple[SettingView, ...]

    @property
    def planned(self) -> int:
        return self.seeds * sum(len(setting.arms) for setting in self.settings)

    @property
    def finished(self) -> int:
        return sum(len(arm.accuracies) for setting in self.settings for arm in setting.arms)

    @property
    def share(self) -> float:
        """Of all rounds of all swarms, those that are done, 0 to 1."""
        arms = [arm for setting in self.settings for arm in setting.arms]
        done = sum(len(arm.accuracies) * arm.rounds + sum(arm.running.values()) for arm in arms)
        return min(1.0, done / max(1, self.seeds * sum(arm.rounds for arm in arms)))


class ExperimentWatch:
    """Reads an experiment again and again; a finished swarm is read once."""

    def __init__(self) -> None:
        self._results: Results[float] | None = None

    def look(self, directory: Path) -> ExperimentView:
        """Read what there is. The first look at hundreds of swarms takes seconds.

        Raises:
            StateError: if the directory holds no experiment, or its file is damaged.
        """
        if self._results is None or self._results.directory != directory:
            self._results = Results(directory, _accuracy)
        self._results.read()
        plan = self._results.plan
        if plan is None:
            raise StateError(
                f"there is no experiment in {directory}", "name the directory that `sapo experiment` writes to"
            )
        settings = tuple(
            SettingView(
                setting.title, setting.baseline,
                tuple(_arm(self._results, setting, arm, plan.numbers) for arm in setting.arms),
            )
            for setting in plan.settings
        )  # fmt: skip
        return ExperimentView(plan.seeds, settings)


def _arm(results: Results[float], setting: Setting, arm: Arm, seeds: range) -> ArmView:
    digest = swarm_digest(setting, arm)
    finished = {seed: accuracy for seed in seeds if (accuracy := results.swarms.get((digest, seed))) is not None}
    saved = {seed: saved_rounds(state_of((digest, seed), results.directory)) for seed in seeds if seed not in finished}
    running = {seed: rounds for seed, rounds in saved.items() if rounds}
    return ArmView(arm.name, finished, running, setting.rounds_of(arm))


def _accuracy(record: SwarmRecord) -> float:
    rows = [item.correct for item in record.evaluations if item.questions == TEST]
    return fmean(row.count("1") / len(row) for row in rows) if rows else 0.0
