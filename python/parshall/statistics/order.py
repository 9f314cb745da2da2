"""The order of measurements: whether the machine changed while they went on, and correlation by rank."""

import math
from collections.abc import Sequence

import numpy as np

# Of a change while a bundle was measured: probability by chance, and least change.
_CHANCE_MAX, _SHARE_MIN = 0.01, 0.02
_SHUFFLES = 499
# The search takes the square of their number.
_RUNS_MAX = 200


def has_changed(levels: Sequence[object], values: Sequence[float]) -> bool:
    """Whether a stretch of the runs differs from the runs before and after it: a step, a drift or a dip.

    Parameters
    ----------
    levels : sequence
        The level of each run, in the order of the runs.
    values : sequence of float
        Its value.

    Notes
    -----
    Each value becomes the rank of its deviation from the median of its level. The statistic is that of circular binary
    segmentation (Olshen et al., 2004): the largest standardised difference between a stretch of runs and all others.
    Its probability is that among random orders of the same runs.
    """
    by_level: dict[object, list[int]] = {}
    for number, level in enumerate(levels):
        by_level.setdefault(level, []).append(number)
    data = np.asarray(values, float)
    deviations = np.full(len(data), np.nan)
    for numbers in by_level.values():
        centre = float(np.median(data[numbers]))
        if len(numbers) > 1 and centre != 0:
            deviations[numbers] = data[numbers] / centre - 1
    deviations = deviations[~np.isnan(deviations)]
    if len(deviations) > _RUNS_MAX:
        # Neighbours together: what takes as few runs as these is none of the machine's changes.
        deviations = np.array([part.mean() for part in np.array_split(deviations, _RUNS_MAX)])
    if len(deviations) < 6 or not np.ptp(deviations):
        return False
    order = np.argsort(deviations, kind="stable")
    ranks = np.empty(len(deviations))
    ranks[order] = np.arange(len(deviations))
    # Equal values have equal ranks.
    _, inverse, counts = np.unique(deviations, return_inverse=True, return_counts=True)
    ranks = (np.bincount(inverse, ranks) / counts)[inverse]
    found, begin, end = _strongest_stretch(ranks)
    inside = np.zeros(len(deviations), bool)
    inside[begin:end] = True
    if abs(np.median(deviations[inside]) - np.median(deviations[~inside])) < _SHARE_MIN:
        return False
    random = np.random.default_rng(0)
    reached = 0
    for _ in range(_SHUFFLES):
        reached += _strongest_stretch(random.permutation(ranks))[0] >= found
        # More orders cannot make it improbable any more.
        if (reached + 1) / (_SHUFFLES + 1) > _CHANCE_MAX:
            return False
    return True


def _strongest_stretch(ranks: np.ndarray) -> tuple[float, int, int]:
    """Return the largest standardised difference between a stretch and the others, and the stretch."""
    count = len(ranks)
    sums = np.concatenate(([0.0], np.cumsum(ranks - ranks.mean())))
    lengths = np.arange(count + 1)[None, :] - np.arange(count + 1)[:, None]
    # Two runs may be disturbed without a change of the machine.
    is_stretch = (lengths > 2) & (lengths < count - 2)
    weight = np.where(is_stretch, lengths * (count - lengths) / count, 1.0)
    strength = np.where(is_stretch, (sums[None, :] - sums[:, None]) ** 2 / weight, 0.0)
    begin, end = np.unravel_index(int(strength.argmax()), strength.shape)
    return float(strength[begin, end]), int(begin), int(end)


def correlation(x: Sequence[float], y: Sequence[float]) -> float:
    """Return Spearman's rank correlation; NaN when one side is constant."""
    if len(set(x)) < 2 or len(set(y)) < 2:
        return math.nan
    from scipy import stats

    return float(stats.spearmanr(x, y).statistic)
