"""Trials: how wrong the forecasts of a calibration were while it was made, and what follows for others.

No model has all of a machine. So each stretch of a calibration also measures workloads of other kinds and loads, from
which no parameter comes, and the file has what was forecast for them. A forecast is corrected by those of similar load:
it is moved by their median error, and widened until nine of ten of them lie within (conformal prediction: Lei et al.,
Distribution-free predictive inference for regression, JASA 113, 2018; the errors are over the widths of their own
forecasts, section 5.2). Then the next one lies within as often, whatever the model lacks, as long as the machine goes
on as it did.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

# Trials of a load near the one that is asked for. With fewer than the least, none is beyond nine of ten.
NEAR, LEAST = 24, 9
# No forecast is taken to be nearer.
_HALF_MIN = math.log(1.02)


@dataclass(frozen=True)
class Correction:
    """What becomes of a forecast.

    Attributes
    ----------
    shift : float
        Median error of the forecasts' medians: logarithm of measured over forecast.
    scale : float
        Factor of the distances from the median, in the logarithm.
    """

    shift: float = 0.0
    scale: float = 1.0

    def of(self, values: np.ndarray) -> np.ndarray:
        """Return draws of a forecast, corrected; shape (draws,); infinite ones stay so."""
        middle = float(np.median(values))
        if not 0 < middle < math.inf:
            return values
        with np.errstate(divide="ignore"):
            found: np.ndarray = np.exp(math.log(middle) + self.shift + self.scale * np.log(values / middle))
        return found


def correction(trials: Sequence[dict[str, Any]], load: float, quantile: str, confidence: float) -> Correction:
    """Return the correction of forecasts by the trials of the nearest loads.

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
    own = [row for row in trials if row["quantile"] == quantile and 0 < row["low_us"] <= row["high_us"] < math.inf]
    own = sorted(own, key=lambda row: abs(row["load"] - load))[:NEAR]
    rank = math.ceil(confidence * (len(own) + 1))
    if len(own) < LEAST or rank > len(own):
        return Correction()
    low, middle, high, measured = (
        np.log([row[f"{name}_us"] for row in own]) for name in ("low", "middle", "high", "measured")
    )
    errors = measured - middle
    # Each is judged by the median of the others, as the next one is.
    others = np.array([np.median(np.delete(errors, at)) for at in range(len(errors))])
    beyond = errors - others
    half = np.maximum(np.where(beyond > 0, high - middle, middle - low), _HALF_MIN)
    return Correction(float(np.median(errors)), float(np.sort(np.abs(beyond) / half)[rank - 1]))
