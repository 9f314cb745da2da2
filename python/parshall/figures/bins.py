"""Bins of time: where they begin, how wide they are, what a reader calls them."""

import math
from dataclasses import dataclass

import polars as pl

NS_PER_S = 1_000_000_000
# 1-2-5 steps: widths that a reader can say, and that divide the marks of an axis.
_STEPS = (1, 2, 5)


@dataclass(frozen=True)
class Bins:
    """Equal bins of time.

    Attributes
    ----------
    origin_ns : int
        Where time 0 of the figures is, ``CLOCK_REALTIME``.
    begin_ns, end_ns : int
        First and last moment of the time axis.
    width_ns : int
        Width of a bin: 1, 2 or 5 times a power of ten.
    first_ns : int, optional
        Where bin 0 begins; at the origin by default.
    """

    origin_ns: int
    begin_ns: int
    end_ns: int
    width_ns: int
    first_ns: int | None = None

    @classmethod
    def over(cls, begin_ns: int, end_ns: int, count_max: int, first_ns: int | None = None) -> "Bins":
        """Return the narrowest bins of which at most `count_max` lie between two moments."""
        least_ns = max(1, math.ceil((end_ns - begin_ns + 1) / max(1, count_max - 1)))
        return cls(begin_ns, begin_ns, end_ns, said_width_ns(least_ns), first_ns)

    @property
    def begin_s(self) -> float:
        """First moment of the axis, seconds after the origin."""
        return (self.begin_ns - self.origin_ns) / NS_PER_S

    @property
    def end_s(self) -> float:
        """Last moment of the axis, seconds after the origin."""
        return (self.end_ns - self.origin_ns) / NS_PER_S

    @property
    def width_s(self) -> float:
        """Width of a bin, seconds."""
        return self.width_ns / NS_PER_S

    @property
    def width_text(self) -> str:
        """Width of a bin as a reader says it, such as ``20 ms``."""
        for unit, unit_ns in (("s", NS_PER_S), ("ms", 1_000_000), ("µs", 1000)):
            if self.width_ns >= unit_ns:
                return f"{self.width_ns / unit_ns:g} {unit}"
        return f"{self.width_ns} ns"

    @property
    def _first_ns(self) -> int:
        return self.origin_ns if self.first_ns is None else self.first_ns

    @property
    def last_share(self) -> float:
        """How much of the last bin lies before the last moment of the axis, 0 to 1."""
        return ((self.end_ns - self._first_ns) % self.width_ns + 1) / self.width_ns

    def middle_s(self, number: pl.Expr) -> pl.Expr:
        """Expression of the middle of a bin, seconds after the origin."""
        shift_s = (self._first_ns - self.origin_ns) / NS_PER_S
        # Rounded to 1 ns less noise: the digits of a float would fill the report.
        return ((number * 2 + 1) * (self.width_ns / 2 / NS_PER_S) + shift_s).round(9)


def said_width_ns(least_ns: int) -> int:
    """Return the smallest of 1, 2 and 5 times a power of ten that is not below a width."""
    power: int = 10 ** (len(str(least_ns)) - 1)
    return next((step * power for step in _STEPS if step * power >= least_ns), 10 * power)


def wider_ns(width_ns: int) -> int:
    """Return the next of the widths of `said_width_ns`."""
    return said_width_ns(width_ns + 1)


def envelope(reduced: pl.DataFrame) -> pl.DataFrame:
    """Reduce a state in bins once more, over all flows.

    Returns
    -------
    polars.DataFrame
        Shape (bins, 3), sorted by time: ``time_s``, ``min``, ``max``.
    """
    return reduced.group_by("time_s").agg(pl.col("min").min(), pl.col("max").max()).sort("time_s")


def greatest(reduced: pl.DataFrame, column: str) -> float:
    """Return the greatest value of a column, 0 when there is none: where an axis must reach."""
    return float(reduced.select(pl.col(column).max()).item() or 0)
