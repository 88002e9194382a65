"""What an experiment has found so far, read from its directory while it runs. Nothing is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from sapo_edge.errors import StateError
from sapo_edge.experiment.measures import TEST
from sapo_edge.experiment.plan import Job
from sapo_edge.experiment.results import Results, SwarmRecord
from sapo_edge.experiment.swarm import saved_rounds


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
    title: str
    baseline: str
    arms: tuple[ArmView, ...]


@dataclass(frozen=True, slots=True)
class ExperimentView:
    """An experiment so far; `seeds`: swarms of each arm."""

    seeds: int
    settings: tuple[SettingView, ...]

    @property
    def arms(self) -> list[ArmView]:
        return [arm for setting in self.settings for arm in setting.arms]

    @property
    def planned(self) -> int:
        return self.seeds * len(self.arms)

    @property
    def finished(self) -> int:
        return sum(len(arm.accuracies) for arm in self.arms)

    @property
    def share(self) -> float:
        """Of all rounds of all swarms, those that are done, 0 to 1."""
        done = sum(len(arm.accuracies) * arm.rounds + sum(arm.running.values()) for arm in self.arms)
        return min(1.0, done / max(1, self.seeds * sum(arm.rounds for arm in self.arms)))


class ExperimentWatch:
    """Reads an experiment again and again; a finished swarm is read once."""

    def __init__(self) -> None:
        self._results: Results[float] | None = None

    def look(self, directory: Path) -> ExperimentView:
        """Read what there is; a `StateError` if that is nothing. The first look at hundreds of swarms takes seconds."""
        if self._results is None or self._results.directory != directory:
            self._results = Results(directory, _accuracy)
        self._results.read()
        plan = self._results.plan
        if plan is None:
            raise StateError(
                f"there is no experiment in {directory}", "name the directory that `sapo experiment` writes to"
            )
        settings = []
        for setting in plan.settings:
            arms = [[Job(setting, arm, seed) for seed in plan.numbers] for arm in setting.arms]
            views = tuple(_arm(self._results, jobs) for jobs in arms)
            settings.append(SettingView(setting.title, setting.baseline, views))
        return ExperimentView(plan.seeds, tuple(settings))


def _arm(results: Results[float], jobs: Sequence[Job]) -> ArmView:
    finished = {job.seed: results.swarms[job.key] for job in jobs if job.key in results.swarms}
    saved = {job.seed: saved_rounds(job.state(results.directory)) for job in jobs if job.seed not in finished}
    running = {seed: rounds[-1] for seed, rounds in saved.items() if rounds}
    return ArmView(jobs[0].arm.name, finished, running, jobs[0].rounds)


def _accuracy(record: SwarmRecord) -> float:
    rows = [item.correct for item in record.evaluations if item.questions == TEST]
    return fmean(row.count("1") / len(row) for row in rows) if rows else 0.0
