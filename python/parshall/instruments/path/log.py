"""Read a path log: one row a packet, one row a read, and the ledger."""

import ipaddress
import json
import os
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from parshall._native import PathLogReader, stream_format
from parshall.errors import ParshallError, UsageError, printable
from parshall.host.first_use import imported
from parshall.host.input_file import brief
from parshall.host.ledger_text import Ledger, shown_html, shown_lines
from parshall.host.shown import html_lines
from parshall.instruments.path.reasons import reason_name
from parshall.instruments.path.stages import STAGES
from parshall.instruments.tcp_log import RecordStream

FORMAT = "path"
MAJOR = 1
_LATER_COLUMNS = {"xdp_ns": pa.uint32()}
"""Columns that a log of an older minor version lacks; there they are null."""
_NAMES = pa.dictionary(pa.int8(), pa.string())
# Columns that every reader needs, with their types.
_NEEDED = (
    {"time": pa.timestamp("ns", "UTC"), "event": _NAMES, "path": _NAMES, "first_stage": _NAMES}
    | {"drop_reason": pa.uint32()}
    | {f"{stage}_ns": pa.uint32() for stage in STAGES}
)


class PathLog:
    """A path log. Opening reads the head; the rows are read when they are first asked for.

    Parameters
    ----------
    path : str or os.PathLike
        The file.

    Raises
    ------
    ParshallError
        The file cannot be read, or is of another kind.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._reader = PathLogReader(self.path)
        kind = stream_format(self.path)
        if kind != FORMAT:
            found = "no format" if kind is None else f"the format {brief(kind)!r}"
            raise UsageError(
                f"{self.path}: a file of {found}, expected a path log; make one with: parshall path -o FILE"
            )
        self.schema: pa.Schema = _complete(self._stream().schema.empty_table()).schema
        metadata = self.schema.metadata or {}
        self._metadata = {key.decode(errors="replace"): metadata[key].decode(errors="replace") for key in metadata}
        version = self._metadata.get("parshall.format_version", "")
        if version.partition(".")[0] != str(MAJOR):
            raise UsageError(
                f"{self.path}: path log version {brief(version)}, this Parshall reads {MAJOR}.x; upgrade Parshall"
            )
        for name, data_type in _NEEDED.items():
            number = self.schema.get_field_index(name)
            if number < 0 or self.schema.field(number).type != data_type:
                raise UsageError(f"{self.path}: no column {name} of the type {data_type}; the file is damaged")

    def __repr__(self) -> str:
        return "\n".join([self._head(), *shown_lines(self.ledger)])

    def _repr_html_(self) -> str:
        return html_lines([self._head()]) + shown_html(self.ledger)

    def _head(self) -> str:
        return printable(f"{self.path}: path log, {'complete' if self.complete else 'incomplete'}")

    @cached_property
    def _rows(self) -> pa.Table:
        return pa.Table.from_batches(self.batches(), self.schema)

    @cached_property
    def _account(self) -> tuple[dict[str, Any], bool, list[tuple[int, int]]]:
        """The last ledger, whether the log was ended in order, and the windows."""
        ledger, is_final, windows = self._reader.account()
        return self._parsed("ledger", ledger or "{}"), is_final, windows

    def _stream(self) -> RecordStream:
        try:
            return RecordStream(pa.RecordBatchReader.from_stream(self._reader.records()))
        except pa.ArrowException as error:
            # Names that C, by whose interface they come, has not.
            raise UsageError(f"{self.path}: damaged, its columns cannot be read ({brief(str(error))})") from None

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Read the rows batch by batch, for logs that do not fit into memory.

        Returns
        -------
        iterator of pyarrow.RecordBatch
            Up to 8,192 rows each, in the order of the file. A log that was cut by a kill or a full disk gives what is
            before the cut.

        Raises
        ------
        ParshallError
            The file is damaged, or expands to more than any log does.
        """
        return (_complete(batch) for batch in self._stream())

    @property
    def records(self) -> pa.Table:
        """All rows, in the order of the file; docs/formats/path-log.md describes each column."""
        return self._rows

    @property
    def packets(self) -> pa.Table:
        """The packets; `drop_reason` and addresses as text.

        Returns
        -------
        pyarrow.Table
            Shape (packets, columns).
        """
        table = self.records.filter(pc.equal(self.records["event"].cast(pa.string()), "packet"))
        for name in ("source", "destination"):
            table = _replaced(table, name, lambda value: str(_address(value)))
        return _replaced(table, "drop_reason", self.drop_reason_names())

    @property
    def reads(self) -> pa.Table:
        """The reads from sockets: ``time`` of data ready, ``waking_ns``, ``running_ns``, ``read_ns`` since then."""
        columns = ["time", "waking_ns", "running_ns", "read_ns", "length_bytes", "socket_cookie", "pid", "command"]
        return self.records.filter(pc.equal(self.records["event"].cast(pa.string()), "read")).select(columns)

    @property
    def ledger(self) -> Ledger:
        """The account: seen = filtered + thinned + logged + lost, and the cost. Empty when the log ended at once."""
        return Ledger(self._account[0])

    @property
    def complete(self) -> bool:
        """Whether the log was ended in order."""
        return self._account[1]

    @property
    def windows(self) -> pa.Table:
        """When the programs were attached (``budget``, ``share``).

        Returns
        -------
        pyarrow.Table
            Shape (windows, 2): ``from_time``, ``until_time``, timestamps like the column ``time``; windows of a budget
            may follow each other without a gap. Empty when the programs always were attached.
        """
        times = [pa.array([window[end] for window in self._account[2]], pa.int64()) for end in (0, 1)]
        return pa.table([each.cast(pa.timestamp("ns", "UTC")) for each in times], names=["from_time", "until_time"])

    @cached_property
    def plot(self) -> Any:
        """The figures of a report, one by one: ``plot.stages()``; see `parshall.figures.plots.PathPlots`."""
        return imported("parshall.figures.plots:PathPlots")(self)

    @property
    def environment(self) -> dict[str, Any]:
        """The host, as the log's head has it."""
        return self._object("environment")

    @property
    def options(self) -> dict[str, Any]:
        """The options of the measurement."""
        return self._object("options")

    @property
    def clock(self) -> dict[str, Any]:
        """The clock of ``time``."""
        return self._object("clock")

    @property
    def drop_reasons(self) -> dict[int, str]:
        """The kernel's names of drop reasons."""
        return self._numbered("drop_reasons")

    def drop_reason_names(self) -> Callable[[int], str]:
        """Return a function that gives the name of a number of ``drop_reason``; see `reason_name`."""
        names, subsystems = self.drop_reasons, self._numbered("drop_subsystems")
        return lambda number: reason_name(number, names, subsystems)

    def _numbered(self, key: str) -> dict[int, str]:
        return {int(number): name for number, name in self._object(key).items() if number.isdecimal()}

    def _object(self, key: str) -> dict[str, Any]:
        return self._parsed(key, self._metadata.get(f"parshall.{key}", "{}"))

    def _parsed(self, key: str, text: str | bytes) -> dict[str, Any]:
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            raise ParshallError(f"{self.path}: its {key} is no JSON object; the file is damaged")
        return value


def _complete(rows: Any) -> Any:
    """Return a table or batch with the columns that its log lacks."""
    for name, kind in _LATER_COLUMNS.items():
        if name not in rows.schema.names:
            rows = rows.append_column(name, pa.nulls(len(rows), kind))
    return rows


def is_path_log(path: Path) -> bool:
    """Return whether a file begins as a path log does; false when it cannot be read."""
    try:
        return stream_format(path) == FORMAT
    except ParshallError:
        return False


def _address(value: bytes) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    address = ipaddress.IPv6Address(value)
    return address.ipv4_mapped or address


def _replaced(table: pa.Table, name: str, text: Any) -> pa.Table:
    """Return a table whose column has texts, made once for each value."""
    encoded = table[name].combine_chunks().dictionary_encode()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    names = pa.array([text(value) for value in encoded.dictionary.to_pylist()], pa.string())
    column = pa.DictionaryArray.from_arrays(encoded.indices, names)
    return table.set_column(table.schema.get_field_index(name), name, column)
