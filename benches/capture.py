"""What N applications that capture cost the kernel: one ring of ours beside N x tcpdump.

The study ``ffpf`` compares unmodified tcpdumps on the ring and on packet sockets; this measures the kernel's part.

Run as root: ``benches/run capture`` or ``.venv/bin/python benches/capture.py [--rounds 3]
[--packets 4000000] [--sizes 64,645,1500] [--readers 1,2,4,6,8] [--instruments bare,xdp,...]
[--pps N] [--timed] [--archive [NAME]]``. A cable between two namespaces;
frames are sent into it by XDP live frames (``BPF_PROG_TEST_RUN``) from one CPU, on which the receiving side
runs, too; the readers have the other CPU. Every instrument writes to ``/dev/null`` with the same buffer. A
round runs every instrument once for each number of readers, to and fro, in an order that rotates. Prints a table
and one JSON object; ``--archive`` puts it into ``benches/archive/``.

A run is one system call that sends all frames, less the time that the same call takes to send one batch: the
kernel waits for grace periods before it begins and after it ended, tens of milliseconds that
grow with the number of busy readers. With ``--pps`` frames come at this mean rate, as a burst every 100 ms.
With ``--timed`` the kernel's run-time statistics are on, and the table has nanoseconds of our programs, those
of taking the time included, and no packets a second.

instruments whose packets go on to the stack, which drops their unknown protocol
    bare       no capture
    xdp        ``parshall capture --hook xdp``, and N - 1 that join
    tcx        ``parshall capture --hook tcx``, and N - 1 that join
    tcpdump    N x ``tcpdump -w /dev/null`` (TPACKET_V3)
instruments that drop the packets at the hook, as at a mirror port
    drop       no capture: two instructions of XDP drop all
    discard    ``parshall capture --hook xdp --discard``, and N - 1 that join
    filter     as discard, every reader with the filter of Schneider's thesis (figure 6.5), which accepts all
without traffic
    hook       our XDP program alone in test runs on one frame, its readers stopped: nanoseconds a packet
"""

import argparse
import ctypes
import json
import os
import platform
import re
import signal
import socket
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from _record import finish, parser_for, version_of

from parshall.instruments.capture import rings
from parshall.studies.thesis import filter_50
from parshall.testbed import Testbed

BPF_SYSCALL = {"x86_64": 321, "aarch64": 280, "riscv64": 280}[platform.machine()]
PROG_LOAD, PROG_TEST_RUN, PROG_GET_FD_BY_ID, LINK_CREATE, ENABLE_STATS = 5, 10, 13, 28, 32
PROG_TYPE_XDP = 6
XDP_ATTACH_TYPE, XDP_DRIVER_MODE, XDP_DROP = 37, 4, 1
XDP_LIVE_FRAMES = 2
REDIRECT = 23
BURST_S = 0.1
BATCH_PACKETS = 64
PARSHALL = Path(sys.executable).with_name("parshall")

Report = dict[str, Any]
libc = ctypes.CDLL(None, use_errno=True)


def bpf(command: int, attributes: bytes) -> tuple[int, bytes]:
    """Make the system call; return its result, and the attributes as the kernel left them."""
    buffer = ctypes.create_string_buffer(attributes.ljust(128, b"\0"), 128)
    result = libc.syscall(BPF_SYSCALL, command, buffer, 128)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result, buffer.raw


def load_redirect(interface: int) -> int:
    """Load an XDP program that sends every frame out of an interface; return its descriptor."""
    return load((0xB7, 1, 0, interface), (0xB7, 2, 0, 0), (0x85, 0, 0, REDIRECT), (0x95, 0, 0, 0))


def load(*instructions: tuple[int, int, int, int]) -> int:
    """Load an XDP program; return its descriptor."""
    code = b"".join(struct.pack("<BBhi", *instruction) for instruction in instructions)
    text, licence = ctypes.create_string_buffer(code, len(code)), ctypes.create_string_buffer(b"GPL")
    addresses = ctypes.addressof(text), ctypes.addressof(licence)
    return bpf(PROG_LOAD, struct.pack("IIQQ", PROG_TYPE_XDP, len(instructions), *addresses))[0]


def test_run(program: int, frame: bytes, repeat: int, *, live: bool) -> float:
    """Run a program on a frame; return the mean nanoseconds of a run."""
    data = ctypes.create_string_buffer(frame, len(frame))
    flags, batch = (XDP_LIVE_FRAMES, BATCH_PACKETS) if live else (0, 0)
    attributes = struct.pack(
        "IIIIQQIIIIQQIII",
        program, 0, len(frame), 0, ctypes.addressof(data), 0, repeat, 0, 0, 0, 0, 0, flags, 0, batch,
    )  # fmt: skip
    _, after = bpf(PROG_TEST_RUN, attributes)
    return struct.unpack_from("IIIIQQII", after)[7]


def frame_of(frame_bytes: int) -> bytes:
    """A frame that the stack drops: its protocol is unknown."""
    return bytes.fromhex("ffffffffffff02707300010188b5").ljust(frame_bytes, b"\x55")


def thesis_frame(frame_bytes: int) -> bytes:
    """A frame of the thesis: UDP from 192.168.10.100 to 192.168.10.12, as its filter accepts it."""
    ethernet = bytes.fromhex("ffffffffffff0000000000010800")
    addresses = bytes([192, 168, 10, 100, 192, 168, 10, 12])
    header = struct.pack(">BBHHHBBH", 0x45, 0, frame_bytes - len(ethernet), 0, 0, 64, 17, 0) + addresses
    return (ethernet + header + struct.pack(">HHHH", 9, 9, frame_bytes - 34, 0)).ljust(frame_bytes, b"\x55")


class Cable:
    """The sending and the receiving end."""

    def __init__(self, bed: Testbed) -> None:
        self.sender, self.receiver = bed.host("sender"), bed.host("receiver")
        self.link = link = bed.link(self.sender, self.receiver, backend="veth")
        self.interface = link.interface(self.receiver)
        # Redirected frames reach a veth only where its peer runs NAPI.
        self.receiver.run(["ethtool", "-K", self.interface, "gro", "on"])
        with self.sender.enter():
            self.program = load_redirect(socket.if_nametoindex(link.interface(self.sender)))

    def flood(self, frame: bytes, packets: int) -> float:
        """Send frames as fast as they go; return packets a second."""
        set_up_s = self.send(frame, BATCH_PACKETS)
        return packets / (self.send(frame, packets) - set_up_s)

    def bursts(self, frame: bytes, packets: int, rate_pps: int) -> float:
        """Send frames at a mean rate; return the one that was achieved."""
        started = time.perf_counter()
        part = round(rate_pps * BURST_S)
        bursts = max(packets // part, 1)
        for number in range(bursts):
            time.sleep(max(0.0, started + number * BURST_S - time.perf_counter()))
            self.send(frame, part)
        time.sleep(max(0.0, started + bursts * BURST_S - time.perf_counter()))
        return bursts * part / (time.perf_counter() - started)

    def send(self, frame: bytes, packets: int) -> float:
        """Send frames in one call; return its seconds."""
        with self.sender.enter():
            started = time.perf_counter()
            test_run(self.program, frame, packets, live=True)
            return time.perf_counter() - started


@contextmanager
def parshall(
    cable: Cable, instrument: str, readers: int, report: Report, buffer_mib: int, reader_cpu: int
) -> Iterator[None]:
    """Create a ring, and join it until there are so many readers."""
    ring = f"bench-{os.getpid()}"
    hook = "tcx" if instrument == "tcx" else "xdp"
    first = ["-i", cable.interface, "--hook", hook, "--direction", "in", "--name", ring, "--buffer", f"{buffer_mib}M"]
    if instrument in MIRROR:
        first.append("--discard")
    wants = ["--filter", filter_50()] if instrument == "filter" else []
    processes = []
    for number in range(readers):
        arguments = first if number == 0 else ["--join", ring]
        command = [PARSHALL, "capture", *arguments, *wants, "-w", "/dev/null", "--json"]
        processes.append(cable.receiver.popen(command, cpu=reader_cpu, stdout=subprocess.PIPE, text=True))
        wait_until(lambda: len(subscribers(ring)) == len(processes))
    with reading(processes, report) as outputs:
        yield
    ledgers = [json.loads(output)["ledger"] for output, _ in outputs]
    accounts = [ledger["subscribers"][0]["interfaces"][0] for ledger in ledgers]
    report["lost"] = [sum(account["lost"].values()) / max(account["seen"], 1) for account in accounts]
    report["hook_ns"] = ledgers[-1]["cost"]["programs"][0]["ns_per_run"]  # as far as runs were timed


@contextmanager
def reading(processes: list[Any], report: Report) -> Iterator[list[tuple[str, str]]]:
    """Measure the CPU time of readers, end them, and append the output and errors of each to the yielded list."""
    outputs: list[tuple[str, str]] = []
    pids = [process.pid for process in processes]
    before_s = cpu_s(pids)
    yield outputs
    report["reader_cpu_s"] = settled_cpu_s(pids) - before_s
    for process in processes:
        process.send_signal(signal.SIGINT)
    outputs += [process.communicate() for process in processes]


@contextmanager
def hook_alone(
    cable: Cable, _hook: str, readers: int, report: Report, buffer_mib: int, reader_cpu: int
) -> Iterator[None]:
    """Run our program alone, with stopped readers: its cost without anything else."""
    with parshall(cable, "xdp", readers, {}, buffer_mib, reader_cpu):
        found = next(one for one in rings() if one["name"] == f"bench-{os.getpid()}")
        pids = {one["pid"] for one in found["subscribers"]}
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            report["hook_ns"] = hook_ns(found["keeper_pid"], report["frame_bytes"])
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)
        yield


def subscribers(ring: str) -> list[Any]:
    """Return the readers of a ring."""
    return next((one["subscribers"] for one in rings() if one["name"] == ring), [])


def hook_ns(keeper: int, frame_bytes: int) -> float:
    """Mean run time of the program that a keeper has attached, in a run of its own."""
    links = []
    for path in Path(f"/proc/{keeper}/fdinfo").iterdir():
        with suppress(FileNotFoundError):  # the keeper closes some descriptors meanwhile
            links.append(path.read_text())
    found = (re.search(r"link_type:\s*xdp.*prog_id:\s*(\d+)", text, re.DOTALL) for text in links)
    (program,) = {int(match[1]) for match in found if match}
    descriptor, _ = bpf(PROG_GET_FD_BY_ID, struct.pack("I", program))
    try:
        return statistics.median(test_run(descriptor, frame_of(frame_bytes), 200_000, live=False) for _ in range(5))
    finally:
        os.close(descriptor)


@contextmanager
def tcpdump(
    cable: Cable, _instrument: str, readers: int, report: Report, buffer_mib: int, reader_cpu: int
) -> Iterator[None]:
    """Run so many tcpdumps."""
    command = ["tcpdump", "-Z", "root", "-i", cable.interface, "-B", str(buffer_mib << 10), "-n", "-w", "/dev/null"]
    processes = []
    for _ in range(readers):
        process = cable.receiver.popen(command, cpu=reader_cpu, stderr=subprocess.PIPE, text=True)
        for line in process.stderr:
            if "listening" in line:
                break
        processes.append(process)
    with reading(processes, report) as outputs:
        yield
    report["lost"] = []
    for _, errors in outputs:
        counts = {line.split()[2]: int(line.split()[0]) for line in errors.splitlines() if line[:1].isdigit()}
        report["lost"].append(1 - counts["captured"] / max(counts["received"], 1))


@contextmanager
def bare(cable: Cable, instrument: str, _readers: int, _report: Report, _buffer: int, _cpu: int) -> Iterator[None]:
    """Capture nothing."""
    with ExitStack() as held:
        if instrument == "drop":
            with cable.receiver.enter():
                interface = socket.if_nametoindex(cable.interface)
                program = load((0xB7, 0, 0, XDP_DROP), (0x95, 0, 0, 0))
                link, _ = bpf(LINK_CREATE, struct.pack("IIII", program, interface, XDP_ATTACH_TYPE, XDP_DRIVER_MODE))
            held.callback(os.close, program)
            held.callback(os.close, link)
        yield


INSTRUMENTS: dict[str, Callable[..., Any]] = {
    "bare": bare,
    "xdp": parshall,
    "tcx": parshall,
    "tcpdump": tcpdump,
    "drop": bare,
    "discard": parshall,
    "filter": parshall,
    "hook": hook_alone,
}
MIRROR = ("drop", "discard", "filter")


def cpu_s(processes: list[int]) -> float:
    """User and system seconds of processes so far."""
    all_fields = (Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split() for process in processes)
    return sum(int(fields[11]) + int(fields[12]) for fields in all_fields) / os.sysconf("SC_CLK_TCK")


def settled_cpu_s(processes: list[int], timeout_s: float = 10) -> float:
    """Return the same once the processes are idle."""
    deadline = time.monotonic() + timeout_s
    before_s = -1.0
    while (now_s := cpu_s(processes)) - before_s > 0.02 * len(processes) and time.monotonic() < deadline:
        before_s = now_s
        time.sleep(0.2)
    return now_s


def wait_until(condition: Callable[[], bool], timeout_s: float = 20) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit("an instrument did not start")
        time.sleep(0.01)


def run(instrument: str, readers: int, frame_bytes: int, arguments: argparse.Namespace) -> Report:
    """Measure one instrument with so many readers."""
    report: Report = {"readers": readers, "frame_bytes": frame_bytes}
    frame = thesis_frame(frame_bytes) if instrument in MIRROR else frame_of(frame_bytes)
    cpus = sorted(os.sched_getaffinity(0))
    with ExitStack() as held, Testbed() as bed:
        if arguments.timed:
            held.callback(os.close, bpf(ENABLE_STATS, struct.pack("I", 0))[0])
        cable = Cable(bed)
        observe = INSTRUMENTS[instrument]
        with observe(cable, instrument, readers, report, arguments.buffer_mib, cpus[-1]):
            if instrument != "hook":
                os.sched_setaffinity(0, {cpus[0]})
                try:
                    if arguments.pps:
                        report["packets_per_s"] = cable.bursts(frame, arguments.packets, arguments.pps)
                    else:
                        report["packets_per_s"] = cable.flood(frame, arguments.packets)
                finally:
                    os.sched_setaffinity(0, cpus)
        os.close(cable.program)
    return report


def main() -> int:
    """Measure, print, archive."""
    parser = parser_for(__doc__, rounds=3)
    parser.add_argument("--packets", type=int, default=4_000_000)
    parser.add_argument("--sizes", default="64,645,1500")
    parser.add_argument("--readers", default="1,2,4,6,8")
    parser.add_argument("--buffer-mib", type=int, default=128)
    parser.add_argument("--instruments", default=",".join(INSTRUMENTS))
    parser.add_argument("--pps", type=int, help="mean rate; as fast as it goes when not given")
    parser.add_argument("--timed", action="store_true", help="time every run of the programs; it takes longer then")
    arguments = parser.parse_args()
    names = arguments.instruments.split(",")
    raw: dict[str, list[Report]] = {name: [] for name in names}
    for frame_bytes in map(int, arguments.sizes.split(",")):
        for number in range(arguments.rounds):
            # Numbers of readers next to each other, because they are compared; in alternating order.
            counts = list(map(int, arguments.readers.split(",")))[:: -1 if number % 2 else 1]
            for name in names[number % len(names) :] + names[: number % len(names)]:
                for readers in [0] if INSTRUMENTS[name] is bare else counts:
                    raw[name].append(run(name, readers, frame_bytes, arguments))
            print(f"{frame_bytes} bytes, round {number + 1} of {arguments.rounds}", file=sys.stderr)
        print("\n".join(table(frame_bytes, raw, arguments.timed)), flush=True)
    finish("capture", {"raw": raw}, {"tcpdump": version_of("tcpdump", "--version")}, arguments.archive)
    return 0


def table(frame_bytes: int, raw: dict[str, list[Report]], is_timed: bool) -> list[str]:
    """Return the lines of one table: medians over the rounds with their quartiles, and the worst reader.

    The last column is the median, with quartiles, of what a run gave over what the one with the fewest
    readers gave in the same round.
    """
    lines = [f"{frame_bytes} bytes", f"  {'':8} {'readers':>7} {'median (quartiles)':>25} {'worst loss':>10}"]
    for name, reports in raw.items():
        mine = [report for report in reports if report["frame_bytes"] == frame_bytes]
        counts = sorted({report["readers"] for report in mine})
        by_readers = {count: [report for report in mine if report["readers"] == count] for count in counts}
        for readers, some in by_readers.items():
            is_time = name == "hook" or (is_timed and INSTRUMENTS[name] is parshall)
            key, scale, unit = ("hook_ns", 1, "ns") if is_time else ("packets_per_s", 1e6, "Mpps")
            values = [report[key] / scale for report in some]
            lost = [max(report["lost"]) for report in some if report.get("lost")]
            line = f"  {name:8} {readers:7} {spread(values)} {unit}"
            line += f" {f'{statistics.median(lost):.1%}' if lost else '':>10}"
            if readers > counts[0]:
                beside = [report[key] / scale for report in by_readers[counts[0]]]
                ratios = [value / other for value, other in zip(values, beside, strict=True)]
                line += f"  {spread(ratios, 3)} of {counts[0]}"
            lines.append(line)
    return lines


def spread(values: list[float], places: int = 2) -> str:
    """Return the median, and in brackets the quartiles."""
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
    return f"{middle:7.{places}f} ({low:.{places}f}-{high:.{places}f})"


if __name__ == "__main__":
    sys.exit(main())
