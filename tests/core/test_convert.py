"""Conversions from Python and from the command line; what they write is tested in Rust."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow.csv
import pyarrow.parquet
import pytest

import in_process
from parshall.errors import ParshallError
from parshall.instruments.tcp_log import FORMATS, convert

PARSHALL = Path(sys.executable).with_name("parshall")
LOG = Path(__file__).parents[1] / "data" / "small.arrow"


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return in_process.parshall("convert", *arguments)


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_is_written(tmp_path, name):
    result = convert(LOG, name, tmp_path / "out")
    assert result.path == tmp_path / "out"
    assert result.rows > 0
    assert result.path.stat().st_size > 0


def test_csv_and_parquet_hold_all_rows(tmp_path):
    convert(LOG, "csv", tmp_path / "a.csv")
    convert(LOG, "parquet", tmp_path / "a.parquet")
    csv = pyarrow.csv.read_csv(tmp_path / "a.csv")
    parquet = pyarrow.parquet.read_table(tmp_path / "a.parquet")
    assert csv.num_rows == parquet.num_rows == 300
    assert csv["cwnd_segments"].to_pylist() == parquet["cwnd_segments"].to_pylist()
    flows = json.loads(parquet.schema.metadata[b"parshall.flows_table"])
    assert [flow["local_address"] for flow in flows] == ["10.0.0.1", "2001:db8::1"]


def test_text_goes_to_a_pipe():
    result = subprocess.run([PARSHALL, "convert", LOG, "--to", "siftr-1.3"], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0
    lines = result.stdout.splitlines()
    assert lines[0].startswith("enable_time_secs=")
    assert lines[-1].startswith("disable_time_secs=")
    assert {len(line.split(",")) for line in lines[1:-1]} == {27}


def test_binary_goes_to_a_file_named_after_the_log(tmp_path):
    log = tmp_path / "run.arrow"
    log.write_bytes(LOG.read_bytes())
    result = run(log, "--to", "ttprobe-binary", "--json")
    assert result.returncode == 0
    report = json.loads(result.stdout)
    assert report["output"] == str(tmp_path / "run.ttprobe.bin")
    assert Path(report["output"]).stat().st_size == 96 * report["rows"]


def test_polled_view():
    result = run(LOG, "--to", "web10g", "--every", "1ms", "-o", "-")
    assert result.returncode == 0
    assert {len(line.split(",")) for line in result.stdout.splitlines()} == {123}


@pytest.mark.parametrize(
    "text", ["", "ms", "-1ms", "0ms", "0.1ns", "1 minute", "9" * 400 + "s", "99999999999999999999s"]
)
def test_wrong_intervals(text):
    result = run(LOG, "--to", "web10g", "-o", "-", f"--every={text}")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("parshall: convert: --every ") and result.stderr.count("\n") == 1


def test_wrong_requests_exit_with_2():
    for arguments in (["--to", "pcap"], ["--to", "csv", "--every", "1ms"], ["--to", "csv", "-o", str(LOG)]):
        result = run(LOG, *arguments)
        assert result.returncode == 2, arguments
        assert len(result.stderr.splitlines()) == 1


def test_a_failed_conversion_leaves_no_file(tmp_path, damaged_log):
    with pytest.raises(ParshallError, match="damaged at byte"):
        convert(damaged_log, "csv", tmp_path / "out.csv")
    assert not (tmp_path / "out.csv").exists()
    with pytest.raises(ParshallError, match="cannot be written"):
        convert(LOG, "csv", tmp_path / "none" / "out.csv")


def test_a_full_disk_is_reported_with_the_file():
    answer = run(LOG, "--to", "csv", "-o", "/dev/full")
    assert answer.returncode == 1
    assert answer.stderr == (
        "parshall: convert: /dev/full: writing failed: No space left on device (os error 28); "
        "make room or write elsewhere with -o\n"
    )


def test_a_truncated_log_is_reported(tmp_path):
    cut = tmp_path / "cut.arrow"
    cut.write_bytes(LOG.read_bytes()[:-100])
    result = run(cut, "--to", "csv")
    assert result.returncode == 0
    assert "ends early at byte" in result.stderr


def test_a_directory_without_a_log_is_refused(tmp_path):
    answer = run(tmp_path, "--to", "parquet")
    assert answer.returncode == 2
    reason = "has no log, expected the files of one; name a log, or the directory of the files of one"
    assert answer.stderr == f"parshall: convert: {tmp_path}: {reason}\n"


@pytest.mark.parametrize("name", ["csv", "parquet"])
def test_a_full_disk_and_a_closed_pipe_are_reported_in_every_format(name):
    answer = run(LOG, "--to", name, "-o", "/dev/full")
    assert (answer.returncode, answer.stderr.count("\n")) == (1, 1)
    assert "/dev/full: writing failed: No space left on device" in answer.stderr
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as closed:
        answer = subprocess.run(
            [PARSHALL, "convert", LOG, "--to", name, "-o", "-"], stdout=closed, stderr=subprocess.PIPE, timeout=60
        )
    assert (answer.returncode, answer.stderr) == (0, b"")


def test_a_failed_conversion_keeps_the_old_file(tmp_path, damaged_log):
    output = tmp_path / "out.csv"
    output.write_text("before")
    with pytest.raises(ParshallError, match="damaged at byte"):
        convert(damaged_log, "csv", output)
    assert output.read_text() == "before"
    assert sorted(tmp_path.iterdir()) == [damaged_log, output]


def test_an_output_keeps_its_permissions_and_a_link_its_place(tmp_path):
    output, link = tmp_path / "out.csv", tmp_path / "link"
    output.write_text("before")
    output.chmod(0o640)
    link.symlink_to(output)
    convert(LOG, "csv", link)
    assert link.is_symlink()
    assert output.read_text().startswith("local_address,")
    assert output.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_an_interrupted_conversion_leaves_no_partial_file(tmp_path, until, number, status):
    # 60 million lines: long enough for every signal.
    converting = subprocess.Popen(
        [PARSHALL, "convert", LOG, "--to", "web10g", "--every", "1ns", "-o", tmp_path / "out"]
    )
    try:
        until("it writes", lambda: any(path.stat().st_size for path in tmp_path.iterdir()))
        assert converting.poll() is None
        assert not (tmp_path / "out").exists()
        converting.send_signal(number)
        assert converting.wait(30) == status
    finally:
        converting.kill()
        converting.wait()
    assert list(tmp_path.iterdir()) == []


def test_some_flows_are_converted(tmp_path):
    for numbers, option in (([2], "2"), ([1, 2], "1-2")):
        convert(LOG, "csv", tmp_path / "a.csv", flows=numbers)
        assert set(pyarrow.csv.read_csv(tmp_path / "a.csv")["flow"].to_pylist()) == set(numbers)
        result = run(LOG, "--to", "csv", "--flow", option)
        assert result.stdout.encode() == (tmp_path / "a.csv").read_bytes()
    result = run(LOG, "--to", "csv", "--flow", "1,7")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("parshall: convert: --flow 7: is not in ")
