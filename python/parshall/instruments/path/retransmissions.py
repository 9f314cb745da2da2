"""Which copy of a segment was dropped, and which one was sent for it."""

from typing import Any

import numpy as np
import polars as pl

from parshall.instruments.path.covering import NONE, Segments
from parshall.instruments.path.stages import STAGES
from parshall.instruments.path.tcp_records import is_cut

# TCP waits no longer before it sends again.
_LATEST_NS = 120 * 10**9
_ON_THE_WAY_NS = 60 * 10**9
# At 17 Gbit/s a connection moves half of its sequence numbers in this time.
_UNSEEN_NS = 10**9
_PLACES = [name for name in STAGES if name not in ("drop", "consume")]


def join(rows: pl.DataFrame) -> pl.DataFrame:
    """Link the copies of segments with payload.

    Parameters
    ----------
    rows : polars.DataFrame
        From `tcp_records.join`.

    Returns
    -------
    polars.DataFrame
        The rows with ``sent_row`` (row of the sending host with the same copy), ``lost_row`` (of a retransmission:
        the row that was dropped before), ``sent_again_row`` and ``sent_again_ns`` (of a dropped row: what was sent
        for it, and how long after the drop), and ``place`` (of a dropped row: the last stage before). Rows elsewhere
        take cause and ``lost_row`` from the sending host's row.
    """
    rows = _with_copies(rows)
    count = rows.height
    links = {name: np.full(count, NONE, np.int64) for name in ("sent_row", "lost_row", "sent_again_row")}
    data = _data(rows)
    if data.height:
        _link(data, links)
    columns = [pl.Series(name, values).cast(pl.Int64) for name, values in links.items()]
    rows = rows.with_columns(columns).with_columns(
        pl.when(pl.col(name) >= 0).then(pl.col(name)).cast(pl.UInt32).alias(name) for name in links
    )
    sender = rows.select(*("cause", "spurious", "lost_row"), sent_row="row", is_again="is_retransmission").rename(
        {"cause": "sent_cause", "spurious": "sent_spurious", "lost_row": "sent_lost_row"}
    )
    rows = rows.join(sender, on="sent_row", how="left", maintain_order="left").with_columns(
        cause=pl.coalesce("cause", "sent_cause"),
        spurious=pl.coalesce("spurious", "sent_spurious"),
        is_retransmission=pl.coalesce("is_retransmission", "is_again"),
        lost_row=pl.coalesce("lost_row", "sent_lost_row"),
    )
    again = rows.select(sent_again_row="row", again_ns="from_ns")
    rows = rows.join(again, on="sent_again_row", how="left", maintain_order="left")
    passed = [pl.when(pl.col(f"{name}_ns").is_not_null()).then(pl.lit(name)) for name in reversed(_PLACES)]
    place = pl.when(pl.col("path") == "dropped").then(pl.coalesce(passed))
    return rows.with_columns(sent_again_ns=pl.col("again_ns") - _dropped_ns(), place=place).drop(
        "sent_cause", "sent_spurious", "sent_lost_row", "is_again", "again_ns"
    )


def _dropped_ns() -> pl.Expr:
    return pl.col("from_ns") + pl.col("drop_ns").fill_null(0).cast(pl.Int64)


def is_used() -> pl.Expr:
    """Return whether a dropped row was received: TCP frees segments without a reason when it has copied their bytes."""
    has_passed = pl.col("tcp_receive_ns").is_not_null() & (pl.col("drop_reason") == "NOT_SPECIFIED")
    return (pl.col("path") == "dropped") & has_passed


def is_lost() -> pl.Expr:
    """Return whether a row is a packet that was lost here."""
    return (pl.col("path") == "dropped") & ~is_used()


def _data(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.filter((pl.col("stream") >= 0) & (pl.col("wire_bytes") > 0))


def _is_send() -> pl.Expr:
    return pl.col("is_out") & ((pl.col("tcp_match") != "none") | ~is_cut())


def _with_copies(rows: pl.DataFrame) -> pl.DataFrame:
    """Mark what a logged sender sent twice as a retransmission where the TCP log does not say whether it was one.

    A sender sends its bytes in order, so what lies below the highest of before was sent before. Sequence numbers wrap:
    they are counted on from packet to packet, and anew behind a time in which half of them may have been sent unseen.
    """
    sends = _data(rows).filter(_is_send())
    logged = sends.filter(pl.col("tcp_match") != "none")["host_stream"].unique().implode()
    sends = sends.filter(pl.col("host_stream").is_in(logged)).sort("from_ns", maintain_order=True)
    if not sends["is_retransmission"].null_count():
        return rows
    half, whole = 1 << 31, 1 << 32
    seq = pl.col("tcp_seq").cast(pl.Int64)
    sends = sends.with_columns(
        part=(pl.col("from_ns").diff().fill_null(0) > _UNSEEN_NS).cast(pl.Int64).cum_sum().over("host_stream"),
        step=((seq.diff().fill_null(0) + half) % whole - half).over("host_stream"),
    )
    key = ["host_stream", "part"]
    sends = sends.with_columns(at=pl.col("step").cum_sum().over(key))
    highest = (pl.col("at") + pl.col("wire_bytes")).cum_max().shift(1).over(key)
    copies = sends.filter(pl.col("is_retransmission").is_null() & (pl.col("at") < highest))["row"].implode()
    is_copy = pl.col("row").is_in(copies)
    return rows.with_columns(
        is_retransmission=pl.when(is_copy).then(True).otherwise("is_retransmission"),
        cause=pl.when(is_copy).then(pl.col("cause").fill_null("unknown")).otherwise("cause"),
    )


def _link(data: pl.DataFrame, links: dict[str, Any]) -> None:
    is_send = _is_send()
    sends, other = data.filter(is_send), data.filter(~is_send)
    index, _ = _covering(sends, other, "before", _ON_THE_WAY_NS, "stream")
    _set(links["sent_row"], other, sends, index)
    # A segment that waits in a backlog is dropped long after it came: what was sent until then was not sent for it.
    lost = data.filter(is_lost()).with_columns(from_ns=_dropped_ns())
    again = sends.filter(pl.col("is_retransmission"))
    known = sends.filter(pl.col("tcp_match") != "none")["stream"].unique().implode()
    # Of streams whose sender was logged, its own events count; of others, what passes the place of the drop again.
    logged = lost.filter(pl.col("stream").is_in(known))
    unlogged = lost.filter(~pl.col("stream").is_in(known))
    index, _ = _covering(again, logged, "after", _LATEST_NS, "stream")
    _set(links["sent_again_row"], logged, again, index)
    later, _ = _covering(data, unlogged, "after", _LATEST_NS, "host_stream", strictly=True)
    _set(links["sent_again_row"], unlogged, data, later)
    _link_lost(again, logged, links)


def _link_lost(again: pl.DataFrame, lost: pl.DataFrame, links: dict[str, Any]) -> None:
    """Link retransmissions to the drop that each is the first to repair."""
    pairs = pl.DataFrame({"lost": lost["row"], "again": links["sent_again_row"][lost["row"].to_numpy()]})
    pairs = pairs.filter(pl.col("again") >= 0)
    # Of a large packet that was dropped, the later parts are sent again by packets of their own.
    index, _ = _covering(lost, again, "before", _LATEST_NS, "stream")
    is_found = index >= 0
    parts = pl.DataFrame(
        {
            "again": again["row"].filter(pl.Series(is_found)),
            "seq": again["tcp_seq"].filter(pl.Series(is_found)),
            "lost": lost["row"].gather(index[is_found]),
        }
    )
    parts = parts.sort("again").unique(["lost", "seq"], keep="first", maintain_order=True)
    links["lost_row"][parts["again"].to_numpy()] = parts["lost"].to_numpy()
    links["lost_row"][pairs["again"].to_numpy()] = pairs["lost"].to_numpy()


def _covering(
    segments: pl.DataFrame, points: pl.DataFrame, when: str, tolerance_ns: int, stream: str, *, strictly: bool = False
) -> tuple[Any, Any]:
    columns = [stream, "tcp_seq", "wire_bytes", "from_ns", "until_ns"]
    arrays = [segments[name].cast(pl.Int64).to_numpy() for name in columns]
    at_ns = points["from_ns"].to_numpy() + int(strictly)
    found = Segments(*arrays).covering(
        points[stream].to_numpy(), points["tcp_seq"].cast(pl.Int64).to_numpy(), at_ns, when, tolerance_ns
    )
    return found


def _set(link: Any, points: pl.DataFrame, segments: pl.DataFrame, index: Any) -> None:
    is_found = index >= 0
    link[points["row"].to_numpy()[is_found]] = segments["row"].to_numpy()[index[is_found]]
