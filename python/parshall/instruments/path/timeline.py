"""Join the path of each packet with TCP's state, the bytes of a capture and the reads of the process that waited."""

from typing import Any

import polars as pl
import pyarrow as pa

from parshall.instruments.path import delivery, retransmissions, tcp_records, traced_packets
from parshall.instruments.path.log import PathLog
from parshall.instruments.path.stages import SENDING_STAGES
from parshall.instruments.path.trace import Trace
from parshall.instruments.tcp_log import Log

TCP = 6


def join(path_log: PathLog, tcp_log: Log | None = None, capture: Trace | None = None) -> pa.Table:
    """Join the paths of TCP packets with what else is known of them.

    Parameters
    ----------
    path_log : PathLog
        The paths; one row is one skb, which GSO and GRO make of several segments.
    tcp_log : parshall.instruments.tcp_log.Log, optional
        TCP's state at the same host.
    capture : Trace, optional
        Packets captured at the same host.

    Returns
    -------
    pyarrow.Table
        Shape (packets, columns), in the order of time: the columns of `PathLog.packets`, and those that
        docs/path-timeline.md describes. ``tcp_match``, ``capture_match`` and ``read_match`` say how each was found:
        ``exact`` (one candidate), ``nearest`` (the nearest in time of several) or ``none``.

    Raises
    ------
    ParshallError
        A file is damaged.
    """
    rows = rows_of(path_log)
    flows = None if tcp_log is None else _frame(tcp_log.flows)
    offset_ns = clock_offset_ns(path_log.clock)
    rows = tcp_records.join(rows, tcp_log, flows, offset_ns)
    rows = retransmissions.join(rows)
    rows = traced_packets.join(rows, capture)
    shift_ns = 0 if tcp_log is None else tcp_records.clock_shift_ns(tcp_log, offset_ns)
    rows = delivery.join(rows, _frame(path_log.reads), flows, shift_ns)
    texts = [name for name, kind in rows.schema.items() if kind == pl.Categorical]
    table = rows.drop("stream", "host_stream", "from_ns", "until_ns", "is_out", "wire_bytes").with_columns(
        pl.col(texts).cast(pl.String)
    )
    made: pa.Table = table.to_arrow()
    return made.replace_schema_metadata({"parshall.format": "path-timeline", "parshall.format_version": "1.0"})


def rows_of(path_log: PathLog) -> pl.DataFrame:
    """Return the packets with what the joins need: number, stream, host's stream, direction and times."""
    packets = path_log.packets.drop_columns(["event", "waking_ns", "running_ns", "read_ns", "pid", "command"])
    rows = _frame(packets).sort("time", maintain_order=True).with_row_index("row")
    rows = rows.with_columns(pl.col(name).cast(pl.String) for name in _texts(rows))
    is_tcp = pl.col("protocol") == TCP
    ends = ["source", "source_port", "destination", "destination_port"]
    # Numbers of what has the same ends; -1 is what has no TCP header.
    stream = pl.struct(ends).rank("dense").cast(pl.Int64)
    is_out = pl.col("first_stage").is_in(SENDING_STAGES)
    from_ns = pl.col("time").dt.timestamp("ns")
    rows = rows.with_columns(
        stream=pl.when(is_tcp).then(stream).otherwise(-1),
        is_out=is_out,
        from_ns=from_ns,
        until_ns=from_ns + pl.col("whole_ns").fill_null(0).cast(pl.Int64),
        wire_bytes=pl.col("payload_bytes").fill_null(0).cast(pl.Int64),
    )
    host_stream = pl.struct("stream", "netns_inode", "is_out").rank("dense").cast(pl.Int64)
    return rows.with_columns(host_stream=pl.when(is_tcp).then(host_stream).otherwise(-1))


def clock_offset_ns(clock: dict[str, Any]) -> int:
    """Return what a log added to the kernel's clock, which does not step."""
    return int(clock.get("monotonic_offset_ns", 0))


def _texts(frame: pl.DataFrame) -> list[str]:
    return [name for name, kind in frame.schema.items() if kind in (pl.Categorical, pl.Enum)]


def _frame(table: pa.Table) -> pl.DataFrame:
    frame = pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame)
    return frame
