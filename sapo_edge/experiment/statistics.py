"""Intervals over swarms, and arms compared with their baseline, paired by seed.

The unit is the swarm: nodes of one swarm learn from each other, so their errors are not independent. Methods:
interquartile means and bootstrap over runs as in Agarwal et al., arXiv 2108.13264; differences paired by seed as in
Miller, arXiv 2411.00640; BCa intervals of Efron (1987) by `scipy.stats.bootstrap`, with a fixed seed.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sapo_edge.experiment.measures import (
    BEFORE,
    DRAWDOWN,
    EXTERNAL_REWARD,
    OWN_ANSWERS,
    OWN_REWARD,
    TAKEN,
    TEST,
    TOKENS,
    TRAINED,
    VALIDATION,
    WORST_DRAWDOWN,
    Measures,
    Series,
    at,
    mean,
    measure,
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

ABOVE = "above"
BELOW = "below"
UNDECIDED = "not told apart"
NO_INTERVAL = "no interval"

_OTHER_MEASURES = (
    BEFORE, OWN_REWARD, EXTERNAL_REWARD, DRAWDOWN, WORST_DRAWDOWN, OWN_ANSWERS, TOKENS, TRAINED, TAKEN,
)  # fmt: skip


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
            return NO_INTERVAL
        return ABOVE if self.low > 0 else BELOW if self.high < 0 else UNDECIDED


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
    """Validation accuracy of an arm and of the baseline at one cost: the smaller of both totals, seed by seed.

    Attributes:
        cost: mean cost at which they are compared.
    """

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
        rewards: task entry -> result: mean own reward.
        ratio: of the cumulative own reward to the baseline's; None for the baseline.
        equal_answers, equal_seconds: against the baseline; None for the baseline, or without pairs.
        seconds: processor seconds of all members; None without swarms.
        worst: the largest drawdown of any node of any swarm; None without validation.
    """

    arm: Arm
    swarms: tuple[Measures, ...]
    results: Mapping[str, Result]
    tasks: Mapping[tuple[str, str], Result]
    rewards: Mapping[str, Result]
    ratio: Estimate | None
    equal_answers: EqualCost | None
    equal_seconds: EqualCost | None
    seconds: Result | None
    worst: float | None


@dataclass(frozen=True, slots=True)
class SettingResult:
    setting: Setting
    arms: tuple[ArmResult, ...]


def interval(values: Sequence[float], *, method: str = "BCa") -> Estimate:
    """Mean with its bootstrap interval.

    Args:
        values: one number a swarm, or one difference a pair; at least one.
    """
    center = mean(values)
    if len(values) < 2:
        return Estimate(center, None, None, len(values), "one swarm")
    if max(values) - min(values) <= 1e-12:
        return Estimate(center, None, None, len(values), f"the same in all {len(values)}")
    ends = _bootstrap((values,), lambda rows, axis=-1: rows.mean(axis=axis), method)
    from scipy import stats

    low, high = (None, None) if ends is None else ends
    t_low, t_high = stats.t.interval(CONFIDENCE, len(values) - 1, loc=center, scale=stats.sem(values))
    return Estimate(center, low, high, len(values), t_low=float(t_low), t_high=float(t_high))


def ratio(values: Sequence[float], baseline: Sequence[float]) -> Estimate:
    """Ratio of two means, with the bootstrap interval over pairs.

    Args:
        values, baseline: of the same seeds, in the same order; at least one pair.
    """
    below = mean(baseline)
    if below <= 0:
        return Estimate(math.nan, None, None, len(values), "the baseline earned nothing")
    center = mean(values) / below
    if len(values) < 2:
        return Estimate(center, None, None, len(values), "one swarm")
    if all(math.isclose(value, center * other) for value, other in zip(values, baseline, strict=True)):
        return Estimate(center, None, None, len(values), f"the same in all {len(values)}")
    ends = _bootstrap((values, baseline), _ratio_of_means, "BCa")
    if ends is None:
        return Estimate(center, None, None, len(values), "the baseline earned nothing in too many swarms")
    return Estimate(center, *ends, len(values))


def interquartile_mean(values: Sequence[float]) -> float:
    """Mean without the lowest and the highest quarter, rounded down; of at least one number.

    Source: as `rliable` computes it, Agarwal et al., arXiv 2108.13264.
    """
    cut = len(values) // 4
    return mean(sorted(values)[cut : len(values) - cut])


def equal_cost(pairs: Iterable[tuple[Series, Series]]) -> EqualCost | None:
    """Compare an arm with the baseline at equal cost.

    Args:
        pairs: for each seed, curves (cost, validation accuracy) of the arm and of the baseline. Both are read at the
            smaller of their two last costs.

    Returns:
        None without a pair of curves.
    """
    complete = [(arm, other) for arm, other in pairs if arm and other]
    if not complete:
        return None
    costs = [min(arm[-1][0], other[-1][0]) for arm, other in complete]
    own = [at(arm, cost) for (arm, _), cost in zip(complete, costs, strict=True)]
    others = [at(other, cost) for (_, other), cost in zip(complete, costs, strict=True)]
    difference = interval([value - other for value, other in zip(own, others, strict=True)])
    return EqualCost(mean(own), mean(others), difference, mean(costs))


def evaluate(plan: Plan, records: Iterable[SwarmRecord]) -> list[SettingResult]:
    """All statistics of an experiment.

    Args:
        records: of the finished swarms, in any order, each once.
    """
    swarms = {(record.setting, record.arm, record.seed): measure(record) for record in records}
    return [_setting(setting, swarms) for setting in plan.settings]


def _setting(setting: Setting, swarms: Mapping[tuple[str, str, int], Measures]) -> SettingResult:
    by_arm = {
        arm.name: tuple(swarms[key] for key in sorted(swarms) if key[:2] == (setting.name, arm.name))
        for arm in setting.arms
    }
    baseline = by_arm[setting.baseline]
    return SettingResult(
        setting,
        tuple(
            _arm(arm, by_arm[arm.name], None if arm.name == setting.baseline else baseline) for arm in setting.arms
        ),
    )  # fmt: skip


def _arm(arm: Arm, swarms: Sequence[Measures], baseline: Sequence[Measures] | None) -> ArmResult:
    other_of = {swarm.seed: swarm for swarm in baseline or ()}
    pairs = [(swarm, other_of[swarm.seed]) for swarm in swarms if swarm.seed in other_of]

    def results(mapping: Callable[[Measures], Mapping[Any, float]], names: Iterable[Any]) -> dict[Any, Result]:
        measured = {name: _result(swarms, pairs, _getter(mapping, name)) for name in names}
        return {name: result for name, result in measured.items() if result is not None}

    rewards = [
        (swarm.values[OWN_REWARD], other.values[OWN_REWARD])
        for swarm, other in pairs
        if OWN_REWARD in swarm.values and OWN_REWARD in other.values
    ]
    return ArmResult(
        arm=arm,
        swarms=tuple(swarms),
        results=results(lambda swarm: swarm.values, measure_names(swarms)),
        tasks=results(lambda swarm: swarm.tasks, sorted({key for swarm in swarms for key in swarm.tasks})),
        rewards=results(lambda swarm: swarm.rewards, sorted({key for swarm in swarms for key in swarm.rewards})),
        ratio=ratio([own for own, _ in rewards], [other for _, other in rewards]) if rewards else None,
        equal_answers=equal_cost((swarm.by_answers, other.by_answers) for swarm, other in pairs),
        equal_seconds=equal_cost((swarm.by_seconds, other.by_seconds) for swarm, other in pairs),
        seconds=_result(swarms, pairs, lambda swarm: swarm.seconds),
        worst=max((swarm.values[WORST_DRAWDOWN] for swarm in swarms if WORST_DRAWDOWN in swarm.values), default=None),
    )


def _getter(mapping: Callable[[Measures], Mapping[Any, float]], name: Any) -> Callable[[Measures], float | None]:
    return lambda swarm: mapping(swarm).get(name)


def is_accuracy(name: str) -> bool:
    """Whether a measure is the accuracy on a set of questions after the last round."""
    return name not in _OTHER_MEASURES


def measure_names(swarms: Iterable[Measures]) -> list[str]:
    """Names of measures in the order of the tables: test, validation, other question sets, everything else."""
    names = {name for swarm in swarms for name in swarm.values}
    first = [name for name in (TEST, VALIDATION) if name in names]
    others = sorted(names - {*first, *_OTHER_MEASURES})
    return [*first, *others, *(name for name in _OTHER_MEASURES if name in names)]


def _result(
    swarms: Iterable[Measures],
    pairs: Iterable[tuple[Measures, Measures]],
    value_of: Callable[[Measures], float | None],
) -> Result | None:
    """The result of one measure; None if no swarm has it."""
    values = {swarm.seed: value for swarm in swarms if (value := value_of(swarm)) is not None}
    if not values:
        return None
    both = [(value_of(swarm), value_of(other)) for swarm, other in pairs]
    differences = [value - other for value, other in both if value is not None and other is not None]
    numbers = [values[seed] for seed in sorted(values)]
    difference = interval(differences) if differences else None
    return Result(values, interval(numbers), interquartile_mean(numbers), difference)


def _ratio_of_means(values: Any, baseline: Any, axis: int = -1) -> Any:
    import numpy as np

    with np.errstate(divide="ignore", invalid="ignore"):
        # A resample of swarms in which the baseline earned nothing counts as the largest ratio.
        return np.nan_to_num(values.mean(axis=axis) / baseline.mean(axis=axis), nan=np.inf, posinf=np.inf)


def _bootstrap(
    samples: Sequence[Sequence[float]], statistic: Callable[..., Any], method: str
) -> tuple[float, float] | None:
    """Low and high end; of the percentile interval where BCa is not defined; None if that is not finite either."""
    import numpy as np
    from scipy import stats

    with warnings.catch_warnings():
        # scipy and numpy warn where BCa is not defined; the ends are checked below.
        warnings.simplefilter("ignore")
        ends = stats.bootstrap(
            [np.asarray(sample, dtype=np.float64) for sample in samples], statistic, paired=len(samples) > 1,
            n_resamples=RESAMPLES, confidence_level=CONFIDENCE, method=method, vectorized=True,
            rng=np.random.default_rng(SEED),
        ).confidence_interval  # fmt: skip
    low, high = float(ends.low), float(ends.high)
    if math.isfinite(low) and math.isfinite(high):
        return low, high
    return None if method == "percentile" else _bootstrap(samples, statistic, "percentile")
