"""The retransmissions of a log by cause, as rows of a table."""

from collections.abc import Collection
from typing import Any

import polars as pl
import pyarrow as pa

# Segments by what is known of their need.
VERDICTS = ("needed", "spurious", "not_known")
_COUNTS = ("segments", *VERDICTS)


def cause_rows(retransmissions: pa.Table, listed: Collection[int]) -> list[dict[str, Any]]:
    """Return the retransmitted segments of each flow and cause.

    Parameters
    ----------
    retransmissions
        As `Log.retransmissions` gives them.
    listed
        Flows with rows of their own; the others have a common row for each cause.

    Returns
    -------
    list of dict
        ``flow`` (None: all that are not listed), ``cause``, ``segments``, and of these ``needed``, ``spurious`` and
        ``not_known``; by flow, causes with most segments first.
    """
    found = pl.DataFrame(pl.from_arrow(retransmissions))
    segments = pl.col("segments").cast(pl.UInt64)
    verdicts = {
        "needed": ~pl.col("spurious"),
        "spurious": pl.col("spurious"),
        "not_known": pl.col("spurious").is_null(),
    }
    return (
        found.group_by(
            pl.when(pl.col("flow").is_in(list(listed))).then("flow").alias("flow"),
            pl.col("cause").cast(pl.String).fill_null("unknown"),
        )
        .agg(segments.sum(), *(segments.filter(verdicts[name]).sum().alias(name) for name in VERDICTS))
        .sort("flow", "segments", "cause", descending=[False, True, False], nulls_last=True)
        .to_dicts()
    )


def of_listed(rows: list[dict[str, Any]], listed: Collection[int]) -> list[dict[str, Any]]:
    """Return rows of `cause_rows` for fewer flows: those of the others are in the common rows."""
    kept = [row for row in rows if row["flow"] in listed]
    common: dict[str, dict[str, Any]] = {}
    for row in rows:
        if row["flow"] not in listed:
            own = common.setdefault(row["cause"], {"flow": None, "cause": row["cause"], **dict.fromkeys(_COUNTS, 0)})
            for name in _COUNTS:
                own[name] += row[name]
    return kept + sorted(common.values(), key=lambda row: (-row["segments"], row["cause"]))


def without_row(flows: pl.DataFrame) -> dict[str, int]:
    """Return what the kernel counts as sent again and the log has no row of, in segments.

    Parameters
    ----------
    flows
        Rows of the flow table.

    Returns
    -------
    dict of str to int
        ``failed``: a filter or a full queue of this host took them; ``lost``: their events are lost; ``unseen``: no
        hook saw an event; each over all flows whose account has come.
    """
    names = [f"retransmits_{name}" for name in ("total", "logged", "failed", "lost")]
    total, logged, failed, lost = (int(flows[name].sum() or 0) if name in flows.columns else 0 for name in names)
    return {"failed": failed, "lost": lost, "unseen": max(total - logged - failed - lost, 0)}
