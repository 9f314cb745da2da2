"""The log as Python sees it: tables, metadata, errors."""

import subprocess
import sys
import zlib
from pathlib import Path

import polars
import pyarrow as pa
import pytest
from written_log import SCHEMA, batch_of, flow_row, listener_row, random_columns, write_log

import parshall
from parshall.errors import ParshallError, UsageError
from parshall.instruments import tcp_log
from parshall.instruments.tcp_log import Log

LOG = Path(__file__).parents[1] / "data" / "small.arrow"
# Of version 1.0: 100 rows compressed by zstd, and 200 in the frames that its writer made for fast records.
LOG_OF_1_0 = LOG.with_name("tcp-log-1.0.arrow")


def test_records_are_a_table_with_units_in_the_names():
    log = parshall.read(LOG)
    assert isinstance(log, Log)
    assert log.records.shape == (300, 46)
    assert log.records.schema.field("time_ns").type == pa.timestamp("ns", tz="UTC")
    assert log.records.schema.field("state").type == pa.dictionary(pa.int8(), pa.string())
    assert set(log.records["event"].to_pylist()) == {"packet", "retransmit"}
    assert log.records["ssthresh_segments"].null_count == 150
    assert log.complete
    assert log.truncation is None
    assert "2 flows, complete" in repr(log)


def test_flows_ledger_and_environment():
    log = parshall.read(LOG)
    assert log.flows.shape == (2, 51)
    assert log.flows["local_address"].to_pylist() == ["10.0.0.1", "2001:db8::1"]
    assert log.ledger["complete"] is True
    assert log.environment["kernel"]["release"] == "6.18.3"
    assert log.clock["monotonic_offset_ns"] == 1_700_000_000_000_000_000
    assert log.options == {"packets_per_log": 1}


def test_records_of_a_flow():
    rows = parshall.read(LOG).records_of(2)
    assert rows.num_rows == 150
    assert set(rows["flow"].to_pylist()) == {2}


def test_batches_are_read_one_by_one():
    stream = parshall.read(LOG).batches()
    assert stream.schema.metadata[b"parshall.format"] == b"tcp-state"
    assert sum(batch.num_rows for batch in stream) == 300


def test_batches_of_some_columns_have_the_same_values():
    log = parshall.read(LOG)
    batches = list(log.batches(["cwnd_segments", "time_ns"]))
    table = pa.Table.from_batches(batches)
    assert table.column_names == ["time_ns", "cwnd_segments"]
    assert table.equals(log.records.select(["time_ns", "cwnd_segments"]).replace_schema_metadata(table.schema.metadata))
    assert sum(batch.num_rows for batch in log.batches([])) == 300
    with pytest.raises(UsageError, match=r"^column cwnd: not in a log; Log.schema lists the columns$"):
        log.batches(["cwnd"])


def test_a_scan_gives_what_the_table_has():
    log = parshall.read(LOG)
    frame, whole = log.scan(), log.to_polars()
    assert frame.collect_schema() == whole.schema
    assert frame.collect().equals(whole)
    sent = polars.col("direction") == "out"
    largest = polars.col("cwnd_segments").max()
    query = [each.filter(sent).group_by("flow").agg(largest).sort("flow") for each in (frame, whole.lazy())]
    assert query[0].collect().equals(query[1].collect())
    assert query[0].collect(engine="streaming").equals(query[1].collect())
    assert frame.select("snd_nxt", "flow").head(7).collect().equals(whole.select("snd_nxt", "flow").head(7))
    assert frame.select(polars.len()).collect().item() == 300


def test_a_scan_of_a_damaged_log_names_file_and_byte(damaged_log):
    with pytest.raises((ParshallError, polars.exceptions.ComputeError), match=r"damaged at byte \d+: "):
        parshall.read(damaged_log).scan().collect()


@pytest.mark.parametrize(
    ("name", "begins"),
    [("environment", b'{"kernel"'), ("clock", b'{"clock"'), ("options", b'{"packets_per_log"')],
)
def test_an_invalid_header_is_one_line(tmp_path, name, begins):
    damaged = tmp_path / "damaged.arrow"
    content = LOG.read_bytes()
    assert content.count(begins) == 1
    damaged.write_bytes(content.replace(begins, b"}" + begins[1:]))
    message = rf"^{damaged}: damaged, its {name} is not JSON \(.*\); save the records with `parshall convert`$"
    with pytest.raises(ParshallError, match=message):
        _ = getattr(parshall.read(damaged), name)
    saved = parshall.instruments.tcp_log.convert(damaged, "csv", tmp_path / "saved.csv")
    assert saved.rows == parshall.read(LOG).records.num_rows


def test_any_arrow_reader_opens_it():
    with pa.ipc.open_stream(LOG) as reader:
        table = reader.read_all()
    assert table.to_pylist() == parshall.read(LOG).records.select(table.column_names).to_pylist()


def test_a_log_of_version_1_0_opens():
    log = parshall.read(LOG_OF_1_0)
    with pa.ipc.open_stream(LOG_OF_1_0) as reader:
        assert reader.schema.metadata[b"parshall.format_version"] == b"1"
        table = reader.read_all()
        assert table.to_pylist() == log.records.select(table.column_names).to_pylist()
    assert log.complete
    assert log.flows.equals(parshall.read(LOG).flows)
    rows = log.records.to_pylist()
    assert len(rows) == 300
    for number, row in enumerate(rows):
        assert row["flow"] == number // 2 % 2 + 1
        assert row["cwnd_segments"] == 10 + number // 10
        assert row["ssthresh_segments"] == (None if number < 150 else 20)
        assert row["snd_nxt"] == 1000 + (number + 10) * 1448
        assert row["direction"] == ("in" if number % 2 else "out")
        assert row["srtt_us"] == 20_000 + number % 7


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_every_compression_is_read(tmp_path, compression):
    path = tmp_path / "log.arrow"
    batches = [batch_of(random_columns(rows, 3, rows)) for rows in (1, 1000)]
    write_log(path, batches, [flow_row(1)], compression=compression)
    log = parshall.read(path)
    table = pa.Table.from_batches(batches)
    assert log.records.equals(table)
    assert polars.read_ipc_stream(path).equals(log.to_polars())


@pytest.mark.parametrize(
    "missing", [("gso_segs",), ("time_ns",), ("direction", "ca_state"), ("app_limited", "flow_seq")]
)
def test_columns_that_an_older_log_lacks_are_null(tmp_path, missing):
    path = tmp_path / "old.arrow"
    schema = pa.schema([field for field in SCHEMA if field.name not in missing])
    values = random_columns(50, 3, 1)
    write_log(path, [batch_of(values, schema)], [flow_row(flow) for flow in (1, 2, 3)], columns=schema)
    log = parshall.read(path)
    assert log.schema.names == SCHEMA.names
    whole = batch_of(values)
    for name in SCHEMA.names:
        column = log.records[name]
        if name in missing:
            assert column.null_count == 50
            assert column.type == whole[name].type
        else:
            assert column.combine_chunks().equals(whole[name])
    assert log.batches([*missing, "flow"]).read_all().num_columns == len(missing) + 1
    for to in ("csv", "parquet", "siftr2"):
        assert parshall.instruments.tcp_log.convert(path, to, tmp_path / to).rows > 0
    line = (tmp_path / "csv").read_text().splitlines()[1].split(",")
    assert line[4 + SCHEMA.names.index(missing[0])] == ""


def test_ticks_and_checksums_are_what_the_description_says():
    ticks = 0
    message_reader = pa.ipc.MessageReader.open_stream(pa.OSFile(str(LOG)))
    with pa.ipc.open_stream(LOG) as reader:
        while True:
            try:
                batch, metadata = reader.read_next_batch_with_custom_metadata()
            except StopIteration:
                break
            ticks += batch.num_rows == 0
            assert b"parshall.crc32" in metadata
            assert (b"parshall.ledger" in metadata) == (batch.num_rows == 0)
            last = metadata
            message = message_reader.read_next_message()
            while message.type != "record batch":
                message = message_reader.read_next_message()
            values = b"".join(value for key, value in metadata.items() if key != b"parshall.crc32")
            body = message.body.to_pybytes() if message.body is not None else b""
            expected = zlib.crc32(batch.num_rows.to_bytes(8, "little") + values + body)
            assert metadata[b"parshall.crc32"] == f"{expected:08x}".encode()
    assert ticks == 2
    assert last[b"parshall.final"] == b"true"


def test_polars_and_pandas_take_it():
    log = parshall.read(LOG)
    assert log.to_polars().filter(polars.col("direction").cast(polars.String) == "out").height == 150
    pytest.importorskip("pandas")
    assert (log.to_pandas()["state"] == "ESTABLISHED").all()


def test_a_missing_pandas_is_said_with_the_remedy(monkeypatch):
    monkeypatch.setattr(tcp_log, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pandas is not installed; install it: pip install pandas"):
        parshall.read(LOG).to_pandas()


def test_a_stream_is_read_once():
    stream = parshall.read(LOG)._reader.records()
    pa.RecordBatchReader.from_stream(stream).read_all()
    with pytest.raises(ParshallError, match="has been read"):
        pa.RecordBatchReader.from_stream(stream)


def test_a_cut_log_gives_what_is_before_the_cut(tmp_path):
    cut = tmp_path / "cut.arrow"
    cut.write_bytes(LOG.read_bytes()[:-100])
    log = parshall.read(cut)
    assert not log.complete
    assert "ends early at byte" in log.truncation
    assert log.records.num_rows == 300


def test_a_damaged_log_names_file_and_byte(damaged_log):
    with pytest.raises(ParshallError, match=rf"^{damaged_log}: damaged at byte \d+: "):
        _ = parshall.read(damaged_log).records


@pytest.mark.parametrize(
    ("content", "found"), [(b"", "an empty file"), (b"col1,col2\n1,2\n3,4\n", "not an Arrow stream")]
)
def test_other_files_are_refused(tmp_path, content, found):
    path = tmp_path / "other"
    path.write_bytes(content)
    with pytest.raises(ParshallError, match=found):
        parshall.read(path)
    with pytest.raises(ParshallError, match="cannot be read"):
        parshall.read(tmp_path / "none")


def test_importing_parshall_imports_nothing_slow():
    code = "import parshall, sys; print('pyarrow' in sys.modules, 'parshall._native' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["False", "False"]
    with pytest.raises(AttributeError, match="nothing_of_the_kind"):
        _ = parshall.nothing_of_the_kind


def test_listeners_are_a_table(tmp_path):
    refusing = listener_row(
        2, command="nginx", pid=12, syns_refused=29, first_refused_time_ns=5, last_refused_time_ns=9
    )
    batch = batch_of(random_columns(10, 1, seed=1))
    write_log(tmp_path / "log", [batch], [flow_row(1)], listeners=[refusing, listener_row(1)])
    listeners = parshall.read(tmp_path / "log").listeners
    assert set(listeners.column_names) == set(refusing)
    assert listeners["listener"].to_pylist() == [1, 2]
    assert listeners["pid"].to_pylist() == [None, 12]
    assert listeners["last_refused_time_ns"].type == pa.timestamp("ns", "UTC")
    assert listeners["last_refused_time_ns"].cast(pa.int64()).to_pylist() == [None, 9]
    # Older logs have none.
    assert parshall.read(LOG).listeners.shape == (0, 19)
