"""TCP state logs: read them as tables, convert them to the formats that other tools read."""

import contextlib
import dataclasses
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from parshall import _native
from parshall.errors import ParshallError, UsageError, printable
from parshall.host.first_use import imported
from parshall.host.ledger_text import Ledger, shown_html, shown_lines
from parshall.host.quantities import many
from parshall.host.rows import table_of
from parshall.host.shown import html_lines, html_table, text_table

if TYPE_CHECKING:
    import pandas
    import polars

    from parshall.instruments.flow_states import FlowStates

# Batches that a lazy frame gets at a time: work on 8,192 rows costs nearly as much as on ten times as many.
_BATCHES_OF_SCAN = 16

# Prefix that Arrow adds to errors of other libraries.
_FOREIGN_ERROR_PREFIX = "External error: "

_LISTENER_COLUMNS = pa.schema(
    [
        ("listener", pa.uint32()),
        ("local_address", pa.string()),
        ("local_port", pa.uint16()),
        ("ip_version", pa.uint8()),
        ("socket_cookie", pa.uint64()),
        ("netns_cookie", pa.uint64()),
        ("netns_inode", pa.uint32()),
        ("cgroup_id", pa.uint64()),
        ("cgroup", pa.string()),
        ("command", pa.string()),
        ("pid", pa.uint32()),
        ("backlog_connections", pa.uint32()),
        ("queue_last_connections", pa.uint32()),
        ("queue_longest_connections", pa.uint32()),
        ("syns_refused", pa.uint64()),
        ("acks_refused", pa.uint64()),
        ("first_refused_time_ns", pa.timestamp("ns", "UTC")),
        ("last_refused_time_ns", pa.timestamp("ns", "UTC")),
        ("ended", pa.bool_()),
    ]
)

# A log shows so many flows of itself, those with most packets.
_SHOWN_FLOWS = 10
_SHOWN_COLUMNS = ("flow", "process", "local", "peer", "cc", "packets", "logged", "lost", "end")

LOG_SUFFIX = ".arrow"
# Before the suffix, in the name of a file of a log that rotates.
_FILE_NUMBER = re.compile(r"\.[0-9]{6,}(?=\.arrow$)")

_GAP_COLUMNS = pa.schema(
    [("from_time_ns", pa.timestamp("ns", "UTC")), ("until_time_ns", pa.timestamp("ns", "UTC")), ("cause", pa.string())]
)

_THINNING_COLUMNS = pa.schema(
    [("time_ns", pa.timestamp("ns", "UTC")), ("packets_per_log", pa.uint32()), ("cost_share", pa.float64())]
)

FORMATS: dict[str, tuple[str, bool]] = {name: (suffix, is_text) for name, suffix, is_text in _native.log_formats()}
"""Name of a conversion -> (suffix of its files, whether it is text)."""


class Log:
    """A TCP state log: one row per record, one row per flow, and the ledger.

    Opening reads the tables of flows and listeners and the ledger only; rows are read when they are first asked for.
    It prints as a table of the flows with most packets, and its ledger.

    Parameters
    ----------
    path : str or os.PathLike
        The file. Of a log that rotated: the name that was given to ``-o``, or the directory of its files.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._reader = _native.LogReader(self.path)

    def __repr__(self) -> str:
        lines = [self._head(), *text_table(_SHOWN_COLUMNS, self._shown_flows()), *self._rest()]
        return "\n".join([*lines, *shown_lines(self._account())])

    def _repr_html_(self) -> str:
        table = html_table(_SHOWN_COLUMNS, self._shown_flows())
        return html_lines([self._head()]) + table + html_lines(self._rest()) + shown_html(self._account())

    def _head(self) -> str:
        reasons = [self.truncation] if self.truncation else []
        reasons += [f"{many(self.gaps.num_rows, 'gap')}, see Log.gaps"] if self.gaps.num_rows else []
        state = "complete" if self.complete else "; ".join(["incomplete", *reasons])
        return printable(f"{self.path}: {many(self.flows.num_rows, 'flow')}, {state}")

    def _account(self) -> dict[str, Any]:
        """Return the ledger; of a damaged one, what is wrong."""
        try:
            return self.ledger
        except ParshallError as error:
            return {"ledger": str(error)}

    def _rest(self) -> list[str]:
        rest = self.flows.num_rows - _SHOWN_FLOWS
        return [f"and {many(rest, 'more flow')}: Log.flows has all"] if rest > 0 else []

    def _shown_flows(self) -> list[tuple[object, ...]]:
        """Return the flows with most packets, as rows of `_SHOWN_COLUMNS`."""
        return [_shown_flow(row) for row in _most_packets(self.flows, _SHOWN_FLOWS)]

    @cached_property
    def records(self) -> pa.Table:
        """All rows, in the order of the file.

        Returns
        -------
        pyarrow.Table
            Shape (records, columns). Times are ``timestamp[ns, UTC]``; names are dictionaries; units stand
            in the names of the columns. docs/formats/tcp-log.md describes each column.

        Raises
        ------
        ParshallError
            If the file is damaged in the middle. A file that was cut gives what is before the cut.

        See Also
        --------
        batches, scan : for logs that do not fit into memory; a row takes some 160 bytes here.
        """
        return self.batches().read_all()

    def batches(self, columns: Sequence[str] | None = None) -> "RecordStream":
        """Read the rows batch by batch, for logs that do not fit into memory.

        Parameters
        ----------
        columns : sequence of str, optional
            The columns to read; the others are not even decompressed. All by default.

        Returns
        -------
        RecordStream
            Iterates over ``pyarrow.RecordBatch`` of up to 8,192 rows; each call starts at the first row.
            Batches have the columns in the order of the file.

        Raises
        ------
        UsageError
            If the log has no such column.
        """
        if columns is not None:
            missing = [name for name in columns if name not in self.schema.names]
            if missing:
                raise UsageError(f"column {missing[0]}: not in a log; Log.schema lists the columns")
        return RecordStream(pa.RecordBatchReader.from_stream(self._reader.records(columns)))

    def scan(self) -> "polars.LazyFrame":
        """Return the rows as a lazy frame of polars, which reads the columns and rows that a query needs.

        Returns
        -------
        polars.LazyFrame
            The columns of `records`; names are categoricals. ``collect(engine="streaming")`` keeps memory small.

        Examples
        --------
        >>> log.scan().group_by("flow").agg(pl.col("cwnd_segments").max()).collect()  # doctest: +SKIP
        """
        from polars.io.plugins import register_io_source

        def frames(
            columns: list[str] | None, predicate: "polars.Expr | None", rows: int | None, _: int | None
        ) -> "Iterator[polars.DataFrame]":
            schema = pa.schema([self.schema.field(name) for name in columns or self.schema.names])
            stream = self.batches(columns)
            while batches := list(islice(stream, _BATCHES_OF_SCAN)):
                table = pa.Table.from_batches([batch.select(schema.names) for batch in batches], schema)
                if rows is not None:
                    table = table.slice(0, rows)
                    rows -= table.num_rows
                frame = _frame(table)
                yield frame if predicate is None else frame.filter(predicate)
                if rows == 0:
                    return

        return register_io_source(frames, schema=_frame(self.schema.empty_table()).schema)

    @cached_property
    def schema(self) -> pa.Schema:
        """The schema of the rows, with the metadata of the file."""
        return RecordStream(pa.RecordBatchReader.from_stream(self._reader.records())).schema

    @cached_property
    def flows(self) -> pa.Table:
        """The flow table: addresses, options and the account of every connection.

        Returns
        -------
        pyarrow.Table
            Shape (flows, 49), in ascending order of ``flow``.
        """
        return pa.RecordBatchReader.from_stream(self._reader.flows()).read_all()

    @cached_property
    def listeners(self) -> pa.Table:
        """The listeners to which a segment of a handshake came, their accept queues, and what these refused.

        Returns
        -------
        pyarrow.Table
            Shape (listeners, 19), in ascending order of ``listener``; docs/formats/tcp-log.md describes each column.
            Logs before 1.3 have none.
        """
        return table_of(json.loads(self._reader.listeners), _LISTENER_COLUMNS)

    @cached_property
    def retransmissions(self) -> pa.Table:
        """Why each segment was sent again, and whether that was spurious.

        Returns
        -------
        pyarrow.Table
            Shape (retransmissions, 8), in the order of time: ``time_ns``, ``flow``, ``pkt_seq``, ``payload_bytes``,
            ``segments``; ``cause`` (tlp, rto, fast, rack, mtu, syn or synack; null: unknown), ``spurious`` (null:
            unknown), ``evidence`` (dsack or undo; null: not spurious, or unknown). docs/retransmissions.md explains
            them.

        Raises
        ------
        ParshallError
            If the file is damaged in the middle.
        """
        return pa.RecordBatchReader.from_stream(self._reader.retransmissions()).read_all()

    @property
    def ledger(self) -> Ledger:
        """The account: seen = filtered + thinned + logged + lost of every hook, and the cost. It prints as a table.

        Empty when the log ended within its first second.
        """
        return Ledger(self._object("ledger", self._reader.ledger))

    @property
    def environment(self) -> dict[str, Any]:
        """The host during the measurement: kernel, offloads, queueing disciplines, sysctls, clock source, ..."""
        return self._object("environment", self._reader.metadata.get("parshall.environment"))

    @property
    def clock(self) -> dict[str, Any]:
        """The clock of ``time_ns`` and its offset from the kernel's monotonic one."""
        return self._object("clock", self._reader.metadata.get("parshall.clock"))

    @property
    def options(self) -> dict[str, Any]:
        """The options of the measurement."""
        return self._object("options", self._reader.metadata.get("parshall.options"))

    @property
    def part(self) -> dict[str, Any] | None:
        """Of a log that rotates, which part its first file is: ``run``, ``number``, ``began_ns``; otherwise None."""
        return self._object("part", self._reader.metadata.get("parshall.part")) or None

    @property
    def last_file(self) -> "Log":
        """Of a log that rotates, its last file as a log of its own; otherwise the log.

        `options`, `clock` and `environment` are those of the first file. A later one may be of another run, with
        others: what takes them for all rows compares both.
        """
        files = files_of(self.path)
        for file in reversed(files if len(files) > 1 else []):
            # The newest one may have no head yet, or never got one.
            with contextlib.suppress(ParshallError):
                return Log(file)
        return self

    @property
    def complete(self) -> bool:
        """Whether the log has its end and no gap; otherwise `truncation` or `gaps` have the reason."""
        return self._reader.complete

    @cached_property
    def gaps(self) -> pa.Table:
        """The times that a log that rotated does not have.

        Returns
        -------
        pyarrow.Table
            Shape (gaps, 3): ``from_time_ns`` and ``until_time_ns`` (null: unknown), and ``cause``: restarted (the
            writer ended in order, and another one began), killed (it did not end in order), file_missing (a file was
            removed, or only some files were named), file_damaged (a file has no head, as after a loss of power). A
            flow that lives across a new writer has a number in each.
        """
        rows = [
            {
                "from_time_ns": gap["from_ns"] or None,
                "until_time_ns": gap["until_ns"] or None,
                "cause": gap["cause"],
            }
            for gap in json.loads(self._reader.gaps)
        ]
        return table_of(rows, _GAP_COLUMNS)

    @cached_property
    def thinning(self) -> pa.Table:
        """How packets were thinned, where that changed while the log was written (``budget``).

        Returns
        -------
        pyarrow.Table
            Shape (changes, 3): ``time_ns``; ``packets_per_log``, every n-th packet of each flow is logged from then on,
            a power of two, or 0: no packets are observed; ``cost_share``, what the log cost since the row before, as a
            share of one CPU. Empty without a budget.
        """
        return table_of(json.loads(self._reader.thinning), _THINNING_COLUMNS)

    def estimates(self, window_s: float = 10.0, begin_ns: int | None = None) -> "polars.DataFrame":
        """Return bytes, retransmissions and round-trip times in equal spans of time, with intervals.

        What a thinned log does not have is bounded or estimated: see `parshall.instruments.tcp_estimates.estimates`.
        """
        from parshall.instruments.tcp_estimates import estimates

        return estimates(self, window_s, begin_ns)

    @property
    def truncation(self) -> str | None:
        """Where and why the log ends early."""
        return self._reader.truncation

    def _object(self, name: str, text: str | None) -> dict[str, Any]:
        try:
            value = json.loads(text) if text else {}
        except (ValueError, RecursionError) as error:
            raise ParshallError(
                f"{self.path}: damaged, its {name} is not JSON ({error}); save the records with `parshall convert`"
            ) from None
        return value if isinstance(value, dict) else {"value": value}

    def records_of(self, flow: int) -> pa.Table:
        """Return the rows of one flow.

        Parameters
        ----------
        flow : int
            A number from the column ``flow`` of `flows`.

        Returns
        -------
        pyarrow.Table
            Shape (records of the flow, columns).
        """
        number = pa.scalar(flow, pa.uint32())
        found = [batch.filter(pc.equal(batch["flow"], number)) for batch in self.batches()]
        return pa.Table.from_batches(found, self.schema)

    @cached_property
    def plot(self) -> Any:
        """The figures of a report, one by one: ``log.plot.cwnd()``; see `parshall.figures.plots.LogPlots`."""
        return imported("parshall.figures.plots:LogPlots")(self)

    def flow_states(self, progress: Callable[[int], object] = lambda _: None) -> "FlowStates":
        """Return how much each flow moved, and its last state.

        Parameters
        ----------
        progress : callable
            Called with the rows so far, about ten times a second.
        """
        from parshall.host.rows import plain_rows
        from parshall.instruments.flow_states import FlowStates
        from parshall.instruments.retransmitted import gap_ends_ns

        states = FlowStates(
            gap_ends_ns(plain_rows(self.gaps)), has_pauses=bool(self.options.get("budget")), is_whole=True
        )
        states.ledger = self.ledger
        states.add_flows(self._reader.flows())
        states.set_rows(*self._reader.states(progress))
        return states

    def to_polars(self) -> "polars.DataFrame":
        """Return `records` for polars; names become categoricals."""
        return _frame(self.records)

    def to_pandas(self) -> "pandas.DataFrame":
        """Return `records` for pandas, which must be installed; names become categoricals.

        Raises
        ------
        UsageError
            It is not.
        """
        if find_spec("pandas") is None:
            raise UsageError("to_pandas: pandas is not installed; install it: pip install pandas; or take to_polars")
        return self.records.to_pandas()


def _most_packets(flows: pa.Table, count: int) -> list[dict[str, Any]]:
    order = pc.sort_indices(flows, [("packets_seen", "descending"), ("flow", "ascending")])
    # Arrow imports pandas to make times of a list.
    names = [field.name for field in flows.schema if not pa.types.is_timestamp(field.type)]
    rows: list[dict[str, Any]] = flows.select(names).take(order.slice(0, count)).to_pylist()
    return rows


def _shown_flow(row: dict[str, Any]) -> tuple[object, ...]:
    def end(which: str) -> str:
        address = row[f"{which}_address"]
        return f"[{address}]:{row[f'{which}_port']}" if ":" in address else f"{address}:{row[f'{which}_port']}"

    lost = sum(row[f"packets_{cause}"] for cause in ("dropped", "overwritten", "unwritten"))
    process = f"{row['command'] or '?'} ({row['pid'] or '?'})" if row["command"] or row["pid"] else None
    control, ending = row["congestion_control"], row.get("ending")
    return (
        row["flow"],
        process,
        end("local"),
        end("remote"),
        control,
        row["packets_seen"],
        row["packets_logged"],
        lost,
        ending,
    )


class RecordStream:
    """Batches of rows; errors are `ParshallError`."""

    def __init__(self, reader: pa.RecordBatchReader) -> None:
        self._reader = reader

    @property
    def schema(self) -> pa.Schema:
        """The schema of the batches, with the metadata of the file."""
        return self._reader.schema

    def __iter__(self) -> "RecordStream":
        return self

    def __next__(self) -> pa.RecordBatch:
        try:
            return self._reader.read_next_batch()
        except (pa.ArrowException, OSError) as error:
            raise _ours(error) from None

    def read_all(self) -> pa.Table:
        """Return all remaining batches as one table."""
        try:
            return self._reader.read_all()
        except (pa.ArrowException, OSError) as error:
            raise _ours(error) from None


@dataclasses.dataclass(frozen=True)
class Conversion:
    """The result of a conversion."""

    path: Path | None
    """The file, None for the standard output."""
    rows: int
    """Rows (lines, records) written, heads and footers not counted."""
    warnings: list[str]
    """Warnings for readers of the output."""


def logs_in(directory: Path) -> list[Path]:
    """Return the names of the logs of a directory, as `read` takes them: a log that rotated is one."""
    names = (_FILE_NUMBER.sub("", path.name) for path in directory.glob(f"*{LOG_SUFFIX}"))
    return [directory / name for name in sorted(set(names))]


def files_of(path: str | os.PathLike[str]) -> list[Path]:
    """Return the files of a log: one, or those of a log that rotated."""
    return _native.log_files(Path(path))


def exists(path: Path) -> bool:
    """Whether there is a log of this name: a file, or files with numbers."""
    return path.exists() or any(_FILE_NUMBER.sub("", other.name) == path.name for other in path.parent.glob("*"))


def read(path: str | os.PathLike[str]) -> Log:
    """Open a TCP state log.

    Parameters
    ----------
    path : str or os.PathLike
        What ``parshall tcp -o`` wrote. Of a log that rotated: the name that was given to ``-o``, or the directory of
        its files, which are read as one.

    Returns
    -------
    Log
        The log; ``.records`` and ``.flows`` are tables, ``.batches()`` gives the rows batch by batch and
        ``.scan()`` as a lazy frame of polars.

    Raises
    ------
    ParshallError
        If the file cannot be read, is no log, or was written by a newer Parshall.

    Examples
    --------
    >>> log = parshall.read("run.arrow")  # doctest: +SKIP
    >>> log.records_of(1)["cwnd_segments"].to_numpy()  # doctest: +SKIP
    """
    return Log(path)


def convert(
    path: str | os.PathLike[str],
    to: str,
    output: str | os.PathLike[str] | None = None,
    *,
    every_ns: int | None = None,
    flows: Sequence[int] = (),
) -> Conversion:
    """Convert a log to another format.

    Parameters
    ----------
    path : str or os.PathLike
        The log.
    to : str
        One of `FORMATS`; docs/formats/conversions.md has their columns.
    output : str or os.PathLike, optional
        The file to write; standard output if None. It replaces an old file when it is complete; if the conversion
        fails, the old file stays.
    every_ns : int, optional
        ``web10g`` only: one line per flow every `every_ns` nanoseconds, instead of one per packet.
    flows : sequence of int
        Convert these flows only, by their numbers in the flow table. Default: all.

    Returns
    -------
    Conversion
        What was written.

    Raises
    ------
    UsageError
        If there is no such format or flow, or the format has no such option.
    ParshallError
        If the log is damaged, the output cannot be written, or the format needs a flow and there is none.
    """
    rows, warnings = _native.convert_log(Path(path), to, None if output is None else Path(output), every_ns, flows)
    return Conversion(None if output is None else Path(output), rows, warnings)


def _frame(table: pa.Table) -> "polars.DataFrame":
    import polars

    frame = polars.from_arrow(table)
    assert isinstance(frame, polars.DataFrame)
    return frame


def _ours(error: Exception) -> ParshallError:
    return ParshallError(str(error).split(_FOREIGN_ERROR_PREFIX, 1)[-1].splitlines()[0])
