"""Whether memory grows: lines through the samples of each life, and what they say together.

A sample's noise depends on the sample before it, because allocators keep pages for a while: the standard error of least
squares would be too small. It is corrected for that by the number of independent samples (Santer et al., J. Geophys.
Res. 105, 2000, section 3): n (1 - r) / (1 + r), with r the correlation of a residual with the next one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

FEWEST = 8
"""Samples below which a line says nothing."""
Decision = Literal["flat", "grows", "undecided"]


@dataclass(frozen=True, slots=True)
class Slope:
    """Units an hour, and the standard error."""

    value: float
    error: float


def fit(seconds: Sequence[float], values: Sequence[float]) -> Slope | None:
    """Least squares through samples in order of time; None for too few."""
    from scipy.stats import linregress

    if len(seconds) < FEWEST:
        return None
    hours, y = np.asarray(seconds) / 3600, np.asarray(values, float)
    line = linregress(hours, y)
    residuals = y - line.intercept - line.slope * hours
    spread = float(residuals @ residuals)
    correlation = max(0.0, float(residuals[1:] @ residuals[:-1]) / spread) if spread > 0 else 0.0
    independent = max(len(y) * (1 - correlation) / (1 + correlation), 2.5)
    # linregress divides by n - 2.
    error = float(line.stderr) * math.sqrt((len(y) - 2) / (independent - 2))
    return Slope(float(line.slope), error)


def together(slopes: Sequence[Slope]) -> Slope | None:
    """Mean slope of several nodes; its error is from how they differ, or of the line where there is one alone."""
    if len(slopes) < 2:
        return slopes[0] if slopes else None
    values = np.array([slope.value for slope in slopes])
    return Slope(float(values.mean()), float(values.std(ddof=1) / math.sqrt(len(values))))


def decide(mean: Slope | None, count: int, bound: float) -> Decision:
    """Whether the mean slope of so many nodes is below the bound or above it, with 95 % confidence each."""
    from scipy.stats import t

    if mean is None:
        return "undecided"
    margin = float(t.ppf(0.95, max(count - 1, 1))) * mean.error
    if mean.value - margin > bound:
        return "grows"
    return "flat" if mean.value + margin < bound else "undecided"
