"""Output files: nothing that exists is destroyed, one writer a file, signals are heard, bytes are counted."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle, product
from pathlib import Path
from typing import Any

import pytest

import in_process
import parshall
from suites import long_except

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("root")]

LOG = Path(__file__).parents[1] / "data" / "small.arrow"
OLD = b"what the user had"
TCP = ["tcp", "-q", "-o"]
CAPTURE = ["capture", "-q", "-i", "lo", "-w"]
SOCKET = ["capture", "-q", "-i", "lo", "--backend", "af-packet", "-w"]
CONVERT = ["convert", "-q", LOG, "--to", "csv", "-o"]
# Commands that write into a file.
WRITING = {
    "tcp": TCP,
    "capture": CAPTURE,
    "socket": SOCKET,
    "convert": CONVERT,
    "cpu": ["cpu", "-o"],
    "tcp-cmd": ["tcp", "-q", "--", "sleep", "600"],
}


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "parshall", *map(str, arguments)]


def run(*arguments: object) -> "subprocess.CompletedProcess[str]":
    return in_process.parshall(*arguments)


def send(packets: int) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for _ in range(packets):
            sender.sendto(bytes(1000), ("127.0.0.1", 9))


@contextmanager
def running(*arguments: object, sign: str = "started") -> Iterator["subprocess.Popen[str]"]:
    """A command that has begun, ended at the latest with the context."""
    started = [argument for argument in arguments if argument != "-q"]
    process = subprocess.Popen(command(*started), stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        line = ""
        while sign not in line:
            line = process.stderr.readline()
            assert line, f"{arguments} ended with {process.wait()}"
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        ([*CAPTURE, "FILE", "--filter", "no such filter"], 2),
        ([*CAPTURE, "FILE", "--group", "no-such-group-here"], 2),
        ([*CAPTURE, "FILE", "-w", "/nosuch/dir/x"], 2),
        (["capture", "-q", "--join", "no-such-ring", "-w", "FILE"], 2),
        ([*SOCKET, "FILE", "--filter", "no such filter"], 2),
        (["tcp", "-q", "--cgroup", "/nosuch", "-o", "FILE"], 2),
        ([*TCP, "FILE", "--", "/nosuch/command"], 127),
        (["convert", "-q", "/nosuch.arrow", "--to", "csv", "-o", "FILE"], 2),
        (["convert", "-q", LOG, "--to", "csv", "--every", "1ms", "-o", "FILE"], 2),
        (["sizes", "-q", "--from", "trace", "/nosuch.pcap", "--to", "dist", "-o", "FILE"], 2),
        (["cpu", "-q", "-o", "FILE", "--", "/nosuch/command"], 127),
    ],
)
def test_a_refused_output_leaves_the_old_file(arguments: list[object], status: int, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(OLD)
    result = in_process.parshall(*(file if argument == "FILE" else argument for argument in arguments))
    assert result.returncode == status, result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert file.read_bytes() == OLD


@pytest.mark.parametrize("link", [None, os.symlink, os.link], ids=["itself", "a symbolic link", "a second name"])
@pytest.mark.parametrize("arguments", [["convert", "IN", "--to", "csv"], ["sizes", "--to", "sizes", "-n", "10", "IN"]])
def test_no_command_replaces_its_own_input(arguments: list[str], link: Any, tmp_path: Path) -> None:
    file = tmp_path / "input"
    content = LOG.read_bytes() if arguments[0] == "convert" else b"40 7\n1500 3\n"
    file.write_bytes(content)
    output = file
    if link is not None:
        output = tmp_path / "other"
        link(file, output)
    result = in_process.parshall(*(file if word == "IN" else word for word in arguments), "-q", "-o", output)
    assert result.returncode == 2
    assert f"{output}: is also an input, and would be replaced; name another output" in result.stderr
    assert file.read_bytes() == content


def test_names_and_commands_that_are_not_utf_8_are_logged(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"a\xff.arrow")
    path.write_bytes(OLD)
    result = subprocess.run([*command(*TCP), path, "--", "true", b"b\xff"], capture_output=True, timeout=60)
    assert result.returncode == 0, result.stderr
    log = parshall.read(path)
    assert log.complete
    assert log.environment["command"] == "true 'b?'"
    assert log.environment["command_line"][-1] == "b?"


@pytest.mark.parametrize("name", ["tcp", "capture", "socket"])
def test_a_link_stays_and_leads_to_the_new_file(name: str, tmp_path: Path) -> None:
    arguments = {"tcp": TCP, "capture": CAPTURE, "socket": SOCKET}[name]
    file, link = tmp_path / "file", tmp_path / "link"
    file.write_bytes(OLD)
    file.chmod(0o640)
    link.symlink_to("file")
    with running(*arguments, link):
        # The head is there as soon as the name is.
        assert not file.read_bytes().startswith(OLD)
    assert link.is_symlink() and file.stat().st_mode & 0o777 == 0o640
    assert {path.name for path in tmp_path.iterdir()} == {"file", "link"}


@pytest.mark.parametrize("name", long_except(["capture"], ["tcp", "capture", "socket"]))
def test_a_file_has_one_writer(name: str, tmp_path: Path) -> None:
    first: list[Any] = WRITING[name]
    file = tmp_path / "file"
    with running(*first, file):
        for second in (TCP, CAPTURE, SOCKET, CONVERT, ["cpu", "-q", "-d", "1", "-o"]):
            before = file.stat().st_ino
            result = run(*second, file)
            expected = f"parshall: {second[0]}: {file}: another process is writing it; name another file\n"
            assert (result.returncode, result.stderr) == (1, expected)
            assert file.stat().st_ino == before
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    # When its writer has ended, it may be replaced.
    assert run(*CONVERT, file).returncode == 0
    assert file.read_text().startswith("local_address")


def test_a_series_of_files_has_one_writer(tmp_path: Path) -> None:
    file, last = tmp_path / "t.pcapng", tmp_path / "t.000001.pcapng"
    rotation = ("--rotate-time", "1h", "--rotate-files", "1")
    with running(*CAPTURE, file, *rotation):
        result = run(*CAPTURE, file, *rotation)
        assert (result.returncode, last.exists()) == (1, True)
        assert result.stderr == f"parshall: capture: {last}: another process is writing it; name another file\n"
    assert [path.name for path in tmp_path.iterdir()] == [last.name]
    # Who is refused for another reason removes no file of the series.
    assert run(*CAPTURE, file, *rotation, "--group", "no-such-group-here").returncode == 2
    assert [path.name for path in tmp_path.iterdir()] == [last.name]


def waits_for_a_reader(process: "subprocess.Popen[bytes]", fifo: Path) -> bool:
    """Whether the process has come to the FIFO: it sleeps between its tries in a thread of ours."""
    assert process.poll() is None
    names = [task.read_text().strip() for task in Path(f"/proc/{process.pid}/task").glob("*/syscall")]
    return any(name.startswith(("230 ", "35 ")) for name in names)


# Each command and each signal once.
QUICK_SIGNALS = list(zip(WRITING, cycle((signal.SIGINT, signal.SIGTERM)), strict=False))


@pytest.mark.parametrize(
    ("name", "number"), long_except(QUICK_SIGNALS, product(WRITING, (signal.SIGINT, signal.SIGTERM)))
)
def test_a_signal_ends_the_wait_for_the_reader_of_a_fifo(
    name: str, number: signal.Signals, until: Any, tmp_path: Path
) -> None:
    arguments: list[Any] = WRITING[name]
    fifo, other = tmp_path / "fifo", tmp_path / "other"
    os.mkfifo(fifo)
    other.write_bytes(OLD)
    where = [*TCP, fifo, *arguments[2:]] if "--" in arguments else [*arguments, fifo]
    where = ["capture", "-q", "-w", other, *where[2:]] if arguments is CAPTURE else where
    process = subprocess.Popen(command(*where), stderr=subprocess.PIPE)
    until("it waits", lambda: waits_for_a_reader(process, fifo))
    process.send_signal(number)
    errors = process.communicate(timeout=10)[1]
    status = process.returncode
    assert status == 130 or (number == signal.SIGTERM and status in (143, -signal.SIGTERM)), errors
    assert errors == b""
    assert {path.name for path in tmp_path.iterdir()} == {"fifo", "other"}
    assert other.read_bytes() == OLD


@pytest.mark.parametrize("name", long_except(["tcp"], ["tcp", "capture", "convert"]))
def test_fifos_devices_and_descriptors_are_written_to_as_they_are(name: str, tmp_path: Path) -> None:
    arguments: list[Any] = WRITING[name]
    ends = [] if arguments is CONVERT else ["-d", "0.2"]
    fifo, whole = tmp_path / "fifo", tmp_path / "whole"
    os.mkfifo(fifo)
    writing = subprocess.Popen(command(*arguments, fifo, *ends))
    through_fifo = fifo.read_bytes()
    assert writing.wait(30) == 0
    assert run(*arguments, whole, *ends).returncode == 0
    assert through_fifo[:4] == whole.read_bytes()[:4]
    assert fifo.is_fifo()
    assert run(*arguments, "/dev/null", *ends).returncode == 0
    assert Path("/dev/null").is_char_device()
    for name, mode in (("pipe", None), ("file", "wb"), ("appended", "ab")):
        before = b"" if mode == "wb" or mode is None else OLD
        place = tmp_path / name
        place.write_bytes(before)
        with place.open(mode or "rb") as out:
            result = subprocess.run(
                command(*arguments, "/dev/stdout", *ends), stdout=out if mode else subprocess.PIPE, timeout=60
            )
        got = place.read_bytes() if mode else result.stdout
        assert result.returncode == 0
        assert got[: len(before) + 4] == before + through_fifo[:4]


@pytest.mark.parametrize("options", [(), ("--compress", "zstd"), ("--compress", "gzip"), ("--backend", "af-packet")])
def test_the_bytes_of_a_capture_are_those_of_its_files(options: tuple[str, ...], tmp_path: Path) -> None:
    files = [tmp_path / "one", tmp_path / "two"]
    outputs = [word for file in files for word in ("-w", file)]
    with running("capture", "--json", "-i", "lo", *outputs, *options) as process:
        send(5)
        process.send_signal(signal.SIGINT)
        account = json.loads(process.communicate(timeout=30)[0])
    assert account["ledger"]["cost"]["log_bytes"] == sum(file.stat().st_size for file in files) > 0


def test_the_bytes_of_a_series_are_those_of_all_its_files(tmp_path: Path) -> None:
    with running("capture", "--json", "-i", "lo", "-w", tmp_path / "t.pcapng", "--rotate-size", "8K") as process:
        send(20)
        process.send_signal(signal.SIGINT)
        account = json.loads(process.communicate(timeout=30)[0])
    sizes = [file.stat().st_size for file in tmp_path.iterdir()]
    assert len(sizes) > 2
    assert account["ledger"]["cost"]["log_bytes"] == sum(sizes)
