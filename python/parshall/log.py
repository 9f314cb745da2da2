"""TCP state logs: read them as tables, convert them to the formats that other tools read."""

import dataclasses
import json
import os
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from parshall import _native
from parshall.errors import ParshallError

if TYPE_CHECKING:
    import pandas
    import polars

# What arrow puts before the text of an error that is not its own.
_FOREIGN_ERROR_PREFIX = "External error: "

FORMATS: dict[str, tuple[str, bool]] = {name: (suffix, is_text) for name, suffix, is_text in _native.log_formats()}
"""Name of a conversion -> (suffix of its files, whether it is text)."""


class Log:
    """A TCP state log: one row a record, one row a flow, and the account of the logging.

    Opening reads the flow table and the ledger only; rows are read when they are first asked for.

    Parameters
    ----------
    path : str or os.PathLike
        The file.

    Raises
    ------
    ParshallError
        If the file cannot be read, is no log, or was written by a newer Parshall.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._reader = _native.LogReader(self.path)

    def __repr__(self) -> str:
        """Return the path, the number of flows, and whether the log is whole."""
        state = "complete" if self.complete else "incomplete"
        return f"<Log {str(self.path)!r}: {self.flows.num_rows} flows, {state}>"

    @cached_property
    def records(self) -> pa.Table:
        """All rows, in the order of the file.

        Returns
        -------
        pyarrow.Table
            Shape (records, 40). Times are ``timestamp[ns, UTC]``; names are dictionaries; units stand
            in the names of the columns. docs/formats/tcp-log.md says what each column is.

        Raises
        ------
        ParshallError
            If the file is damaged in the middle. A file that was cut gives what is before the cut.
        """
        return self.stream().read_all()

    def stream(self) -> "RecordStream":
        """Read the rows batch by batch, for logs that do not fit into memory.

        Returns
        -------
        RecordStream
            Iterates over ``pyarrow.RecordBatch``; each call starts at the first row.
        """
        return RecordStream(pa.RecordBatchReader.from_stream(self._reader.records()))

    @cached_property
    def flows(self) -> pa.Table:
        """The flow table: addresses, options and the account of every connection.

        Returns
        -------
        pyarrow.Table
            Shape (flows, 38), one row a flow, in ascending order of ``flow``.
        """
        return pa.RecordBatchReader.from_stream(self._reader.flows()).read_all()

    @property
    def ledger(self) -> dict[str, Any]:
        """The account: seen = filtered + thinned + logged + lost of every hook, and the cost.

        Empty when the log ended before its first second was over.
        """
        return _object(self._reader.ledger)

    @property
    def environment(self) -> dict[str, Any]:
        """The host as it was: kernel, offloads, queueing disciplines, sysctls, clock source, ..."""
        return _object(self._reader.metadata.get("parshall.environment"))

    @property
    def clock(self) -> dict[str, Any]:
        """The clock of ``time_ns`` and its offset from the kernel's monotonic one."""
        return _object(self._reader.metadata.get("parshall.clock"))

    @property
    def options(self) -> dict[str, Any]:
        """The options that the log was made with."""
        return _object(self._reader.metadata.get("parshall.options"))

    @property
    def complete(self) -> bool:
        """Whether the log ended as it should; otherwise `truncation` says why not."""
        return self._reader.complete

    @property
    def truncation(self) -> str | None:
        """Where and why the log ends early."""
        return self._reader.truncation

    def records_of(self, flow: int) -> pa.Table:
        """Return the rows of one flow.

        Parameters
        ----------
        flow : int
            A number from the column ``flow`` of `flows`.

        Returns
        -------
        pyarrow.Table
            Shape (records of the flow, 40).
        """
        return self.records.filter(pc.equal(self.records["flow"], pa.scalar(flow, pa.uint32())))

    def to_polars(self) -> "polars.DataFrame":
        """Return `records` for polars; names become categoricals."""
        import polars

        frame = polars.from_arrow(self.records)
        assert isinstance(frame, polars.DataFrame)
        return frame

    def to_pandas(self) -> "pandas.DataFrame":
        """Return `records` for pandas, which must be installed; names become categoricals."""
        return self.records.to_pandas()


class RecordStream:
    """Batches of rows, whose errors are ours."""

    def __init__(self, reader: pa.RecordBatchReader) -> None:
        self._reader = reader

    @property
    def schema(self) -> pa.Schema:
        """The schema of the batches, with the metadata of the file."""
        return self._reader.schema

    def __iter__(self) -> "RecordStream":
        """Return itself."""
        return self

    def __next__(self) -> pa.RecordBatch:
        """Return the next batch."""
        try:
            return self._reader.read_next_batch()
        except (pa.ArrowException, OSError) as error:
            raise _ours(error) from None

    def read_all(self) -> pa.Table:
        """Return all batches that are left as one table."""
        try:
            return self._reader.read_all()
        except (pa.ArrowException, OSError) as error:
            raise _ours(error) from None


@dataclasses.dataclass(frozen=True)
class Conversion:
    """What a conversion did."""

    path: Path | None
    """The file, None for the standard output."""
    rows: int
    """Rows (lines, records) written, heads and footers not counted."""
    warnings: list[str]
    """What the reader of the result should know."""


def read(path: str | os.PathLike[str]) -> Log:
    """Open a TCP state log.

    Parameters
    ----------
    path : str or os.PathLike
        What ``parshall tcp -o`` wrote.

    Returns
    -------
    Log
        The log; ``.records`` and ``.flows`` are tables.

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
) -> Conversion:
    """Convert a log to another format.

    Parameters
    ----------
    path : str or os.PathLike
        The log.
    to : str
        One of `FORMATS`; docs/convert.md has their columns.
    output : str or os.PathLike, optional
        The file to write; the standard output if None. It takes its place when it is whole: when the conversion
        fails, what was there stays.
    every_ns : int, optional
        ``web10g`` only: one line a flow every so many nanoseconds instead of one a packet.

    Returns
    -------
    Conversion
        What was written.

    Raises
    ------
    UsageError
        If there is no such format, or the format has no such option.
    ParshallError
        If the log is damaged, the output cannot be written, or the format needs a flow and there is none.
    """
    rows, warnings = _native.convert_log(Path(path), to, None if output is None else Path(output), every_ns)
    return Conversion(None if output is None else Path(output), rows, warnings)


def _object(text: str | None) -> dict[str, Any]:
    value = json.loads(text) if text else {}
    return value if isinstance(value, dict) else {"value": value}


def _ours(error: Exception) -> ParshallError:
    return ParshallError(str(error).split(_FOREIGN_ERROR_PREFIX, 1)[-1].splitlines()[0])
