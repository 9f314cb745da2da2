"""Programs that know only libpcap, on a ring: what they print and write beside the same programs on packet sockets."""

import grp
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import pytest
from capturer import EXPERIMENT, PARSHALL, Sender, frame, rings, skip_without_tcx
from conversation import connection, transfer
from hostile_member import MEMBER
from running_command import RunningCommand, read_until

from parshall.instruments import pcap

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("root")]
KIND = f"ether proto {EXPERIMENT:#x}"
SYSTEM_LIBRARY = "libpcap.so.0.8"
# Difference of two time stamps of a packet: most are this close, but the CPU may be taken away between the two.
TIME_TOLERANCE_NS, TIME_TOLERANCE_MAX_NS = 1_000_000, 1_000_000_000


class Place:
    """A cable between two hosts; programs run on the second."""

    def __init__(self, bed: Any) -> None:
        self.left, self.host = bed.host("left"), bed.host("right")
        self.link = bed.link(self.left, self.host, backend="veth")
        self.interface = self.link.interface(self.host)
        self.sender = Sender(self.left, self.link.interface(self.left))
        self.answerer = Sender(self.host, self.interface, captured_here=True)

    def rings(self) -> dict[str, dict[str, Any]]:
        """The rings in the second host's namespace; other test sessions have theirs on this machine, too."""
        namespace = self.host.path.stat().st_ino
        return {name: ring for name, ring in rings().items() if ring.get("namespace") == namespace}

    def both_ways(self) -> Iterator[bool]:
        """Yield whether a program runs on a ring: first it does; then it does not, when the ring has ended."""
        yield True
        deadline_s = time.monotonic() + 30
        while self.rings():
            assert time.monotonic() < deadline_s, f"still there after 30 s: {self.rings()}"
            time.sleep(0.005)
        yield False


@pytest.fixture
def place(bed: Any) -> Iterator[Place]:
    """Give a cable in namespaces of its own."""
    skip_without_tcx()
    made = Place(bed)
    yield made
    made.sender.close()
    made.answerer.close()


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """Give a directory that every user may enter: each session of pytest closes those above `tmp_path`."""
    with tempfile.TemporaryDirectory(prefix="parshall-test-") as name:
        path = Path(name)
        path.chmod(0o777)
        yield path


class Program(RunningCommand):
    """A program that captures: on a ring, or as it is."""

    def __init__(self, place: Place, on_ring: bool, *command: object, **options: Any) -> None:
        words = [*([PARSHALL, "pcap", "--"] if on_ring else []), *map(str, command)]
        settings = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with place.host.enter():
            self.process = subprocess.Popen(words, text=True, **(settings | options))
        self.place, self.on_ring = place, on_ring

    def wait_for_ring(self) -> Self:
        """Wait until something subscribes to a ring at the interface."""
        deadline_s = time.monotonic() + 30
        while not any(ring["subscribers"] for ring in self.place.rings().values()):
            assert not self.has_ended(), f"it never used a ring: {self.process.communicate()}"
            assert time.monotonic() < deadline_s, "still no subscriber of a ring after 30 s"
            time.sleep(0.005)
        return self

    def wait_for(self, text: str, of: str = "stderr") -> str:
        """Read standard error, or output, up to the line that has this text; return what was read."""
        return read_until(getattr(self.process, of), text)


class Script(Program):
    """A program in Python that knows libpcap alone, and prints one JSON value."""

    def __init__(self, place: Place, on_ring: bool, directory: Path, text: str, *words: str, **options: Any) -> None:
        path = directory / "script.py"
        path.write_text(LIBPCAP + text)
        super().__init__(place, on_ring, sys.executable, path, place.interface, KIND, *words, **options)

    def answer(self) -> Any:
        """Wait for the end, and return what was printed."""
        done = self.end()
        assert done.returncode == 0, done.stderr
        assert "without the ring" not in done.stderr
        return json.loads(done.stdout)


def both(place: Place, *command: object, **options: Any) -> tuple[Program, Program]:
    """Start a program twice: on the ring, and as it is. `{}` in a word becomes `ring` or `socket`."""
    words = [[str(word).replace("{}", name) for word in command] for name in ("ring", "socket")]
    return Program(place, True, *words[0], **options), Program(place, False, *words[1], **options)


def stamped(path: Path) -> list[tuple[int, int, bytes]]:
    """Times (ns), wire lengths and bytes of the packets of a classic pcap file, by its definition.

    A packet that is half written is not among them.
    """
    data = path.read_bytes()
    unit_ns = {0xA1B2C3D4: 1000, 0xA1B23C4D: 1}[struct.unpack_from("=I", data)[0]]
    packets, at = [], 24
    while at + 16 <= len(data):
        seconds, fraction, captured, wire = struct.unpack_from("=IIII", data, at)
        if at + 16 + captured > len(data):
            break
        packets.append((seconds * 1_000_000_000 + fraction * unit_ns, wire, data[at + 16 : at + 16 + captured]))
        at += 16 + captured
    return packets


def check_same(ring: list[tuple[int, int, bytes]], own: list[tuple[int, int, bytes]]) -> None:
    """Compare two captures of the same packets."""
    assert [packet[1:] for packet in ring] == [packet[1:] for packet in own]
    differences_ns = sorted(abs(one[0] - other[0]) for one, other in zip(ring, own, strict=True))
    assert differences_ns[len(differences_ns) * 9 // 10] < TIME_TOLERANCE_NS
    assert differences_ns[-1] < TIME_TOLERANCE_MAX_NS


def counts(errors: str) -> list[int]:
    """The numbers of tcpdump's account: captured, received by filter, dropped by kernel."""
    return [int(number) for number in re.findall(r"^(\d+) packets? ", errors, re.MULTILINE)]


def is_written(path: Path, packets: int) -> bool:
    return path.exists() and path.stat().st_size > 24 and len(stamped(path)) >= packets


def test_the_library_exports_what_the_systems_exports() -> None:
    def symbols(library: Path | str) -> set[tuple[str, str]]:
        listed = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True)
        kinds = {"T": "function", "i": "function", "D": "data", "R": "data", "B": "data"}
        return {(kinds[kind], name) for _, kind, name in map(str.split, listed.stdout.splitlines())}

    (system,) = {
        line.split(" => ")[1]
        for line in subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True).stdout.splitlines()
        if line.split()[0] == SYSTEM_LIBRARY
    }
    assert symbols(pcap.LIBRARY) == symbols(system)


def test_tcpdump_writes_the_same_packets_and_counts(place: Place, until: Callable[..., None], tmp_path: Path) -> None:
    programs = both(place, "tcpdump", "-i", place.interface, "-U", "-w", tmp_path / "{}.pcap", KIND)
    with programs[0], programs[1]:
        for program in programs:
            program.wait_for("listening on")
        (ring,) = place.rings().values()
        assert [one["filter"] for one in ring["subscribers"]] == [KIND]
        for number in range(0, 300, 3):
            place.sender.send([frame(number, 60 + number), frame(number, 60, kind=0x0806)])
            place.answerer.send([frame(number + 1, 1514)])
        files = [tmp_path / "ring.pcap", tmp_path / "socket.pcap"]
        until("all is written", lambda: all(is_written(file, 200) for file in files))
        errors = [program.end(signal.SIGINT).stderr for program in programs]
    assert counts(errors[0]) == counts(errors[1]) == [200, 200, 0]
    check_same(*map(stamped, files))


def test_tcpdump_prints_the_same_conversation(place: Place, until: Callable[..., None], tmp_path: Path) -> None:
    place.host.run(["ethtool", "-K", place.interface, "gro", "off", "tso", "off", "gso", "off"])
    place.left.run(["ethtool", "-K", place.link.interface(place.left), "tso", "off", "gso", "off"])
    command = ("tcpdump", "-i", place.interface, "-n", "-S", "-e", "-l", "-tt", "-s", "100", "tcp port 5555")
    files = [tmp_path / "ring.txt", tmp_path / "socket.txt"]
    with files[0].open("w") as ring_file, files[1].open("w") as socket_file:
        with (
            Program(place, True, *command, stdout=ring_file) as on_ring,
            Program(place, False, *command, stdout=socket_file) as own,
        ):
            for program in (on_ring, own):
                program.wait_for("listening on")
            address = place.link.address(place.host)
            with connection(place.left, place.host, address, 5555) as (client, server):
                transfer(client, server, 100_000)
            until("both have seen the end", lambda: all(file.read_text().count("Flags [F") == 2 for file in files))
            until("both have seen as much", lambda: len({len(file.read_text().splitlines()) for file in files}) == 1)
            errors = [program.end(signal.SIGINT).stderr for program in (on_ring, own)]
    assert counts(errors[0]) == counts(errors[1])
    # A line of tcpdump begins with the time; some go on with what a protocol says.
    printed = [re.findall(r"^\d+\.\d+ (.*)", file.read_text(), re.MULTILINE) for file in files]
    # Two CPUs may send at the same time, so that the order of the two directions is that of the looker.
    for direction in (".5555 >", "> " + address + ".5555"):
        lines = [[line for line in one if direction in line] for one in printed]
        assert lines[0] == lines[1] and lines[0]


@pytest.mark.parametrize("direction", ["in", "out", "inout"])
def test_tcpdump_captures_one_direction(
    place: Place, until: Callable[..., None], tmp_path: Path, direction: str
) -> None:
    programs = both(place, "tcpdump", "-i", place.interface, "-U", "-Q", direction, "-w", tmp_path / "{}.pcap", KIND)
    expected = 40 if direction == "inout" else 20
    with programs[0], programs[1]:
        for program in programs:
            program.wait_for("listening on")
        for number in range(20):
            place.sender.send([frame(number, 60)])
            place.answerer.send([frame(number, 90)])
        files = [tmp_path / "ring.pcap", tmp_path / "socket.pcap"]
        until("all is written", lambda: all(is_written(file, expected) for file in files))
        for program in programs:
            program.end(signal.SIGINT)
    check_same(*map(stamped, files))
    assert len(stamped(files[0])) == expected


def test_tcpdump_ends_after_its_count(place: Place) -> None:
    programs = both(place, "tcpdump", "-i", place.interface, "-c", "3", "-n", KIND)
    with programs[0], programs[1]:
        for program in programs:
            program.wait_for("listening on")
        place.sender.send([frame(number, 60) for number in range(3)])
        for program in programs:
            done = program.end()
            assert done.returncode == 0
            assert counts(done.stderr)[0] == 3


def test_nanoseconds_and_the_kinds_of_time_stamps(place: Place, until: Callable[..., None], tmp_path: Path) -> None:
    command = ("tcpdump", "-i", place.interface, "-U", "--nano", "-j", "host", "-w", tmp_path / "{}.pcap", KIND)
    programs = both(place, *command)
    files = [tmp_path / "ring.pcap", tmp_path / "socket.pcap"]
    with programs[0], programs[1]:
        for program in programs:
            program.wait_for("listening on")
        place.sender.send([frame(number, 60) for number in range(20)])
        until("all is written", lambda: all(is_written(file, 20) for file in files))
        for program in programs:
            program.end(signal.SIGINT)
    assert {struct.unpack_from("=I", file.read_bytes())[0] for file in files} == {0xA1B23C4D}
    check_same(*map(stamped, files))


def test_a_libpcap_of_the_users_own_is_the_one_behind_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of the system's, which the program would have without the ring."""
    found = subprocess.run(["ldd", shutil.which("tcpdump") or ""], capture_output=True, text=True, check=True).stdout
    (library,) = re.findall(r"libpcap\S* => (\S+)", found)
    own = tmp_path / "libpcap.so.0.8"
    shutil.copyfile(library, own)
    monkeypatch.setenv("LD_LIBRARY_PATH", f"/nosuch:{tmp_path}")
    code = "import ctypes; ctypes.CDLL('libpcap.so.0.8').pcap_lib_version(); print(open('/proc/self/maps').read())"
    loaded = subprocess.run([PARSHALL, "pcap", "--", sys.executable, "-c", code], capture_output=True, text=True)
    assert str(own) in loaded.stdout and f" {library}" not in loaded.stdout, loaded.stderr


def outputs(place: Place, *command: object) -> list[tuple[int, str, str]]:
    """What a program that ends by itself says, on the ring and as it is."""
    done = [program.end() for program in both(place, *command)]
    return [(one.returncode, one.stdout, one.stderr) for one in done]


@pytest.mark.parametrize(
    "words", [["-L"], ["-J"], ["-d", "tcp port 80"], ["tcp prot 80"], ["-y", "LINUX_SLL"]], ids=" ".join
)
def test_tcpdump_answers_as_with_the_systems_library(place: Place, words: list[str]) -> None:
    on_ring, own = outputs(place, "tcpdump", "-i", place.interface, *words)
    # Data link types and filters are libpcap's; only addresses of programs differ.
    assert on_ring == own


def test_interfaces_and_files_are_the_systems(place: Place, until: Callable[..., None], tmp_path: Path) -> None:
    on_ring, own = outputs(place, "tcpdump", "-D")
    assert on_ring == own
    missing = outputs(place, "tcpdump", "-i", "nosuch0")
    assert missing[0] == missing[1]
    file = tmp_path / "any.pcap"
    with Program(place, True, "tcpdump", "-i", "any", "-U", "-w", file, KIND) as program:
        program.wait_for("listening on any")
        place.sender.send([frame(number, 60) for number in range(5)])
        until("all is written", lambda: is_written(file, 5))
        program.end(signal.SIGINT)
    read = outputs(place, "tcpdump", "-r", file, "-n", "-e", "-q")
    assert read[0] == read[1]
    assert len(read[0][1].splitlines()) == 5


def test_files_rotate_and_privileges_are_dropped(
    place: Place, until: Callable[..., None], open_directory: Path
) -> None:
    command = (
        "tcpdump",
        "-i",
        place.interface,
        "-Z",
        "nobody",
        # On a busy machine all 1,500 packets wait in the socket; its usual 2 MiB are too few.
        "-B",
        "16384",
        "-U",
        "-C",
        "1",
        "-W",
        "3",
        "-w",
        open_directory / "{}",
        KIND,
    )
    programs = both(place, *command)
    with programs[0], programs[1]:
        for program in programs:
            program.wait_for("listening on")
        status = Path(f"/proc/{programs[0].process.pid}/status")
        until("it runs as nobody", lambda: "\nUid:\t65534\t" in status.read_text())
        place.sender.send([frame(number, 1514) for number in range(1500)])
        files = [open_directory / f"{name}{number}" for name in ("ring", "socket") for number in range(3)]
        until("all is written", lambda: all(file.exists() for file in files))

        def is_complete(name: str) -> bool:
            written = [open_directory / f"{name}{number}" for number in range(3)]
            # A file that was just opened has no header yet.
            return sum(len(stamped(file)) for file in written if file.stat().st_size >= 24) == 1500

        until("the last ones are", lambda: is_complete("ring") and is_complete("socket"))
        for program in programs:
            program.end(signal.SIGINT)
    for number in range(3):
        check_same(stamped(open_directory / f"ring{number}"), stamped(open_directory / f"socket{number}"))


def test_programs_that_start_together_share_one_ring(place: Place, until: Callable[..., None]) -> None:
    command = ("tcpdump", "-Z", "root", "-i", place.interface, "-w", "/dev/null", KIND)
    programs = [Program(place, True, *command) for _ in range(4)]
    try:
        for program in programs:
            program.wait_for("listening on")
        (ring,) = place.rings().values()
        assert len(ring["subscribers"]) == 4
        # The one that made the ring goes; the others read on.
        programs[0].process.kill()
        until("it has left", lambda: len(next(iter(place.rings().values()))["subscribers"]) == 3)
        place.sender.send([frame(number, 60) for number in range(10)])
        errors = [program.end(signal.SIGINT).stderr for program in programs[1:]]
    finally:
        for program in programs:
            program.__exit__()
    assert [counts(one)[1] for one in errors] == [10, 10, 10]
    until("the ring has ended", lambda: not place.rings())


def test_a_keeper_that_is_killed_ends_the_program_with_libpcaps_error(place: Place) -> None:
    with Program(place, True, "tcpdump", "-Z", "root", "-i", place.interface, "-w", "/dev/null") as program:
        program.wait_for("listening on")
        (ring,) = place.rings().values()
        os.kill(ring["keeper_pid"], signal.SIGKILL)
        done = program.end()
    assert done.returncode == 1
    assert re.search(r"^tcpdump: pcap_loop: .*keeper of ring .*", done.stderr, re.MULTILINE), done.stderr


def test_a_removed_interface_ends_the_program_as_with_a_packet_socket(place: Place) -> None:
    programs = both(place, "tcpdump", "-Z", "root", "-i", place.interface, "-w", "/dev/null")
    with programs[0], programs[1]:
        for program in programs:
            program.wait_for("listening on")
        place.host.run(["ip", "link", "del", place.interface])
        done = [program.end() for program in programs]
    assert "tcpdump: pcap_loop: The interface disappeared" in done[0].stderr
    assert [one.returncode for one in done] == [1, 1]


def test_a_ring_that_is_full_of_readers_leaves_the_packet_socket(place: Place, until: Callable[..., None]) -> None:
    filters = [word for number in range(64) for word in ("--filter", KIND, "--write", "/dev/null")]
    name = f"test-{os.getpid()}-full"
    full = Program(place, False, PARSHALL, "capture", "-i", place.interface, "--name", name, *filters)
    with full:

        def is_full() -> bool:
            assert not full.has_ended(), full.end().stderr
            return len(place.rings().get(name, {}).get("subscribers", [])) == 64

        until("the ring has 64 readers", is_full)
        with Program(place, True, "tcpdump", "-i", place.interface, "-c", "1", "-n", KIND) as program:
            errors = program.wait_for("listening on")
            place.sender.send([frame(1, 60)])
            assert counts(program.end().stderr)[0] == 1
        assert re.search(
            r"^parshall: interface .*64.*; capturing by a packet socket, without the ring$", errors, re.MULTILINE
        )
        full.end(signal.SIGINT)


def test_a_program_polls_and_forks(place: Place, tmp_path: Path) -> None:
    for on_ring in place.both_ways():
        with Script(place, on_ring, tmp_path, POLLING) as program:
            # One by one: some come while the earlier ones are read.
            for _ in range(20):
                program.wait_for("ready")
                for number in range(100):
                    place.sender.send([frame(number, 60)])
            assert program.answer() == {"idle": [], "packets": 2000, "after": [], "child": True}


def test_a_program_uses_handles_threads_and_filters_that_no_ring_runs(place: Place, tmp_path: Path) -> None:
    for on_ring in place.both_ways():
        with Script(place, on_ring, tmp_path, MANY) as program:
            program.wait_for("ready")
            assert bool(place.rings()) == on_ring
            place.sender.send([frame(number, 60) for number in range(10)])
            place.sender.send([frame(0, 60, kind=0x0806)])
            assert program.answer() == {"threads": [10, 10, 10], "protochain": 0, "broken": -2}


def test_a_new_filter_forgets_what_the_old_one_accepted(place: Place, tmp_path: Path) -> None:
    for on_ring in place.both_ways():
        with Script(place, on_ring, tmp_path, FILTERS, stdin=subprocess.PIPE) as program:
            program.wait_for("ready")
            place.sender.send([frame(number, 60) for number in range(10)])
            program.process.stdin.write("go on\n")
            program.process.stdin.flush()
            program.wait_for("again")
            place.sender.send([frame(number, 60, kind=0x88B6) for number in range(3)])
            assert program.answer() == {"received": [10, 13], "kinds": ["88b6"] * 3}


def test_refusals_warnings_and_broken_loops_are_as_with_the_systems_library(place: Place, tmp_path: Path) -> None:
    found = []
    for on_ring in place.both_ways():
        with Script(place, on_ring, tmp_path, REFUSALS) as program:
            program.wait_for("ready")
            assert not on_ring or place.rings()
            place.sender.send([frame(number, 60) for number in range(5)])
            found.append(program.answer())
    assert found[0] == found[1]
    assert found[0]["broken"] == [-2, 2]


@pytest.mark.parametrize(("options", "expected"), [([], "1"), (["-p"], "0")], ids=["promiscuous", "not"])
def test_a_program_makes_the_interface_promiscuous(
    place: Place, until: Callable[..., None], options: list[str], expected: str
) -> None:
    def promiscuity() -> str:
        shown = place.host.run(["ip", "-d", "link", "show", place.interface]).stdout
        return re.search(r"promiscuity (\d+)", shown)[1]

    with Program(place, True, "tcpdump", "-Z", "root", "-i", place.interface, "-w", "/dev/null", *options) as program:
        program.wait_for("listening on")
        assert promiscuity() == expected
        program.end(signal.SIGINT)
    until("it is as before", lambda: promiscuity() == "0")


def test_a_member_of_the_group_needs_no_capability(place: Place, until: Callable[..., None]) -> None:
    name = f"test-{os.getpid()}-group"
    ring = ("-i", place.interface, "--name", name, "--group", grp.getgrgid(MEMBER).gr_name, "-w", "/dev/null")
    as_member = ("setpriv", "--reuid", "nobody", "--regid", MEMBER, "--clear-groups", "--inh-caps=-all")
    command = (*as_member, PARSHALL, "pcap", "--", "tcpdump", "-i", place.interface, "-c", "3", "-n", KIND)
    with Program(place, False, PARSHALL, "capture", *ring):
        until("the ring runs", lambda: name in place.rings() and place.rings()[name]["subscribers"])
        with Program(place, False, *command) as program:
            errors = program.wait_for("listening on")
            place.sender.send([frame(number, 60) for number in range(3)])
            done = program.end()
    assert "without the ring" not in errors
    assert done.returncode == 0
    assert counts(done.stderr) == [3, 3, 0]


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ([], "parshall: pcap: no program; name one: parshall pcap -- tcpdump -i eth0"),
        (["--", "nosuchprogram"], "parshall: pcap: nosuchprogram: no such command; check the name and PATH"),
    ],
    ids=["none", "missing"],
)
def test_a_wrong_command_has_one_line(command: list[str], message: str) -> None:
    done = subprocess.run([PARSHALL, "pcap", *command], capture_output=True, text=True)
    assert (done.returncode, done.stderr.strip()) == (2 if not command else 127, message)


def test_a_program_that_the_loader_protects_is_refused(tmp_path: Path) -> None:
    copy = tmp_path / "tcpdump"
    shutil.copy(shutil.which("tcpdump"), copy)
    os.chown(copy, MEMBER, -1)
    copy.chmod(0o4755)
    done = subprocess.run([PARSHALL, "pcap", "--", copy, "-D"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "it is setuid or setgid, so the loader uses only the system's libpcap" in done.stderr


# A program that was written for libpcap alone.
LIBPCAP = """
import ctypes, json, os, select, signal, sys, threading, time
lib = ctypes.CDLL("libpcap.so.0.8")
class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_uint), ("instructions", ctypes.c_void_p)]
lib.pcap_create.restype = lib.pcap_next.restype = ctypes.c_void_p
lib.pcap_geterr.restype = ctypes.c_char_p
error = ctypes.create_string_buffer(256)
header, data = ctypes.c_void_p(), ctypes.c_void_p()
HANDLER = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
def opened(timeout_ms=0):
    pcap = ctypes.c_void_p(lib.pcap_create(sys.argv[1].encode(), error))
    lib.pcap_set_immediate_mode(pcap, 1)
    lib.pcap_set_timeout(pcap, timeout_ms)
    assert lib.pcap_activate(pcap) == 0, lib.pcap_geterr(pcap)
    assert lib.pcap_activate(pcap) == -4
    return pcap
def filtered(pcap, expression):
    program = Program()
    assert lib.pcap_compile(pcap, ctypes.byref(program), expression.encode(), 1, 0) == 0, lib.pcap_geterr(pcap)
    assert lib.pcap_setfilter(pcap, ctypes.byref(program)) == 0, lib.pcap_geterr(pcap)
    lib.pcap_freecode(ctypes.byref(program))
    return pcap
"""

# Three handles in three threads; a filter with a loop, which no ring can merge; a loop that a signal breaks.
MANY = """
counted = [0, 0, 0]
def count(number):
    def add(*_): counted[number] += 1
    handler = HANDLER(add)
    assert lib.pcap_loop(handles[number], 10, handler, None) == 0
handles = [filtered(opened(), sys.argv[2]) for _ in range(3)]
chain = filtered(opened(100), "ip6 protochain 6")
threads = [threading.Thread(target=count, args=(number,)) for number in range(3)]
for thread in threads: thread.start()
print("ready", file=sys.stderr, flush=True)
for thread in threads: thread.join()
found = {"threads": counted, "protochain": lib.pcap_next_ex(chain, ctypes.byref(header), ctypes.byref(data))}
quiet = filtered(opened(), "udp port 1")
signal.signal(signal.SIGALRM, lambda *_: None)
breaker = threading.Timer(0.05, lambda: lib.pcap_breakloop(quiet))
breaker.start()
found["broken"] = lib.pcap_loop(quiet, -1, HANDLER(lambda *_: None), None)
for pcap in (*handles, chain, quiet): lib.pcap_close(pcap)
print(json.dumps(found))
"""

# What is refused, with which words; a callback that breaks a dispatch.
REFUSALS = """
pcap = ctypes.c_void_p(lib.pcap_create(sys.argv[1].encode(), error))
lib.pcap_set_immediate_mode(pcap, 1)
lib.pcap_set_snaplen(pcap, 2000)
lib.pcap_set_timeout(pcap, 100)
# A warning: the kind of time stamps is not available, and the value is ignored.
found = {"warning": lib.pcap_set_tstamp_type(pcap, 99)}
assert lib.pcap_activate(pcap) == 0
def refused(name, *arguments):
    found[name + str(arguments)] = [getattr(lib, name)(pcap, *arguments), lib.pcap_geterr(pcap).decode()]
refused("pcap_set_snaplen", 100)
refused("pcap_setdirection", 7)
refused("pcap_activate")
refused("pcap_set_datalink", 113)
refused("pcap_inject", bytes(5), 5)
refused("pcap_inject", bytes(4000), 4000)
refused("pcap_setfilter", None)
found["no instructions"] = [lib.pcap_setfilter(pcap, ctypes.byref(Program())), lib.pcap_geterr(pcap).decode()]
found["monitor"] = lib.pcap_can_set_rfmon(pcap)
filtered(pcap, sys.argv[2])
print("ready", file=sys.stderr, flush=True)
taken = []
def stop(*_):
    taken.append(1)
    if len(taken) == 2: lib.pcap_breakloop(pcap)
handler = HANDLER(stop)
while len(taken) < 2:
    status = lib.pcap_dispatch(pcap, -1, handler, None)
found["broken"] = [status, len(taken)]
print(json.dumps(found))
"""

# Packets wait when the filter changes; the counts go on.
FILTERS = """
class Statistics(ctypes.Structure):
    _fields_ = [("received", ctypes.c_uint), ("dropped", ctypes.c_uint), ("interface_dropped", ctypes.c_uint)]
def received():
    statistics = Statistics()
    assert lib.pcap_stats(pcap, ctypes.byref(statistics)) == 0, lib.pcap_geterr(pcap)
    return statistics.received
pcap = filtered(opened(), sys.argv[2])
print("ready", file=sys.stderr, flush=True)
sys.stdin.readline()
before = received()
filtered(pcap, "ether proto 0x88b6")
print("again", file=sys.stderr, flush=True)
kinds = []
while len(kinds) < 3:
    # 0: the time-out ended before the packet came.
    while (read := lib.pcap_next_ex(pcap, ctypes.byref(header), ctypes.byref(data))) == 0:
        pass
    assert read == 1
    kinds.append(ctypes.string_at(data, 14)[12:].hex())
print(json.dumps({"received": [before, received()], "kinds": kinds}))
"""

# Opens, sets a filter, forks as a daemon does, polls in the child.
POLLING = """
pcap = filtered(opened(), sys.argv[2])
descriptor = lib.pcap_get_selectable_fd(pcap)
assert descriptor >= 0 and lib.pcap_fileno(pcap) >= 0
if os.fork():
    os._exit(os.waitstatus_to_exitcode(os.wait()[1]))
poll = select.poll()
poll.register(descriptor, select.POLLIN)
found = {"idle": [number for number, _ in poll.poll(50)], "packets": 0}
lib.pcap_setnonblock(pcap, 1, error)
assert lib.pcap_next_ex(pcap, ctypes.byref(header), ctypes.byref(data)) == 0
lib.pcap_setnonblock(pcap, 0, error)
found["after"] = []
for sent in range(100, 2001, 100):
    print("ready", file=sys.stderr, flush=True)
    while found["packets"] < sent:
        assert poll.poll(10_000), found
        # The descriptor says that there is one: this must not wait.
        found["packets"] += lib.pcap_next_ex(pcap, ctypes.byref(header), ctypes.byref(data))
    found["after"] += [number for number, _ in poll.poll(50)]
lib.pcap_close(pcap)
print(json.dumps(found | {"child": True}), flush=True)
os._exit(0)
"""
