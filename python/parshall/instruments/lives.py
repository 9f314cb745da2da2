"""When a flow of a log was alive; also without the native module."""

import polars as pl


def alive_ns() -> tuple[pl.Expr, pl.Expr]:
    """Return from when until when a flow was alive, ns since 1970.

    Rows may be thinned, and the handshake of an accepted connection has no socket: the flow table (``first_time_ns``,
    ``last_time_ns``) has both ends, beside the first and last row (``begin_ns``, ``end_ns``; null without one).
    """
    from_ns = pl.min_horizontal("begin_ns", pl.col("first_time_ns").cast(pl.Int64))
    return from_ns, pl.max_horizontal("end_ns", pl.col("last_time_ns").cast(pl.Int64))
