"""Find the two flows of a log that are the two ends of one connection, as on a loopback interface.

Two flows belong together when one receives the sequence numbers that the other sends. Addresses alone are ambiguous:
network namespaces share them, ports are reused, and address translation changes them.
"""

import polars as pl

_SEQUENCE_NUMBERS = 1 << 32
# The first records of both ends may be missing (thinned, filtered). Then the sequence numbers sent by one end and
# received by the other must lie this close, which 2 of 1000 unrelated pairs do by chance.
_GAP_MAX = 1 << 26
# Maximum time between the records of two ends; one is often silent when the other ends.
_SLACK_NS = 1_000_000_000
# More flows than this between the same ports are not compared pair by pair.
_SAME_ENDS_MAX = 64
_ENDS = ("local_address", "local_port", "remote_address", "remote_port")
_MIRRORED = ("remote_address", "remote_port", "local_address", "local_port")


def other_ends(flows: pl.DataFrame) -> pl.DataFrame:
    """Find the flows that are the two ends of one connection.

    Parameters
    ----------
    flows : polars.DataFrame
        Shape (flows, ...): ``flow``, the addresses and ports of the flow table, ``begin_ns``, ``end_ns``,
        ``snd_una_first``, ``rcv_nxt_first``, ``acknowledged``, ``received``.

    Returns
    -------
    polars.DataFrame
        Shape (ends of such connections, 2): ``flow`` and ``other_end``; each connection has two rows.
    """
    known = flows.filter(pl.col("snd_una_first").fill_null(0) > 0, pl.col("rcv_nxt_first").fill_null(0) > 0)
    matched = _both_directions(_by_first_numbers(known))
    rest = known.join(matched, on="flow", how="anti")
    return pl.concat([matched, _both_directions(_by_addresses(rest))]).sort("flow")


def _by_first_numbers(flows: pl.DataFrame) -> pl.DataFrame:
    """Return pairs whose first records have the same two sequence numbers, crosswise: 64 practically unique bits."""
    numbers = flows.select("flow", "begin_ns", "end_ns", "snd_una_first", "rcv_nxt_first")
    pairs = numbers.join(
        numbers,
        left_on=["snd_una_first", "rcv_nxt_first"],
        right_on=["rcv_nxt_first", "snd_una_first"],
        suffix="_other",
    ).filter(pl.col("flow") < pl.col("flow_other"), _overlap())
    return _unambiguous(pairs)


def _by_addresses(flows: pl.DataFrame) -> pl.DataFrame:
    """Return pairs between the same ports at the same time, with the closest sequence numbers."""
    if flows.is_empty():
        return _unambiguous(flows.join(flows, on="flow", suffix="_other").with_columns(flow_other="flow"))
    few = flows.drop_nulls(_ENDS).filter(pl.len().over(_ENDS) <= _SAME_ENDS_MAX)
    pairs = few.join(few, left_on=_ENDS, right_on=_MIRRORED, suffix="_other").filter(
        pl.col("flow") < pl.col("flow_other"), _overlap()
    )
    forward = _gap("snd_una_first", "acknowledged", "rcv_nxt_first_other", "received_other")
    back = _gap("snd_una_first_other", "acknowledged_other", "rcv_nxt_first", "received")
    close = pairs.with_columns(gap=pl.max_horizontal(forward, back)).filter(pl.col("gap") <= _GAP_MAX)
    nearest = close.filter(
        pl.col("gap") == pl.col("gap").min().over("flow"), pl.col("gap") == pl.col("gap").min().over("flow_other")
    )
    return _unambiguous(nearest)


def _overlap() -> pl.Expr:
    begins_before_the_other_ends = pl.col("begin_ns") <= pl.col("end_ns_other") + _SLACK_NS
    return begins_before_the_other_ends & (pl.col("begin_ns_other") <= pl.col("end_ns") + _SLACK_NS)


def _gap(sent_first: str, sent: str, received_first: str, received: str) -> pl.Expr:
    """Return the distance of sent and received sequence numbers; 0 when they overlap."""
    ahead = (pl.col(received_first).cast(pl.Int64) - pl.col(sent_first).cast(pl.Int64)) % _SEQUENCE_NUMBERS
    behind = (_SEQUENCE_NUMBERS - ahead) % _SEQUENCE_NUMBERS
    return pl.min_horizontal(ahead - pl.col(sent), behind - pl.col(received)).clip(lower_bound=0)


def _unambiguous(pairs: pl.DataFrame) -> pl.DataFrame:
    """Drop flows that have several candidates."""
    chosen = pairs.select("flow", "flow_other")
    return chosen.filter(pl.len().over("flow") == 1, pl.len().over("flow_other") == 1).filter(
        ~pl.col("flow").is_in(chosen["flow_other"].implode())
    )


def _both_directions(pairs: pl.DataFrame) -> pl.DataFrame:
    forward = pairs.select("flow", other_end="flow_other")
    return pl.concat([forward, pairs.select(flow="flow_other", other_end="flow")])
