"""Bytes, retransmissions and round-trip times of a thinned log in spans of time, with intervals."""

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from parshall.errors import UsageError
from parshall.host.rows import plain_rows
from parshall.statistics.summary import CONFIDENCE, order_statistics, student

if TYPE_CHECKING:
    from parshall.instruments.tcp_log import Log

_COLUMNS = ("time_ns", "flow", "event", "state", "flow_seq", "snd_una", "srtt_us", "gso_segs")
# The first packets of a flow are always logged under a budget (bpf/tcp_state.h).
_FIRST_PACKETS = 4
_HALF = 1 << 31
# A flow's highest rate is that of one such time.
_PACE_NS = 10_000_000
_NO_SOCKET = ("NEW_SYN_RECV", "TIME_WAIT", "LISTEN", "UNKNOWN", "SYN_SENT")
_QUANTILES = {"rtt_p50_us": 0.5, "rtt_p99_us": 0.99}
# With fewer of them the spread between them says nothing.
_CLUSTERS_MIN = 5
_MAX_WINDOWS = 100_000
_NO_END = (1 << 63) - 1


def estimates(log: "Log", window_s: float = 10.0, begin_ns: int | None = None) -> pl.DataFrame:
    """Return what happened in equal spans of time.

    Parameters
    ----------
    log : Log
        A log, of all packets or thinned; it is read into memory.
    window_s : float
        Length of a span, seconds.
    begin_ns : int, optional
        Where the first span begins, nanoseconds of ``CLOCK_REALTIME``; default: at the first row.

    Returns
    -------
    polars.DataFrame
        A row for each span: ``begin_ns`` and ``end_ns``, nanoseconds of ``CLOCK_REALTIME``; ``observed_share`` of the
        span in which packets were observed; ``packets_logged``. Then, each with its ends ``_low`` and ``_high``:

        ``acked_bytes``
            Bytes that peers acknowledged, of all flows. The ends are bounds, not probable values: sequence numbers of
            the rows before and after the ends of the span. Between them it is interpolated. What a flow moved before
            its first row and after its last one is in no span: of the latter, fewer packets than one row stands for, or
            what came in the last pause. The upper end is null where a flow may have moved 2 GiB or more, which sequence
            numbers do not tell from less, while packets were not observed: at twice its highest rate in 10 ms.
        ``retransmitted``
            Segments that were sent again. Events are not thinned, so the ends are the value itself. The upper end is
            null where packets were not observed all the time: a flow that nobody has seen yet has no events.
        ``rtt_p50_us``, ``rtt_p99_us``
            Quantiles of the smoothed round-trip times of packets. A row stands for as many packets as were thinned; the
            ends are those of a 95 % interval by inverting the distribution's own (Woodruff, 1952), which varies between
            packets, or between the times from pause to pause where the log paused; of few packets they are order
            statistics. Null with too few of them.

        Rows that were lost are in none of these; the ledger counts them.

    Raises
    ------
    UsageError
        The log has packets that were chosen by what they changed (``on_change``): they stand for no others.
    """
    if not window_s > 0:
        raise UsageError(f"window_s {window_s:g}: expected seconds above 0")
    if log.options.get("on_change"):
        raise UsageError(
            f"{log.path}: packets were logged when their flow changed (--on-change), and stand for no others; "
            "log with --budget, --ppl or all packets"
        )
    last = log.last_file
    for name in _DECISIVE:
        if (first := log.options.get(name)) != (other := last.options.get(name)):
            texts = ["none" if value is None else value for value in (first, other)]
            raise UsageError(
                f"{log.path}: its first file was logged with {name} {texts[0]}, {last.path.name} with {texts[1]}: "
                f"packets stand for others; read files of one run, as parshall.read({str(last.path)!r})"
            )
    rows = pl.DataFrame(log.batches(_COLUMNS).read_all()).with_columns(pl.col("time_ns").cast(pl.Int64))
    if rows.is_empty():
        return pl.DataFrame(schema=_schema())
    rows = rows.with_columns(pl.col("event", "state").cast(pl.String)).sort("time_ns")
    begin_ns, last_ns = int(rows["time_ns"][0]) if begin_ns is None else begin_ns, int(rows["time_ns"][-1])
    step_ns = int(window_s * 1e9)
    count = max(last_ns - begin_ns, 0) // max(step_ns, 1) + 1
    if count > _MAX_WINDOWS:
        raise UsageError(f"window_s {window_s:g}: gives {count:,} spans; give longer ones")
    edges = begin_ns + step_ns * np.arange(count + 1)
    changes = _changes(log, int(rows["time_ns"][0]))
    packets = _weighted(rows, changes)
    unseen = _unseen(log, changes)
    bounds, wrapped = _acked(rows, edges, unseen)
    again = rows.filter(event="retransmit")
    found = []
    for number in range(count):
        from_ns, until_ns = int(edges[number]), int(edges[number + 1])
        end_ns = min(until_ns, last_ns + 1)
        within = pl.col("time_ns").is_between(from_ns, until_ns, closed="left")
        sent_again = int(again.filter(within)["gso_segs"].sum())
        span = packets.filter(within)
        observed = 1 - sum(_within(since, until, from_ns, end_ns) for since, until in unseen) / max(end_ns - from_ns, 1)
        row: dict[str, Any] = {"begin_ns": from_ns, "end_ns": end_ns, "observed_share": observed}
        row |= {"packets_logged": span.height}
        low, value, high = bounds[number]
        is_bound = not any(since < end_ns and until > from_ns for since, until in wrapped)
        row |= {"acked_bytes": value, "acked_bytes_low": low, "acked_bytes_high": high if is_bound else None}
        most = sent_again if observed == 1 else None
        row |= {"retransmitted": sent_again, "retransmitted_low": sent_again, "retransmitted_high": most}
        timed = span.filter(pl.col("srtt_us") > 0)
        for name, share in _QUANTILES.items():
            row |= _quantile(timed, name, share, [until for _, until in unseen] if observed < 1 else [])
        found.append(row)
    return pl.DataFrame(found, schema=_schema())


# Options that say which packets are logged.
_DECISIVE = ("packets_per_log", "on_change", "direction", "ports", "hosts", "budget")


def _schema() -> dict[str, pl.DataType | type[pl.DataType]]:
    schema: dict[str, pl.DataType | type[pl.DataType]] = {"begin_ns": pl.Int64, "end_ns": pl.Int64}
    schema |= {"observed_share": pl.Float64, "packets_logged": pl.Int64}
    for name in ("acked_bytes", "retransmitted"):
        schema |= dict.fromkeys((name, f"{name}_low", f"{name}_high"), pl.Int64)
    for name in _QUANTILES:
        schema |= dict.fromkeys((name, f"{name}_low", f"{name}_high"), pl.Float64)
    return schema


def _changes(log: "Log", begin_ns: int) -> pl.DataFrame:
    """Return from when every which packet was logged: columns ``time_ns``, ``every`` (0: none was observed)."""
    table = pl.DataFrame(log.thinning).select(
        pl.col("time_ns").cast(pl.Int64), every=pl.col("packets_per_log").cast(pl.Int64)
    )
    constant = int(log.options.get("packets_per_log") or 1)
    first = pl.DataFrame({"time_ns": [begin_ns - 1], "every": [constant]}, schema=table.schema)
    return pl.concat([first, table]).sort("time_ns", maintain_order=True)


def _weighted(rows: pl.DataFrame, changes: pl.DataFrame) -> pl.DataFrame:
    """Return the packets, each with the number that it stands for."""
    packets = rows.filter(event="packet").join_asof(changes, on="time_ns")
    adapts = changes.height > 1
    is_first = pl.col("flow_seq") <= _FIRST_PACKETS if adapts else pl.lit(False)
    return packets.with_columns(weight=pl.when(is_first).then(1).otherwise(pl.col("every").clip(1)).cast(pl.Float64))


def _unseen(log: "Log", changes: pl.DataFrame) -> list[tuple[int, int]]:
    """Return the times in which packets were not observed, apart from each other: pauses, and gaps between files."""
    times = changes["time_ns"].to_list()
    ends = [*times[1:], None]
    spans = [(since, until) for every, since, until in zip(changes["every"], times, ends, strict=True) if every == 0]
    spans += [(row["from_time_ns"], row["until_time_ns"]) for row in plain_rows(log.gaps)]
    known = sorted((since or 0, _NO_END if until is None else until) for since, until in spans)
    found: list[tuple[int, int]] = []
    for since, until in known:
        if found and since <= found[-1][1]:
            found[-1] = (found[-1][0], max(until, found[-1][1]))
        else:
            found.append((since, until))
    return found


def _within(since: int, until: int, from_ns: int, end_ns: int) -> int:
    """Return how much of a time is within another one."""
    return max(min(until, end_ns) - max(since, from_ns), 0)


def _with_steps(known: pl.DataFrame, unseen: list[tuple[int, int]]) -> pl.DataFrame:
    """Add ``step``, by how much each row's number is ahead of that before, and whether it ``may_wrap``."""
    step = pl.col("snd_una").cast(pl.Int64).diff().fill_null(0)
    # Modulo 2^32.
    step = (step + _HALF) % (2 * _HALF) - _HALF
    before = pl.col("time_ns").shift(1).fill_null(pl.col("time_ns"))
    known = known.with_columns(step=step.over("flow"), before_ns=before.over("flow"))
    if not unseen:
        return known.with_columns(may_wrap=pl.lit(False))
    pace = (
        known.filter(pl.col("time_ns") - pl.col("before_ns") <= _PACE_NS)
        .group_by("flow", pl.col("time_ns") // _PACE_NS)
        .agg(pl.col("step").clip(0).sum())
        .group_by("flow")
        .agg(most_bytes=pl.col("step").max())
    )
    known = known.join(pace, on="flow", how="left", maintain_order="left")
    # How much time was unseen until each moment.
    moments = np.array(unseen, np.float64).ravel()
    until_s = np.repeat(np.cumsum(np.diff(moments)[::2]), 2)
    until_s[::2] = np.concatenate([[0.0], until_s[1:-1:2]])
    unseen_ns = np.interp(known["time_ns"], moments, until_s) - np.interp(known["before_ns"], moments, until_s)
    moved = 2 * known["most_bytes"].to_numpy() / _PACE_NS * unseen_ns
    return known.with_columns(may_wrap=pl.Series(moved >= _HALF))


def _acked(
    rows: pl.DataFrame, edges: np.ndarray, unseen: list[tuple[int, int]]
) -> tuple[np.ndarray, list[tuple[int, int]]]:
    """Return lower bound, value and upper bound of the bytes acknowledged in each span, shape (spans, 3).

    Beside it stand the times in which there is no upper bound.
    """
    known = rows.filter(~pl.col("state").is_in(_NO_SOCKET)).select("flow", "time_ns", "snd_una")
    known = _with_steps(known, unseen)
    wrapped = known.filter(pl.col("may_wrap")).select("before_ns", "time_ns").rows()
    # Rows of two CPUs may change places, but the number never falls; what may have wrapped is not less than nothing.
    step = pl.when(pl.col("may_wrap")).then(pl.col("step").clip(0)).otherwise("step")
    known = known.with_columns(acked=step.cum_sum().cum_max().over("flow")).sort("time_ns")
    asked = known.select("flow").unique().join(pl.DataFrame({"time_ns": edges}), how="cross").sort("time_ns")
    before = asked.join_asof(known.with_columns(at_ns="time_ns"), on="time_ns", by="flow", check_sortedness=False)
    after = asked.join_asof(
        known.with_columns(at_ns="time_ns"), on="time_ns", by="flow", strategy="forward", check_sortedness=False
    )
    both = before.select("flow", "time_ns", low="acked", low_ns="at_ns").join(
        after.select("flow", "time_ns", high="acked", high_ns="at_ns"), on=["flow", "time_ns"]
    )
    # Before its first row a flow has moved nothing, and what it moved after its last one is not known.
    both = both.with_columns(pl.col("low").fill_null(0)).with_columns(
        high=pl.when(pl.col("low_ns").is_null()).then(0).otherwise(pl.col("high").fill_null(pl.col("low")))
    )
    part = (pl.col("time_ns") - pl.col("low_ns")) / (pl.col("high_ns") - pl.col("low_ns"))
    inside = pl.col("low") + (pl.col("high") - pl.col("low")) * part.fill_nan(0).fill_null(0)
    both = both.with_columns(value=inside).sort("flow", "time_ns")
    spans = both.with_columns(
        number=pl.int_range(pl.len()).over("flow") - 1,
        from_low=pl.col("low").shift(1).over("flow"),
        from_high=pl.col("high").shift(1).over("flow"),
        from_value=pl.col("value").shift(1).over("flow"),
    ).filter(pl.col("number") >= 0)
    sums = (
        spans.group_by("number")
        .agg(
            low=(pl.col("low") - pl.col("from_high")).clip(0).sum(),
            value=(pl.col("value") - pl.col("from_value")).sum(),
            high=(pl.col("high") - pl.col("from_low")).sum(),
        )
        .sort("number")
    )
    table = np.zeros((len(edges) - 1, 3), dtype=np.int64)
    table[sums["number"].to_numpy()] = sums.select(pl.col("low", "value", "high").round(0).cast(pl.Int64)).to_numpy()
    return table, wrapped


def _quantile(timed: pl.DataFrame, name: str, share: float, pauses_ns: list[int]) -> dict[str, float | None]:
    """Return a quantile of the round-trip times with the ends of its interval; `pauses_ns` are the ends of pauses."""
    nothing = dict.fromkeys((name, f"{name}_low", f"{name}_high"))
    if timed.is_empty():
        return nothing
    order = np.argsort(timed["srtt_us"].to_numpy(), kind="stable")
    times_us, weights = timed["srtt_us"].to_numpy()[order].astype(float), timed["weight"].to_numpy()[order]
    reached = np.cumsum(weights) / weights.sum()

    def at(level: float) -> float:
        return float(times_us[min(int(np.searchsorted(reached, level)), len(times_us) - 1)])

    value = at(share)
    if not pauses_ns and weights.max() == 1:
        return dict.fromkeys(nothing, value)
    # Linearised: how the weighted share up to the quantile varies between rows, or between clusters of them.
    excess = weights * ((times_us <= value) - share)
    if pauses_ns:
        # Round-trip times of neighbouring packets resemble each other, so what was observed at once is one observation.
        cluster = np.searchsorted(pauses_ns, timed["time_ns"].to_numpy()[order], side="right")
        excess = np.bincount(np.unique(cluster, return_inverse=True)[1], weights=excess)
    if len(excess) < _CLUSTERS_MIN:
        return nothing | {name: value}
    spread = np.sqrt(len(excess) / (len(excess) - 1) * np.sum((excess - excess.mean()) ** 2)) / weights.sum()
    # As many independent packets as would vary so; of them the exact interval is known, also for 99 % of a few.
    freedom = len(excess) - 1
    wider = student(freedom, CONFIDENCE) / student(np.inf, CONFIDENCE)
    spread = max(float(spread), float(np.sqrt(share * (1 - share) / len(times_us)))) * wider
    effective = max(int(share * (1 - share) / spread**2), 1)
    low, high = (number / effective for number in order_statistics(effective, share))
    # Beyond the largest time seen nothing is known.
    return {name: value, f"{name}_low": at(low), f"{name}_high": at(high) if high <= 1 else None}
