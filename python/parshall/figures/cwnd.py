"""Congestion window and slow-start threshold over time."""

import altair as alt
import polars as pl

from parshall.figures.bins import Bins
from parshall.figures.figure import Figure
from parshall.figures.frame import state_figure
from parshall.figures.legend import Legend
from parshall.figures.reduction import Reduction

NAME = "cwnd"
TITLE = "Congestion window (segments)"


def reduce(reduction: Reduction, bins: Bins) -> pl.DataFrame:
    """Reduce the congestion window of flows that sent payload to bins.

    Returns
    -------
    polars.DataFrame
        Shape (flows x bins with records, 7), sorted by flow and time: ``flow``, ``time_s`` (middle of the bin),
        ``min``, ``max``, ``mean`` (segments, over records, not over time), ``ssthresh`` (segments at the end of the
        bin, null while it is infinite), ``records``.
    """
    return reduction.cells(bins, reduction.senders).select(
        "flow",
        bins.middle_s(pl.col("bin")).alias("time_s"),
        min="cwnd_min",
        max="cwnd_max",
        mean=pl.col("cwnd_sum") / pl.col("records"),
        ssthresh="ssthresh_last",
        records="records",
    )


def draw(reduced: pl.DataFrame, legend: Legend, bins: Bins) -> Figure:
    """Draw the window as a band and a line, the threshold as a dashed line."""
    tooltip = [
        alt.Tooltip("mean:Q", title="cwnd, mean (segments)", format=".1f"),
        alt.Tooltip("min:Q", title="smallest"),
        alt.Tooltip("max:Q", title="largest"),
        alt.Tooltip("ssthresh:Q", title="ssthresh (segments)"),
        alt.Tooltip("records:Q", title="records"),
    ]
    dashed = ("ssthresh", "slow-start threshold")
    return state_figure(NAME, TITLE, "segments", dashed, reduced, legend, bins, tooltip)
