"""How many segments a flow sent again in the part of a log that is read; also without the native module."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import polars as pl

# An event waits in the ring for less than this before it is written, so a file may begin with earlier rows.
_WAITS_MAX_NS = 1_000_000_000


def retransmitted_here(first: str, last: str, gap_ends_ns: Sequence[int]) -> pl.Expr:
    """Return the segments that a flow sent again in the part of a log that is read.

    Besides the columns below it needs ``began_before``, ``first_time_ns`` and ``retransmits_total`` of the flow table.

    Parameters
    ----------
    first, last : str
        The columns of the kernel's count before the first row of the flow and in the last one; ``begin_ns`` is the time
        of the first. Before an event that a segment was sent again, the kernel has counted it: it is of the log.
    gap_ends_ns : sequence of int
        When files begin that do not follow the file before, nanoseconds of ``CLOCK_REALTIME``.
    """
    first_ns, begin_ns = pl.col("first_time_ns").cast(pl.Int64), pl.col("begin_ns")
    # It had events before such a file, but no rows.
    began_in_gap = pl.any_horizontal(
        pl.lit(False),
        *((first_ns < begin_ns) & (first_ns < end_ns) & (begin_ns > end_ns - _WAITS_MAX_NS) for end_ns in gap_ends_ns),
    ).fill_null(False)
    is_earlier = pl.col("began_before").fill_null(True) | began_in_gap
    in_rows = pl.col(last).cast(pl.Int64) - pl.when(is_earlier).then(pl.col(first).cast(pl.Int64)).otherwise(0)
    # Rows lack the segments before the first one, whose count has them; the flow table may be older than the last row.
    in_flow_table = pl.when(~began_in_gap).then(pl.col("retransmits_total").cast(pl.Int64))
    return pl.when(in_rows.is_not_null()).then(pl.max_horizontal(in_rows, in_flow_table))


def gap_ends_ns(gaps: Iterable[Mapping[str, Any]]) -> list[int]:
    """Return when the files after gaps begin, of `plain_rows` of `Log.gaps`."""
    return [gap["until_time_ns"] for gap in gaps if gap["until_time_ns"] is not None]
