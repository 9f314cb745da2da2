"""How fast programs of libpcap open, filter, answer and capture, on a ring beside packet sockets.

Run as root: ``benches/run pcap`` or ``.venv/bin/python benches/pcap.py [--rounds 5] [--packets 1000000]
[--archive [NAME]]``. A cable between two namespaces; one tcpdump has created the ring. Every round runs each case on a
packet socket and on the ring, in an order that alternates. Prints a table and one JSON object; ``--archive`` puts it
into ``benches/archive/``. Medians of all rounds; a ratio is that of a round, ring over socket.

open, open_filter
    Milliseconds of ``pcap_create``, ``pcap_activate`` and, with a filter, ``pcap_compile`` and ``pcap_setfilter``.
open_40, open_40_filter
    The same for 40 handles of one process, in all.
change, change_at_once
    Milliseconds of ``pcap_setfilter`` with ten primitives, 50 ms after the last one or just behind it.
reply
    Milliseconds from an ARP request by ``pcap_sendpacket`` until ``pcap_next_ex`` has the reply, in immediate mode.
tcpdump_1, tcpdump_6, tcpdump_6_apart
    Million packets a second of 645 bytes that reach each of so many tcpdumps, which write to ``/dev/null`` and have
    128 MiB of buffer; *apart*: sender and hook have the first CPU, the tcpdumps the last.

But for these, buffers and ring have their default sizes: the kernel maps the whole ring for a reader.
"""

import itertools
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from _record import finish, parser_for, version_of
from capture import BATCH_PACKETS, Cable, frame_of, settled_cpu_s

from parshall.testbed import Host, Testbed

PARSHALL = Path(sys.executable).with_name("parshall")
SOURCE = Path(__file__).with_name("_pcap_calls.c")
FILTERS = (
    "tcp port 80 or tcp port 443 or udp port 53 or host 10.1.2.3 or icmp",
    "udp port 5000 or udp port 6000 or tcp port 22 or host 10.1.2.4 or arp",
)
FRAME_BYTES = 645


def words(on_ring: bool) -> list[str]:
    """Return what stands before a program."""
    return [str(PARSHALL), "pcap", "--"] if on_ring else []


def times_ms(host: Host, program: Path, interface: str, on_ring: bool, *arguments: object) -> list[float]:
    """Run the program that times calls; return its times."""
    with host.enter():
        command = [*words(on_ring), program, interface, *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    if "without the ring" in done.stderr:
        raise SystemExit(done.stderr)
    return [float(line) / 1000 for line in done.stdout.split()]


@contextmanager
def tcpdumps(
    host: Host, interface: str, on_ring: bool, count: int, *options: str, cpu: int | None = None
) -> Iterator[list[subprocess.Popen[str]]]:
    """Run so many tcpdumps, on one CPU or on all."""
    pinned = [] if cpu is None else ["taskset", "--cpu-list", str(cpu)]
    with ExitStack() as running:
        started = []
        for _ in range(count):
            with host.enter():
                # As root it leaves /dev/null to its owner.
                output = ("-Z", "root", "-w", "/dev/null")
                command = [*pinned, *words(on_ring), "tcpdump", "-i", interface, *options, *output]
                started.append(subprocess.Popen(command, stderr=subprocess.PIPE, text=True))
            running.callback(started[-1].kill)
        for one in started:
            while "listening on" not in (line := one.stderr.readline()):
                if not line:
                    raise SystemExit("a tcpdump ended early")
        yield started


@contextmanager
def on_cpus(cpus: list[int]) -> Iterator[None]:
    """Keep this process on some CPUs."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def reached(one: subprocess.Popen[str]) -> int:
    """End a tcpdump; return the packets that it captured."""
    one.send_signal(signal.SIGINT)
    _, errors = one.communicate()
    return int(re.search(r"^(\d+) packets captured", errors, re.MULTILINE)[1])


def main() -> None:
    """Measure, print a table and one JSON object."""
    parser = parser_for(__doc__, rounds=5)
    parser.add_argument("--packets", type=int, default=1_000_000)
    arguments = parser.parse_args()
    found: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory() as directory, Testbed() as bed:
        program = Path(directory) / "pcap_calls"
        build = ["gcc", "-O1", "-Wall", "-Wextra", "-Werror", SOURCE, "-o", program, "-l:libpcap.so.0.8"]
        subprocess.run(build, check=True)
        cable = Cable(bed)
        host, interface = cable.receiver, cable.interface
        addresses = (cable.link.address(end).split(".") for end in (cable.sender, host))
        left, right = ("".join(f"{int(part):02x}" for part in address) for address in addresses)
        cases = {
            "open": ("open", 1),
            "open_filter": ("open", 1, FILTERS[0]),
            "open_40": ("open", 40),
            "open_40_filter": ("open", 40, FILTERS[0]),
            "change": ("change", 20, 50, *FILTERS),
            "change_at_once": ("change", 20, 0, *FILTERS),
            "reply": ("reply", 100, right, left),
        }
        for round_ in range(arguments.rounds):
            order = (False, True) if round_ % 2 else (True, False)
            with tcpdumps(host, interface, True, 1):
                for case, call in cases.items():
                    for on_ring in order:
                        times = times_ms(host, program, interface, on_ring, *call)
                        value = sum(times) if case.startswith("open") else statistics.median(times)
                        kind = found.setdefault(case, {"ring": [], "socket": []})
                        kind["ring" if on_ring else "socket"].append(value)
            for (count, is_pinned), on_ring in itertools.product(((1, False), (6, False), (6, True)), order):
                cpus = sorted(os.sched_getaffinity(0))
                cpu = cpus[-1] if is_pinned else None
                with tcpdumps(host, interface, on_ring, count, "-B", "131072", cpu=cpu) as running:
                    with on_cpus(cpus[:1] if is_pinned else cpus):
                        rate_pps = cable.flood(frame_of(FRAME_BYTES), arguments.packets)
                    settled_cpu_s([one.pid for one in running])
                    packets = [reached(one) for one in running]
                part = statistics.mean(packets) / (arguments.packets + BATCH_PACKETS)
                case = f"tcpdump_{count}{'_apart' * is_pinned}"
                kind = found.setdefault(case, {"ring": [], "socket": []})
                kind["ring" if on_ring else "socket"].append(part * rate_pps / 1e6)
    for case, kinds in found.items():
        ratios = [ring / own for ring, own in zip(kinds["ring"], kinds["socket"], strict=True)]
        medians = [statistics.median(values) for values in (kinds["ring"], kinds["socket"], ratios)]
        print(f"{case:16} ring {medians[0]:9.3f}  socket {medians[1]:9.3f}  ratio {medians[2]:.3f}", file=sys.stderr)
    results = {"rounds": arguments.rounds, "packets": arguments.packets, "values": found}
    finish("pcap", json.loads(json.dumps(results)), {"tcpdump": version_of("tcpdump", "--version")}, arguments.archive)


if __name__ == "__main__":
    main()
