"""Repeated values of one measure: their mean with its interval, and their quartiles."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

CONFIDENCE = 0.95


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
        nearly normal; without its parts beyond the ends of the scale, and below 0 where no value is negative. NaN for a
        single value.
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


def summarise(values: Sequence[float], ends: Sequence[float] = ()) -> Summary | None:
    """Return the summary of values; None when there are none.

    What is on a scale with ends, such as 0 and 100 for a share in percent, has a mean within them, also where values
    that were corrected lie beyond.
    """
    if not len(values):
        return None
    data = np.asarray(values, float)
    lower, median, upper = np.quantile(data, (0.25, 0.5, 0.75))
    low, high = mean_interval(data)
    if data.min() >= 0 and low < 0:
        # The mean of what is never negative is not, either.
        low = 0.0
    mean = data.mean()
    if len(ends):
        low, mean, high = np.clip((low, mean, high), min(ends), max(ends)).tolist()
    return Summary(len(data), mean, data.min(), data.max(), float(median), float(lower), float(upper), low, high)


def mean_interval(values: Sequence[float] | np.ndarray, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Return the confidence interval of the mean of independent values, by Student's t."""
    data = np.asarray(values, float)
    if len(data) < 2:
        return math.nan, math.nan
    half = student(len(data) - 1, confidence) * data.std(ddof=1) / math.sqrt(len(data))
    return float(data.mean() - half), float(data.mean() + half)


def share_interval(count: float, of: float, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Return the confidence interval of a share (Clopper and Pearson, 1934); 0 to 1 of nothing.

    Cases that come in groups, all of a group alike in the worst case, are as many as groups: then both numbers are
    those of the cases over the cases of a group (Korn and Graubard, Survey Methodology 24, 1998).
    """
    if of == 0:
        return 0.0, 1.0
    from scipy import special

    error = (1 - confidence) / 2
    low = float(special.betaincinv(count, of - count + 1, error)) if count else 0.0
    high = float(special.betaincinv(count + 1, of - count, 1 - error)) if count < of else 1.0
    return low, high


def order_statistics(count: int, share: float, confidence: float = CONFIDENCE) -> tuple[int, int]:
    """Return which of so many values, the smallest being 1, are the ends of the interval of a quantile.

    The lower one may be 0, and the upper one `count` + 1: that end is not known (David and Nagaraja, Order Statistics,
    2003, 7.1).
    """
    from scipy import special

    error = (1 - confidence) / 2
    low, high = (int(np.ceil(special.bdtrik(level, count, share))) for level in (error, 1 - error))
    return low, high + 1


def student(freedom: float, confidence: float) -> float:
    """Return the quantile of Student's t for a two-sided interval."""
    # The distributions of scipy.stats give the same, and take half a second to import.
    from scipy import special

    return float(special.stdtrit(freedom, (1 + confidence) / 2))


def student_p(freedom: float, t: float) -> float:
    """Return how probable it is that Student's t is at least as far from 0 as a value, on either side."""
    from scipy import special

    return 2 * float(special.stdtr(freedom, -abs(t)))
