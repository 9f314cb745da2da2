"""Comparisons of what was measured in pairs: an interval of the change, and what may be said of it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from parshall.statistics.summary import CONFIDENCE, student, student_p

PAIRS_MIN = 3
# Of twenty and more pairs a tenth is trimmed at each end: single runs that something else disturbed. Of ten, one at
# each end would make intervals of small counts too narrow (8 % exclude what is true).
TRIMMED_SHARE, TRIMMED_FROM = 0.1, 20
# Standard deviation of the difference of two values that are rounded to a grid of 1.
_GRID_SPREAD = 1 / math.sqrt(6)
# So near an end of its scale a value is at the end, as a share of the scale.
_END_SHARE = 1e-4


@dataclass(frozen=True)
class Comparison:
    """A comparison of two sides that were measured in pairs.

    Attributes
    ----------
    before, after : float
        Means of both sides; geometric ones of ratios.
    change, low, high : float
        Change from before to after, and its interval: of ratios, as a share of the value before (0.1: 10 % more);
        otherwise in the unit of the values.
    p : float
        Probability of a change at least as large when there is none; never less than that of a sign test of as many
        pairs, 2^(1 - pairs).
    pairs, missing : int
        Pairs that were compared, and those of which one half is missing.
    is_ratio : bool
        Whether sides are compared by their ratio.
    end : float or None
        The end of the scale at which all values of both sides lie: then nothing could have been seen.
    confidence : float
        Confidence of the interval.

    Notes
    -----
    Trimmed means with their standard error after Yuen (1974), of logarithms for ratios. The spread of
    the pairs is never taken for less than what the resolution of the values alone makes: of few pairs that are equal
    by chance, the interval would have no width.
    """

    before: float
    after: float
    change: float
    low: float
    high: float
    p: float
    pairs: int
    missing: int
    is_ratio: bool
    end: float | None = None
    confidence: float = CONFIDENCE

    @property
    def sign(self) -> int:
        """1 or -1 when the interval excludes 0, otherwise 0."""
        return (self.low > 0) - (self.high < 0)

    def is_within(self, margin: float) -> bool:
        """Whether the whole interval is within a margin: no difference that matters (Schuirmann 1987)."""
        return -margin < self.low and self.high < margin

    def is_beyond(self, margin: float) -> bool:
        """Whether the whole interval is beyond a margin."""
        return self.low > margin or self.high < -margin


def compare_pairs(
    before: Sequence[float],
    after: Sequence[float],
    *,
    is_ratio: bool | None = None,
    resolution: float | None = None,
    ends: Sequence[float] = (),
    missing: int = 0,
    confidence: float = CONFIDENCE,
) -> Comparison | None:
    """Compare values that were measured in pairs; None with fewer than three pairs, which decide nothing.

    Parameters
    ----------
    before, after : sequence of float
        The halves of each pair, in the same order. In a blocked design both saw the same state of the machine.
    is_ratio : bool, optional
        Whether to compare by ratio. Default: when all values are positive.
    resolution : float, optional
        The least difference that values can have. Default: what `resolution_of` finds.
    ends : sequence of float
        Ends of the scale, such as 0 and 100 for a share in percent.
    missing : int
        Pairs of which one half is missing, to be told.
    confidence : float
        Confidence of the interval.
    """
    first, second = np.asarray(before, float), np.asarray(after, float)
    if len(first) < PAIRS_MIN:
        return None
    both = np.concatenate((first, second))
    grid = resolution_of(both) if resolution is None else resolution
    if is_ratio is None or (both <= 0).any():
        is_ratio = bool((both > 0).all())
    if is_ratio:
        steps = np.log(second / first)
        centres = [float(np.exp(np.log(side).mean())) for side in (first, second)]
        spread_min = _GRID_SPREAD * grid / min(centres)
    else:
        steps = second - first
        centres = [float(side.mean()) for side in (first, second)]
        spread_min = _GRID_SPREAD * grid
    mean, error, freedom = trimmed_mean(steps, spread_min)
    half = student(freedom, confidence) * error
    limits = np.array([mean, mean - half, mean + half])
    change, low, high = map(float, np.expm1(limits) if is_ratio else limits)
    # A resolution of 0 may be named.
    chance = student_p(freedom, mean / error) if error > 0 else float(mean == 0)
    p = min(1.0, max(chance, 2.0 ** (1 - len(first))))
    return Comparison(
        centres[0], centres[1], change, low, high, p, len(first), missing, is_ratio, _end_of(both, ends), confidence
    )


def trimmed_mean(values: np.ndarray, spread_min: float = 0.0) -> tuple[float, float, int]:
    """Return the trimmed mean of values, its standard error, and the degrees of freedom.

    Parameters
    ----------
    values : numpy.ndarray
        At least two independent values.
    spread_min : float
        Their standard deviation is taken for at least this.
    """
    ordered = np.sort(values)
    count = len(ordered)
    cut = int(TRIMMED_SHARE * count) if count >= TRIMMED_FROM else 0
    kept = count - 2 * cut
    winsorised = np.clip(ordered, ordered[cut], ordered[count - cut - 1])
    spread = max(float(winsorised.std(ddof=1)), spread_min)
    error = spread * math.sqrt((count - 1) / (kept * (kept - 1)))
    return float(ordered[cut : count - cut].mean()), error, kept - 1


def resolution_of(values: Sequence[float] | np.ndarray) -> float:
    """Return the grid that values lie on; of one or two, a unit of the last decimal place that they have."""
    distinct = np.unique(np.asarray(values, float))
    if len(distinct) > 2:
        # The greatest common divisor of their differences (Euclid's); of values without a grid, next to nothing.
        grid, smallest = 0.0, 1e-6 * float(np.abs(distinct).max())
        for step in map(float, np.diff(distinct)):
            while step > smallest:
                # The nearer remainder: of decimal fractions, 0.03 % 0.01 is 0.00999.
                grid, step = step, min(grid % step, step - grid % step)
        return grid
    # Nine decimal places are more than anything here is measured with.
    places = [len(f"{value:.9f}".rstrip("0").partition(".")[2]) for value in distinct]
    return 10.0 ** -max(places)


def _end_of(values: np.ndarray, ends: Sequence[float]) -> float | None:
    near = _END_SHARE * (max(ends) - min(ends)) if ends else 0.0
    return next((end for end in ends if (np.abs(values - end) <= near).all()), None)


def compare_sessions(before: Sequence[Sequence[float]], after: Sequence[Sequence[float]]) -> Comparison | None:
    """Compare sessions before and after a change, by Welch's t of their means; None with fewer than two a side.

    Parameters
    ----------
    before, after : sequence of sequences of float
        For each session, its values. The runs of a session have the state of the machine in common, which no number
        of them averages away: the unit is the session, not the run.
    """
    sides = [[np.asarray(values, float) for values in side if len(values)] for side in (before, after)]
    if min(map(len, sides)) < 2:
        return None
    values = np.concatenate([each for side in sides for each in side])
    is_ratio = bool((values > 0).all())
    means = [np.array([(np.log(each) if is_ratio else each).mean() for each in side]) for side in sides]
    centres = [float(np.exp(side.mean()) if is_ratio else side.mean()) for side in means]
    variance_min = (_GRID_SPREAD * resolution_of(values) / (min(centres) if is_ratio else 1.0)) ** 2
    variances = [max(float(side.var(ddof=1)), variance_min) / len(side) for side in means]
    error = math.sqrt(sum(variances))
    # Welch (1947).
    parts = (each**2 / (len(side) - 1) for each, side in zip(variances, means, strict=True))
    freedom = sum(variances) ** 2 / sum(parts)
    step = float(means[1].mean() - means[0].mean())
    half = student(freedom, CONFIDENCE) * error
    limits = np.array([step, step - half, step + half])
    change, low, high = map(float, np.expm1(limits) if is_ratio else limits)
    p = student_p(freedom, step / error)
    return Comparison(centres[0], centres[1], change, low, high, p, min(map(len, sides)), 0, is_ratio)


def holm(probabilities: Sequence[float]) -> list[float]:
    """Return probabilities corrected for their number, after Holm (1979)."""
    order = sorted(range(len(probabilities)), key=lambda index: probabilities[index])
    corrected, largest = [0.0] * len(probabilities), 0.0
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, probabilities[index] * (len(probabilities) - rank)))
        corrected[index] = largest
    return corrected
