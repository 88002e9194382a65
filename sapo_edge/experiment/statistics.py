"""Intervals over swarms, and arms compared with their baseline, paired by seed.

The unit is the swarm: nodes of one swarm learn from each other, so their errors are not independent. Methods:
interquartile means and bootstrap over runs as in Agarwal et al., arXiv 2108.13264; differences paired by seed as in
Miller, arXiv 2411.00640; BCa intervals of Efron (1987) by `scipy.stats.bootstrap`, with a fixed seed.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, TypeVar

from sapo_edge.experiment.measures import (
    DRAWDOWN,
    OWN_REWARD,
    WORST_DRAWDOWN,
    Measures,
    Series,
    at,
    grouped,
    is_accuracy,
    measure,
    measure_names,
)
from sapo_edge.experiment.plan import Arm, Plan, Setting
from sapo_edge.experiment.results import SwarmRecord

CONFIDENCE = 0.95
"""Of every interval."""
RESAMPLES = 9999
"""Of every bootstrap."""
SEED = 0
"""Of every bootstrap: each starts anew, so that an interval depends on its own numbers alone."""
MARGIN = 0.02
"""An arm is "not worse" than its baseline if the interval of the difference is above minus this accuracy."""

K = TypeVar("K")


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean, or a ratio of means, with its interval.

    Attributes:
        low, high: 95 % bootstrap interval; None if there is none.
        note: why there is no interval, in plain words; empty if there is one.
        t_low, t_high: Student's interval of the same mean, wider for few swarms; None if there is none.
    """

    value: float
    low: float | None
    high: float | None
    count: int
    note: str = ""
    t_low: float | None = None
    t_high: float | None = None

    @property
    def verdict(self) -> str:
        """Where the interval of a difference lies: above 0, below 0, or neither."""
        if self.low is None or self.high is None:
            return "no interval"
        return "above" if self.low > 0 else "below" if self.high < 0 else "not told apart"


@dataclass(frozen=True, slots=True)
class Result:
    """One measure of one arm.

    Attributes:
        values: seed -> number.
        difference: mean difference from the baseline, over the seeds that both have; None for the baseline itself, and
            if there is no such seed.
    """

    values: Mapping[int, float]
    estimate: Estimate
    iqm: float
    difference: Estimate | None


@dataclass(frozen=True, slots=True)
class EqualCost:
    """Validation accuracy of an arm and of the baseline at one cost: the smaller of both totals, seed by seed."""

    arm: float
    baseline: float
    difference: Estimate
    cost: float


@dataclass(frozen=True, slots=True)
class ArmResult:
    """One arm of a setting.

    Attributes:
        results: measure -> result, in the order of the tables.
        tasks: (measure, task entry) -> result.
        ratio: of the cumulative own reward to the baseline's; None for the baseline.
        equal_answers, equal_seconds: against the baseline; None for the baseline, or without pairs.
        seconds: processor seconds of all members; None without swarms.
    """

    arm: Arm
    is_baseline: bool
    swarms: tuple[Measures, ...]
    results: Mapping[str, Result]
    tasks: Mapping[tuple[str, str], Result]
    ratio: Estimate | None
    equal_answers: EqualCost | None
    equal_seconds: EqualCost | None
    seconds: Result | None


@dataclass(frozen=True, slots=True)
class SettingResult:
    setting: Setting
    arms: tuple[ArmResult, ...]

    @property
    def finished(self) -> list[ArmResult]:
        return [arm for arm in self.arms if arm.swarms]


def interval(values: Sequence[float], *, method: str = "BCa") -> Estimate:
    """Mean with its bootstrap interval; `values`: one number a swarm, or one difference a pair, at least one."""
    is_same = max(values) - min(values) <= 1e-12
    found = _estimate(fmean(values), is_same, (values,), lambda rows, axis=-1: rows.mean(axis=axis), method)
    if found.note:
        return found
    from scipy import stats

    t_low, t_high = stats.t.interval(CONFIDENCE, found.count - 1, loc=found.value, scale=stats.sem(values))
    return replace(found, t_low=float(t_low), t_high=float(t_high))


def ratio(values: Sequence[float], baseline: Sequence[float]) -> Estimate:
    """Ratio of two means, with the bootstrap interval over pairs, at least one; both by the same seeds, in order."""
    below, nothing = fmean(baseline), "the baseline earned nothing"
    if below <= 0:
        return Estimate(math.nan, None, None, len(values), nothing)
    center = fmean(values) / below
    is_same = all(math.isclose(value, center * other) for value, other in zip(values, baseline, strict=True))
    return _estimate(center, is_same, (values, baseline), _ratio_of_means, "BCa", f"{nothing} in too many swarms")


def interquartile_mean(values: Sequence[float]) -> float:
    """Mean of at least one number without a quarter, rounded down, at each end: as `rliable` does, arXiv 2108.13264."""
    cut = len(values) // 4
    return fmean(sorted(values)[cut : len(values) - cut])


def equal_cost(pairs: Iterable[tuple[Series, Series]]) -> EqualCost | None:
    """Compare an arm and its baseline; None without a pair. `pairs`: a seed's curves (cost, validation accuracy)."""
    both = [(arm, other, min(arm[-1][0], other[-1][0])) for arm, other in pairs if arm and other]
    read = [(cost, at(arm, cost), at(other, cost)) for arm, other, cost in both]
    if not read:
        return None
    costs, own, others = zip(*read, strict=True)
    return EqualCost(fmean(own), fmean(others), interval([one - other for _, one, other in read]), fmean(costs))


def evaluate(plan: Plan, records: Iterable[SwarmRecord]) -> list[SettingResult]:
    """All statistics of an experiment, from the records of its finished swarms in any order, each once."""
    by_seed = sorted(records, key=lambda record: record.seed)
    swarms = grouped(((record.setting, record.arm), measure(record)) for record in by_seed)
    results = []
    for setting in plan.settings:
        of = {arm: _of_arm(arm, swarms.get((setting.name, arm.name), [])) for arm in setting.arms}
        others = of[setting.arm(setting.baseline)]
        arms = (_arm(arm, arm.name == setting.baseline, own, others) for arm, own in of.items())
        results.append(SettingResult(setting, tuple(arms)))
    return results


def _of_arm(arm: Arm, swarms: Sequence[Measures]) -> Sequence[Measures]:
    if not arm.churn:
        return swarms
    # A newcomer takes the number of who left: that it begins anew is no fall.
    falls = (DRAWDOWN, WORST_DRAWDOWN)
    kept = ({name: value for name, value in swarm.values.items() if name not in falls} for swarm in swarms)
    return [replace(swarm, values=values) for swarm, values in zip(swarms, kept, strict=True)]


def _arm(arm: Arm, is_baseline: bool, swarms: Sequence[Measures], others: Sequence[Measures]) -> ArmResult:
    """`others`: of the baseline."""
    baseline = {} if is_baseline else {swarm.seed: swarm for swarm in others}
    pairs = [(swarm, baseline[swarm.seed]) for swarm in swarms if swarm.seed in baseline]
    rewards = [
        (swarm.values[OWN_REWARD], other.values[OWN_REWARD])
        for swarm, other in pairs
        if OWN_REWARD in swarm.values and OWN_REWARD in other.values
    ]

    def results(names: Iterable[K], numbers_of: Callable[[Measures], Mapping[K, float]]) -> dict[K, Result]:
        """Of each measure; a swarm's numbers by the measure's name."""
        own, other = ({swarm.seed: numbers_of(swarm) for swarm in of} for of in (swarms, baseline.values()))
        found = {}
        for name in names:
            values = {seed: of[name] for seed, of in own.items() if name in of}
            numbers = list(values.values())
            differences = [values[seed] - of[name] for seed in values if name in (of := other.get(seed, {}))]
            difference = interval(differences) if differences else None
            found[name] = Result(values, interval(numbers), interquartile_mean(numbers), difference)
        return found

    tasks = {key for swarm in swarms for key in swarm.tasks}
    seconds = results(["seconds"] if swarms else [], lambda swarm: {"seconds": swarm.seconds})
    return ArmResult(
        arm=arm,
        is_baseline=is_baseline,
        swarms=tuple(swarms),
        results=results(measure_names(swarms), lambda swarm: swarm.values),
        tasks=results(sorted(tasks, key=lambda key: (not is_accuracy(key[0]), key)), lambda swarm: swarm.tasks),
        ratio=ratio(*zip(*rewards, strict=True)) if rewards else None,
        equal_answers=equal_cost((swarm.by_answers, other.by_answers) for swarm, other in pairs),
        equal_seconds=equal_cost((swarm.by_seconds, other.by_seconds) for swarm, other in pairs),
        seconds=seconds.get("seconds"),
    )


def _ratio_of_means(values: Any, baseline: Any, axis: int = -1) -> Any:
    import numpy as np

    with np.errstate(divide="ignore", invalid="ignore"):
        # A resample of swarms in which the baseline earned nothing counts as the largest ratio.
        return np.nan_to_num(values.mean(axis=axis) / baseline.mean(axis=axis), nan=np.inf, posinf=np.inf)


def _estimate(
    center: float, is_same: bool, samples: Sequence[Sequence[float]], statistic: Callable[..., Any], method: str,
    otherwise: str = "",
) -> Estimate:  # fmt: skip
    """With the bootstrap interval, by percentiles where BCa is not defined; `otherwise`: why none of both is finite."""
    count = len(samples[0])
    if count < 2 or is_same:
        return Estimate(center, None, None, count, "one swarm" if count < 2 else f"the same in all {count}")
    import numpy as np
    from scipy import stats

    for way in (method, "percentile"):
        with warnings.catch_warnings():
            # scipy and numpy warn where BCa is not defined; the ends are checked below.
            warnings.simplefilter("ignore")
            ends = stats.bootstrap(
                [np.asarray(sample, dtype=np.float64) for sample in samples], statistic, paired=len(samples) > 1,
                n_resamples=RESAMPLES, confidence_level=CONFIDENCE, method=way, vectorized=True,
                rng=np.random.default_rng(SEED),
            ).confidence_interval  # fmt: skip
        if math.isfinite(ends.low) and math.isfinite(ends.high):
            return Estimate(center, float(ends.low), float(ends.high), count)
    return Estimate(center, None, None, count, otherwise)
