"""The records of a log as figures need them: times as numbers, and only what a figure may draw."""

import polars as pl
import pyarrow as pa

COLUMNS = (
    "time_ns",
    "flow",
    "direction",
    "event",
    "state",
    "cwnd_segments",
    "ssthresh_segments",
    "srtt_us",
    "min_rtt_us",
    "snd_una",
    "snd_nxt",
    "rcv_nxt",
    "total_retrans",
    "ca_state",
)
# For these the kernel has no full socket yet, or none any more: their windows and counters are
# zeros that stand for nothing.
_WITHOUT_SOCKET = ("NEW_SYN_RECV", "TIME_WAIT", "LISTEN", "UNKNOWN")


def states(records: pa.Table) -> pl.DataFrame:
    """Return the records of full sockets.

    Parameters
    ----------
    records : pyarrow.Table
        Shape (records, columns of the log): the rows of a log.

    Returns
    -------
    polars.DataFrame
        Shape (records of full sockets, columns): `COLUMNS`, with ``time_ns`` as int64 nanoseconds since
        1970 and without values where the kernel had none (``srtt_us`` before the first sample).
    """
    frame = pl.from_arrow(records.select(COLUMNS))
    assert isinstance(frame, pl.DataFrame)
    return frame.filter(~pl.col("state").cast(pl.String).is_in(_WITHOUT_SOCKET)).with_columns(
        pl.col("time_ns").dt.epoch("ns"),
        pl.when(pl.col("srtt_us") > 0).then("srtt_us"),
    )


def senders(states: pl.DataFrame) -> set[int]:
    """Return the flows that sent payload: cwnd and RTT of the others tell nothing.

    SYN and FIN take one sequence number each; who sent more, sent payload.
    """
    nxt = pl.col("snd_nxt").cast(pl.Int64)
    moved = states.group_by("flow").agg((nxt.max() - nxt.min()).alias("moved"))
    return set(moved.filter(pl.col("moved") > 2)["flow"])
