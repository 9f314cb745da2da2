"""The record of a TCP log for each row of a path log."""

import polars as pl

from parshall.errors import UsageError
from parshall.instruments.tcp_log import Log

# The hook of the TCP log and the socket stages of the path log run one after the other.
TOLERANCE_NS = 10_000_000
# The event follows the packet that is sent again.
_EVENT_TOLERANCE_NS = 10_000_000
# What NTP moves a clock by between two starts is less than a packet's records may be apart.
_CLOCK_MOVES_NS = 1_000_000
STATE = [
    *("cwnd_segments", "ssthresh_segments", "srtt_us", "rto_us", "ca_state", "snd_una", "snd_nxt", "rcv_nxt"),
    *("packets_out", "retrans_out", "lost_out", "sacked_out"),
]
_READ = ["time_ns", "flow", "direction", "event", "pkt_seq", "pkt_ack", "payload_bytes", "flow_seq", *STATE]
_KEY = ["stream", "netns_inode", "is_out", "tcp_seq", "tcp_ack", "has_payload"]


def join(rows: pl.DataFrame, log: Log | None, flows: pl.DataFrame | None, offset_ns: int) -> pl.DataFrame:
    """Add flow, state, and whether the packet was sent again and why.

    Parameters
    ----------
    rows : polars.DataFrame
        From `timeline.rows_of`.
    log : parshall.instruments.tcp_log.Log or None
        Without, the columns are null.
    flows : polars.DataFrame or None
        Its flow table.
    offset_ns : int
        Offset of the path log's clock; the times of the TCP log are converted to it.

    Returns
    -------
    polars.DataFrame
        The rows with ``tcp_match``, ``flow``, ``flow_seq``, `STATE`, ``tcp_payload_bytes`` (after GRO),
        ``is_retransmission``, ``cause`` and ``spurious``.
    """
    records, events = _no_records(rows), None
    if log is not None and flows is not None:
        records, events = _records(log, flows, rows, offset_ns)
    count = pl.len().over(_KEY)
    at_socket = pl.when("is_out").then("socket_out_ns").otherwise("socket_in_ns").fill_null(0).cast(pl.Int64)
    points = (
        rows.filter(pl.col("stream") >= 0)
        .select(
            *("row", "stream", "netns_inode", "is_out", "tcp_seq", "tcp_ack", "wire_bytes"),
            has_payload=pl.col("wire_bytes") > 0,
            at_ns=pl.col("from_ns") + at_socket,
        )
        .with_columns(rows_alike=count)
        .sort("at_ns")
    )
    records = records.with_columns(records_alike=count).sort("record_ns")
    found = points.join_asof(
        records,
        left_on="at_ns",
        right_on="record_ns",
        by=_KEY,
        strategy="nearest",
        tolerance=TOLERANCE_NS,
        coalesce=False,
        check_sortedness=False,
    )
    # GRO makes one packet of several between the first stage and the socket.
    is_whole = pl.col("tcp_payload_bytes") == pl.col("wire_bytes")
    is_merged = ~pl.col("is_out") & (pl.col("tcp_payload_bytes") > pl.col("wire_bytes"))
    found = (
        found.filter(pl.col("record").is_not_null() & (is_whole | is_merged))
        .with_columns(distance_ns=(pl.col("at_ns") - pl.col("record_ns")).abs())
        .filter(pl.col("distance_ns") == pl.col("distance_ns").min().over("record"))
        .unique("record", keep="first", maintain_order=True)
    )
    is_one = (pl.col("rows_alike") == 1) & (pl.col("records_alike") == 1)
    found = found.with_columns(tcp_match=pl.when(is_one).then(pl.lit("exact")).otherwise(pl.lit("nearest")))
    added = ["flow", "flow_seq", *STATE, "tcp_payload_bytes", "is_retransmission", "cause", "spurious"]
    joined = rows.join(found.select("row", "tcp_match", *added), on="row", how="left", maintain_order="left")
    joined = joined.with_columns(pl.col("tcp_match").fill_null("none"))
    return joined if events is None else _sent_again_without_record(joined, events)


def is_cut() -> pl.Expr:
    """Return whether a row that leaves, with data, was cut out of a large packet by GSO.

    It begins at the driver, or has the beginning of the large packet: a connection sends one at a time.
    """
    largest_bytes = pl.col("wire_bytes").max().over("host_stream", "from_ns")
    return (pl.col("first_stage") == "start_xmit") | (pl.col("wire_bytes") < largest_bytes)


def _sent_again_without_record(rows: pl.DataFrame, events: pl.DataFrame) -> pl.DataFrame:
    """Give rows whose record was thinned or lost the event that followed the packet; such are never lost by thinning.

    The original may have been thinned as well, so only a row counts whose sequence number was sent before.
    """
    key = ["stream", "netns_inode", "tcp_seq"]
    data = rows.filter(pl.col("is_out") & (pl.col("stream") >= 0) & (pl.col("wire_bytes") > 0))
    sent = data.filter(~is_cut()).sort("from_ns")
    is_copy = pl.int_range(pl.len()).over(key) > 0
    copies = sent.filter(is_copy & (pl.col("tcp_match") == "none")).select(*key, "row", "from_ns")
    found = events.sort("record_ns").join_asof(
        copies,
        left_on="record_ns",
        right_on="from_ns",
        by=key,
        strategy="backward",
        tolerance=_EVENT_TOLERANCE_NS,
        check_sortedness=False,
    )
    found = found.filter(pl.col("row").is_not_null()).unique("row", keep="last").select("row", *_EVENT)
    joined = rows.join(found, on="row", how="left", maintain_order="left", suffix="_of_event")
    is_found = pl.col("cause_of_event").is_not_null()
    return joined.with_columns(
        is_retransmission=pl.when(is_found).then(True).otherwise("is_retransmission"),
        cause=pl.coalesce("cause", "cause_of_event"),
        spurious=pl.coalesce("spurious", "spurious_of_event"),
    ).drop("cause_of_event", "spurious_of_event")


def _records(log: Log, flows: pl.DataFrame, rows: pl.DataFrame, offset_ns: int) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the records of packets, and the events of retransmissions whose packet has no record."""
    shift_ns = clock_shift_ns(log, offset_ns)
    table = pl.from_arrow(log.batches(_READ).read_all())
    assert isinstance(table, pl.DataFrame)
    table = table.with_columns(pl.col("direction", "event", "ca_state").cast(pl.String))
    table = table.with_columns(record_ns=pl.col("time_ns").dt.timestamp("ns"))
    packets = table.filter(pl.col("event") == "packet").with_row_index("record").sort("record_ns")
    packets, events = _retransmitted(packets, table.filter(pl.col("event") == "retransmit"), log)
    packets = packets.join(
        flows.select("flow", is_complete=has_all_events()), on="flow", how="left", maintain_order="left"
    ).with_columns(
        # Data in front of the next byte to send was sent before, whatever became of its event. Of a packet without
        # data only the event says so, if none of the flow is missing.
        is_retransmission=pl.when(pl.col("direction") == "out").then(
            pl.when(pl.col("is_retransmission") | ((pl.col("payload_bytes") > 0) & _is_behind("pkt_seq", "snd_nxt")))
            .then(True)
            .when((pl.col("payload_bytes") > 0) | pl.col("is_complete"))
            .then(False)
        )
    )
    is_again = pl.col("is_retransmission").fill_null(value=False)
    packets = packets.with_columns(cause=pl.when(is_again).then(pl.col("cause").fill_null("unknown")))
    ends = rows.filter(pl.col("stream") >= 0).select(
        *("stream", "source", "source_port", "destination", "destination_port")
    ).unique()  # fmt: skip
    flows = flows.select(
        *("flow", "netns_inode", "local_address", "local_port", "remote_address", "remote_port"),
    )
    local, remote = ["local_address", "local_port"], ["remote_address", "remote_port"]
    sides = [
        flows.join(ends, left_on=[*near, *far], right_on=["source", "source_port", "destination", "destination_port"])
        .select("flow", "netns_inode", "stream")
        .with_columns(is_out=pl.lit(is_out))
        for is_out, near, far in ((True, local, remote), (False, remote, local))
    ]
    sender = sides[0].select("flow", "netns_inode", "stream")
    events = events.join(sender, on="flow").rename({"pkt_seq": "tcp_seq"})
    events = events.with_columns(record_ns=pl.col("record_ns") + shift_ns)
    records = (
        packets.with_columns(is_out=pl.col("direction") == "out")
        .join(pl.concat(sides), on=["flow", "is_out"])
        .rename({"pkt_seq": "tcp_seq", "pkt_ack": "tcp_ack", "payload_bytes": "tcp_payload_bytes"})
        .with_columns(
            record_ns=pl.col("record_ns") + shift_ns,
            has_payload=pl.col("tcp_payload_bytes") > 0,
            tcp_payload_bytes=pl.col("tcp_payload_bytes").cast(pl.Int64),
        )
        .select(*_KEY, "record", "record_ns", "flow", "flow_seq", *STATE, "tcp_payload_bytes", *_AGAIN)
    )
    return records, events.select("stream", "netns_inode", "tcp_seq", "record_ns", *_EVENT)


_EVENT = ["cause", "spurious"]
_AGAIN = ["is_retransmission", *_EVENT]


def clock_shift_ns(log: Log, offset_ns: int) -> int:
    """Return what must be added to a log's times to be of a clock with this offset to the kernel's.

    Raises
    ------
    UsageError
        The log is of several runs, between which the clock was set or the host started again.
    """
    own_ns = int(log.clock.get("monotonic_offset_ns", offset_ns))
    last = log.last_file
    if abs(int(last.clock.get("monotonic_offset_ns", own_ns)) - own_ns) > _CLOCK_MOVES_NS:
        raise UsageError(
            f"{log.path}: between its first file and {last.path.name} the clock was set, or the host started again; "
            "give the file that is of the time of the paths"
        )
    return offset_ns - own_ns


def has_all_events() -> pl.Expr:
    """Return whether the log has all events of a flow: by its account of events, and that of retransmissions."""
    missing = pl.sum_horizontal("events_dropped", "events_overwritten", "events_unwritten")
    # Null, and so unknown: the account has not come.
    return (missing == 0) & (pl.col("retransmits_lost") == 0)


def _is_behind(number: str, of: str) -> pl.Expr:
    """Return whether a sequence number is behind another one, modulo 2^32."""
    ahead = (pl.col(of).cast(pl.Int64) - pl.col(number).cast(pl.Int64)) % (1 << 32)
    return (ahead > 0) & (ahead < 1 << 31)


def _retransmitted(packets: pl.DataFrame, events: pl.DataFrame, log: Log) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return packets with the event that says that they were sent again and its cause, and events without a packet.

    An event has the number of the last packet of its flow. It is of a packet with a lower number only where all
    packets between the two are in the log: one that was thinned may be the one that was sent again.
    """
    keys = ["flow", "pkt_seq"]
    judged = pl.from_arrow(log.retransmissions)
    assert isinstance(judged, pl.DataFrame)
    judged = judged.select("time_ns", *keys, pl.col("cause").cast(pl.String), "spurious").unique(["time_ns", *keys])
    events = events.select("time_ns", *keys, "record_ns", "flow_seq").join(judged, on=["time_ns", *keys], how="left")
    events = events.with_columns(pl.col("cause").fill_null("unknown")).with_row_index("event")
    ranks = packets.select("record", "flow", "flow_seq", rank=pl.col("flow_seq").rank("ordinal").over("flow"))
    last = ranks.select("flow", "flow_seq", last_seq="flow_seq", last_rank="rank").sort("flow_seq")
    events = events.sort("flow_seq").join_asof(
        last, on="flow_seq", by="flow", strategy="backward", check_sortedness=False
    )
    before = packets.filter(pl.col("direction") == "out").select("record", *keys, packet_ns="record_ns")
    before = before.join(ranks.select("record", packet_seq="flow_seq", packet_rank="rank"), on="record")
    sent = events.sort("record_ns").join_asof(
        before.sort("packet_ns"),
        left_on="record_ns",
        right_on="packet_ns",
        by=keys,
        strategy="backward",
        tolerance=_EVENT_TOLERANCE_NS,
        check_sortedness=False,
    )
    behind = pl.col("flow_seq").cast(pl.Int64) - pl.col("packet_seq").cast(pl.Int64)
    logged_between = pl.col("last_rank").cast(pl.Int64) - pl.col("packet_rank").cast(pl.Int64)
    are_between_logged = (pl.col("last_seq") == pl.col("flow_seq")) & (logged_between == behind)
    sent = sent.filter((behind == 0) | are_between_logged).unique("record", keep="last")
    alone = events.join(sent, on="event", how="anti")
    sent = sent.select("record", *_EVENT, is_retransmission=pl.lit(True))
    packets = packets.join(sent, on="record", how="left", maintain_order="left")
    return packets.with_columns(pl.col("is_retransmission").fill_null(value=False)), alone


def _no_records(rows: pl.DataFrame) -> pl.DataFrame:
    kinds = dict.fromkeys(STATE, pl.UInt32()) | {"ca_state": pl.String(), "flow": pl.UInt32(), "flow_seq": pl.UInt64()}
    kinds |= {"record": pl.UInt32(), "record_ns": pl.Int64(), "tcp_payload_bytes": pl.Int64()}
    kinds |= {"is_retransmission": pl.Boolean(), "cause": pl.String(), "spurious": pl.Boolean()}
    kinds |= {name: rows.schema[name] for name in _KEY if name in rows.schema} | {"has_payload": pl.Boolean()}
    return pl.DataFrame(schema=kinds)
