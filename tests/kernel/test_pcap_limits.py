"""Programs of libpcap at the limits: losses, many handles and programs, files that rotate, what the loader protects."""

import grp
import os
import re
import shutil
import signal
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from capturer import PARSHALL, account_of, frame, total
from hostile_member import MEMBER
from running_command import read_until
from test_pcap import KIND, Place, Program, Script, both, check_same, counts, is_written, open_directory, place, stamped

from parshall.instruments import pcap

__all__ = ["open_directory", "place"]
pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("root")]
OTHER_KIND = 0x88B6
SUBSCRIBERS_MAX = 64
HANDLES = 12
CAP_NET_RAW = 13


def numbers(path: Path) -> list[int]:
    """The numbers of the frames in a file."""
    return [int.from_bytes(packet[14:18], "big") for _, _, packet in stamped(path)]


@contextmanager
def small_ring(place: Place, until: Callable[..., None]) -> Iterator[Program]:
    """Run a capture whose ring has 1 MiB for each CPU, less than a burst."""
    name = f"test-{os.getpid()}-small"
    words = ("-i", place.interface, "--name", name, "--buffer", "1M", "--json", "--filter", KIND, "-w", "/dev/null")
    with Program(place, False, PARSHALL, "capture", *words) as capture:
        until("the ring runs", lambda: place.rings().get(name, {}).get("subscribers"))
        yield capture


def test_files_rotate_by_time(place: Place, until: Callable[..., None], tmp_path: Path) -> None:
    command = ("tcpdump", "-i", place.interface, "-Z", "root", "-U", "-G", "1", "-w", tmp_path / "{}-%s.pcap", KIND)
    programs = both(place, *command)

    def files(name: str) -> list[Path]:
        return sorted(tmp_path.glob(f"{name}-*.pcap"))

    sent = 0
    with programs[0], programs[1]:
        for program in programs:
            program.wait_for("listening on")

        def have_three() -> bool:
            nonlocal sent
            place.sender.send([frame(sent, 60)])
            sent += 1
            return all(len(files(name)) >= 3 for name in ("ring", "socket"))

        until("both have three files", have_three, timeout_s=60)

        def written(name: str) -> list[tuple[int, int, bytes]]:
            return [packet for file in files(name) if file.stat().st_size >= 24 for packet in stamped(file)]

        until("all is written", lambda: all(len(written(name)) == sent for name in ("ring", "socket")))
        for program in programs:
            assert program.end(signal.SIGINT).returncode == 0
    check_same(written("ring"), written("socket"))


@pytest.mark.parametrize("on_ring", [True, False], ids=["ring", "socket"])
def test_counts_of_a_program_that_loses_packets_add_up(
    place: Place, until: Callable[..., None], tmp_path: Path, on_ring: bool
) -> None:
    file, burst = tmp_path / "some.pcap", 20_000
    command = ("tcpdump", "-i", place.interface, "-U", "-B", "64", "-w", file, KIND)
    with small_ring(place, until) as capture, Program(place, on_ring, *command) as program:
        program.wait_for("listening on")
        assert sum(len(ring["subscribers"]) for ring in place.rings().values()) == (2 if on_ring else 1)
        program.process.send_signal(signal.SIGSTOP)
        place.sender.send([frame(number, 100) for number in range(burst)], timeout_s=60)
        program.process.send_signal(signal.SIGCONT)
        sent, size_bytes = burst, -1

        def has_read_all() -> bool:
            nonlocal sent, size_bytes
            before_bytes, size_bytes = size_bytes, file.stat().st_size
            if sent > burst and is_written(file, 1) and numbers(file)[-1] == sent - 1:
                return True
            # What waited is read, or the last one found no room: another one comes through.
            if size_bytes == before_bytes:
                place.sender.send([frame(sent, 100)])
                sent += 1
            return False

        until("it has read all, and the last one came through", has_read_all)
        captured, received, dropped = counts(program.end(signal.SIGINT).stderr)
        ledger = account_of(capture.end(signal.SIGINT))
    assert 0 < dropped < sent
    assert (captured + dropped, received) == (sent, sent)
    read = numbers(file)
    assert len(read) == captured and read == sorted(set(read))
    # The kernel counted as much for the other reader, whose filter is the same.
    (subscriber,) = ledger["subscribers"]
    assert sum(tally["matched"] for tally in subscriber["hooks"]) == sent
    assert total(subscriber, "logged") + total(subscriber, "overwritten") == sent


def test_the_line_about_packet_sockets_is_only_where_parshall_would_write_it(
    place: Place, until: Callable[..., None], tmp_path: Path
) -> None:
    """Standard error of a program may be a pipe with a protocol, as that of dumpcap below tshark."""
    own, line = tmp_path / "errors", "no such ring"
    tcpdump = f"exec tcpdump -i {place.interface} -c 1 -n {KIND}"
    for command, is_said in [(tcpdump, True), (f"{tcpdump} 2> {own}", False)]:
        words = (PARSHALL, "pcap", "--join", "nosuch", "--", "sh", "-c", command)
        with Program(place, False, *words) as program:
            if is_said:
                assert line in program.wait_for("listening on")
            else:
                until("it captures", lambda: own.exists() and "listening on" in own.read_text())
            place.sender.send([frame(1, 60)])
            assert program.end().returncode == 0
    assert line not in own.read_text()


def test_a_large_buffer_is_a_ring_of_the_largest_size(place: Place) -> None:
    """A packet socket's may be larger, and libpcap makes it smaller when there is no memory for it."""
    command = ("tcpdump", "-B", "2000000", "-i", place.interface, "-c", "1", "-n", KIND)
    with Program(place, True, *command) as program:
        assert "without the ring" not in program.wait_for("listening on")
        (ring,) = place.rings().values()
        assert 32 << 20 <= ring["ring_bytes"] <= 256 << 20
        place.sender.send([frame(1, 60)])
        assert counts(program.end().stderr)[:2] == [1, 1]


def test_sent_frames_arrive_and_do_not_come_back(place: Place, until: Callable[..., None], tmp_path: Path) -> None:
    file = tmp_path / "far.pcap"
    found = []
    with place.left.enter():
        far = subprocess.Popen(
            ["tcpdump", "-i", place.link.interface(place.left), "-Q", "in", "-U", "-w", file, KIND],
            stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
    try:
        read_until(far.stderr, "listening on")
        for on_ring in place.both_ways():
            with Script(place, on_ring, tmp_path, SENDING) as program:
                program.wait_for("sent")
                assert bool(place.rings()) == on_ring
                place.sender.send([frame(99, 60)])
                found.append(program.answer())
        until("all have arrived", lambda: is_written(file, 40))
    finally:
        far.kill()
        far.communicate()
    sent = [bytes.fromhex("ffffffffffff02707300000188b5") + bytes([number] * (46 + number)) for number in range(20)]
    assert [packet for _, _, packet in stamped(file)] == sent * 2
    # A packet socket does not get what was sent by it; another handle of the process does.
    others = {"own": ["00000063"], "other": 21, "received": [1, 21]}
    assert found[0] == found[1] == {"returned": [[60 + number, 0][number % 2] for number in range(20)]} | others


def test_many_handles_of_one_process_get_every_packet(place: Place, tmp_path: Path) -> None:
    for on_ring in place.both_ways():
        with Script(place, on_ring, tmp_path, MANY_HANDLES, str(HANDLES)) as program:
            program.wait_for("ready")
            assert sum(len(ring["subscribers"]) for ring in place.rings().values()) == (HANDLES if on_ring else 0)
            place.sender.send([frame(number, 60) for number in range(50)])
            assert program.answer() == {"packets": [50] * HANDLES}


@pytest.mark.long
def test_64_programs_share_a_ring_and_the_next_one_says_that_it_is_full(
    place: Place, until: Callable[..., None], tmp_path: Path
) -> None:
    files = [tmp_path / f"{number}.pcap" for number in range(SUBSCRIBERS_MAX + 1)]

    def tcpdump(file: Path) -> Program:
        # Without Python's start for each of them.
        command = ("tcpdump", "-i", place.interface, "-U", "-w", file, KIND)
        return Program(place, False, *command, env=pcap.environment())

    with ExitStack() as running:
        programs = [running.enter_context(tcpdump(file)) for file in files[:-1]]
        for program in programs:
            assert "without the ring" not in program.wait_for("listening on")
        (ring,) = place.rings().values()
        assert {one["pid"] for one in ring["subscribers"]} == {program.process.pid for program in programs}
        assert len(programs) == SUBSCRIBERS_MAX
        last = running.enter_context(tcpdump(files[-1]))
        errors = last.wait_for("listening on")
        assert re.search(
            r"^parshall: interface \S+: .*64.*; capturing by a packet socket, without the ring$", errors, re.M
        )
        place.sender.send([frame(number, 60 + number) for number in range(20)])
        until("all is written", lambda: all(is_written(file, 20) for file in files), timeout_s=60)
        accounts = [counts(program.end(signal.SIGINT).stderr) for program in (*programs, last)]
    assert accounts == [[20, 20, 0]] * (SUBSCRIBERS_MAX + 1)
    for file in files[:-1]:
        check_same(stamped(file), stamped(files[-1]))
    until("the ring has ended", lambda: not place.rings(), timeout_s=60)


def test_a_filter_changes_while_packets_flow(place: Place, tmp_path: Path) -> None:
    for on_ring in place.both_ways():
        is_over = threading.Event()

        def flow(is_over: threading.Event = is_over) -> None:
            number = 0
            # Slow enough for a program that asks libpcap for one packet after the other.
            while not is_over.wait(0.001):
                place.sender.send([frame(number, 60), frame(number, 60, kind=OTHER_KIND)])
                number += 1

        sending = threading.Thread(target=flow)
        with Script(place, on_ring, tmp_path, FLOWING, f"ether proto {OTHER_KIND}") as one:
            one.wait_for("ready")
            sending.start()
            try:
                rounds = one.answer()
            finally:
                is_over.set()
                sending.join()
        for round_ in rounds:
            # Nothing that the old filter accepted, and no gap in what the new one accepts.
            assert round_ == {"kinds": [round_["wanted"]], "steps": [1], "wanted": round_["wanted"]}


def test_a_child_that_closes_leaves_the_capture_to_its_parent(place: Place, tmp_path: Path) -> None:
    for on_ring in place.both_ways():
        with Script(place, on_ring, tmp_path, CLOSING_CHILD) as program:
            program.wait_for("ready")
            place.sender.send([frame(number, 60) for number in range(10)])
            assert program.answer() == {"child": 0, "packets": 10, "received": 10, "polled": True}


def test_a_handle_that_is_closed_twice_ends_its_program_only(
    place: Place, until: Callable[..., None], tmp_path: Path
) -> None:
    file = tmp_path / "other.pcap"
    with Program(place, True, "tcpdump", "-i", place.interface, "-U", "-w", file, KIND) as other:
        other.wait_for("listening on")
        # libpcap does not allow it: glibc finds memory that is freed twice, and aborts.
        done = [Script(place, on_ring, tmp_path, CLOSING_TWICE).end() for on_ring in (True, False)]
        assert [(one.returncode, one.stdout) for one in done] == [(-signal.SIGABRT, "closed\n")] * 2
        until("it has left", lambda: [len(ring["subscribers"]) for ring in place.rings().values()] == [1])
        place.sender.send([frame(number, 60) for number in range(10)])
        until("all is written", lambda: is_written(file, 10))
        assert counts(other.end(signal.SIGINT).stderr) == [10, 10, 0]


def with_file_capabilities(program: str, directory: Path) -> Path:
    """Copy a program, and give it CAP_NET_RAW as `setcap cap_net_raw+ep` does."""
    copy = directory / program
    shutil.copy(shutil.which(program), copy)
    copy.chmod(0o755)
    # struct vfs_cap_data, revision 2, effective: permitted and inheritable, 32 bits each, twice.
    os.setxattr(copy, "security.capability", struct.pack("<5I", 0x0200_0001, 1 << CAP_NET_RAW, 0, 0, 0))
    return copy


def test_a_program_with_file_capabilities_is_refused_to_members_and_runs_as_root(
    place: Place, until: Callable[..., None], open_directory: Path
) -> None:
    copy = with_file_capabilities("tcpdump", open_directory)
    as_member = ("setpriv", "--reuid", "nobody", "--regid", MEMBER, "--clear-groups", "--inh-caps=-all")
    words = ("-i", place.interface, "-c", "3", "-n", KIND)
    refused = Program(place, False, *as_member, PARSHALL, "pcap", "--", copy, *words).end()
    assert (refused.returncode, refused.stderr.strip()) == (
        2,
        f"parshall: pcap: {copy}: it has file capabilities, so the loader uses only the system's libpcap; "
        "run it as root, or use `parshall extcap`",
    )
    # The ways out: as root; for a member, a copy without capabilities.
    with Program(place, True, copy, *words) as program:
        assert "without the ring" not in program.wait_for("listening on")
        assert place.rings()
        place.sender.send([frame(number, 60) for number in range(3)])
        assert counts(program.end().stderr) == [3, 3, 0]
    until("the ring has ended", lambda: not place.rings())
    os.removexattr(copy, "security.capability")
    name = f"test-{os.getpid()}-capability"
    ring = ("-i", place.interface, "--name", name, "--group", grp.getgrgid(MEMBER).gr_name, "-w", "/dev/null")
    with Program(place, False, PARSHALL, "capture", *ring):
        until("the ring runs", lambda: place.rings().get(name, {}).get("subscribers"))
        with Program(place, False, *as_member, PARSHALL, "pcap", "--", copy, *words) as program:
            assert "without the ring" not in program.wait_for("listening on")
            place.sender.send([frame(number, 60) for number in range(3)])
            assert counts(program.end().stderr) == [3, 3, 0]


def test_tshark_is_refused_when_its_dumpcap_has_file_capabilities(open_directory: Path) -> None:
    if shutil.which("tshark") is None:
        pytest.skip("tshark is not installed; `scripts/setup packages` installs it")
    with_file_capabilities("dumpcap", open_directory)
    as_member = ("setpriv", "--reuid", "nobody", "--regid", str(MEMBER), "--clear-groups", "--inh-caps=-all")
    done = subprocess.run(
        [*as_member, PARSHALL, "pcap", "--", "tshark", "-i", "eth0"],
        capture_output=True, text=True, env=os.environ | {"PATH": f"{open_directory}:{os.environ['PATH']}"},
    )  # fmt: skip
    assert (done.returncode, done.stderr.strip()) == (
        2,
        f"parshall: pcap: tshark: it captures by {open_directory}/dumpcap, which has file capabilities, so the loader "
        "uses only the system's libpcap; run it as root, or use `parshall extcap`",
    )


STATISTICS = """
class Statistics(ctypes.Structure):
    _fields_ = [("received", ctypes.c_uint), ("dropped", ctypes.c_uint), ("interface_dropped", ctypes.c_uint)]
def received(pcap):
    statistics = Statistics()
    assert lib.pcap_stats(pcap, ctypes.byref(statistics)) == 0, lib.pcap_geterr(pcap)
    return statistics.received
"""

# Sends by one handle; both read until a packet of somebody else comes.
SENDING = (
    STATISTICS
    + """
pcap, other = (filtered(opened(100), sys.argv[2]) for _ in range(2))
descriptor = lib.pcap_get_selectable_fd(pcap)
found = {"returned": [], "own": [], "other": 0}
for number in range(20):
    sent = bytes.fromhex("ffffffffffff02707300000188b5") + bytes([number] * (46 + number))
    send = lib.pcap_sendpacket if number % 2 else lib.pcap_inject
    found["returned"].append(send(pcap, sent, len(sent)))
def packets(pcap):
    while True:
        if lib.pcap_next_ex(pcap, ctypes.byref(header), ctypes.byref(data)) == 1:
            yield ctypes.string_at(data, 18)
print("sent", file=sys.stderr, flush=True)
assert select.select([descriptor], [], [], 10)[0]
for packet in packets(pcap):
    found["own"].append(packet[14:].hex())
    if packet[14:18] == (99).to_bytes(4, "big"): break
for packet in packets(other):
    found["other"] += 1
    if packet[14:18] == (99).to_bytes(4, "big"): break
assert not select.select([descriptor], [], [], 0.1)[0]
found["received"] = [received(pcap), received(other)]
print(json.dumps(found))
"""
)

# Many handles, each with its thread; closing them takes less than opening.
MANY_HANDLES = """
count_of_handles = int(sys.argv[3])
started = time.monotonic()
handles = [filtered(opened(100), sys.argv[2]) for _ in range(count_of_handles)]
opened_s = time.monotonic() - started
counted = [0] * count_of_handles
def count(number):
    def add(*_): counted[number] += 1
    handler = HANDLER(add)
    assert lib.pcap_loop(handles[number], 50, handler, None) == 0
threads = [threading.Thread(target=count, args=(number,)) for number in range(count_of_handles)]
for thread in threads: thread.start()
print("ready", file=sys.stderr, flush=True)
for thread in threads: thread.join()
started = time.monotonic()
for pcap in handles: lib.pcap_close(pcap)
assert time.monotonic() - started < max(opened_s, 5)
print(json.dumps({"packets": counted}))
"""

# Changes the filter to and fro while packets of both kinds flow.
FLOWING = """
pcap = opened(100)
print("ready", file=sys.stderr, flush=True)
rounds = []
for number in range(6):
    filtered(pcap, sys.argv[2 + number % 2])
    taken = []
    while len(taken) < 30:
        if lib.pcap_next_ex(pcap, ctypes.byref(header), ctypes.byref(data)) == 1:
            taken.append(ctypes.string_at(data, 18))
    numbers = [int.from_bytes(one[14:18], "big") for one in taken]
    rounds.append({
        "wanted": ["88b5", "88b6"][number % 2],
        "kinds": sorted({one[12:14].hex() for one in taken}),
        "steps": sorted({after - before for before, after in zip(numbers, numbers[1:])}),
    })
print(json.dumps(rounds))
"""

# The child closes what its parent reads.
CLOSING_CHILD = (
    STATISTICS
    + """
pcap = filtered(opened(100), sys.argv[2])
descriptor = lib.pcap_get_selectable_fd(pcap)
child = os.fork()
if child == 0:
    lib.pcap_close(pcap)
    os._exit(0)
found = {"child": os.wait()[1], "packets": 0}
print("ready", file=sys.stderr, flush=True)
found["polled"] = bool(select.select([descriptor], [], [], 10)[0])
while found["packets"] < 10:
    found["packets"] += lib.pcap_next_ex(pcap, ctypes.byref(header), ctypes.byref(data))
found["received"] = received(pcap)
lib.pcap_close(pcap)
print(json.dumps(found))
"""
)

CLOSING_TWICE = """
pcap = filtered(opened(), sys.argv[2])
lib.pcap_close(pcap)
print("closed", flush=True)
lib.pcap_close(pcap)
print("closed again", flush=True)
"""
