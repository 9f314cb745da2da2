"""Smoothed and minimum round-trip time over time."""

import altair as alt
import polars as pl

from parshall.figures.bins import Bins
from parshall.figures.figure import Figure
from parshall.figures.frame import state_figure
from parshall.figures.legend import Legend
from parshall.figures.reduction import Reduction

NAME = "rtt"
TITLE = "Smoothed round-trip time (ms)"
MS_PER_US = 1e-3


def reduce(reduction: Reduction, bins: Bins) -> pl.DataFrame:
    """Reduce the kernel's smoothed round-trip time of flows that sent payload to bins.

    Returns
    -------
    polars.DataFrame
        Shape (flows x bins with samples, 7), sorted by flow and time: ``flow``, ``time_s`` (middle of the bin),
        ``min``, ``max``, ``mean`` (ms, over records, not over time), ``min_rtt`` (ms, the kernel's minimum at the end
        of the bin, null before the first sample), ``records``.
    """
    sampled = reduction.cells(bins, reduction.senders).filter(pl.col("srtt_records") > 0)
    return sampled.select(
        "flow",
        bins.middle_s(pl.col("bin")).alias("time_s"),
        min=pl.col("srtt_min") * MS_PER_US,
        max=pl.col("srtt_max") * MS_PER_US,
        mean=pl.col("srtt_sum") / pl.col("srtt_records") * MS_PER_US,
        min_rtt=pl.col("min_rtt_last") * MS_PER_US,
        records="srtt_records",
    )


def draw(reduced: pl.DataFrame, legend: Legend, bins: Bins) -> Figure:
    """Draw the smoothed time as a band and a line, the minimum as a dashed line."""
    tooltip = [
        alt.Tooltip("mean:Q", title="srtt, mean of records (ms)", format=".3f"),
        alt.Tooltip("min:Q", title="smallest (ms)", format=".3f"),
        alt.Tooltip("max:Q", title="largest (ms)", format=".3f"),
        alt.Tooltip("min_rtt:Q", title="min_rtt (ms)", format=".3f"),
        alt.Tooltip("records:Q", title="records"),
    ]
    dashed = ("min_rtt", "minimum round-trip time of the kernel")
    return state_figure(NAME, TITLE, "ms", dashed, reduced, legend, bins, tooltip)
