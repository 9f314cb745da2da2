"""For how long a calibration may be trusted: what validations found when it was older."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from parshall.router.calibration import Calibration
from parshall.router.forecast import CONFIDENCE
from parshall.statistics.summary import share_interval


@dataclass(frozen=True)
class Check:
    """A validation of a calibration.

    Attributes
    ----------
    age_s : float
        How old the calibration was, seconds.
    inside, of : int
        Measured values within the 90 % intervals of their forecasts, and all.
    low, high : float
        95 % confidence interval of the share of such runs' values that are inside.
    """

    age_s: float
    inside: int
    of: int
    low: float
    high: float

    @property
    def holds(self) -> bool:
        """Whether nine of ten may be inside."""
        return self.high >= CONFIDENCE


def inside_interval(inside: int, of: int, runs: int) -> tuple[float, float]:
    """Return the 95 % confidence interval of a share of values: those of a run are hardly more than one value."""
    return share_interval(round(inside * runs / of), runs)


def checks_of(calibration: Calibration) -> list[Check]:
    """Return the validations that a calibration has, from the earliest."""
    rows: Sequence[dict[str, Any]] = sorted(calibration.checks, key=lambda row: row["age_s"])
    return [
        Check(row["age_s"], row["inside"], row["of"], *inside_interval(row["inside"], row["of"], row["runs"]))
        for row in rows
    ]


def trusted(calibration: Calibration) -> tuple[Check | None, Check | None]:
    """Return the last check before the first that fails, and that one; None where there is none.

    Younger than at the first of the two, forecasts held; older than at the second, they did not.
    """
    last = None
    for check in checks_of(calibration):
        if not check.holds:
            return last, check
        last = check
    return last, None
