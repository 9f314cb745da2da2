"""Captures of libpcap that start together, change their filters and answer at once: on a ring as on packet sockets."""

import re
import signal
import statistics
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from capturer import PARSHALL, frame
from test_pcap import Place, Program, Script, counts, is_written, place, stamped
from test_pcap_limits import STATISTICS

__all__ = ["place"]
pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("root")]
TOGETHER = 33
FIRST_KIND = 0x8900
OPENED_IN_ALL = 13


def test_programs_that_start_together_see_their_packets(
    place: Place, until: Callable[..., None], tmp_path: Path
) -> None:
    files = [tmp_path / f"{number}.pcap" for number in range(TOGETHER)]
    one = "tcpdump -i %s -U -w %s ether proto %d 2> %s &"
    lines = [one % (place.interface, file, FIRST_KIND + at, file.with_suffix(".txt")) for at, file in enumerate(files)]
    with Program(
        place, True, "sh", "-c", "\n".join([*lines, "trap : INT", "wait", "wait"]), start_new_session=True
    ) as all_:
        said = [file.with_suffix(".txt") for file in files]
        until("all listen", lambda: all(one.exists() and "listening on" in one.read_text() for one in said))
        (ring,) = place.rings().values()
        assert len(ring["subscribers"]) == TOGETHER
        # The programs of the kernel may not have the filters yet: each reader filters what it gets.
        place.sender.send([frame(number, 60, kind=FIRST_KIND + number) for number in range(TOGETHER)])
        until("each has its packet", lambda: all(is_written(file, 1) for file in files))
        for pid in {one["pid"] for one in ring["subscribers"]}:
            subprocess.run(["kill", "-INT", str(pid)], check=True)
        until("all ended", lambda: all("dropped by kernel" in one.read_text() for one in said))
        all_.end(signal.SIGINT)
    for number, (file, errors) in enumerate(zip(files, said, strict=True)):
        assert counts(errors.read_text()) == [1, 1, 0]
        assert "without the ring" not in errors.read_text()
        ((_, _, packet),) = stamped(file)
        assert packet == frame(number, 60, kind=FIRST_KIND + number)


def test_captures_open_in_one_ring_whatever_interrupts_the_keeper_s_answers(
    place: Place, until: Callable[..., None], tmp_path: Path
) -> None:
    """Signals come all the time, threads open captures, and forked children theirs."""
    with Script(place, True, tmp_path, INTERRUPTED_OPENING) as program:
        said = program.wait_for("ready")
        assert "parshall:" not in said
        (ring,) = place.rings().values()
        # Those of children have ended.
        until("its own are left", lambda: len(next(iter(place.rings().values()))["subscribers"]) == OPENED_IN_ALL)
        place.sender.send([frame(number, 60) for number in range(3)])
        assert program.answer() == {"read": [3] * OPENED_IN_ALL, "received": [3] * OPENED_IN_ALL, "children": [0] * 4}
    assert ring["subscribers"]


def test_counts_leave_out_what_a_new_filter_rejects(place: Place, tmp_path: Path) -> None:
    """Packets come before the kernel's programs have the filter; whoever counts may not have read them."""
    for on_ring in place.both_ways():
        with Script(place, on_ring, tmp_path, COUNTING, stdin=subprocess.PIPE) as program:
            for _ in range(10):
                program.wait_for("set")
                place.sender.send([frame(number, 60, kind=0x88B6 - number % 2) for number in range(20)])
                program.process.stdin.write("go on\n")
                program.process.stdin.flush()
            assert program.answer() == {"received": [10] * 10, "read": 100}


def test_a_reply_comes_at_once_in_immediate_mode(place: Place, tmp_path: Path) -> None:
    address = place.link.address(place.left)
    own = place.link.address(place.host)
    medians = {}
    for on_ring in place.both_ways():
        for is_selected in ("0", "1"):
            with Script(place, on_ring, tmp_path, REPLY, own, address, is_selected) as program:
                times_ms = program.answer()
            assert len(times_ms) == 60
            medians[on_ring, is_selected] = statistics.median(times_ms)
    # Without immediate mode a packet waits a millisecond for those of other CPUs, and then for the reader's next look.
    assert max(medians.values()) < 1, medians


def test_a_full_table_of_files_is_reported_as_by_libpcap(place: Place, tmp_path: Path) -> None:
    found = []
    for on_ring in place.both_ways():
        with Script(place, on_ring, tmp_path, FULL_TABLE) as program:
            found.append(program.answer())
    assert found[0] == found[1]
    assert found[0]["blocking"][0] == -1 and "eventfd" in found[0]["blocking"][1]


def test_signals_of_a_program_are_as_without_the_ring(place: Place) -> None:
    ignored = []
    for command in ([PARSHALL, "pcap", "--"], []):
        with place.host.enter():
            words = [*command, "grep", "SigIgn", "/proc/self/status"]
            shown = subprocess.run(words, capture_output=True, text=True, check=True).stdout
        ignored.append(int(re.search(r"SigIgn:\s+(\w+)", shown)[1], 16))
    assert ignored[0] == ignored[1]


# Opens captures in threads and in forked children while signals come; then each reads.
INTERRUPTED_OPENING = (
    STATISTICS
    + """
signal.signal(signal.SIGALRM, lambda *_: None)
def send_signals(interval_s): signal.setitimer(signal.ITIMER_REAL, interval_s, interval_s)
send_signals(0.001)
handles, children = [], []
def open_one(): handles.append(filtered(opened(100), sys.argv[2]))
open_one()
for number in range(4):
    # The kernel begins a fork again after each signal. No other thread runs: a child of several must not open anything.
    send_signals(0)
    child = os.fork()
    send_signals(0.001)
    if child == 0:
        lib.pcap_close(filtered(opened(100), sys.argv[2]))
        os._exit(0)
    threads = [threading.Thread(target=open_one) for _ in range(2)]
    for thread in threads: thread.start()
    open_one()
    for thread in threads: thread.join()
    children.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print("ready", file=sys.stderr, flush=True)
found = {"read": [], "received": [], "children": children}
for pcap in handles:
    read = 0
    while read < 3: read += lib.pcap_next_ex(pcap, ctypes.byref(header), ctypes.byref(data))
    found["read"].append(read)
    found["received"].append(received(pcap))
send_signals(0)
print(json.dumps(found))
"""
)

# Counts what was received before it reads it.
COUNTING = (
    STATISTICS
    + """
pcap = opened(100)
found = {"received": [], "read": 0}
before = 0
for number in range(10):
    filtered(pcap, ["ether proto 0x88b6", "ether proto 0x88b5"][number % 2])
    print("set", file=sys.stderr, flush=True)
    sys.stdin.readline()
    before += 10
    deadline = time.monotonic() + 10
    while (now := received(pcap)) < before and time.monotonic() < deadline: pass
    found["received"].append(now - before + 10)
    while found["read"] < before:
        found["read"] += lib.pcap_next_ex(pcap, ctypes.byref(header), ctypes.byref(data))
print(json.dumps(found))
"""
)

# Asks for an address by ARP, and reads the replies, one after the other; with select, or waiting in libpcap.
REPLY = """
import socket
pcap = filtered(opened(1000), "arp[6:2] = 2")
is_selected = sys.argv[5] == "1"
descriptor = lib.pcap_get_selectable_fd(pcap) if is_selected else -1
if is_selected: assert lib.pcap_setnonblock(pcap, 1, error) == 0
own, address = (socket.inet_aton(one) for one in sys.argv[3:5])
source = bytes.fromhex("027073000009")
head = bytes.fromhex("ffffffffffff") + source + bytes.fromhex("08060001080006040001")
asked = head + source + own + bytes(6) + address
times_ms = []
for number in range(60):
    began = time.monotonic()
    assert lib.pcap_sendpacket(pcap, asked.ljust(60, bytes(1)), 60) == 0
    while lib.pcap_next_ex(pcap, ctypes.byref(header), ctypes.byref(data)) != 1:
        if is_selected: select.select([descriptor], [], [], 1)
        assert time.monotonic() < began + 5
    times_ms.append((time.monotonic() - began) * 1000)
    time.sleep(0.003 + number % 5 / 1000)
print(json.dumps(times_ms))
"""

FULL_TABLE = """
import resource
pcap = filtered(opened(), sys.argv[2])
def mode(is_nonblocking):
    lib.pcap_setnonblock.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p]
    status = lib.pcap_setnonblock(pcap, is_nonblocking, error)
    # Versions of libpcap begin the text with another case.
    return [status, error.value.decode().lower(), lib.pcap_getnonblock(pcap, error)]
found = {"nonblocking": mode(1)[::2]}
limit = resource.getrlimit(resource.RLIMIT_NOFILE)
taken = []
resource.setrlimit(resource.RLIMIT_NOFILE, (64, limit[1]))
while True:
    try: taken.append(os.open("/dev/null", os.O_RDONLY))
    except OSError: break
found["blocking"] = mode(0)
for one in taken: os.close(one)
found["later"] = mode(0)[::2]
print(json.dumps(found))
"""
