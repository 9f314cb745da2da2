"""Path logs that others made: a right answer or one clear line, quickly and in little memory."""

import io
import os
import random
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import resident_memory
from written_path_log import packet, read_of, write_path_log

from parshall.cli.path_join import kind_of
from parshall.errors import ParshallError, UsageError, naming_damage
from parshall.instruments.path.connections import connections
from parshall.instruments.path.log import PathLog
from parshall.instruments.path.timeline import join
from parshall.instruments.tcp_log import Log, read
from parshall.report.path import write_report

SMALL_LOG = Path(__file__).parents[1] / "data" / "small.arrow"
SECONDS_MAX = 5
GROWTH_MAX_BYTES = 512 << 20
LONG = [b"\xff" * 8, bytes(8), (1 << 58).to_bytes(8, "little"), (1 << 33).to_bytes(8, "little"), b"\x7f" * 4]


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A path log with packets of each kind, compressed as Parshall does it."""
    rows = [packet(number, "forwarded", "receive", number, 100, xmit_ns=900, consume_ns=950) for number in range(40)]
    rows += [packet(50 + number, "dropped", "receive", number, 10, drop_reason=8, drop_ns=40) for number in range(9)]
    rows += [read_of(90, 95, 100, 7)]
    path = write_path_log(tmp_path_factory.mktemp("log") / "path.arrow", rows)
    return path.read_bytes()


def compressed(content: bytes, codec: str = "lz4") -> bytes:
    """Return the log with compressed buffers, as Parshall writes them."""
    out = io.BytesIO()
    with pa.ipc.open_stream(content) as reader:
        with pa.ipc.new_stream(out, reader.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as stream:
            while True:
                try:
                    batch, metadata = reader.read_next_batch_with_custom_metadata()
                except StopIteration:
                    break
                stream.write_batch(batch, custom_metadata=metadata)
    return out.getvalue()


def mutated(generator: random.Random, content: bytes) -> bytes:
    """Return a log with bytes changed, cut out, put in or cut off."""
    changed = bytearray(content)
    for _ in range(generator.choice([1, 1, 2, 4])):
        place = generator.randrange(len(changed))
        kind = generator.choice(["bit", "bit", "long", "long", "long", "byte", "without", "twice", "cut"])
        if kind == "bit":
            changed[place] ^= 1 << generator.randrange(8)
        elif kind == "byte":
            changed[place] = generator.choice([0, 1, 0x7F, 0x80, 0xFF])
        elif kind == "long":
            long = generator.choice(LONG)
            at = place // 4 * 4
            changed[at : at + len(long)] = long
        elif kind == "without":
            del changed[place : place + generator.randrange(1, 100)]
        elif kind == "twice":
            changed[place:place] = changed[place : place + generator.randrange(1, 100)]
        elif place > 8:
            del changed[place:]
    return bytes(changed)


@cache
def small_log() -> Log:
    """Return a right log to join with: it is read once."""
    return read(SMALL_LOG)


def used(path: Path, report: Path | None) -> str:
    """Read a log as the commands do; return what came of it."""
    try:
        kind_of(path)
        log = PathLog(path)
        assert log.environment is not None and log.complete in (True, False)
        with naming_damage([path], "make it again"):
            connections(join(log, small_log()))
        if report is not None:
            write_report({"log": log}, report, "A log", images=False)
    except ParshallError as error:
        assert str(error).isprintable() and len(str(error)) < 900, error
        return "refused"
    return "read"


@pytest.mark.parametrize("count", [60, pytest.param(5000, marks=pytest.mark.long)])
def test_a_mutated_log_gives_an_answer_or_one_line(tmp_path: Path, content: bytes, count: int) -> None:
    generator = random.Random(20_261_126)
    seeds = [content, compressed(content), compressed(content, "zstd")]
    path = tmp_path / "mutant.arrow"
    path.write_bytes(content)
    assert used(path, tmp_path / "report") == "read"
    resident_memory.forget_peak()
    before_bytes = resident_memory.peak_bytes()
    came_to = []
    for number in range(count):
        path.write_bytes(mutated(generator, generator.choice(seeds)))
        began_s = time.process_time()
        # Drawing takes long.
        came_to.append(used(path, tmp_path / "report" if number % 75 == 0 else None))
        assert time.process_time() - began_s < SECONDS_MAX
    assert count / 5 < came_to.count("refused") < count
    assert resident_memory.peak_bytes() - before_bytes < GROWTH_MAX_BYTES


def with_changes(content: bytes, change: Callable[[dict[str, Any]], None]) -> bytes:
    """Return the log with other columns, by pyarrow, which writes what it is given."""
    with pa.ipc.open_stream(content) as reader:
        batch, _ = reader.read_next_batch_with_custom_metadata()
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        change(columns)
        schema = pa.schema([(name, column.type) for name, column in columns.items()], reader.schema.metadata)
    out = io.BytesIO()
    with pa.ipc.new_stream(out, schema) as stream:
        stream.write_batch(pa.RecordBatch.from_arrays(list(columns.values()), schema=schema))
    return out.getvalue()


def out_of_range(columns: dict[str, Any]) -> None:
    column = columns["event"]
    indices = pa.array([100] * len(column), pa.int8())
    columns["event"] = pa.DictionaryArray.from_arrays(indices, column.dictionary, safe=False)


def nested(columns: dict[str, Any]) -> None:
    columns["more"] = pa.array([[[1]]] * len(columns["time"]))


@pytest.mark.parametrize("change", [out_of_range, nested])
def test_what_would_end_the_process_is_refused(
    tmp_path: Path, content: bytes, change: Callable[[dict[str, Any]], None]
) -> None:
    path = tmp_path / "evil.arrow"
    path.write_bytes(with_changes(content, change))
    with pytest.raises(ParshallError, match="damaged at byte") as caught:
        _ = PathLog(path).packets
    assert str(path) in str(caught.value)


def test_a_log_that_expands_to_much_is_refused_before_it_does(tmp_path: Path, content: bytes) -> None:
    with pa.ipc.open_stream(content) as reader:
        schema = reader.schema
        batch = reader.read_next_batch().slice(0, 1)
    many = pa.Table.from_batches([batch] * 100_000).combine_chunks().to_batches()[0]
    path = tmp_path / "bomb.arrow"
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with path.open("wb") as file:
        with pa.ipc.new_stream(file, schema, options=options) as stream:
            stream.write_batch(many)
            begin = file.tell()
            stream.write_batch(many)
            # Compressed once: the same message again and again.
            file.flush()
            message = path.read_bytes()[begin:]
            for _ in range(98):
                file.write(message)
    assert path.stat().st_size < 4 << 20
    resident_memory.forget_peak()
    before_bytes = resident_memory.peak_bytes()
    with pytest.raises(ParshallError, match="expand to more than 32 times the file"):
        _ = PathLog(path).records
    assert resident_memory.peak_bytes() - before_bytes < GROWTH_MAX_BYTES


@pytest.mark.parametrize("name", ["a FIFO", "a directory", "nothing"])
def test_what_is_no_file_is_not_waited_for(tmp_path: Path, name: str) -> None:
    path = tmp_path / "log.arrow"
    if name == "a FIFO":
        os.mkfifo(path)
    elif name == "a directory":
        path.mkdir()
    for reader in (PathLog, read, kind_of):
        with pytest.raises(ParshallError) as caught:
            reader(path)
        assert str(path) in str(caught.value)


def test_metadata_of_others_is_shown_escaped(tmp_path: Path, content: bytes) -> None:
    with pa.ipc.open_stream(content) as reader:
        schema = reader.schema
    path = tmp_path / "evil.arrow"
    for key, value in (("parshall.format", "\x1b[2J\n"), ("parshall.format_version", "9\x1b[2J")):
        metadata = {**(schema.metadata or {}), key.encode(): value.encode()}
        with path.open("wb") as file, pa.ipc.new_stream(file, schema.with_metadata(metadata)):
            pass
        with pytest.raises(UsageError) as caught:
            PathLog(path)
        assert str(caught.value).isprintable()


def test_damaged_accounts_are_one_line(tmp_path: Path) -> None:
    rows = [packet(1, "forwarded", "receive", 1, 100)]
    path = write_path_log(tmp_path / "log.arrow", rows, ledger={"hooks": 3})
    with pytest.raises(ParshallError, match="is damaged"):
        write_report({"log": PathLog(path)}, tmp_path / "report", "A log", images=False)
