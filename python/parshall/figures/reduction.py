"""Reduce a log in one pass to the data of figures and tables, in memory that does not grow with its records.

Each flow has one row of totals, and each drawn flow one row for every bin with records. Bins are narrow at first;
when there are too many, ten are merged into one.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from parshall.figures.bins import NS_PER_S, Bins, next_width_ns, round_width_ns
from parshall.figures.connections import other_ends
from parshall.figures.states import COLUMNS, states
from parshall.host.rows import plain_rows
from parshall.instruments.lives import alive_ns
from parshall.instruments.retransmitted import gap_ends_ns, retransmitted_here

if TYPE_CHECKING:
    from parshall.instruments.tcp_log import Log

# Maximum number of lines in a figure; of more flows, those with the most records are drawn.
FLOWS_MAX = 200
# Maximum number of rows of a table; browsers cannot open pages with very many.
LISTED_MAX = 1000
# The states that follow losses or congestion; Open and Disorder are normal operation.
ENTERED = ("Recovery", "Loss", "CWR")
# Rows of a batch: enough to amortise its overhead; takes some 100 MB.
_BATCH_ROWS = 1 << 19
# Ten times the bins of a figure, so that they can be merged to 1, 2 or 5 times a power of ten.
_BINS_MAX = 6000
_CELLS_MAX = 300_000
# Of flows that are not drawn, only the moved bytes are kept, in bins so many times as wide, and up to so many rows.
_UNDRAWN_WIDTH = 10
_UNDRAWN_MAX = 2_000_000
# Partial results are merged when they have as many rows as the merged result, and at least this many.
_PENDING_MIN = 100_000
_SEQUENCE_NUMBERS = 1 << 32

_SUM, _MIN, _MAX = pl.Expr.sum, pl.Expr.min, pl.Expr.max
# Aggregates by name: an expression over records, and the function that merges two partial results.
Aggregates = dict[str, tuple[pl.Expr, Callable[[pl.Expr], pl.Expr]]]


def _first(column: pl.Expr) -> pl.Expr:
    return column.first(ignore_nulls=True)


def _last(column: pl.Expr) -> pl.Expr:
    return column.last(ignore_nulls=True)


def _advance(column: str) -> pl.Expr:
    """Return the advance of a sequence number since the previous record of the flow, modulo 2^32."""
    step = pl.col(column).cast(pl.Int64).diff().over("flow").fill_null(0) % _SEQUENCE_NUMBERS
    # Records of two CPUs may be out of order: a small step back is not an advance of nearly 4 GiB.
    return pl.when(step < _SEQUENCE_NUMBERS // 2).then(step).otherwise(0)


_CELL, _ENTRY, _LEVEL = ["flow", "bin"], ["flow", "bin", "ca_state"], ["flow", "level"]
# Aggregates of a flow in a bin.
_CELL_AGGREGATES: Aggregates = {
    "records": (pl.len().cast(pl.UInt64), _SUM),
    "begin_ns": (pl.col("time_ns").min(), _MIN),
    "end_ns": (pl.col("time_ns").max(), _MAX),
    "cwnd_min": (pl.col("cwnd_segments").min(), _MIN),
    "cwnd_max": (pl.col("cwnd_segments").max(), _MAX),
    "cwnd_sum": (pl.col("cwnd_segments").cast(pl.Float64).sum(), _SUM),
    "ssthresh_last": (_last(pl.col("ssthresh_segments")), _last),
    "srtt_min": (pl.col("srtt_us").min(), _MIN),
    "srtt_max": (pl.col("srtt_us").max(), _MAX),
    "srtt_sum": (pl.col("srtt_us").cast(pl.Float64).sum(), _SUM),
    "srtt_records": (pl.col("srtt_us").count().cast(pl.UInt64), _SUM),
    "min_rtt_min": (pl.col("min_rtt_us").min(), _MIN),
    "min_rtt_last": (_last(pl.col("min_rtt_us")), _last),
    "retrans_min": (pl.col("retrans_before").min(), _MIN),
    "retrans_max": (pl.col("total_retrans").max(), _MAX),
    "retrans_last": (pl.col("total_retrans").last(), _last),
    "acknowledged": (pl.col("acknowledged").sum(), _SUM),
    "received": (pl.col("received").sum(), _SUM),
    "snd_nxt_min": (pl.col("snd_nxt").min(), _MIN),
    "snd_nxt_max": (pl.col("snd_nxt").max(), _MAX),
    "snd_una_first": (_first(pl.col("snd_una")), _first),
    "rcv_nxt_first": (_first(pl.col("rcv_nxt")), _first),
}
_MOVED_AGGREGATES = {name: _CELL_AGGREGATES[name] for name in ("acknowledged", "received")}
# Aggregates of a state that a flow entered in a bin.
_ENTRY_AGGREGATES: Aggregates = {
    "count": (pl.len().cast(pl.UInt64), _SUM),
    "retrans_last": (pl.col("total_retrans").last(), _last),
}

# Aggregates of a level of the smoothed round-trip time of a flow, for means and quantiles over time.
_LEVEL_AGGREGATES: Aggregates = {
    "held_ns": (pl.col("held_ns").sum(), _SUM),
    "held_us_ns": ((pl.col("held_us").cast(pl.Float64) * pl.col("held_ns")).sum(), _SUM),
}
_LEVEL_SCHEMA = {"flow": pl.UInt32, "level": pl.Int16, "held_ns": pl.Int64, "held_us_ns": pl.Float64}
# Levels are logarithmic: their values differ by at most this factor.
_LEVEL_WIDTH = 1.02
_SRTT_QUANTILES = {"srtt_p50_ms": 0.5, "srtt_p99_ms": 0.99}


_MEASURED = (
    *("records", "begin_s", "duration_s", "measure", "bytes", "megabytes", "Mbps", "sent_payload"),
    *(
        "cwnd_max",
        "srtt_mean_ms",
        *_SRTT_QUANTILES,
        "srtt_max_ms",
        "min_rtt_ms",
        "retransmitted",
        "other_end",
        "is_counted",
    ),
)


def _merged(rows: pl.DataFrame, keys: list[str], aggregates: Aggregates) -> pl.DataFrame:
    """Return partial results merged by key."""
    merges = [merge(pl.col(name)).alias(name) for name, (_, merge) in aggregates.items()]
    return rows.group_by(keys, maintain_order=True).agg(merges)


class _Accumulator:
    """Accumulates rows by key; rows with equal keys are merged."""

    def __init__(self, keys: list[str], aggregates: Aggregates) -> None:
        self._keys = keys
        self._aggregates = aggregates
        self._expressions = {name: expression for name, (expression, _) in aggregates.items()}
        self._pending: list[pl.DataFrame] = []
        self._rows = 0

    def reduced(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Return records aggregated by key."""
        return rows.group_by(self._keys, maintain_order=True).agg(**self._expressions)

    @property
    def rows(self) -> int:
        """Number of stored rows: at most twice the number of keys, plus a constant."""
        return sum(part.height for part in self._pending)

    def add(self, rows: pl.DataFrame) -> None:
        self._pending.append(rows)
        if self.rows > self._rows + max(self._rows, _PENDING_MIN):
            self.merged()

    def merged(self) -> pl.DataFrame:
        """Merge and return all rows, one for each key; without columns when nothing was added."""
        if len(self._pending) > 1:
            self._pending = [_merged(pl.concat(self._pending), self._keys, self._aggregates)]
        rows = self._pending[0] if self._pending else pl.DataFrame()
        self._rows = rows.height
        return rows

    def map(self, change: Callable[[pl.DataFrame], pl.DataFrame]) -> None:
        """Change keys, and merge rows whose keys become equal."""
        self._pending = [_merged(change(part), self._keys, self._aggregates) for part in self._pending]
        self.merged()


@dataclass(frozen=True)
class Reduction:
    """A log, reduced to the data of figures and tables.

    Attributes
    ----------
    records : int
        Records of the log, including those without a full socket.
    begin_ns, end_ns : int or None
        First and last record; None for a log without records.
    table : polars.DataFrame
        Shape (flows of the flow table or with records of full sockets, columns of the flow table and 20 more), in
        ascending order of ``flow``: ``records`` (of full sockets, null when there is none), ``begin_s`` and
        ``duration_s`` (from the first record of the log), ``measure`` ("acknowledged" or "received"), ``bytes``,
        ``megabytes``, ``Mbps`` (mean over the duration, null if that is 0); ``sent_payload``; null for flows
        that sent none: ``cwnd_max`` (segments), ``srtt_mean_ms``, ``srtt_p50_ms``, ``srtt_p99_ms`` (of the smoothed
        round-trip time, over time: each value holds until the flow's next record; quantiles within 2 %),
        ``srtt_max_ms``, ``min_rtt_ms``, ``retransmitted`` (segments); ``other_end`` (the flow that is the other end of
        the connection, null when it is not in the log) and ``is_counted`` (false for one end of such a connection, so
        that sums have each connection once).
    drawn : list of int
        The flows that figures draw: all with records of full sockets, or the 200 with the most records.
    """

    records: int
    begin_ns: int | None
    end_ns: int | None
    table: pl.DataFrame
    drawn: list[int]
    _cells: pl.DataFrame = field(repr=False)
    _entered: pl.DataFrame = field(repr=False)
    _undrawn: pl.DataFrame = field(repr=False)
    _levels: pl.DataFrame = field(repr=False)
    _undrawn_width_ns: int = 1
    _first_ns: int = 0
    _width_ns: int = 1

    @property
    def totals(self) -> "Reduction":
        """The same without what figures draw: a hundredth of its size."""
        empty = {name: getattr(self, name).clear() for name in ("_cells", "_entered", "_undrawn")}
        return replace(self, **empty)

    @cached_property
    def senders(self) -> list[int]:
        """The drawn flows that sent payload; cwnd and RTT of others are meaningless."""
        sent = self.table.filter("sent_payload")["flow"]
        return sorted(set(self.drawn) & set(sent))

    @cached_property
    def listed(self) -> list[int]:
        """The flows that tables list: all, or the 1000 that moved most bytes; both ends of a connection together."""
        counted = pl.when("is_counted").then("flow").otherwise("other_end")
        connection_bytes = pl.col("bytes").max().over(counted)
        most = self.table.with_columns(connection_bytes, first=counted).sort(
            "bytes", "first", "is_counted", descending=[True, False, True], nulls_last=True
        )
        return most["flow"].head(LISTED_MAX).to_list()

    @property
    def counted_bytes(self) -> int:
        """Payload that all connections moved, each counted once."""
        return int(self.table.filter("is_counted")["bytes"].sum())

    def round_trips(self, flows: Collection[int] | None = None) -> pl.DataFrame:
        """Return for how long the smoothed round-trip time of flows that sent payload was at which level.

        Returns
        -------
        polars.DataFrame
            ``flow``, ``level`` (values of a level differ by 2 % at most), ``held_ns``, and ``held_us_ns``: the sum of
            values, us, times the time in which each held.
        """
        sent = self.table.filter("sent_payload")["flow"]
        wanted = sent if flows is None else sent.filter(sent.is_in(list(flows)))
        return self._levels.filter(pl.col("flow").is_in(wanted.implode()))

    def bins(
        self, count_max: int, rows_max: int, axis_ns: tuple[int, int] | None = None, *, without_gaps: bool = False
    ) -> Bins:
        """Return the narrowest bins for a figure within limits of bins and rows.

        Parameters
        ----------
        count_max : int
            Maximum number of bins between begin and end.
        rows_max : int
            Maximum number of rows: bins with records, over all flows.
        axis_ns : tuple of int, optional
            Begin and end of the time axis; first and last record by default.
        without_gaps : bool
            Also count bins without records between the first and the last record of a flow.
        """
        assert self.begin_ns is not None and self.end_ns is not None
        begin_ns, end_ns = axis_ns or (self.begin_ns, self.end_ns)
        narrowest_ns = self._undrawn_width_ns if without_gaps and not self._undrawn.is_empty() else self._width_ns
        width_ns = max(narrowest_ns, Bins.over(begin_ns, end_ns, count_max).width_ns)
        while self._rows(width_ns, without_gaps) > rows_max and width_ns <= end_ns - begin_ns:
            width_ns = next_width_ns(width_ns)
        return Bins(begin_ns, begin_ns, end_ns, width_ns, self._first_ns)

    def _rows(self, width_ns: int, without_gaps: bool) -> int:
        numbers = self._cells.select("flow", pl.col("bin").floordiv(width_ns // self._width_ns))
        if not without_gaps:
            return numbers.n_unique()
        spans = numbers.group_by("flow").agg(pl.col("bin").max() - pl.col("bin").min() + 1)
        return int(spans["bin"].sum())

    def cells(self, bins: Bins, flows: Collection[int] | None = None) -> pl.DataFrame:
        """Return the aggregates of each flow in each bin with records, sorted by flow and bin."""
        return self._in_bins(self._cells, _CELL, _CELL_AGGREGATES, bins, flows)

    def moved(self, bins: Bins) -> pl.DataFrame:
        """Return ``flow``, ``bin`` and ``bytes`` of all flows, drawn or not; of a connection, of its counted end.

        `bins` must be those of a figure without gaps.
        """
        drawn = self.cells(bins).select("flow", "bin", *_MOVED_AGGREGATES)
        if not self._undrawn.is_empty():
            number = pl.col("bin").floordiv(bins.width_ns // self._undrawn_width_ns)
            undrawn = _merged(self._undrawn.with_columns(number), _CELL, _MOVED_AGGREGATES)
            drawn = pl.concat([drawn, undrawn.select(drawn.columns).cast(drawn.schema)])
        counted = self.table.filter("is_counted").select("flow", "measure")
        is_received = pl.col("measure") == "received"
        return drawn.join(counted, on="flow").select(
            "flow", "bin", bytes=pl.when(is_received).then("received").otherwise("acknowledged")
        )

    def state_entries(self, bins: Bins, flows: Collection[int] | None = None) -> pl.DataFrame:
        """Return how often each flow entered each state of `ENTERED` in each bin; ``ca_state`` has the state."""
        return self._in_bins(self._entered, _ENTRY, _ENTRY_AGGREGATES, bins, flows)

    def _in_bins(
        self,
        rows: pl.DataFrame,
        keys: list[str],
        aggregates: Aggregates,
        bins: Bins,
        flows: Collection[int] | None,
    ) -> pl.DataFrame:
        wanted = rows if flows is None else rows.filter(pl.col("flow").is_in(list(flows)))
        wider = wanted.with_columns(pl.col("bin").floordiv(bins.width_ns // self._width_ns))
        return _merged(wider, keys, aggregates).sort(keys)


def reduce(
    log: "Log", progress: Callable[[int], None] = lambda _: None, *, flows: Sequence[int] | None = None
) -> Reduction:
    """Read a log once and reduce it.

    Parameters
    ----------
    log : Log
        What `parshall.read` returns.
    progress : callable
        Called with the number of records read so far.
    flows : sequence of int, optional
        The flows to reduce, as if the log had only these. Default: all.

    Raises
    ------
    ParshallError
        The log is damaged.
    """
    table = pl.DataFrame(pl.from_arrow(log.flows))
    if flows is not None:
        table = table.filter(pl.col("flow").is_in(list(flows)))
        chosen = pa.array(flows, pa.uint32())
    pass_over = _Pass(_to_draw(table))
    for records in tables_of(log.batches(COLUMNS), _BATCH_ROWS):
        pass_over.add(records if flows is None else records.filter(pc.is_in(records["flow"], chosen)))
        progress(pass_over.records)
    return pass_over.result(table, gap_ends_ns(plain_rows(log.gaps)))


def tables_of(batches: Iterable[pa.RecordBatch], rows_min: int) -> Iterator[pa.Table]:
    """Yield tables of several batches each, all but the last with at least `rows_min` rows."""
    collected: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        collected.append(batch)
        rows += batch.num_rows
        if rows >= rows_min:
            yield pa.Table.from_batches(collected)
            collected, rows = [], 0
    if collected:
        yield pa.Table.from_batches(collected)


def _to_draw(flows: pl.DataFrame) -> list[int] | None:
    """Return the flows with the most records; None when all can be drawn."""
    if flows.height <= FLOWS_MAX:
        return None
    logged = (pl.col("packets_logged") + pl.col("events_logged")).alias("logged")
    most = flows.select("flow", logged).sort("logged", "flow", descending=[True, False])
    return most["flow"].head(FLOWS_MAX).sort().to_list()


class _Pass:
    """The state of a pass over a log."""

    def __init__(self, to_draw: list[int] | None) -> None:
        self._to_draw = to_draw
        self.records = 0
        self._span_ns: tuple[int, int] | None = None
        self._first_ns = 0
        self._width_ns = 0
        self._totals = _Accumulator(["flow"], _CELL_AGGREGATES)
        self._cells = _Accumulator(_CELL, _CELL_AGGREGATES)
        self._entered = _Accumulator(_ENTRY, _ENTRY_AGGREGATES)
        self._levels = _Accumulator(_LEVEL, _LEVEL_AGGREGATES)
        self._undrawn = _Accumulator(_CELL, _MOVED_AGGREGATES)
        self._undrawn_width_ns = 0
        self._seen: set[int] = set()
        # Time, round-trip time and sequence numbers of the last record of every flow.
        self._before: pl.DataFrame | None = None

    def add(self, table: pa.Table) -> None:
        """Add records, in the order of the file."""
        self.records += table.num_rows
        if not table.num_rows:
            return
        ends = pc.min_max(table["time_ns"])
        low, high = (ends[end].value for end in ("min", "max"))
        if self._span_ns is None:
            self._span_ns, self._first_ns = (low, high), low
            self._width_ns = 10 ** (len(str(round_width_ns(max(1, (high - low) // _BINS_MAX)))) - 1)
        self._span_ns = min(low, self._span_ns[0]), max(high, self._span_ns[1])
        while (self._span_ns[1] - self._span_ns[0]) // self._width_ns > _BINS_MAX:
            self._widen()
        found = self._with_advances(states(table))
        if found.is_empty():
            return
        binned = found.with_columns(bin=(pl.col("time_ns") - self._first_ns).floordiv(self._width_ns))
        cells = self._cells.reduced(binned)
        self._totals.add(self._of_flows(cells))
        held = found.filter(pl.col("held_us").is_not_null() & (pl.col("held_ns") > 0))
        level = pl.col("held_us").log(_LEVEL_WIDTH).floor().cast(pl.Int16)
        self._levels.add(self._levels.reduced(held.with_columns(level=level)))
        changed = binned.filter(
            pl.col("event") == "congestion_state", pl.any_horizontal(pl.col("ca_state") == name for name in ENTERED)
        ).with_columns(pl.col("ca_state").cast(pl.String))
        for sums, rows in ((self._cells, cells), (self._entered, self._entered.reduced(changed))):
            sums.add(rows if self._to_draw is None else rows.filter(pl.col("flow").is_in(self._to_draw)))
        if self._to_draw is not None:
            self._add_undrawn(cells.filter(~pl.col("flow").is_in(self._to_draw)))
        self._limit_cells(cells)

    def _add_undrawn(self, cells: pl.DataFrame) -> None:
        """Keep what flows moved that figures do not draw."""
        self._undrawn_width_ns = self._undrawn_width_ns or _UNDRAWN_WIDTH * self._width_ns
        rows = cells.select(*_CELL, *_MOVED_AGGREGATES)
        number = pl.col("bin").floordiv(self._undrawn_width_ns // self._width_ns)
        self._undrawn.add(_merged(rows.with_columns(number), _CELL, _MOVED_AGGREGATES))
        while self._undrawn.rows > _UNDRAWN_MAX and self._undrawn.merged().height > _UNDRAWN_MAX:
            self._widen_undrawn()

    def _widen_undrawn(self) -> None:
        self._undrawn_width_ns *= 10
        self._undrawn.map(lambda rows: rows.with_columns(pl.col("bin").floordiv(10)))

    def _with_advances(self, found: pl.DataFrame) -> pl.DataFrame:
        """Return records with what happened since the flow's previous record.

        That is the bytes acknowledged and received, the time (``held_ns``), and the smoothed round-trip time that held
        meanwhile (``held_us``).
        """
        numbers = found.select("flow", "snd_una", "rcv_nxt", "time_ns", "srtt_us")
        here = numbers.select(pl.col("flow").unique())
        known = (
            numbers if self._before is None else pl.concat([self._before.join(here, on="flow", how="semi"), numbers])
        )
        advances = known.select(
            acknowledged=_advance("snd_una"),
            received=_advance("rcv_nxt"),
            held_ns=pl.col("time_ns").diff().over("flow"),
            held_us=pl.col("srtt_us").shift().over("flow"),
        ).tail(found.height)
        numbered = ("snd_una", "rcv_nxt")
        ends = (*(_last(pl.col(name)) for name in numbered), pl.col("time_ns", "srtt_us").last())
        last = known.group_by("flow").agg(ends).drop_nulls(numbered)
        elsewhere = [] if self._before is None else [self._before.join(here, on="flow", how="anti")]
        self._before = pl.concat([*elsewhere, last])
        return found.hstack(advances)

    @staticmethod
    def _of_flows(cells: pl.DataFrame) -> pl.DataFrame:
        return _merged(cells, ["flow"], _CELL_AGGREGATES)

    def _widen(self) -> None:
        self._width_ns *= 10
        if self._undrawn_width_ns and self._undrawn_width_ns < self._width_ns:
            self._widen_undrawn()
        for sums in (self._cells, self._entered):
            sums.map(lambda rows: rows.with_columns(pl.col("bin").floordiv(10)))

    def _limit_cells(self, cells: pl.DataFrame) -> None:
        """Reduce the number of cells when there are too many."""
        if self._to_draw is None:
            self._seen |= set(cells["flow"].unique())
            if len(self._seen) > FLOWS_MAX:
                # More flows than in the flow table: the log was truncated.
                most = self._of_flows(self._cells.merged()).sort("records", "flow", descending=[True, False])
                chosen = most["flow"].head(FLOWS_MAX).sort().to_list()
                self._to_draw = chosen
                self._add_undrawn(self._cells.merged().filter(~pl.col("flow").is_in(chosen)))
                for sums in (self._cells, self._entered):
                    sums.map(lambda rows: rows.filter(pl.col("flow").is_in(chosen)))
        while self._cells.rows > _CELLS_MAX and self._cells.merged().height > _CELLS_MAX:
            self._widen()

    def result(self, flows: pl.DataFrame, gap_ends_ns: Sequence[int] = ()) -> Reduction:
        """Return the reduction, with the flow table; `gap_ends_ns` as for `retransmitted_here`."""
        cells = self._cells.merged()
        levels = self._levels.merged()
        if levels.is_empty():
            levels = pl.DataFrame(schema=_LEVEL_SCHEMA)
        begin_ns, end_ns = self._span_ns or (None, None)
        return Reduction(
            records=self.records,
            begin_ns=begin_ns,
            end_ns=end_ns,
            table=_table(flows, self._totals.merged(), levels, gap_ends_ns),
            drawn=[] if cells.is_empty() else sorted(cells["flow"].unique()),
            _cells=cells,
            _entered=self._entered.merged(),
            _undrawn=self._undrawn.merged(),
            _levels=levels,
            _undrawn_width_ns=self._undrawn_width_ns,
            _first_ns=self._first_ns,
            _width_ns=self._width_ns,
        )


def _over_time(levels: pl.DataFrame) -> pl.DataFrame:
    """Return mean and quantiles over time of each flow's smoothed round-trip time, ms."""
    held_ns, held_us_ns = pl.col("held_ns"), pl.col("held_us_ns")
    values = (held_us_ns / held_ns / 1e3).sort_by("level")
    until_ns = held_ns.sort_by("level").cum_sum()
    quantiles = {
        name: values.filter(until_ns >= part * held_ns.sum()).first() for name, part in _SRTT_QUANTILES.items()
    }
    return levels.group_by("flow").agg(srtt_mean_ms=held_us_ns.sum() / held_ns.sum() / 1e3, **quantiles)


def _whole(moved: str, account: str) -> pl.Expr:
    """Return bytes that rows say were moved, or a flow's account: it has what came after the last row, too."""
    return pl.when(pl.col(moved).is_not_null()).then(pl.max_horizontal(moved, pl.col(account).cast(pl.Int64)))


def _table(flows: pl.DataFrame, totals: pl.DataFrame, levels: pl.DataFrame, gap_ends_ns: Sequence[int]) -> pl.DataFrame:
    """Return the flow table with the totals of each flow."""
    if totals.is_empty():
        totals = pl.DataFrame(schema={"flow": pl.UInt32} | dict.fromkeys(_CELL_AGGREGATES, pl.Int64))
    table = flows.join(totals, on="flow", how="full", coalesce=True).sort("flow")
    if not gap_ends_ns:
        table = table.with_columns(
            acknowledged=_whole("acknowledged", "bytes_acked"), received=_whole("received", "bytes_received")
        )
    table = table.join(_over_time(levels), on="flow", how="left", maintain_order="left")
    # SYN and FIN take one sequence number each; a flow that used more has sent payload.
    sent_payload = (pl.col("snd_nxt_max").cast(pl.Int64) - pl.col("snd_nxt_min") > 2).fill_null(False)
    acknowledges = pl.col("acknowledged") >= pl.col("received")
    alive_from_ns, alive_until_ns = alive_ns()
    # Of a part of a log, the flow may have begun before it.
    begin_ns = pl.col("begin_ns") if gap_ends_ns else alive_from_ns
    duration_s = pl.when(pl.col("begin_ns").is_not_null()).then((alive_until_ns - begin_ns) / NS_PER_S)
    sender_values = {
        "cwnd_max": pl.col("cwnd_max"),
        **{name: pl.col(name) for name in ("srtt_mean_ms", *_SRTT_QUANTILES)},
        "srtt_max_ms": pl.col("srtt_max") / 1e3,
        "min_rtt_ms": pl.col("min_rtt_min") / 1e3,
        "retransmitted": retransmitted_here("retrans_min", "retrans_max", gap_ends_ns),
    }
    measured = table.with_columns(
        begin_s=(pl.col("begin_ns") - pl.col("begin_ns").min()) / NS_PER_S,
        duration_s=duration_s,
        measure=pl.when(acknowledges).then(pl.lit("acknowledged")).when(~acknowledges).then(pl.lit("received")),
        bytes=pl.max_horizontal("acknowledged", "received"),
        sent_payload=sent_payload,
        **{name: pl.when(sent_payload).then(value) for name, value in sender_values.items()},
    ).with_columns(
        megabytes=pl.col("bytes") / 1e6,
        Mbps=pl.when(pl.col("duration_s") > 0).then(pl.col("bytes") * 8 / 1e6 / pl.col("duration_s")),
    )
    alive = measured.with_columns(begin_ns=alive_from_ns, end_ns=alive_until_ns)
    paired = measured.join(other_ends(alive), on="flow", how="left", maintain_order="left")
    others = paired.select(other_end="flow", measure_other="measure", bytes_other="bytes")
    # Count the end that sent, since it knows what arrived; else the one with more bytes; else the first.
    sends = (pl.col("measure") == "acknowledged").cast(pl.Int8) - (pl.col("measure_other") == "acknowledged").cast(
        pl.Int8
    )
    more = (pl.col("bytes") - pl.col("bytes_other")).sign()
    first = pl.col("other_end").cast(pl.Int64) - pl.col("flow")
    verdict = pl.when(sends != 0).then(sends).when(more != 0).then(more).otherwise(first)
    return (
        paired.join(others, on="other_end", how="left", maintain_order="left")
        .with_columns(is_counted=(verdict > 0).fill_null(True))
        .select(*flows.columns, *_MEASURED)
    )
