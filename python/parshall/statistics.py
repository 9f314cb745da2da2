"""Statistics of repeated runs: summaries with confidence intervals, differences of two bundles, drift."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

CONFIDENCE = 0.95
# Of a drift within a bundle: probability by chance, least correlation, least change from first to last repeat.
_DRIFT_P, _DRIFT_TAU, _DRIFT_SHARE = 0.001, 0.3, 0.01


@dataclass(frozen=True)
class Summary:
    """Repeated values of one measure at one level.

    Attributes
    ----------
    count : int
        Number of values.
    mean, minimum, maximum : float
        As the thesis gives them.
    median, lower_quartile, upper_quartile : float
        Quartiles by linear interpolation.
    low, high : float
        Confidence interval of the mean, 95 %, by Student's t: it assumes independent repeats and a mean that is
        nearly normal. NaN for a single value.
    """

    count: int
    mean: float
    minimum: float
    maximum: float
    median: float
    lower_quartile: float
    upper_quartile: float
    low: float
    high: float


def summarise(values: Sequence[float]) -> Summary | None:
    """Return the summary of values; None when there are none."""
    if not len(values):
        return None
    data = np.asarray(values, float)
    lower, median, upper = np.quantile(data, (0.25, 0.5, 0.75))
    low, high = mean_interval(data)
    return Summary(len(data), data.mean(), data.min(), data.max(), float(median), float(lower), float(upper), low, high)


def mean_interval(values: Sequence[float] | np.ndarray) -> tuple[float, float]:
    """Return the 95 % confidence interval of the mean of independent values, by Student's t."""
    data = np.asarray(values, float)
    if len(data) < 2:
        return math.nan, math.nan
    # The quantile of Student's t. The distributions of scipy.stats give the same, and take half a second to import.
    half = special.stdtrit(len(data) - 1, (1 + CONFIDENCE) / 2) * data.std(ddof=1) / math.sqrt(len(data))
    return float(data.mean() - half), float(data.mean() + half)


@dataclass(frozen=True)
class Difference:
    """The difference of two means.

    Attributes
    ----------
    before, after : float
        The means.
    low, high : float
        Confidence interval of `after` - `before`, 95 %: by Welch's t (variances may differ) or, of pairs, Student's.
    p : float
        Probability of a difference at least as large when there is none.
    """

    before: float
    after: float
    low: float
    high: float
    p: float


def difference(before: Sequence[float], after: Sequence[float]) -> Difference | None:
    """Return the difference of two means; None with fewer than two values on a side."""
    if len(before) < 2 or len(after) < 2:
        return None
    first, second = np.asarray(before, float), np.asarray(after, float)
    means = float(first.mean()), float(second.mean())
    if _is_constant(first) and _is_constant(second):
        # Constants: the difference is exact.
        step = means[1] - means[0]
        return Difference(*means, step, step, 0.0 if step else 1.0)
    from scipy import stats

    test = stats.ttest_ind(second, first, equal_var=False)
    interval = test.confidence_interval(CONFIDENCE)
    return Difference(*means, float(interval.low), float(interval.high), float(test.pvalue))


def _is_constant(values: np.ndarray) -> bool:
    """Whether values differ by rounding only."""
    return bool(np.ptp(values) <= 1e-12 * np.abs(values).max())


def paired_difference(before: Sequence[float], after: Sequence[float]) -> Difference | None:
    """Return the difference of means of values that were measured in pairs, by Student's t of their differences.

    In a blocked design both values of a pair saw the same state of the machine. None with fewer than two pairs.
    """
    if len(before) < 2:
        return None
    steps = np.asarray(after, float) - np.asarray(before, float)
    means = float(np.mean(before)), float(np.mean(after))
    if _is_constant(steps):
        step = float(steps[0])
        return Difference(*means, step, step, 0.0 if step else 1.0)
    from scipy import stats

    low, high = mean_interval(steps)
    return Difference(*means, low, high, float(stats.ttest_1samp(steps, 0.0).pvalue))


def holm(probabilities: Sequence[float]) -> list[float]:
    """Return probabilities corrected for their number, after Holm (1979)."""
    order = sorted(range(len(probabilities)), key=lambda index: probabilities[index])
    corrected, largest = [0.0] * len(probabilities), 0.0
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, probabilities[index] * (len(probabilities) - rank)))
        corrected[index] = largest
    return corrected


def has_drift(ordered: Sequence[Sequence[float]]) -> bool:
    """Whether values rise or fall with the order of the repeats.

    Parameters
    ----------
    ordered : sequence of sequences
        For each level, its values in the order of the repeats.

    Notes
    -----
    Each value becomes its relative deviation from the mean of its level; Kendall's tau of deviation against repeat.
    """
    repeats, deviations = [], []
    for values in ordered:
        mean = float(np.mean(values)) if len(values) else 0.0
        if len(values) < 2 or mean == 0:
            continue
        repeats += list(range(len(values)))
        deviations += [value / mean - 1 for value in values]
    if len(set(deviations)) < 2 or len(set(repeats)) < 2:
        return False
    from scipy import stats

    test = stats.kendalltau(repeats, deviations)
    first, last = (
        np.mean([value for repeat, value in zip(repeats, deviations, strict=True) if repeat == end])
        for end in (0, max(repeats))
    )
    return bool(test.pvalue < _DRIFT_P and abs(test.statistic) > _DRIFT_TAU and abs(last - first) > _DRIFT_SHARE)


def correlation(x: Sequence[float], y: Sequence[float]) -> float:
    """Return Spearman's rank correlation; NaN when one side is constant."""
    if len(set(x)) < 2 or len(set(y)) < 2:
        return math.nan
    from scipy import stats

    return float(stats.spearmanr(x, y).statistic)
