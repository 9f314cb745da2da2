"""What `parshall path` does when something is wrong: one clear line, the right status, no leftovers."""

import json
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from conversation import on_one_cpu, socket_at
from path_run import COMMAND, Measurement, check_balance, complete_log, run
from tcp_logger import small_disk

import in_process
from host_state import BPF_LINK_GET_NEXT_ID, bpf_ids
from parshall.instruments.path import PathLog, PathProfile, Trace, join
from parshall.instruments.tcp_log import read
from suites import long_except

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("root")]
WITHOUT_CAPABILITIES = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]
PORT = 9000
# A program for each stage is verified when a measurement starts, which takes seconds for all of them.
FEW_STAGES = ["--stages", "netif_rx,receive,local_in,start_xmit,drop"]
# More than a log has before its first rows.
MANY_ROWS_BYTES = 100_000
# In the virtual machine of scripts/under-kernel.
UNDER_KERNEL = Path("/run/kernel/start")


class Sender:
    """Datagrams from one host to another, until stopped."""

    def __init__(self, pair: tuple[Any, Any, str]) -> None:
        self._source, self._sink, self._address = pair
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        with socket_at(self._source, self._address, socket.SOCK_DGRAM) as sender:
            while not self._stop.is_set():
                for _ in range(200):
                    sender.sendto(bytes(100), (self._address, PORT))
                time.sleep(0.001)

    def __enter__(self) -> "Sender":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(30)


@pytest.fixture
def pair(bed: Any) -> Iterator[tuple[Any, Any, str]]:
    """Two hosts, and the second one's address, at which a socket receives and is not read."""
    left, right = bed.host("left"), bed.host("right")
    link = bed.link(left, right, backend="veth")
    address = str(link.address(right))
    with socket_at(right, address, socket.SOCK_DGRAM) as sink:
        sink.bind((address, PORT))
        yield left, right, address


def send(host: Any, address: str, count: int) -> None:
    """Send datagrams from a host."""
    with socket_at(host, address, socket.SOCK_DGRAM) as sender:
        for _ in range(count):
            sender.sendto(bytes(100), (address, PORT))


def error_line(errors: str) -> str:
    """Return the one line of error output, without the command's name."""
    (line,) = (line for line in errors.splitlines() if ": started, " not in line)
    assert line.startswith("parshall: path: "), line
    return line.removeprefix("parshall: path: ")


def links_now() -> set[int]:
    """Return the identifiers of all eBPF links of the host."""
    return set(bpf_ids(BPF_LINK_GET_NEXT_ID))


def links_with_numbers(pid: int) -> set[int]:
    """Return the identifiers of the eBPF links that a process holds."""
    texts = []
    for path in Path(f"/proc/{pid}/fdinfo").iterdir():
        # It may close one meanwhile.
        with suppress(FileNotFoundError):
            texts.append(path.read_text())
    return {int(number) for text in texts for number in re.findall(r"link_id:\s*(\d+)", text)}


# ---- requests that cannot be met -------------------------------------------------------------

REFUSALS = [
    (["--stages", "receive,nowhere"], r"--stages nowhere: expected names out of xdp, gro, "),
    (["--stages", "tcp_receive"], r"--stages tcp_receive: expected one at which packets begin"),
    (["--stages", "receive,xmit"], r"--stages receive,xmit: expected start_xmit with xmit"),
    (["--filter", "udp and and"], r"filter.*udp and and"),
    (["-i", "nosuch0"], r"--interface nosuch0: expected an interface of this network namespace"),
    (["--every", "0"], r"--every 0: must be above 0; expected"),
    (["--packets-max", "1000"], r"--packets-max 1000: expected a power of two from 1024 to 4194304"),
    (["--packets-max", "512"], r"--packets-max 512: expected a power of two"),
    (["--packets-max", "8388608"], r"--packets-max 8388608: expected a power of two"),
    (["--by", "connection", "--groups-max", "5000"], r"--groups-max 5000: expected 1 to 4096"),
    (["--share", "0%"], r"--share 0%?: expected"),
    (["--share", "much"], r"--share much: expected"),
    (["--probe-cost", "--share", "5%"], r"--probe-cost: the cost is measured in windows of its own"),
    (["--budget", "0"], r"--budget 0: expected a share of one CPU above 0, at most 1"),
    (["--budget", "1%", "--share", "5%"], r"--budget: decides when the programs are attached; leave out --share"),
    (["--budget", "1%", "--stages", "xdp,receive", "-i", "lo"], r"--budget: the program of xdp stays between windows"),
    (["--by", "process"], r"--by process: expected none, interface, connection, cgroup or command"),
    (["--netns", "no-such-namespace"], r"--netns no-such-namespace: No such file or directory"),
    (["--cgroup", "/no-such-group"], r"cgroup /no-such-group: there is no such control group"),
    (["--buffer", "512M"], r"--buffer 512M: expected a size from 32K to 256M"),
    (["--duration", "soon"], r"--duration soon: expected a time"),
]  # fmt: skip


@pytest.mark.parametrize("wrong", [["--stages", "nowhere"], ["--packets-max", "1000"], ["--by", "process"]])
def test_a_wrong_option_costs_no_file_of_what_is_measured_beside(wrong: list[str], tmp_path: Path) -> None:
    files = {
        f"--{name}": tmp_path / f"older.{suffix}" for name, suffix in (("capture", "pcapng"), ("tcp-log", "arrow"))
    }
    for file in files.values():
        file.write_text("older")
    others = [str(word) for pair in files.items() for word in pair]
    answer = in_process.parshall("path", "-i", "lo", "-o", tmp_path / "new.arrow", *others, *wrong)
    assert answer.returncode == 2, answer.stderr
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == dict.fromkeys(
        ("older.pcapng", "older.arrow"), "older"
    )


@pytest.mark.parametrize("moment", long_except(["c.pcapng"], ["c.pcapng", "t.arrow", "p.arrow", "started"]))
def test_an_interrupt_leaves_all_that_was_measured_beside(
    moment: str, tmp_path: Path, until: Callable[..., None]
) -> None:
    """Also while the second and the third measurement start: what they write is joined, and one file has no use."""
    log, tcp_log, capture = (tmp_path / name for name in ("p.arrow", "t.arrow", "c.pcapng"))
    words = [*FEW_STAGES, "-i", "lo", "-o", log, "--tcp-log", tcp_log, "--capture", capture]
    process = subprocess.Popen([*COMMAND, *map(str, words)], stderr=subprocess.PIPE, text=True)
    try:
        if moment == "started":
            assert process.stderr and any("started" in line for line in process.stderr)
        else:
            until(f"{moment} is there", (tmp_path / moment).exists)
        process.send_signal(signal.SIGINT)
        _, messages = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, messages
    assert read(tcp_log).complete
    join(complete_log(log), read(tcp_log), Trace(capture))
    assert sorted(tmp_path.iterdir()) == [capture, log, tcp_log]


@pytest.mark.parametrize(("arguments", "words"), REFUSALS, ids=[" ".join(arguments) for arguments, _ in REFUSALS])
def test_a_refusal_is_one_line_and_changes_nothing(arguments: list[str], words: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("an older log")
    answer = in_process.parshall("path", "-o", log, *arguments)
    assert answer.stdout == ""
    assert re.search(words, error_line(answer.stderr)), answer.stderr
    assert answer.returncode == 2
    assert log.read_text() == "an older log"
    assert list(tmp_path.iterdir()) == [log]


@pytest.mark.parametrize("output", ["missing/log", ".", "file/log"])
def test_an_output_that_cannot_be_created(output: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    answer = in_process.parshall("path", *FEW_STAGES, "-o", tmp_path / output, "--duration", "1")
    assert re.search(r"cannot be written: .*; name a file", error_line(answer.stderr))
    assert answer.returncode == 2


def test_without_privileges(tmp_path: Path) -> None:
    answer = subprocess.run(
        [*WITHOUT_CAPABILITIES, *COMMAND, "-o", str(tmp_path / "log")], capture_output=True, text=True, timeout=60
    )
    assert answer.returncode == 2
    assert error_line(answer.stderr).startswith("needs CAP_NET_ADMIN, CAP_PERFMON, CAP_BPF: "), answer.stderr
    assert not (tmp_path / "log").exists()


def test_a_stage_that_cannot_be_had_is_named_and_the_others_are_measured(pair: Any, until: Any, tmp_path: Path) -> None:
    """Tcx is attached to interfaces, and none is given: as with a tracepoint that a kernel lacks (selection.rs)."""
    _, sink, _ = pair
    path = tmp_path / "log"
    stages = "netif_rx,receive,tcx_ingress,tcp_receive"
    with Measurement("-o", path, "--netns", sink.namespace, "--stages", stages, "--reads") as measurement, Sender(pair):
        until("there are rows", lambda: path.exists() and path.stat().st_size > MANY_ROWS_BYTES)
        result = measurement.end(signal.SIGINT)
    assert result.returncode == 0, result.stderr
    assert "parshall: path: stage tcx_ingress: not measured, " in result.stderr
    assert (
        "parshall: path: stage reads: not measured, they begin at the stage data_ready: add it to --stages"
        in result.stderr
    )
    log = PathLog(path)
    assert log.packets.num_rows > 0
    assert log.packets["tcx_ingress_ns"].null_count == log.packets.num_rows


def test_a_log_without_packets_is_complete(bed: Any, tmp_path: Path) -> None:
    path = tmp_path / "log"
    assert (
        in_process.parshall(
            "path", "-o", path, *FEW_STAGES, "--netns", bed.host("idle").namespace, "--duration", "0.3"
        ).returncode
        == 0
    )
    log = PathLog(path)
    assert log.complete
    assert log.records.num_rows == 0


# ---- the disk, and the end --------------------------------------------------------------------


def test_a_disk_that_fills_up_ends_the_log_and_keeps_what_was_written(pair: Any, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "1m") as disk, Sender(pair):
        path = disk / "log"
        with Measurement("-o", path, *FEW_STAGES, "--netns", pair[1].namespace, "--json") as measurement:
            result = measurement.end()
        log = PathLog(path)
        rows, is_complete = log.records.num_rows, log.complete
        assert shutil.disk_usage(disk).free == 0
    assert result.returncode == 1
    assert re.search(
        rf"log {path}: No space left on device.* after \d+ bytes; make room, or log to another disk",
        error_line(result.stderr),
    )
    assert not is_complete
    account = check_balance(json.loads(result.stdout)["ledger"])["packets"]
    assert account["lost"]["unwritten"] > 0
    # What the ledger calls logged is what opens, to the row.
    assert rows == account["logged"] > 1000


def test_a_full_device(tmp_path: Path) -> None:
    answer = in_process.parshall("path", *FEW_STAGES, "-o", "/dev/full", "--duration", "1")
    assert re.search(r"/dev/full: No space left on device.* after 0 bytes; make room", error_line(answer.stderr))
    assert answer.returncode == 1


def test_after_a_kill_the_log_opens_and_no_program_is_left(pair: Any, until: Any, tmp_path: Path) -> None:
    path = tmp_path / "log"
    with Sender(pair), Measurement("-o", path, *FEW_STAGES, "--netns", pair[1].namespace) as measurement:
        until("the log has ticked", lambda: bool(PathLog(path).ledger))
        first = PathLog(path).records.num_rows
        until("it has ticked again", lambda: PathLog(path).records.num_rows > first)
        ticked = PathLog(path).records.num_rows
        held = links_with_numbers(measurement.process.pid)
        assert len(held) >= 5
        assert held <= links_now()
        measurement.process.kill()
        measurement.process.wait()
        killed_ns = time.time_ns()
        until("the kernel has freed its links", lambda: not held & links_now())
    log = PathLog(path)
    assert not log.complete
    assert log.records.num_rows >= ticked
    assert log.records["time"].cast("int64").to_numpy().max() < killed_ns
    assert log.ledger["complete"] is False


@pytest.mark.parametrize(
    "number",
    long_except([signal.SIGTERM], [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]),
    ids=lambda number: number.name,
)
def test_a_signal_ends_the_log_with_its_ledger(pair: Any, number: signal.Signals, until: Any, tmp_path: Path) -> None:
    path = tmp_path / "log"
    with Sender(pair), Measurement("-o", path, *FEW_STAGES, "--netns", pair[1].namespace) as measurement:
        until("there are rows", lambda: path.exists() and path.stat().st_size > MANY_ROWS_BYTES)
        result = measurement.end(number)
    assert (result.returncode, result.stdout) == (0, ""), result.stderr
    log = complete_log(path)
    accounts = check_balance(log.ledger)
    assert log.records.num_rows == accounts["packets"]["logged"] + accounts["reads"]["logged"] > 0
    assert "packets: " in result.stderr and "seen  filtered  thinned" in result.stderr


def test_a_log_through_a_fifo(pair: Any, until: Any, tmp_path: Path) -> None:
    fifo, copy = tmp_path / "fifo", tmp_path / "copy"
    os.mkfifo(fifo)
    with copy.open("wb") as file, subprocess.Popen(["cat", str(fifo)], stdout=file) as reader, Sender(pair):
        with Measurement("-o", fifo, *FEW_STAGES, "--netns", pair[1].namespace) as measurement:
            until("there are rows", lambda: copy.exists() and copy.stat().st_size > MANY_ROWS_BYTES)
            result = measurement.end(signal.SIGINT)
        reader.wait(20)
    assert result.returncode == 0, result.stderr
    assert complete_log(copy).records.num_rows > 0


def test_ctrl_c_while_a_fifo_has_no_reader(tmp_path: Path, until: Any) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    process = subprocess.Popen([*COMMAND, *FEW_STAGES, "-o", str(fifo)], stderr=subprocess.PIPE, text=True)
    # It loads its programs before it opens the log.
    until("it waits for a reader", lambda: process.poll() is not None or _waits_for_reader(process.pid))
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert (process.returncode, ": started, " in errors) == (130, False), errors
    assert "Traceback" not in errors


def _waits_for_reader(pid: int) -> bool:
    """Whether a process has loaded its programs; it then waits for the reader."""
    try:
        return any("prog_id" in path.read_text() for path in Path(f"/proc/{pid}/fdinfo").iterdir())
    except OSError:
        return False


def test_a_reader_that_goes_away_ends_the_log_with_0(pair: Any) -> None:
    command = [*COMMAND, "-o", "-", *FEW_STAGES, "--netns", pair[1].namespace]
    with Sender(pair), subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout and process.stderr
        assert process.stdout.read(100)
        process.stdout.close()
        errors = process.stderr.read().decode()
        assert process.wait(30) == 0, errors
    assert "Traceback" not in errors and "Broken pipe" not in errors


# ---- what changes while measuring ----------------------------------------------------------------


def continues(path: Path, measurement: Measurement, until: Callable[..., None]) -> None:
    """Fail unless a measurement writes its ledger from now on, so that it goes on after what was done to it."""

    def age_s() -> float:
        ledger = PathLog(path).ledger
        return ledger["cost"]["wall_s"] if ledger else 0.0

    before_s = age_s()
    until("it has ended, or another ledger is written", lambda: measurement.has_ended() or age_s() > before_s)
    assert not measurement.has_ended()


@pytest.mark.parametrize(
    ("stages", "is_said"), [("receive,local_in", True), ("receive,socket_in", False), ("queue,start_xmit", False)]
)
def test_stages_at_which_no_receiver_is_known_are_named(pair: Any, stages: str, is_said: bool) -> None:
    result = in_process.parshall(
        "path", "--netns", pair[1].namespace, "--stages", stages, "--by", "cgroup", "--duration", "0.2"
    )
    assert result.returncode == 0, result.stderr
    line = "parshall: path: what comes in has no control group without the stage socket_in: add it to --stages"
    assert (line in result.stderr.splitlines()) == is_said


def test_an_interface_that_is_removed_while_measuring(bed: Any, until: Any, tmp_path: Path) -> None:
    left, right = bed.host("left"), bed.host("right")
    link = bed.link(left, right, backend="veth")
    path, interface = tmp_path / "log", link.interface(right)
    address = str(link.address(right))
    stages = "gro,netif_rx,receive,tcx_ingress,local_in,queue,start_xmit,drop"
    arguments = ["-o", path, "--netns", right.namespace, "-i", interface, "--stages", stages]
    with Measurement(*arguments) as measurement:
        send(left, address, 100)
        right.run(["ip", "link", "delete", interface])
        continues(path, measurement, until)
        result = measurement.end(signal.SIGINT)
    assert result.returncode == 0, result.stderr
    log = complete_log(path)
    assert log.packets["tcx_ingress_ns"].null_count < log.packets.num_rows


@pytest.mark.optional
@pytest.mark.alone
def test_a_cpu_that_is_taken_offline(pair: Any, until: Any, tmp_path: Path) -> None:
    last = max(os.sched_getaffinity(0))
    switch = Path(f"/sys/devices/system/cpu/cpu{last}/online")
    if last == 0 or not switch.exists():
        pytest.skip("no CPU of this machine can be taken offline")
    path = tmp_path / "log"
    with Sender(pair), Measurement("-o", path, *FEW_STAGES, "--netns", pair[1].namespace) as measurement:
        until("there are rows", lambda: path.exists() and path.stat().st_size > MANY_ROWS_BYTES)
        try:
            try:
                switch.write_text("0")
            except OSError as error:
                pytest.skip(f"{switch} cannot be written: {error}")
            continues(path, measurement, until)
        finally:
            if switch.read_text().strip() == "0":
                switch.write_text("1")
        continues(path, measurement, until)
        result = measurement.end(signal.SIGINT)
    assert result.returncode == 0, result.stderr
    log = complete_log(path)
    assert log.packets.num_rows > 0


def test_times_are_those_of_the_wall_clock(pair: Any, echo: Any, tmp_path: Path) -> None:
    """The kernel's stamps are monotonic, so that a step of the clock moves no time; the offset is added once."""
    left, right, address = pair
    path = tmp_path / "log"
    with Measurement(
        "-o", path, *FEW_STAGES, "--netns", right.namespace, "--filter", f"udp dst port {PORT}"
    ) as measurement:
        before_ns = time.time_ns()
        with on_one_cpu():
            send(left, address, 50)
            # Behind the last one: on a busy host packets wait for a thread of the kernel.
            echo(left, right, address)
        after_ns = time.time_ns()
        assert measurement.end(signal.SIGINT).returncode == 0
    log = PathLog(path)
    times = log.packets["time"].cast("int64").to_numpy()
    assert len(times) == 50
    # Slewing moves the clocks against each other by some parts in ten thousand at most.
    assert before_ns - 1_000_000 <= times.min() <= times.max() <= after_ns + 1_000_000
    offset_ns = time.time_ns() - time.monotonic_ns()
    assert log.clock["clock"] == "CLOCK_REALTIME"
    assert log.clock["monotonic_offset_ns"] == pytest.approx(offset_ns, abs=10_000_000)


@pytest.mark.optional
def test_a_clock_that_steps_moves_no_time(pair: Any, tmp_path: Path) -> None:
    if not UNDER_KERNEL.exists():
        pytest.skip("others use this machine's clock; scripts/under-kernel has one of its own")
    left, right, address = pair
    path = tmp_path / "log"
    with Measurement(
        "-o", path, *FEW_STAGES, "--netns", right.namespace, "--filter", f"udp dst port {PORT}"
    ) as measurement:
        with socket_at(left, address, socket.SOCK_DGRAM) as sender:
            began_ns = time.monotonic_ns()
            for step_s in (0, 3600, -7200, 3600):
                time.clock_settime(time.CLOCK_REALTIME, time.time() + step_s)
                for _ in range(10):
                    sender.sendto(bytes(100), (address, PORT))
            took_ns = time.monotonic_ns() - began_ns
        result = measurement.end(signal.SIGINT)
    assert result.returncode == 0, result.stderr
    log = PathLog(path)
    check_balance(log.ledger)
    times = log.packets["time"].cast("int64").to_numpy()
    assert len(times) == 40
    assert times.max() - times.min() <= took_ns


def test_two_measurements_at_once_see_the_same(pair: Any, echo: Any, tmp_path: Path) -> None:
    left, right, address = pair
    paths = [tmp_path / "one", tmp_path / "two"]
    arguments = [*FEW_STAGES, "--netns", right.namespace, "--filter", f"udp dst port {PORT}"]
    with Measurement("-o", paths[0], *arguments) as one, Measurement("-o", paths[1], *arguments) as two:
        with on_one_cpu():
            send(left, address, 300)
            echo(left, right, address)
        assert [each.end(signal.SIGINT).returncode for each in (one, two)] == [0, 0]
    assert [PathLog(path).packets.num_rows for path in paths] == [300, 300]


# ---- memory ---------------------------------------------------------------------------------------


def test_a_reader_that_lags_loses_counted_rows(pair: Any, echo: Any, tmp_path: Path) -> None:
    left, right, address = pair
    path = tmp_path / "log"
    words = [*FEW_STAGES, "--netns", right.namespace, "--buffer", "32K", "--filter", f"udp dst port {PORT}"]
    with Measurement("-o", path, *words, "--json") as measurement:
        measurement.process.send_signal(signal.SIGSTOP)
        with on_one_cpu():
            send(left, address, 3000)
            echo(left, right, address)
        measurement.process.send_signal(signal.SIGCONT)
        result = measurement.end(signal.SIGINT)
    account = check_balance(json.loads(result.stdout)["ledger"])["packets"]
    assert account["seen"] - account["filtered"] == 3000
    assert account["lost"]["overwritten"] > 1000
    assert PathLog(path).packets.num_rows == account["logged"] > 0


def test_too_few_file_descriptors_are_an_error_of_one_line(tmp_path: Path) -> None:

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (24, 24))

    answer = run("-o", tmp_path / "log", *FEW_STAGES, "--duration", "0.5", preexec_fn=limit)
    assert answer.returncode == 1
    line = error_line(answer.stderr)
    assert line.startswith("the kernel did not load the programs: "), line
    assert line.endswith("; `parshall doctor` shows what this host offers"), line


def test_an_interrupt_between_the_end_of_a_session_and_its_summary_is_no_fault(pair: Any) -> None:
    """Python handles a signal when the native side returns: it knows the account, and Python does not yet."""

    class Interrupted(PathProfile):
        count = 0

        def _summarize(self, account: dict[str, Any]) -> Any:
            self.count += 1
            if self.count == 1:
                raise KeyboardInterrupt
            return super()._summarize(account)

    with pytest.raises(KeyboardInterrupt):
        with Interrupted(netns=pair[0].namespace) as profile:
            profile.stop()
    assert profile.summary is not None and profile.summary.failure is None
