"""What `parshall capture` does when something is wrong: one clear line, the right status, no leftovers."""

import fcntl
import grp
import os
import pty
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from capturer import (
    EXPERIMENT,
    PARSHALL,
    Capturer,
    account_of,
    classic_packets,
    frame,
    packets_of,
    ring_name,
    subscribers_of,
    total,
    written_frames,
)
from carrier import has_carrier
from test_capture_rings import Place, numbers_of, place, run
from threads import cpu_s, pauses, threads_named

import parshall
from parshall.cli.doctor import remove_leftovers
from parshall.cli.main import dispatch

__all__ = ["place"]
pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("root")]


@pytest.fixture(scope="module")
def lonely() -> Iterator[Any]:
    """Yield a host without links, shared by tests that create nothing on it."""
    from parshall.testbed import Testbed

    with Testbed() as testbed:
        yield testbed.host("lonely")


@pytest.fixture
def refuse(lonely: Any, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run the command in this process, which saves the start of one; return the error line of a wrong request."""

    def run_here(*arguments: str) -> str:
        with lonely.enter():
            status = dispatch(["capture", *arguments])
        output, errors = capsys.readouterr()
        assert (status, output) == (2, ""), errors
        return error_line(subprocess.CompletedProcess(arguments, status, output, errors))

    return run_here


def error_line(result: subprocess.CompletedProcess[str]) -> str:
    """The one line of error output, without the command's name."""
    (line,) = (line for line in result.stderr.splitlines() if ": started, " not in line)
    assert line.startswith("parshall: capture: "), line
    return line.removeprefix("parshall: capture: ")


def test_a_filter_may_have_thousands_of_ports(place: Place, until: Any, tmp_path: Path) -> None:
    ports = " or ".join(f"port {port}" for port in range(1_000, 3_700))
    outputs = [tmp_path / "not-of-these.pcapng", tmp_path / "all.pcapng"]
    arguments = ["--filter", f"not ({ports})", "--write", outputs[0], "--filter", "", "--write", outputs[1]]
    where = ["-i", place.interface, "--direction", "in"]
    with Capturer(until, place.host, *where, *arguments, "--json", subscribers=2) as capturer:
        place.send(50)
        result = capturer.end()
    assert result.returncode == 0, result.stderr
    assert [numbers_of(output) for output in outputs] == [list(range(50))] * 2


def test_ctrl_c_ends_the_compilation_of_a_filter(lonely: Any, until: Any, tmp_path: Path) -> None:
    # Behind `vlan` a list is compiled as a whole, which takes libpcap minutes.
    ports = " or ".join(f"port {port}" for port in range(1_000, 3_000))
    command = [PARSHALL, "capture", "-i", "lo", "--filter", f"vlan and ({ports})", "--write", tmp_path / "x.pcapng"]
    with lonely.enter():
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        # Far more than anything else that the command does before it captures.
        until(
            "it compiles",
            lambda: any(cpu_s(thread) > 0.5 for thread in threads_named("parshall-start", process.pid)),
            timeout_s=60,
        )
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=20)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "no interface: name one with -i, or a ring with --join"),
        (("-i", "nosuch0"), "interface nosuch0: no such interface"),
        (("-i", "lo", "-i", "lo"), "--interface lo: it is named twice"),
        (("-i", "lo", "--snaplen", "x"), "--snaplen x: expected a number such as"),
        (("-i", "lo", "--snaplen", "262145"), "--snaplen 262145: expected 1 to 262144 bytes"),
        (("-i", "lo", "--buffer", "512M"), "--buffer 512M: expected a size from 1M to 256M"),
        (("-i", "lo", "--buffer", "lots"), "--buffer lots: expected a size"),
        (("-i", "lo", "--direction", "up"), "--direction up: expected in, out or both"),
        (("-i", "lo", "--hook", "ftrace"), "--hook ftrace: expected auto, xdp or tcx"),
        (("-i", "lo", "--hook", "xdp", "--direction", "both"), "--direction both: XDP sees only packets that come in"),
        (("-i", "lo", "--policy", "none"), "--policy none: expected fast or slow"),
        (("-i", "lo", "--count", "0"), "--count 0: must be above 0; expected a number such as 1000, 10k or 2M"),
        (("-i", "lo", "--duration", "-1"), "--duration -1: expected a time"),
        (("-i", "lo", "--name", "../etc"), "--name ../etc: expected up to 64 letters"),
        (("-i", "lo", "--group", "nobody-has-it"), "--group nobody-has-it: no such group"),
        (("-i", "lo", "--join", "other"), "--join other: a ring has its interfaces already; leave out -i"),
        (("-i", "lo", "--format", "erf"), "--format erf: expected pcapng or pcap"),
        (("-i", "lo", "--rotate-files", "3"), "--rotate-files: give --rotate-size or --rotate-time, too"),
        (("-i", "lo", "--keep", "1h"), "--keep: give --rotate-size or --rotate-time, too"),
        (
            ("-i", "lo", "--rotate-size", "1M", "--rotate-files", "0"),
            "--rotate-files 0: must be above 0; expected a number such as",
        ),
        (("-i", "lo", "--rotate-size", "10"), "--rotate-size 10: expected 4096 bytes or more"),
        (("-i", "lo", "--write", "x.pcap.xz"), "--write x.pcap.xz: .xz cannot be written; name it .zst, .gz or .lz4"),
        (("-i", "lo", "--filter", "", "--filter", ""), "2 --filter and 1 --write"),
        (("-i", "lo", "--filter", "tcp \udcff"), r"--filter 'tcp \xff': character 5 is not UTF-8; leave it out"),
        (("-i", "lo\udc80"), r"--interface 'lo\x80': character 3 is not UTF-8"),
        (("-i", "lo", "--filter", "tcp \x1b[31m"), r"filter 'tcp \u{1b}[31m': can't parse"),
        (("-i", "lo", "--filter", "tcp\nprot 80"), r"filter 'tcp\nprot 80': can't parse"),
        (("-i", "lo", "--filter", "port 1 or " * 10_000), "filter '..."),
        (("-i", "lo", "--write", "/nosuch/dir/x.pcapng"), "/nosuch/dir/x.pcapng: cannot be written"),
    ],
)
def test_a_wrong_request_is_refused_in_one_line(
    refuse: Callable[..., str], tmp_path: Path, arguments: tuple[str, ...], says: str
) -> None:
    rest = [] if "--write" in arguments else ["--write", str(tmp_path / "x.pcapng")]
    rest += [] if "--name" in arguments or "--join" in arguments else ["--name", ring_name()]
    errors = refuse(*arguments, *rest)
    assert errors.startswith(says), errors
    assert len(errors) < 500


@pytest.mark.parametrize("load", ["memcpy:50", "zlib:3,memcpy:2"])
def test_work_on_each_packet_changes_no_packet(place: Place, until: Any, tmp_path: Path, load: str) -> None:
    file = tmp_path / "x.pcapng"
    arguments = ["--direction", "in", "--load", load, "-w", file]
    with Capturer(until, place.host, "-i", place.interface, *arguments) as capture:
        place.send(100)
        until("they are flushed", lambda: has_frames(file, 100))
        capture.end()
    assert numbers_of(file) == list(range(100))


@pytest.mark.parametrize(
    "load", ["memcpy", "memcpy:-1", "memcpy:1000000", "zlib:10", "gzip:3", "memcpy:٣", "zlib:3,", "zlib:3,tar"]
)
def test_wrong_work_is_refused(refuse: Callable[..., str], tmp_path: Path, load: str) -> None:
    errors = refuse("-i", "lo", "--load", load, "-w", str(tmp_path / "x.pcapng"))
    assert errors.startswith(f"--load {load}: expected memcpy:N (up to 100000), zlib:LEVEL (0 to 9), or both")


def test_an_invalid_filter_is_reported_with_its_column_and_the_ring_continues(
    place: Place, until: Any, tmp_path: Path
) -> None:
    file = tmp_path / "x.pcapng"
    with Capturer(until, place.host, "-i", place.interface, "--direction", "in", "-w", file, "--json") as capture:
        place.send(10)
        for where in (["--join", capture.ring], ["-i", place.interface, "--name", ring_name()]):
            result = run(place.host, *where, "--filter", "udp port 53 and host", "-w", tmp_path / "y.pcapng")
            assert result.returncode == 2
            errors = error_line(result)
            assert errors.startswith("filter 'udp port 53 and host': can't parse filter expression: syntax error")
            assert errors.endswith("at column 21 (its end); see pcap-filter(7)")
        assert len(subscribers_of(capture.ring)) == 1
        place.send(10)
        until("they are there", lambda: has_frames(file, 20))
        result = capture.end()
    assert result.returncode == 0
    assert numbers_of(file) == list(range(20))
    account_of(result)


def test_a_capture_continues_after_its_interface_was_down(place: Place, until: Any, tmp_path: Path) -> None:
    file = tmp_path / "x.pcapng"
    with Capturer(until, place.host, "-i", place.interface, "--direction", "in", "-w", file, "--json") as capture:
        place.send(10)
        place.host.run(["ip", "link", "set", place.interface, "down"])
        place.host.run(["ip", "link", "set", place.interface, "up"])
        for end in ((place.host, place.interface), (place.peer, place.peer_interface)):
            until("the carrier is back", lambda end=end: has_carrier(*end))
        place.send(10)
        until("it is there", lambda: has_frames(file, 20))
        result = capture.end()
    assert result.returncode == 0
    lines = result.stderr.splitlines()
    assert f"parshall: capture: interface {place.interface} went down; the capture goes on when it is up again" in lines
    assert f"parshall: capture: interface {place.interface} is up again" in lines
    assert numbers_of(file) == list(range(20))


def has_frames(file: Path, packets: int) -> bool:
    """Whether the file, which is being written, has at least `packets` frames."""
    return written_frames(file) >= packets


def test_an_interface_that_disappears_ends_the_capture_with_everything_written(
    place: Place, until: Any, tmp_path: Path
) -> None:
    file = tmp_path / "x.pcapng"
    with Capturer(until, place.host, "-i", place.interface, "--direction", "in", "-w", file, "--json") as capture:
        place.send(10)
        place.host.run(["ip", "link", "del", place.interface])
        result = capture.end(number=None)
    assert result.returncode == 1
    assert f"no interface of ring {capture.ring} is left" in result.stderr.splitlines()[-1]
    assert numbers_of(file) == list(range(10))
    account_of(result)


def test_a_change_of_the_mtu_is_reported(place: Place, until: Any, tmp_path: Path) -> None:
    file = tmp_path / "x.pcapng"
    with Capturer(until, place.host, "-i", place.interface, "--direction", "in", "-w", file) as capture:
        for host, name in ((place.host, place.interface), (place.peer, place.peer_interface)):
            host.run(["ip", "link", "set", name, "mtu", "4000"])
        place.send(5, frame_bytes=4014)
        until("they are there", lambda: has_frames(file, 5))
        result = capture.end()
    assert f"interface {place.interface} has an MTU of 4000 bytes now" in result.stderr
    assert [len(one) for _, one in packets_of(file) if len(one) > 2000] == [4014] * 5


def test_a_full_disk_affects_only_the_file_on_it(place: Place, until: Any, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", small], check=True)
    try:
        files = [small / "x.pcapng", tmp_path / "y.pcapng"]
        arguments = [argument for file in files for argument in ("--write", file)]
        with Capturer(
            until, place.host, "-i", place.interface, "--direction", "in", *arguments, "--json", subscribers=2
        ) as capture:
            place.send(1000, frame_bytes=1000)
            until("the second file has all", lambda: has_frames(files[1], 1000))
            result = capture.end()
        assert result.returncode == 1
        assert f"{files[0]}: takes no more" in result.stderr
        first, second = account_of(result)["subscribers"]
        assert total(first, "unwritten") > 0
        assert total(second, "unwritten") == 0
        assert len(packets_of(files[0])) == total(first, "logged")
        assert numbers_of(files[1]) == list(range(1000))
    finally:
        subprocess.run(["umount", small], check=True)


def test_only_root_and_the_group_of_a_ring_may_join(place: Place, until: Any, tmp_path: Path) -> None:
    as_nobody = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "--inh-caps=-all"]
    if subprocess.run([*as_nobody, "test", "-r", parshall.__file__]).returncode != 0:
        pytest.skip("this checkout lies where other users cannot read it")
    group = grp.getgrgid(65534).gr_name
    for options, status in (((), 2), (("--group", group, "--policy", "slow"), 0)):
        file = Path("/tmp") / f"{ring_name()}.pcapng"
        with Capturer(until, place.host, "-i", place.interface, "-w", tmp_path / "x.pcapng", *options) as capture:
            try:
                command = [*as_nobody, PARSHALL, "capture", "--join", capture.ring, "-w", file, "--duration", "0.2"]
                result = subprocess.run(command, capture_output=True, text=True, timeout=60)
            finally:
                file.unlink(missing_ok=True)
            assert result.returncode == status, result.stderr
            if status:
                assert error_line(result).startswith(f"ring {capture.ring}: you may not read it")
            assert ("waits for readers of root and of its creator only" in result.stderr) == ("slow" in options)
            capture.end()


def test_promiscuous_mode_ends_with_the_capture_however_that_ends(place: Place, until: Any, tmp_path: Path) -> None:
    def is_promiscuous() -> bool:
        shown = place.host.run(["ip", "-d", "-o", "link", "show", place.interface]).stdout
        return "promiscuity 1" in shown

    for number in (signal.SIGINT, signal.SIGKILL):
        with Capturer(until, place.host, "-i", place.interface, "-p", "-w", tmp_path / "x.pcapng") as capture:
            assert is_promiscuous()
            capture.end(number)
        until("it is off", lambda: not is_promiscuous())


def test_another_xdp_program_stays_attached(place: Place, until: Any, tmp_path: Path) -> None:
    arguments = ("-i", place.interface, "--hook", "xdp")
    with Capturer(until, place.host, *arguments, "-w", tmp_path / "x.pcapng") as capture:
        result = run(place.host, *arguments, "-w", tmp_path / "y.pcapng", "--name", ring_name())
        assert result.returncode == 2
        assert f"interface {place.interface}: another XDP program is attached to it" in error_line(result)
        assert capture.end().returncode == 0


def test_progress_is_shown_only_on_a_terminal(place: Place, until: Any, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    os.set_blocking(ours, False)
    shown = b""

    def shows_all() -> bool:
        nonlocal shown
        with suppress(BlockingIOError):
            shown += os.read(ours, 4096)
        return b"20 packets" in shown and b"lost" in shown

    only_ours = ("--direction", "in", "--filter", f"ether proto {EXPERIMENT}")
    files = [tmp_path / "x.pcapng", tmp_path / "y.pcapng"]
    with (
        Capturer(until, place.host, "-i", place.interface, *only_ours, "-w", files[0], stderr=theirs) as capture,
        Capturer(until, place.host, *only_ours[2:], "-w", files[1], join=capture.ring) as piped,
    ):
        os.close(theirs)
        place.send(20)
        until("the terminal shows all", shows_all)
        # It has captured the same, and has said no more than its start and its account.
        errors = piped.end().stderr
        assert ": started, " in errors and "\r" not in errors and " packets  " not in errors
        capture.end()
    os.close(ours)


def test_ctrl_c_ends_the_whole_group_but_leaves_the_keeper_to_the_others(
    place: Place, until: Any, tmp_path: Path
) -> None:
    """A terminal sends the signal to the whole process group."""
    file = tmp_path / "second.pcapng"
    with Capturer(
        until, place.host, "-i", place.interface, "--direction", "in",
        "-w", tmp_path / "first.pcapng", start_new_session=True,
    ) as creator:  # fmt: skip
        with Capturer(until, place.host, "-w", file, "--json", join=creator.ring) as joiner:
            os.killpg(creator.process.pid, signal.SIGINT)
            assert creator.end(number=None).returncode == 0
            until("it has gone", lambda: len(subscribers_of(creator.ring)) == 1)
            place.send(10)
            result = joiner.end()
    assert result.returncode == 0
    assert numbers_of(file) == list(range(10))


def test_doctor_removes_the_socket_of_a_keeper_that_was_killed(place: Place, until: Any, tmp_path: Path) -> None:
    with Capturer(until, place.host, "-i", place.interface, "-w", tmp_path / "x.pcapng") as capture:
        os.kill(capture.keeper(), signal.SIGKILL)
        capture.end(number=None)
    assert Path(f"/run/parshall/{capture.ring}.ring").exists()
    # What `doctor --clean` calls before it tries each feature, which takes seconds.
    assert f"capture ring {capture.ring}" in remove_leftovers()
    assert not Path(f"/run/parshall/{capture.ring}.ring").exists()


def test_the_next_ring_removes_the_socket_of_a_keeper_that_was_killed(place: Place, until: Any, tmp_path: Path) -> None:
    with Capturer(until, place.host, "-i", place.interface, "-w", tmp_path / "x.pcapng") as capture:
        os.kill(capture.keeper(), signal.SIGKILL)
        capture.end(number=None)
    # A keeper that was killed before it renamed its socket leaves a draft.
    draft = Path(f"/run/parshall/.{capture.process.pid}")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as dead:
        dead.bind(str(draft))
    stale = Path(f"/run/parshall/{capture.ring}.ring")
    # On a shared machine somebody else's run may be first.
    other = Capturer(until, place.host, "-i", place.interface, "-w", tmp_path / "y.pcapng")
    with other:
        assert not stale.exists() and not draft.exists()
        assert Path(f"/run/parshall/{other.ring}.ring").exists()
        other.end()


def test_rings_that_start_and_stop_concurrently_keep_their_sockets(place: Place, until: Any, tmp_path: Path) -> None:
    from parshall import _native

    with Capturer(until, place.host, "-i", place.interface, "-w", tmp_path / "x.pcapng") as capture:
        threads = [threading.Thread(target=_native.clean_capture_rings) for _ in range(8)]
        for thread in threads:
            thread.start()
        with Capturer(until, place.host, "-i", place.interface, "-w", tmp_path / "y.pcapng") as other:
            for thread in threads:
                thread.join()
            for ring in (capture.ring, other.ring):
                assert Path(f"/run/parshall/{ring}.ring").exists()
            other.end()
        capture.end()


def test_packets_come_to_python_as_arrow_batches(place: Place) -> None:
    from parshall.instruments.capture import Capture, Output, Ring

    with place.host.enter():
        capture = Capture([Output(None, snaplen=64)], Ring([place.interface], direction="in"), count=300)
    with capture:
        place.send(300)
        batches = list(capture.batches())
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert [row["packet"] for row in rows] == [frame(number, 200)[:64] for number in range(300)]
    assert {(row["interface"], row["direction"], row["wire_bytes"]) for row in rows} == {(place.interface, "in", 200)}
    assert capture.summary.ledger["subscribers"][0]["interfaces"][0]["logged"] == 300


@pytest.mark.skipif(shutil.which("tcpdump") is None, reason="needs tcpdump")
def test_a_file_of_a_killed_capture_opens(place: Place, until: Any, tmp_path: Path) -> None:
    file = tmp_path / "x.pcapng"
    with Capturer(until, place.host, "-i", place.interface, "--direction", "in", "-w", file) as capture:
        place.send(100)
        until("they are flushed", lambda: has_frames(file, 100))
        place.send(100)
        capture.end(signal.SIGKILL)
    # The kernel may break off the last write within a packet; tcpdump gives what is before it, and says so.
    read = subprocess.run(["tcpdump", "-r", file, "-w", "-"], capture_output=True)
    numbers = [int.from_bytes(data[14:18], "big") for _, data in classic_packets(read.stdout)]
    assert numbers == list(range(len(numbers)))
    assert len(numbers) >= 100


def test_a_capture_that_is_cancelled_while_its_filter_compiles_changes_nothing(
    lonely: Any, until: Any, tmp_path: Path
) -> None:
    from parshall.instruments.capture import Capture, Output, Ring

    # After `vlan`, libpcap compiles a list as a whole: slowly enough to cancel, quickly enough to wait for.
    ports = " or ".join(f"port {port}" for port in range(1_000, 1_140))
    file = tmp_path / "precious.pcapng"
    file.write_bytes(b"precious")
    output = Output(file, f"vlan and ({ports})")
    with lonely.enter(), pytest.raises(KeyboardInterrupt):
        Capture([output], Ring(["lo"], name=ring_name()), is_stopping=lambda: True)

    assert threads_named("parshall-start"), "the filter was already compiled"
    until("the filter is compiled", lambda: not threads_named("parshall-start"), 60)
    assert file.read_bytes() == b"precious"


def test_a_capture_is_stopped_while_another_thread_waits_for_its_batches(place: Place, until: Any) -> None:
    from parshall.instruments.capture import Capture, Output, Ring

    with place.host.enter():
        capture = Capture([Output(None)], Ring([place.interface], direction="in"))
    rows: list[Any] = []

    def collect() -> None:
        for batch in capture.batches():
            rows.extend(batch.to_pylist())

    waiting = threading.Thread(target=collect)
    waiting.start()
    try:
        place.send(10)
        until("they have come", lambda: len(rows) >= 10)
    finally:
        summary = capture.stop()
        waiting.join(timeout=10)
    assert not waiting.is_alive()
    assert summary.ledger["complete"] and summary.failure is None
    assert list(capture.batches()) == [], "a capture that was stopped has no more"


FORGETFUL = """
import sys
from parshall.instruments.capture import Capture, Output, Ring
capture = Capture([Output(None)], Ring([sys.argv[1]], direction="in"))
print("captures", flush=True)
sys.stdin.readline()
del capture
print("has gone", flush=True)
"""


def test_a_capture_with_unread_batches_can_be_garbage_collected(place: Place, until: Any) -> None:
    """The reader thread waits until a batch is taken; the collector must not wait for that thread."""
    program = place.host.popen(
        [sys.executable, "-c", FORGETFUL, place.interface],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert program.stdout.readline() == "captures\n"
        until("the reader runs", lambda: bool(threads_named("parshall-capture", program.pid)))
        (reader,) = threads_named("parshall-capture", program.pid)
        before = -1

        def waits_for_the_queue() -> bool:
            # A reader that only waits for packets polls, at least every 10 ms.
            nonlocal before
            if before == (before := pauses(reader)):
                return True
            place.send(5)
            time.sleep(0.1)
            return False

        until("the queue is full", waits_for_the_queue)
        output, _ = program.communicate("\n", timeout=20)
    finally:
        program.kill()
        program.wait()
    assert output == "has gone\n"


@pytest.mark.parametrize("backend", ["ring", "af-packet"])
def test_two_outputs_need_two_files(lonely: Any, tmp_path: Path, backend: str) -> None:
    from parshall.errors import UsageError
    from parshall.instruments.capture import Capture, Output, Ring

    (tmp_path / "link.pcapng").symlink_to(tmp_path / "x.pcapng")
    for second in (tmp_path / "x.pcapng", tmp_path / "." / "x.pcapng", tmp_path / "link.pcapng"):
        with lonely.enter(), pytest.raises(UsageError, match="given twice; give every filter a file of its own"):
            Capture([Output(tmp_path / "x.pcapng"), Output(second)], Ring(["lo"]), backend=backend)
    with lonely.enter(), pytest.raises(UsageError, match="2 outputs without a path"):
        Capture([Output(None), Output(None, "udp")], Ring(["lo"]), backend=backend)
    assert not list(tmp_path.glob("x*"))


def test_a_removed_interface_is_noticed_among_hundreds_of_new_ones(place: Place, until: Any, tmp_path: Path) -> None:
    """The kernel's notifications overflow the netlink socket."""
    file = tmp_path / "x.pcapng"
    with Capturer(until, place.host, "-i", place.interface, "--direction", "in", "-w", file, "--json") as capture:
        place.send(10)
        keeper = capture.keeper()
        os.kill(keeper, signal.SIGSTOP)
        try:
            made = "".join(f"link add crowd{number} type veth peer name drowc{number}\n" for number in range(200))
            (tmp_path / "batch").write_text(f"{made}link del {place.interface}\n")
            place.host.run(["ip", "-batch", str(tmp_path / "batch")])
        finally:
            os.kill(keeper, signal.SIGCONT)
        result = capture.end(number=None)
    assert result.returncode == 1
    assert f"no interface of ring {capture.ring} is left" in result.stderr.splitlines()[-1]
    assert numbers_of(file) == list(range(10))


def test_an_interface_of_an_unsupported_kind_is_refused_with_a_remedy(bed: Any, tmp_path: Path) -> None:
    tun_set_interface, tun_without_information, tun_set_link = 0x400454CA, 0x1001, 0x400454CD
    host = bed.host("tunnel")
    with host.enter():
        tun = os.open("/dev/net/tun", os.O_RDWR)
        fcntl.ioctl(tun, tun_set_interface, struct.pack("16sH22x", b"tun-test", tun_without_information))
        ppp = 512
        fcntl.ioctl(tun, tun_set_link, ppp)
    try:
        for more in ([], ["--backend", "af-packet"]):
            result = run(host, "-i", "tun-test", "-w", tmp_path / "x.pcapng", *more)
            assert result.returncode == 2
            errors = error_line(result)
            assert "ARPHRD 512" in errors and errors.endswith("capture it with tcpdump"), errors
    finally:
        os.close(tun)


def test_af_xdp_refuses_a_large_mtu_with_a_remedy(place: Place, until: Any, tmp_path: Path) -> None:
    """The peer of a veth decides: its packets must fit a buffer."""
    place.peer.run(["ip", "link", "set", place.peer_interface, "mtu", "9000"])
    place.host.run(["ip", "link", "set", place.interface, "mtu", "9000"])
    arguments = ("-i", place.interface, "--count", "1", "-w", tmp_path / "x.pcapng")
    result = run(place.host, *arguments, "--backend", "af-xdp")
    assert result.returncode == 2
    errors = error_line(result)
    assert errors.startswith(f"interface {place.interface}: the MTU of its peer is too large for AF_XDP")
    assert errors.endswith("set an MTU of 3400 or less there, or give --backend af-packet, which takes any")
    # The remedy works.
    place.peer.run(["ip", "link", "set", place.peer_interface, "mtu", "3400"])
    with place.host.enter():
        process = subprocess.Popen([PARSHALL, "capture", *arguments, "--backend", "af-xdp"], stderr=subprocess.DEVNULL)

    def has_a_packet() -> bool:
        place.send(1)
        return process.poll() is not None

    try:
        until("it has a packet", has_a_packet)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0


def test_the_words_of_a_filter_need_no_option(tmp_path: Path) -> None:
    """As for tcpdump, and for all files."""
    files = [tmp_path / "one.pcap", tmp_path / "two.pcap"]
    command = [PARSHALL, "capture", "-i", "lo", "-q", *(word for file in files for word in ("-w", file)), "-c", "1"]
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as wanted,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender,
    ):
        for each in (wanted, other):
            each.bind(("127.0.0.1", 0))
        command += ["udp", "port", str(wanted.getsockname()[1])]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
            while program.poll() is None:
                sender.sendto(b"other", other.getsockname())
                sender.sendto(b"wanted", wanted.getsockname())
            assert program.returncode == 0, program.stderr and program.stderr.read()
    for file in files:
        content = file.read_bytes()
        assert b"wanted" in content and b"other" not in content
