"""What an experiment has found so far, read from its directory while it runs. Nothing is written."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sapo_edge.errors import StateError
from sapo_edge.experiment.claim import PLAN
from sapo_edge.experiment.files import reported
from sapo_edge.experiment.jobs import slug
from sapo_edge.experiment.measures import TEST, mean
from sapo_edge.fields import check_integer, check_list, check_map, check_number, check_text

MAX_BYTES = 64 * 1024 * 1024
"""Largest file that is read."""
_RECORD = re.compile(r"(\d{1,6})\.json")
_STATE = re.compile(r"round-(\d{1,9})")


@dataclass(frozen=True, slots=True)
class ArmView:
    """An arm so far.

    Attributes:
        name, title: of the plan.
        accuracies: seed -> mean test accuracy of the honest learning nodes of that swarm; of finished swarms.
        running: seed -> rounds of a swarm in progress that were saved.
        rounds: of each swarm.
    """

    name: str
    title: str
    accuracies: Mapping[int, float]
    running: Mapping[int, int]
    rounds: int

    @property
    def accuracy(self) -> float | None:
        """Mean over finished swarms."""
        return mean(self.accuracies.values()) if self.accuracies else None

    def difference(self, baseline: ArmView) -> tuple[float, int] | None:
        """Mean difference from a baseline over the seeds that both have, and how many those are."""
        seeds = sorted(self.accuracies.keys() & baseline.accuracies.keys())
        if not seeds:
            return None
        return mean(self.accuracies[seed] - baseline.accuracies[seed] for seed in seeds), len(seeds)


@dataclass(frozen=True, slots=True)
class SettingView:
    """A setting so far: the baseline is the name of one of its arms."""

    name: str
    title: str
    baseline: str
    arms: tuple[ArmView, ...]


@dataclass(frozen=True, slots=True)
class ExperimentView:
    """An experiment so far.

    Attributes:
        directory: of its results.
        scale: of the plan.
        seeds: swarms of each arm.
        settings: of the plan.
    """

    directory: Path
    scale: str
    seeds: int
    settings: tuple[SettingView, ...]

    @property
    def planned(self) -> int:
        """Swarms of the plan."""
        return self.seeds * sum(len(setting.arms) for setting in self.settings)

    @property
    def finished(self) -> int:
        """Swarms that are finished."""
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
        self._known: dict[Path, tuple[int, float]] = {}

    def look(self, directory: Path) -> ExperimentView:
        """Read what there is. The first look at hundreds of swarms takes seconds.

        Raises:
            StateError: if the directory holds no experiment, or a file is damaged.
        """
        path = directory / PLAN
        if not os.path.isfile(path):
            raise StateError(
                f"there is no experiment in {directory}", "name the directory that `sapo experiment` writes to"
            )
        try:
            plan = check_map("plan", _load(path)["plan"])
            seeds = check_integer("seeds", plan["seeds"], 1)
            scale = check_text("scale", plan["scale"])
            settings = tuple(self._setting(directory, check_map("setting", item)) for item in plan["settings"])
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise StateError(f"{path} is damaged", "name another directory") from error
        return ExperimentView(directory, scale, seeds, settings)

    def _setting(self, directory: Path, fields: Mapping[str, Any]) -> SettingView:
        name = check_text("name", fields["name"])
        rounds = check_integer("rounds", fields["rounds"], 1)
        place = directory / "swarms" / slug(name)
        arms = tuple(self._arm(place, check_map("arm", arm), rounds) for arm in check_list("arms", fields["arms"]))
        return SettingView(name, check_text("title", fields["title"]), check_text("baseline", fields["baseline"]), arms)

    def _arm(self, place: Path, fields: Mapping[str, Any], rounds: int) -> ArmView:
        name = check_text("name", fields["name"])
        accuracies: dict[int, float] = {}
        running: dict[int, int] = {}
        # Another definition of the arm gives another path: the newest is that of the plan.
        found = [path for path in _entries(place) if re.fullmatch(rf"{re.escape(slug(name))}-[0-9a-f]{{8}}", path.name)]
        for entry in _entries(max(found, key=lambda path: path.stat().st_mtime)) if found else ():
            if (match := _RECORD.fullmatch(entry.name)) is not None:
                accuracies[int(match[1])] = self._accuracy(entry)
            elif entry.suffix == ".partial" and entry.stem.isdecimal():
                saved = (_STATE.fullmatch(state.name) for state in _entries(entry))
                running[int(entry.stem)] = max((int(state[1]) for state in saved if state), default=0)
        running = {seed: done for seed, done in running.items() if seed not in accuracies}
        share = check_number("rounds", fields["rounds"])
        return ArmView(name, check_text("title", fields["title"]), accuracies, running, max(1, round(rounds * share)))

    def _accuracy(self, path: Path) -> float:
        """Mean test accuracy of a finished swarm.

        Raises:
            StateError: if its file is damaged.
        """
        changed = path.stat().st_mtime_ns
        known = self._known.get(path)
        if known is None or known[0] != changed:
            try:
                texts = [item["correct"] for item in _load(path)["evaluations"] if item["questions"] == TEST]
                known = changed, mean(text.count("1") / len(text) for text in texts)
            except (ValueError, KeyError, TypeError, AttributeError, ZeroDivisionError) as error:
                raise StateError(f"{path} is damaged", "remove that file: the experiment repeats that swarm") from error
            self._known[path] = known
        return known[1]


def _entries(directory: Path) -> Sequence[Path]:
    """What is in a directory, in order; nothing if it is gone."""
    try:
        return sorted(directory.iterdir())
    except OSError:
        return ()


def _load(path: Path) -> Any:
    with reported("read", path):
        if path.stat().st_size > MAX_BYTES:
            raise StateError(f"{path} is too large", "name another directory")
        return json.loads(path.read_bytes())
