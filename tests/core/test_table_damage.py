"""Tables of measurements that others made: an answer or one line, in bounded memory."""

import random
import time
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet
import pytest
import resident_memory
from test_path_log_damage import mutated

from parshall.errors import ParshallError
from parshall.model.compare import read_trace

SECONDS_MAX = 5
GROWTH_MAX_BYTES = 768 << 20


def seeds(directory: Path) -> list[tuple[str, bytes]]:
    """Return files of each kind that Parshall reads."""
    frame = pl.DataFrame({"arrival_ns": range(500), "departure_ns": [number + 7.5 for number in range(500)]})
    frame = frame.with_columns(bytes=pl.lit(64), name=pl.Series(["a", "b"] * 250, dtype=pl.Categorical))
    found = []
    for name, write in (
        ("x.parquet", lambda path: frame.write_parquet(path)),
        ("y.parquet", lambda path: pyarrow.parquet.write_table(frame.to_arrow(), path, compression="snappy")),
        ("x.arrow", lambda path: frame.write_ipc(path, compression="zstd")),
        ("y.feather", lambda path: frame.write_ipc(path, compression="lz4")),
        ("z.arrow", lambda path: frame.write_ipc(path)),
        ("stream.arrow", lambda path: frame.write_ipc_stream(path)),
    ):
        write(directory / name)
        found.append((name, (directory / name).read_bytes()))
    return found


@pytest.mark.parametrize("count", [200, pytest.param(5000, marks=pytest.mark.long)])
def test_a_mutated_table_gives_an_answer_or_one_line(tmp_path: Path, count: int) -> None:
    generator = random.Random(20_261_127)
    files = seeds(tmp_path)
    for name, _ in files:
        assert read_trace(tmp_path / name).shape == (500, 3)
    resident_memory.forget_peak()
    before_bytes = resident_memory.peak_bytes()
    refused = 0
    for _ in range(count):
        name, content = generator.choice(files)
        path = tmp_path / name
        path.write_bytes(mutated(generator, content))
        began_s = time.process_time()
        try:
            read_trace(path)
        except ParshallError as error:
            refused += 1
            assert str(error).startswith(str(path)) and str(error).isprintable() and len(str(error)) < 600
        assert time.process_time() - began_s < SECONDS_MAX
    assert count / 5 < refused < count
    assert resident_memory.peak_bytes() - before_bytes < GROWTH_MAX_BYTES


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("2,3,", None),
        ("2,3,-1", "bytes of row 1 is -1; expected 0 or more"),
        ("2,3,inf", "bytes of row 1 is inf; expected 0 or more"),
        ("2,3,many", "bytes is String; expected numbers"),
        ("2,inf,64", "departure_ns has a value that is not finite"),
        ("inf,inf,64", "arrival_ns of row 1 is inf"),
    ],
)
def test_wrong_cells_are_refused_and_empty_ones_are_unknown(tmp_path: Path, row: str, said: str | None) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(f"arrival_ns,departure_ns,bytes\n1,2,64\n{row}\n")
    if said is None:
        assert read_trace(path)["bytes"].to_list() == [64.0, 0.0]
        return
    with pytest.raises(ParshallError, match=said):
        read_trace(path)


def test_the_metadata_of_a_column_is_not_believed(tmp_path: Path) -> None:
    """Polars ends a thread in a panic on what it would not have written itself."""
    columns = {
        "arrival_ns": pa.array([1.0]),
        "departure_ns": pa.array([2.0]),
        "name": pa.array(["a"]).dictionary_encode(),
    }
    kinds = {key: (column.type, {"_PL_ENUM_VALUES2": "5;a"}) for key, column in columns.items()}
    schema = pa.schema([pa.field(name, kind, metadata=metadata) for name, (kind, metadata) in kinds.items()])
    pyarrow.parquet.write_table(pa.table(list(columns.values()), schema=schema), tmp_path / "x.parquet")
    assert read_trace(tmp_path / "x.parquet").shape == (1, 3)


def test_names_of_columns_that_are_no_text_or_twice_there_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.arrow"
    for other in ("departure_ns", "name_of"):
        table = pa.table([[1.0], [2.0], [3.0]], names=["arrival_ns", "departure_ns", other])
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
        path.write_bytes(path.read_bytes().replace(b"name_of", b"\xffame_of"))
        with pytest.raises(ParshallError, match="cannot be read: ") as caught:
            read_trace(path)
        assert str(caught.value).isprintable()


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_a_table_that_expands_to_much_is_refused(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"bomb.{suffix}"
    column = pa.array([0.0] * 1_000_000)
    batch = pa.record_batch({"arrival_ns": column, "departure_ns": column})
    if suffix == "parquet":
        plain = {"compression": "zstd", "use_dictionary": False, "write_statistics": False}
        with pyarrow.parquet.ParquetWriter(path, batch.schema, **plain) as writer:
            for _ in range(80):
                writer.write_batch(batch)
    else:
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, batch.schema, options=options) as writer:
            for _ in range(80):
                writer.write_batch(batch)
    assert path.stat().st_size < 4 << 20
    resident_memory.forget_peak()
    before_bytes = resident_memory.peak_bytes()
    with pytest.raises(ParshallError, match="expands to more than 32 times the file"):
        read_trace(path)
    assert resident_memory.peak_bytes() - before_bytes < GROWTH_MAX_BYTES
