"""Bins of time, and the one reduction that all figures of a TCP state share."""

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
        Where time 0 of the figures is, ``CLOCK_REALTIME``; the first bin need not begin there.
    begin_ns, end_ns : int
        First and last moment of the data.
    width_ns : int
        Width of a bin: 1, 2 or 5 times a power of ten.
    """

    origin_ns: int
    begin_ns: int
    end_ns: int
    width_ns: int

    @classmethod
    def over(cls, begin_ns: int, end_ns: int, count_max: int, origin_ns: int | None = None) -> "Bins":
        """Return the narrowest bins of which at most `count_max` lie between two moments."""
        least_ns = max(1, math.ceil((end_ns - begin_ns + 1) / max(1, count_max - 1)))
        power = 10 ** (len(str(least_ns)) - 1)
        width_ns = next((step * power for step in _STEPS if step * power >= least_ns), 10 * power)
        return cls(begin_ns if origin_ns is None else origin_ns, begin_ns, end_ns, width_ns)

    @property
    def begin_s(self) -> float:
        """First moment of the data, seconds after the origin."""
        return (self.begin_ns - self.origin_ns) / NS_PER_S

    @property
    def end_s(self) -> float:
        """Last moment of the data, seconds after the origin."""
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
    def last_share(self) -> float:
        """How much of the last bin lies before the last moment of the data, 0 to 1."""
        return ((self.end_ns - self.origin_ns) % self.width_ns + 1) / self.width_ns

    def number(self, time_ns: pl.Expr) -> pl.Expr:
        """Expression of the bin in which a time lies; bin 0 begins at the origin."""
        return (time_ns - self.origin_ns).floordiv(self.width_ns).alias("bin")

    def middle_s(self, number: pl.Expr) -> pl.Expr:
        """Expression of the middle of a bin, seconds after the origin."""
        # Rounded to 1 ns less noise: the digits of a float would fill the report.
        return ((number * 2 + 1) * (self.width_ns / 2 / NS_PER_S)).round(9)


def extremes(states: pl.DataFrame, column: str, bins: Bins, scale: float = 1.0) -> pl.DataFrame:
    """Reduce a state to one row for each flow and bin, and keep what stood out.

    The smallest and the largest value of every flow are in the result: no peak is averaged away.

    Parameters
    ----------
    states : polars.DataFrame
        Shape (records, ...), with ``flow`` (uint32), ``time_ns`` (int64) and `column` (number, null
        where there is no value), in the order of time within a flow.
    column : str
        The state.
    bins : Bins
        Where the bins are.
    scale : float
        What values are multiplied by, for their unit in the figure.

    Returns
    -------
    polars.DataFrame
        Shape (flows x bins that hold a value, 8), sorted by flow and time: ``flow`` (uint32),
        ``time_s`` (float64, middle of the bin, seconds), ``min``, ``max``, ``mean`` (over records, not
        over time), ``first``, ``last`` (float64) and ``records`` (uint32).
    """
    value = pl.col(column).cast(pl.Float64) * scale
    return (
        states.lazy()
        .filter(pl.col(column).is_not_null())
        .group_by("flow", bins.number(pl.col("time_ns")))
        .agg(
            min=value.min(),
            max=value.max(),
            mean=value.mean(),
            first=value.first(),
            last=value.last(),
            records=pl.len(),
        )
        .sort("flow", "bin")
        .select(
            "flow",
            bins.middle_s(pl.col("bin")).alias("time_s"),
            "min",
            "max",
            "mean",
            "first",
            "last",
            "records",
        )
        .collect()
    )


def envelope(reduced: pl.DataFrame) -> pl.DataFrame:
    """Reduce what `extremes` returns once more, over all flows.

    Returns
    -------
    polars.DataFrame
        Shape (bins, 3), sorted by time: ``time_s``, ``min``, ``max`` (float64).
    """
    return reduced.group_by("time_s").agg(pl.col("min").min(), pl.col("max").max()).sort("time_s")


def greatest(reduced: pl.DataFrame, column: str) -> float:
    """Return the greatest value of a column, 0 when there is none: where an axis must reach."""
    return float(reduced.select(pl.col(column).max()).item() or 0)


def span_ns(states: pl.DataFrame) -> tuple[int, int]:
    """Return the first and the last ``time_ns`` of records that exist."""
    first_ns, last_ns = states.select(pl.col("time_ns").min(), last=pl.col("time_ns").max()).row(0)
    return int(first_ns), int(last_ns)
