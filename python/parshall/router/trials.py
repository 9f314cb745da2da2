"""Trials: how wrong the forecasts of a calibration were while it was made, and what follows for others.

No model has all of a machine. So each stretch of a calibration also measures workloads of other kinds and loads, from
which no parameter comes, and the file has what was forecast for them. Of those whose load is nearest, the logarithm of
what was measured is a straight line of that of the forecast's median: its slope is the median of all slopes between two
of them (Theil, Sen), from 0, where forecasts say nothing, to 1. What is forecast next is corrected by the line, and its
interval is as wide as what is left over, each trial by the line of the others (conformal prediction: Lei et al.,
Distribution-free predictive inference for regression, JASA 113, 2018). Then it holds as often as these do, whatever the
model lacks, as long as the machine goes on as it did.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

# Trials of a load near the one that is asked for. With fewer than the least, none is beyond nineteen of twenty.
NEAR, LEAST = 20, 19


@dataclass(frozen=True)
class Correction:
    """What becomes of the median of a forecast; times are logarithms of microseconds.

    Attributes
    ----------
    slope, intercept : float
        Of the line from the forecast's median to what will be measured.
    below, above : float
        How far beyond it the ends of the interval are, both as differences from the line.
    """

    slope: float
    intercept: float
    below: float
    above: float

    def of(self, middle_us: float) -> tuple[float, float, float]:
        """Return low end, median and high end; of a forecast that is infinite all are."""
        line = self.slope * math.log(middle_us) + self.intercept if middle_us < math.inf else math.inf
        low, high = line + min(self.below, 0.0), line + max(self.above, 0.0)
        return math.exp(low), math.exp(line), math.exp(high)


def correction(trials: Sequence[dict[str, Any]], load: float, quantile: str, confidence: float) -> Correction | None:
    """Return the correction of forecasts by the trials of the nearest loads; None: there are too few.

    Parameters
    ----------
    trials : sequence of dict
        `parshall.router.calibration.Calibration.trials`.
    load : float
        Share of the rate under overload.
    quantile : str
        Which: ``p50``.
    confidence : float
        How often another one has to lie within.
    """
    own = sorted(
        (row for row in trials if row["quantile"] == quantile and 0 < row["middle_us"] < math.inf),
        key=lambda row: abs(row["load"] - load),
    )[:NEAR]
    # Beyond each end lies half of the rest.
    rank = math.ceil((1 + confidence) / 2 * (len(own) + 1))
    if len(own) < LEAST or rank > len(own):
        return None
    forecast, measured = (np.log([row[f"{name}_us"] for row in own]) for name in ("middle", "measured"))
    left = np.empty(len(own))
    for at in range(len(own)):
        others = np.arange(len(own)) != at
        slope, intercept = _line(forecast[others], measured[others])
        left[at] = measured[at] - slope * forecast[at] - intercept
    ordered = np.sort(left)
    return Correction(*_line(forecast, measured), float(ordered[-rank]), float(ordered[rank - 1]))


def _line(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Return slope, from 0 to 1, and intercept of a line that outliers do not move."""
    above, right = np.subtract.outer(y, y), np.subtract.outer(x, x)
    is_apart = right > 0
    slope = float(np.clip(np.median(above[is_apart] / right[is_apart]), 0, 1)) if is_apart.any() else 0.0
    return slope, float(np.median(y - slope * x))
