"""What the log says about each flow, as one row of numbers."""

from collections.abc import Collection

import polars as pl

from parshall.figures import throughput
from parshall.figures.bins import NS_PER_S, Bins
from parshall.figures.states import senders


def measures(states: pl.DataFrame, began_before: Collection[int] = ()) -> pl.DataFrame:
    """Reduce the records of each flow to one row.

    Parameters
    ----------
    states : polars.DataFrame
        What `parshall.figures.states.states` returns.
    began_before : collection of int
        Flows that are older than the log: what they sent again before it is not counted.

    Returns
    -------
    polars.DataFrame
        Shape (flows, 13), in ascending order of ``flow``: ``records`` (of full sockets), ``begin_s`` and
        ``duration_s`` (from the first record of the log), ``measure`` ("acknowledged" or "received"),
        ``bytes``, ``megabytes``, ``Mbps`` (mean over the duration, null for a single moment), and, null for
        flows that sent no payload, ``cwnd_max`` (segments), ``srtt_mean_ms``, ``srtt_max_ms``,
        ``min_rtt_ms``, ``retransmitted`` (segments).
    """
    if states.is_empty():
        return pl.DataFrame()
    begin_ns = states.select(pl.col("time_ns").min()).item()
    end_ns = states.select(pl.col("time_ns").max()).item()
    of_flow = states.group_by("flow").agg(
        records=pl.len(),
        begin_s=(pl.col("time_ns").min() - begin_ns) / NS_PER_S,
        duration_s=(pl.col("time_ns").max() - pl.col("time_ns").min()) / NS_PER_S,
        cwnd_max=pl.col("cwnd_segments").max(),
        srtt_mean_ms=pl.col("srtt_us").mean() / 1e3,
        srtt_max_ms=pl.col("srtt_us").max() / 1e3,
        min_rtt_ms=pl.col("min_rtt_us").min() / 1e3,
        retransmitted=pl.col("total_retrans").max(),
        before=pl.col("total_retrans").min(),
    )
    moved = (
        throughput.reduce(states, Bins.over(begin_ns, end_ns, 2))
        .group_by("flow")
        .agg(pl.col("measure").first(), pl.col("bytes").sum())
    )
    sent = pl.col("flow").is_in(list(senders(states)))
    older = pl.col("flow").is_in(list(began_before))
    of_sender = ("cwnd_max", "srtt_mean_ms", "srtt_max_ms", "min_rtt_ms", "retransmitted")
    rate = pl.col("bytes") * 8 / 1e6 / pl.col("duration_s")
    return (
        of_flow.join(moved, on="flow", how="left")
        .with_columns(pl.when(older).then(pl.col("retransmitted") - pl.col("before")).otherwise("retransmitted"))
        .drop("before")
        .with_columns(
            pl.when(pl.col("duration_s") > 0).then(rate).alias("Mbps"),
            (pl.col("bytes") / 1e6).alias("megabytes"),
            *(pl.when(sent).then(name).alias(name) for name in of_sender),
        )
        .sort("flow")
    )
