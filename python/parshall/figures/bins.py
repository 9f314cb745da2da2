"""Bins of time: origin, width, and text for captions."""

import math
from dataclasses import dataclass

import polars as pl

NS_PER_S = 1_000_000_000
# 1-2-5 steps: round widths, which divide the ticks of an axis.
_STEPS = (1, 2, 5)
# A line breaks where a flow had no record for so many bins, and for so many times what is usual for it.
GAP_BINS = 10


@dataclass(frozen=True)
class Bins:
    """Equal bins of time.

    Attributes
    ----------
    origin_ns : int
        Time 0 of the figures, ``CLOCK_REALTIME``.
    begin_ns, end_ns : int
        First and last moment of the time axis.
    width_ns : int
        Width of a bin: 1, 2 or 5 times a power of ten.
    first_ns : int, optional
        Begin of bin 0; the origin by default.
    """

    origin_ns: int
    begin_ns: int
    end_ns: int
    width_ns: int
    first_ns: int | None = None

    @classmethod
    def over(cls, begin_ns: int, end_ns: int, count_max: int) -> "Bins":
        """Return the narrowest bins, at most `count_max` between two moments."""
        width_min_ns = max(1, math.ceil((end_ns - begin_ns + 1) / max(1, count_max - 1)))
        return cls(begin_ns, begin_ns, end_ns, round_width_ns(width_min_ns))

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
        """Width of a bin with its unit, such as ``20 ms``."""
        for unit, unit_ns in (("s", NS_PER_S), ("ms", 1_000_000), ("µs", 1000)):
            if self.width_ns >= unit_ns:
                return f"{self.width_ns / unit_ns:g} {unit}"
        return f"{self.width_ns} ns"

    @property
    def _first_ns(self) -> int:
        return self.origin_ns if self.first_ns is None else self.first_ns

    def share_until(self, moment_ns: int) -> float:
        """Return the fraction of the bin of a moment that has passed with this moment, above 0 to 1."""
        return ((moment_ns - self._first_ns) % self.width_ns + 1) / self.width_ns

    def middle_s(self, number: pl.Expr) -> pl.Expr:
        """Expression of the middle of a bin, seconds after the origin."""
        shift_s = (self._first_ns - self.origin_ns) / NS_PER_S
        # Rounded to 1 ns, since further digits would only enlarge the report.
        return ((number * 2 + 1) * (self.width_ns / 2 / NS_PER_S) + shift_s).round(9)


def round_width_ns(width_min_ns: int) -> int:
    """Return the smallest width of 1, 2 or 5 times a power of ten, ns, that is at least `width_min_ns`."""
    power: int = 10 ** (len(str(width_min_ns)) - 1)
    return next((step * power for step in _STEPS if step * power >= width_min_ns), 10 * power)


def next_width_ns(width_ns: int) -> int:
    """Return the next larger width of `round_width_ns`."""
    return round_width_ns(width_ns + 1)


def in_parts(reduced: pl.DataFrame, bins: Bins) -> pl.DataFrame:
    """Return rows, sorted by flow and time, with ``part``: 0, and one more after each long time without records."""
    step_s = pl.col("time_s").diff()
    usual_s = pl.max_horizontal(pl.lit(bins.width_s), step_s.median())
    return reduced.with_columns(part=(step_s > GAP_BINS * usual_s).fill_null(False).cum_sum().over("flow"))


def envelope(reduced: pl.DataFrame, bins: Bins) -> pl.DataFrame:
    """Reduce the bins of a state over all flows to wider bins.

    Returns
    -------
    polars.DataFrame
        Shape (bins, 5), sorted by time: ``time_s`` (the middle), ``min``, ``max``, and ``low`` and ``high``,
        between which 80 % of the means of flows are.
    """
    mean = pl.col("mean")
    middle_s = ((pl.col("time_s") - bins.begin_s) / bins.width_s).floor() * bins.width_s + bins.begin_s
    return (
        reduced.group_by((middle_s + bins.width_s / 2).round(9).alias("time_s"))
        .agg(pl.col("min").min(), pl.col("max").max(), low=mean.quantile(0.1), high=mean.quantile(0.9))
        .sort("time_s")
    )


def column_maximum(reduced: pl.DataFrame, column: str) -> float:
    """Return the maximum of a column, 0 if it is empty: the end of an axis."""
    return float(reduced.select(pl.col(column).max()).item() or 0)
