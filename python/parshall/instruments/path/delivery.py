"""The read that returned a packet's data to a process, and how long the process waited."""

import polars as pl

from parshall.instruments.path.retransmissions import is_used

_ENDS = ["source", "source_port", "destination", "destination_port"]
# A reader that comes later did not wait for this packet.
_LATEST_NS = 3600 * 10**9


def join(rows: pl.DataFrame, reads: pl.DataFrame, flows: pl.DataFrame | None, shift_ns: int = 0) -> pl.DataFrame:
    """Add the read that returned the data of each delivered row.

    Parameters
    ----------
    rows : polars.DataFrame
        From `tcp_records.join`.
    reads : polars.DataFrame
        From `PathLog.reads`.
    flows : polars.DataFrame or None
        Flow table of the TCP log, which knows the cookies of sockets.
    shift_ns : int
        What must be added to its times to be of the path log's clock.

    Returns
    -------
    polars.DataFrame
        The rows with ``read_match``, ``reader_cookie``, ``pid``, ``command``; ``waking_ns``, ``running_ns`` and
        ``read_ns`` (since the first data of this read was ready); ``wait_ns`` (since this row's data was ready).
    """
    delivered = rows.filter((pl.col("stream") >= 0) & ~pl.col("is_out") & (pl.col("wire_bytes") > 0))
    delivered = delivered.filter(pl.col("path").is_in(["delivered", "unknown", "open", "consumed"]) | is_used())
    # Data behind a gap is ready when the gap is closed.
    own_ns = pl.col("from_ns") + pl.col("data_ready_ns").cast(pl.Int64)
    delivered = delivered.with_columns(own_ns=own_ns).sort("from_ns")
    ready_ns = pl.col("own_ns").fill_null(strategy="backward").over("host_stream")
    copied_ns = pl.col("from_ns") + pl.col("copy_ns").cast(pl.Int64)
    ready = delivered.with_columns(ready_ns=ready_ns, copied_ns=copied_ns)
    # The moment that the read of this row surely covers; TCP may have merged it into the skb that is copied.
    ready = ready.with_columns(at_ns=pl.coalesce("copied_ns", "ready_ns")).filter(pl.col("at_ns").is_not_null())
    cookies = _cookies(rows, flows, shift_ns)
    ready = ready.join(cookies, on=[*_ENDS, "netns_inode"], how="inner").filter(
        pl.col("from_ns").is_between("since_ns", "until_ns_of_socket", closed="left")
    )
    ended = (
        reads.with_row_index("read")
        .with_columns(begin_ns=pl.col("time").dt.timestamp("ns"))
        .with_columns(end_ns=pl.col("begin_ns") + pl.col("read_ns").cast(pl.Int64))
        .select(
            *("read", "begin_ns", "end_ns", "pid", "command", "waking_ns", "running_ns", "read_ns"),
            reader_cookie="socket_cookie",
            read_bytes="length_bytes",
        )
        .filter(pl.col("reader_cookie").is_not_null())
    )
    found = ready.sort("at_ns").join_asof(
        ended.sort("end_ns"),
        left_on="at_ns",
        right_on="end_ns",
        by="reader_cookie",
        strategy="forward",
        tolerance=_LATEST_NS,
        coalesce=False,
        check_sortedness=False,
    )
    # A read without data that became ready since the one before is not in the log.
    is_copied = pl.col("copied_ns").is_not_null()
    is_within = (pl.col("copied_ns") >= pl.col("begin_ns")).fill_null(True)
    found = found.filter(pl.col("read").is_not_null() & is_within)
    # All that was ready fits into what this read returned: no byte of it was left for another one.
    data = pl.coalesce("tcp_payload_bytes", "wire_bytes").sum().over("read")
    is_all = (data == pl.col("read_bytes")) & pl.col("own_ns").is_not_null().all().over("read")
    found = found.with_columns(
        read_match=pl.when(is_copied | is_all).then(pl.lit("exact")).otherwise(pl.lit("nearest")),
        wait_ns=pl.when(pl.col("ready_ns") <= pl.col("end_ns")).then(pl.col("end_ns") - pl.col("ready_ns")),
    ).unique("row", keep="first", maintain_order=True)
    added = ["reader_cookie", "pid", "command", "waking_ns", "running_ns", "read_ns", "wait_ns"]
    return rows.join(
        found.select("row", "read_match", *added), on="row", how="left", maintain_order="left"
    ).with_columns(pl.col("read_match").fill_null("none"))


def _cookies(rows: pl.DataFrame, flows: pl.DataFrame | None, shift_ns: int) -> pl.DataFrame:
    """Return the socket that receives what has these ends, and from when until when."""
    if flows is not None:
        # Of what another connection had before with the same ends, only the times differ.
        known = flows.filter(pl.col("socket_cookie") != 0).select(
            "netns_inode",
            first_ns=pl.col("first_time_ns").cast(pl.Int64) + shift_ns,
            source="remote_address",
            source_port="remote_port",
            destination="local_address",
            destination_port="local_port",
            reader_cookie="socket_cookie",
        )
        known = known.with_columns(pl.col("netns_inode").cast(rows.schema["netns_inode"]))
    else:
        # What a socket sent names it.
        known = rows.filter(pl.col("is_out") & (pl.col("stream") >= 0) & pl.col("socket_cookie").is_not_null()).select(
            "netns_inode",
            first_ns="from_ns",
            source="destination",
            source_port="destination_port",
            destination="source",
            destination_port="source_port",
            reader_cookie="socket_cookie",
        )
    ends = [*_ENDS, "netns_inode"]
    known = known.group_by(*ends, "reader_cookie").agg(pl.col("first_ns").min()).sort(*ends, "first_ns")
    # A socket may receive before it has sent, and be logged after it began: the first one has all of the time before.
    is_first = pl.int_range(pl.len()).over(ends) == 0
    return known.with_columns(
        since_ns=pl.when(is_first).then(pl.lit(0, pl.Int64)).otherwise("first_ns"),
        until_ns_of_socket=pl.col("first_ns").shift(-1).over(ends).fill_null((1 << 63) - 1),
    ).drop("first_ns")
