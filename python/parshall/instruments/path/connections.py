"""What a timeline says of each direction of each connection."""

from typing import Any

import polars as pl
import pyarrow as pa

from parshall.instruments.path.profile import group_text
from parshall.instruments.path.retransmissions import is_lost
from parshall.instruments.path.stages import SENDING_STAGES

_ENDS = ["source", "source_port", "destination", "destination_port"]


def connections(timeline: pa.Table) -> list[dict[str, Any]]:
    """Return the answers for each direction of each connection, most rows first.

    Parameters
    ----------
    timeline : pyarrow.Table
        From `parshall.instruments.path.join`.

    Returns
    -------
    list of dict
        ``connection``; ``netns_inodes``: where it was seen (namespaces without a common segment have connections of
        their own, also with equal ends); ``paths``: rows by code path; ``drops``: packets by ``netns_inode``,
        ``place`` and ``reason``, and how many were ``sent_again``; ``retransmissions`` and their ``causes``, how many
        repair a drop that was seen (``lost``), how many are ``spurious``, and of how many this is ``not_known``;
        ``readers``: how long each process waited;
        ``queues``: how long data and ACKs were in each queue discipline. Times have ``rows``, ``median_ns``,
        ``p99_ns``, ``max_ns``.
    """
    frame = pl.from_arrow(timeline)
    assert isinstance(frame, pl.DataFrame)
    tcp = frame.filter((pl.col("protocol") == 6) & pl.col("source").is_not_null())
    made = [
        _connection(ends, rows)
        for ends, both in tcp.partition_by(_ENDS, as_dict=True).items()
        for rows in _connected_namespaces(both)
    ]
    return sorted(made, key=lambda one: (-sum(one["paths"].values()), one["connection"], one["netns_inodes"]))


def _connected_namespaces(rows: pl.DataFrame) -> list[pl.DataFrame]:
    """Split rows of the same ends by the network namespaces that have segments in common.

    Containers have equal addresses. A segment of one connection passes several namespaces with its numbers as they are;
    two connections have other numbers, which begin at random.
    """
    namespace = pl.col("netns_inode").fill_null(0)
    found = rows.select(namespace)["netns_inode"].unique(maintain_order=True).to_list()
    if len(found) == 1:
        return [rows]
    segments = rows.select(namespace, "tcp_seq", "tcp_ack").unique()
    common = segments.join(segments, on=["tcp_seq", "tcp_ack"]).select("netns_inode", other="netns_inode_right")
    groups: list[set[Any]] = []
    for pair in {frozenset(pair) for pair in common.unique().iter_rows()} | {frozenset({one}) for one in found}:
        touched = [group for group in groups if group & pair]
        groups = [group for group in groups if not group & pair] + [set(pair).union(*touched)]
    return [rows.filter(namespace.is_in(list(group))) for group in groups]


def _connection(ends: tuple[Any, ...], rows: pl.DataFrame) -> dict[str, Any]:
    lost = rows.filter(is_lost())
    drops = lost.group_by("netns_inode", "place", reason="drop_reason", maintain_order=True).agg(
        packets=pl.len(), sent_again=pl.col("sent_again_row").is_not_null().sum()
    )
    # The other hosts' rows are of the same segments.
    again = rows.filter(
        pl.col("is_retransmission") & pl.col("sent_row").is_null() & pl.col("first_stage").is_in(SENDING_STAGES)
    )
    causes = again["cause"].value_counts(sort=True).rows()
    readers = rows.filter(pl.col("wait_ns").is_not_null()).with_columns(time_ns="wait_ns")
    queued = rows.filter(pl.col("qdisc_dequeue_ns").is_not_null() & pl.col("qdisc_enqueue_ns").is_not_null())
    queued = queued.with_columns(
        time_ns=pl.col("qdisc_dequeue_ns").cast(pl.Int64) - pl.col("qdisc_enqueue_ns").cast(pl.Int64),
        kind=pl.when(pl.col("payload_bytes") > 0).then(pl.lit("data")).otherwise(pl.lit("ACKs")),
    )
    return {
        "connection": group_text({"connection": [*ends, 6]}),
        "netns_inodes": sorted(rows["netns_inode"].drop_nulls().unique().to_list()),
        "paths": dict(rows["path"].value_counts(sort=True).rows()),
        "drops": drops.sort("packets", descending=True).to_dicts(),
        "sent_again": _times(lost.filter(pl.col("sent_again_ns").is_not_null()).with_columns(time_ns="sent_again_ns")),
        "retransmissions": again.height,
        "causes": dict(causes),
        "lost": again.filter(pl.col("lost_row").is_not_null()).height,
        "spurious": again.filter(pl.col("spurious")).height,
        "not_known": again["spurious"].null_count(),
        "readers": _times(readers, "pid", "command"),
        "queues": _times(queued, "netns_inode", "interface_out", "kind"),
    }


def _times(rows: pl.DataFrame, *by: str) -> list[dict[str, Any]]:
    time_ns = pl.col("time_ns")
    quantiles = {
        "rows": pl.len(),
        "median_ns": time_ns.quantile(0.5, "nearest"),
        "p99_ns": time_ns.quantile(0.99, "nearest"),
        "max_ns": time_ns.max(),
    }
    grouped = rows.group_by(*by, maintain_order=True) if by else rows.group_by(pl.lit(0).alias("all"))
    found = grouped.agg(**quantiles).sort("rows", descending=True)
    return found.filter(pl.col("rows") > 0).drop("all", strict=False).to_dicts()
