"""The packets of a capture file for each row of a path log."""

from itertools import islice
from typing import Any

import polars as pl

from parshall.instruments.path.covering import NONE, Segments
from parshall.instruments.path.trace import Segment, Trace

# A capture's clock is slewed, the path log's is not.
TOLERANCE_NS = 10_000_000
_ENDS = ["source", "source_port", "destination", "destination_port"]
_KEY = ["host_stream", "tcp_seq", "tcp_ack", "wire_bytes"]
_BATCH = 100_000
_SCHEMA = {
    "packet": pl.UInt32(),
    "time_ns": pl.Int64(),
    "source": pl.String(),
    "destination": pl.String(),
    "source_port": pl.UInt16(),
    "destination_port": pl.UInt16(),
    "tcp_seq": pl.UInt32(),
    "tcp_ack": pl.UInt32(),
    "wire_bytes": pl.Int64(),
}


def join(rows: pl.DataFrame, capture: Trace | None) -> pl.DataFrame:
    """Add the numbers of the packets that a capture has of each row.

    Parameters
    ----------
    rows : polars.DataFrame
        From `timeline.rows_of`.
    capture : Trace or None
        Without, no row has packets.

    Returns
    -------
    polars.DataFrame
        The rows with ``capture_match`` and ``capture_packets``, a list of numbers from 1: the same packet at several
        interfaces, or the segments of an skb that GSO or GRO made.
    """
    if capture is None:
        empty = pl.lit(None, pl.List(pl.UInt32))
        return rows.with_columns(capture_match=pl.lit("none"), capture_packets=empty)
    tcp = rows.filter(pl.col("stream") >= 0)
    hosts = tcp.select("host_stream", *_ENDS).unique()
    points = _read(capture).join(hosts, on=_ENDS, maintain_order="left").with_row_index("point")
    # Captures stamp packets where the stack takes them from a driver, or gives them to one.
    stamped = {
        "in_ns": pl.col("receive_ns").fill_null(0),
        "out_ns": pl.coalesce("start_xmit_ns", "whole_ns").fill_null(0),
    }
    alike = tcp.with_columns(
        alike=pl.len().over(_KEY), **{name: pl.col("from_ns") + past.cast(pl.Int64) for name, past in stamped.items()}
    ).select(*_KEY, "row", "from_ns", "until_ns", "alike", *stamped)
    found = pl.concat([_nearest(points, alike, end) for end in stamped])
    found = found.sort("distance_ns").unique("point", keep="first", maintain_order=True)
    found = pl.concat([found.select("point", "packet", "row", "is_one"), _parts(points, found, tcp)])
    match = pl.when(pl.col("is_one").all()).then(pl.lit("exact")).otherwise(pl.lit("nearest"))
    lists = found.sort("packet").group_by("row").agg(capture_match=match, capture_packets=pl.col("packet"))
    return rows.join(lists, on="row", how="left", maintain_order="left").with_columns(
        pl.col("capture_match").fill_null("none")
    )


def _read(capture: Trace) -> pl.DataFrame:
    segments, frames = capture.segments(), [pl.DataFrame(schema=_SCHEMA)]
    while batch := list(islice(segments, _BATCH)):
        columns: Any = dict(zip(Segment._fields, zip(*batch, strict=True), strict=True))
        columns = {
            {"seq": "tcp_seq", "ack": "tcp_ack", "payload_bytes": "wire_bytes"}.get(name, name): values
            for name, values in columns.items()
        }
        frames.append(pl.DataFrame(columns, schema_overrides=_SCHEMA).select(*_SCHEMA))
    return pl.concat(frames)


def _nearest(points: pl.DataFrame, rows: pl.DataFrame, end: str) -> pl.DataFrame:
    """Return the row with the same header whose time is nearest to each packet."""
    found = points.sort("time_ns").join_asof(
        rows.sort(end),
        left_on="time_ns",
        right_on=end,
        by=_KEY,
        strategy="nearest",
        coalesce=False,
        check_sortedness=False,
    )
    outside = pl.max_horizontal(pl.col("from_ns") - pl.col("time_ns"), pl.col("time_ns") - pl.col("until_ns"), 0)
    return (
        found.filter(pl.col("row").is_not_null())
        .filter(outside <= TOLERANCE_NS)
        .with_columns(distance_ns=(pl.col("time_ns") - pl.col(end)).abs(), is_one=pl.col("alike") == 1)
        .select("point", "packet", "row", "is_one", "distance_ns")
    )


def _parts(points: pl.DataFrame, found: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
    """Return the row that holds the bytes of each packet that has none of its own size."""
    left = points.join(found, on="point", how="anti").filter(pl.col("wire_bytes") > 0)
    data = rows.filter(pl.col("wire_bytes") > 0)
    columns = ["host_stream", "tcp_seq", "wire_bytes", "from_ns", "until_ns"]
    segments = Segments(*(data[name].cast(pl.Int64).to_numpy() for name in columns))
    stream, seq, time_ns = (left[name].cast(pl.Int64).to_numpy() for name in ("host_stream", "tcp_seq", "time_ns"))
    index, count = segments.covering(stream, seq, time_ns, "nearest", TOLERANCE_NS)
    is_found = index != NONE
    kept = left.filter(pl.Series(is_found, dtype=pl.Boolean))
    return kept.select("point", "packet").with_columns(
        row=data["row"].gather(index[is_found]), is_one=pl.Series(count[is_found] == 1, dtype=pl.Boolean)
    )
