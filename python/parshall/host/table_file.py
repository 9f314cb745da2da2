"""Tables of Arrow and Parquet files that others may have written: validated, in bounded memory."""

import contextlib
import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import polars as pl
import pyarrow as pa
import pyarrow.parquet

from parshall.errors import ParshallError
from parshall.host.input_file import brief, open_regular

# A table may take so many times its file, or so many bytes if that is more.
_EXPANSION_MAX = 32
_MEMORY_FREE_BYTES = 256 << 20
# At the beginning of an Arrow file; a stream has none.
_ARROW_MAGIC = b"ARROW1"
_THRIFT_BYTES_MAX = 64 << 20
_THRIFT_ITEMS_MAX = 1 << 20


def read_table(path: Path) -> pl.DataFrame:
    """Return the table of a Parquet file (suffix ``.parquet``), or of an Arrow file or stream, without nested columns.

    Raises
    ------
    UsageError
        It is not a regular file.
    ParshallError
        It is damaged, or expands to more than any table does.
    OSError
        It cannot be read.
    """
    with open_regular(path) as file:
        limit_bytes = max(_MEMORY_FREE_BYTES, _EXPANSION_MAX * os.fstat(file.fileno()).st_size)
        try:
            with _memory_limit(limit_bytes):
                frame = pl.from_arrow(_table(file, path.suffix == ".parquet", limit_bytes))
        except MemoryError:
            raise ParshallError(
                f"{path}: expands to more than {_EXPANSION_MAX} times the file; it is damaged"
            ) from None
        except (pa.ArrowException, OSError, pl.exceptions.PolarsError, UnicodeDecodeError) as error:
            # A name of a column need not be text.
            reason = brief(str(error).partition("\n")[0])
            raise ParshallError(f"{path}: cannot be read: {reason}; make it again") from None
    assert isinstance(frame, pl.DataFrame)
    return frame


def _table(file: BinaryIO, is_parquet: bool, limit_bytes: int) -> pa.Table:
    batches, total_bytes = [], 0
    schema, stream = (_parquet_batches if is_parquet else _arrow_batches)(file)
    for batch in stream:
        batch.validate(full=True)
        total_bytes += batch.nbytes
        if total_bytes > limit_bytes:
            raise MemoryError
        batches.append(batch)
    table = pa.Table.from_batches(batches, schema)
    # Polars believes what the metadata of a field says about its type.
    plain = [number for number, field in enumerate(schema) if not _is_nested(field.type)]
    fields = [schema.field(number).remove_metadata() for number in plain]
    return pa.Table.from_arrays([table.column(number) for number in plain], schema=pa.schema(fields))


def _is_nested(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        return _is_nested(kind.value_type)
    return bool(pa.types.is_nested(kind)) or isinstance(kind, pa.BaseExtensionType)


def _parquet_batches(file: BinaryIO) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    source = pyarrow.parquet.ParquetFile(
        file, thrift_string_size_limit=_THRIFT_BYTES_MAX, thrift_container_size_limit=_THRIFT_ITEMS_MAX
    )
    return source.schema_arrow, source.iter_batches(use_threads=False)


def _arrow_batches(file: BinaryIO) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    options = pa.ipc.IpcReadOptions(use_threads=False)
    is_file = file.read(len(_ARROW_MAGIC)) == _ARROW_MAGIC
    file.seek(0)
    if not is_file:
        stream = pa.ipc.open_stream(file, options=options)
        return stream.schema, iter(stream)
    reader = pa.ipc.open_file(file, options=options)
    return reader.schema, (reader.get_batch(number) for number in range(reader.num_record_batches))


@contextlib.contextmanager
def _memory_limit(more_bytes: int) -> Iterator[None]:
    """Let the process take only so much more address space: the libraries believe the lengths in a file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    # Polars has its own copy.
    wanted = pages * resource.getpagesize() + 2 * more_bytes
    limits = [limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min([wanted, *limits]), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
