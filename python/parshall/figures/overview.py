"""All figures of one log, in the order in which a reader wants them."""

import polars as pl
import pyarrow as pa

from parshall.figures import cwnd, loss, rtt, throughput
from parshall.figures.bins import Bins, span_ns
from parshall.figures.frame import Figure
from parshall.figures.legend import Legend
from parshall.figures.states import senders, states

# Rows of a figure, over all flows: some 40 bytes each in the report, and as much as a screen shows.
ROWS_MAX = 20_000
BINS_OF_STATE = (50, 600)
# A bin of throughput must hold many packets, or it shows their arrivals and not a rate.
BINS_OF_RATE = (50, 200)
# Lines that can be in one figure; of more flows those with the most records are drawn.
FLOWS_MAX = 200


def figures_of(records: pa.Table, legend: Legend, *, axis_ns: tuple[int, int] | None = None) -> list[Figure]:
    """Return the figures of a log.

    Parameters
    ----------
    records : pyarrow.Table
        Shape (records, columns of the log).
    legend : Legend
        Names and colours of its flows.
    axis_ns : tuple of int, optional
        First and last moment of the time axis, when several logs share one; the log's own by default.

    Returns
    -------
    list of Figure
        None for a log without records; throughput alone where no flow sent payload.
    """
    all_states = states(records)
    if all_states.is_empty():
        return []
    begin_ns, end_ns = axis_ns or span_ns(all_states)
    drawn = most_recorded(all_states)
    kept = all_states if len(drawn) == all_states["flow"].n_unique() else all_states.filter(pl.col("flow").is_in(drawn))
    of_state = Bins.over(begin_ns, end_ns, _count(BINS_OF_STATE, len(drawn)))
    of_rate = Bins.over(begin_ns, end_ns, _count(BINS_OF_RATE, len(drawn)))
    legend = legend.covering(all_states["flow"].unique())
    left_out = len(legend.labels) - len(drawn)
    shown = legend.only(drawn, f" (of {len(legend.labels):,}: those with the most records)" if left_out else "")
    found = [throughput.draw(throughput.reduce(kept, of_rate), shown, of_rate)]
    sending = senders(kept)
    if sending:
        sent = kept.filter(pl.col("flow").is_in(sending))
        names = shown.only(sending)
        found += [
            cwnd.draw(cwnd.reduce(sent, of_state), names, of_state),
            rtt.draw(rtt.reduce(sent, of_state), names, of_state),
            loss.draw(loss.reduce(sent, of_state), loss.changes(sent, of_state), names, of_state),
        ]
    return found


def most_recorded(states: pl.DataFrame) -> list[int]:
    """Return the flows to draw: all, or of too many those with the most records."""
    counts = states.group_by("flow").len().sort("len", "flow", descending=[True, False])
    return sorted(counts["flow"].head(FLOWS_MAX))


def _count(bounds: tuple[int, int], flows: int) -> int:
    low, high = bounds
    return min(high, max(low, ROWS_MAX // max(1, flows)))
