"""The records of a log for figures: times as numbers, without meaningless values."""

import polars as pl
import pyarrow as pa

COLUMNS = (
    "time_ns",
    "flow",
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
    "gso_segs",
)
# In these states the kernel has no full socket, and windows and counters are
# meaningless zeros.
_WITHOUT_SOCKET = ("NEW_SYN_RECV", "TIME_WAIT", "LISTEN", "UNKNOWN")


def states(records: pa.Table) -> pl.DataFrame:
    """Return the records of full sockets.

    Parameters
    ----------
    records : pyarrow.Table
        Shape (records, columns of the log): rows of a log.

    Returns
    -------
    polars.DataFrame
        Shape (records of full sockets, columns): `COLUMNS`, with ``time_ns`` as int64 nanoseconds since
        1970, and ``retrans_before``: segments that were sent again before the row, of whose own the kernel has counted
        those already. Null where the kernel has no value: ``srtt_us`` before the first sample, ``snd_una`` and
        ``rcv_nxt`` before the peer's SYN.
    """
    frame = pl.from_arrow(records.select(COLUMNS))
    assert isinstance(frame, pl.DataFrame)
    counted, segments = pl.col("total_retrans"), pl.col("gso_segs").cast(pl.UInt32)
    own = pl.when(pl.col("event") == "retransmit").then(pl.min_horizontal(counted, segments)).otherwise(0)
    return of_full_sockets(frame).with_columns(
        pl.col("time_ns").dt.epoch("ns"),
        pl.when(pl.col("srtt_us") > 0).then("srtt_us"),
        # Before the peer's SYN, rcv_nxt is 0, so the first real number would look like a jump.
        *(pl.when(pl.col("state") != "SYN_SENT").then(name).alias(name) for name in ("snd_una", "rcv_nxt")),
        retrans_before=counted - own,
    )


def of_full_sockets(frame: pl.DataFrame) -> pl.DataFrame:
    """Return the rows that have a full socket."""
    # Comparisons instead of is_in: they compare categories by number, without conversion to text.
    return frame.filter(pl.all_horizontal(pl.col("state") != name for name in _WITHOUT_SOCKET))
