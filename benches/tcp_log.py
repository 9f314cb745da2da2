"""What the TCP state log costs a saturated host: throughput kept, beside tcpdump and bpftrace.

Run as root: ``benches/run tcp_log`` or ``.venv/bin/python benches/tcp_log.py [--rounds 10] [--seconds 1] [--flows
1,10,100] [--mtu 700] [--archive]``. Two hosts in namespaces on one cable, segmentation offloads off, sender and
receiver on a CPU each, the reader where the scheduler puts it: everything competes for two CPUs. One transfer runs
all the time. Each instrument runs for some seconds between two stretches without any, and its ratio is to the mean of
these two, which cancels slower changes of a shared machine. The order rotates from round to round. Prints a table of
medians and quartiles, and one JSON object; ``--archive`` puts it into ``benches/archive/``.

instruments
    off        begun, and switched off
    ppl10      every tenth packet of a flow, both ends, to a file
    ppl1       every packet, both ends, to a file
    tcpdump    ``tcpdump -s 96 -w FILE`` on both ends
    bpftrace   ten fields of the tracepoint tcp_probe (inbound packets only), printed to a file
"""

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from _record import finish, parser_for, version_of

from parshall.instruments.tcp import TcpLog
from parshall.testbed import Testbed

PORT = 5201
# How long a transfer may take to find its new rate when an instrument came or went.
SETTLE_S = 0.2
BPFTRACE = """tracepoint:tcp:tcp_probe { printf("%llu %d %d %u %u %u %u %u %u %u\\n", nsecs, args->sport,
args->dport, args->snd_nxt, args->snd_una, args->snd_cwnd, args->ssthresh, args->snd_wnd, args->srtt,
args->rcv_wnd); }"""
# bpftrace needs tracefs and debugfs, which are mounted for it alone.
WITH_TRACEFS = """mount -t tracefs none /sys/kernel/tracing; mount -t debugfs none /sys/kernel/debug
exec bpftrace -e "$0" """

Report = dict[str, Any]


@contextmanager
def nothing(_bed: Any, _hosts: Any, _directory: Path, _report: Report) -> Iterator[None]:
    """Observe nothing."""
    yield


def parshall_log(packets_per_log: int, on: bool) -> Callable[..., Any]:
    """Make the instrument that logs every n-th packet, or is switched off."""

    @contextmanager
    def observe(_bed: Any, _hosts: Any, directory: Path, report: Report) -> Iterator[None]:
        log = TcpLog(directory / "log.arrow", ppl=packets_per_log)
        log.switch(on)
        yield
        summary = log.stop()
        if summary.failure:
            raise SystemExit(f"the log failed: {summary.failure}")
        report |= account_of(summary.ledger)
        if not on:
            # The records are from the moment before it was switched off, so there is no rate.
            for key in ("records", "reader_ns_per_record", "bytes_per_record"):
                del report[key]

    return observe


def account_of(ledger: dict[str, Any]) -> Report:
    """Return the numbers of a ledger for one run."""
    logged = sum(each["logged"] for each in ledger["hooks"])
    cost = {each["program"]: each["ns_per_run"] for each in ledger["cost"]["programs"]}
    return {
        "records": logged,
        "lost": sum(sum(each["lost"].values()) for each in ledger["hooks"]),
        "ingress_ns": cost["tcp_ingress"],
        "egress_ns": cost["tcp_egress"],
        "reader_ns_per_record": ledger["cost"]["reader_cpu_s"] * 1e9 / logged if logged else None,
        "bytes_per_record": ledger["cost"]["log_bytes"] / logged if logged else None,
    }


@contextmanager
def tcpdump(_bed: Any, hosts: Any, directory: Path, report: Report) -> Iterator[None]:
    """Capture the headers at both ends."""
    dumps = []
    for host, interface in hosts:
        file = directory / f"{host.name}.pcap"
        dump = host.popen(
            ["tcpdump", "-i", interface, "-s", "96", "-B", "65536", "-w", str(file), "tcp"],
            stderr=subprocess.PIPE,
            text=True,
        )
        wait_for_line(dump.stderr, "listening on")
        dumps.append(dump)
    yield
    captured = dropped = 0
    for dump in dumps:
        dump.terminate()
        _, output = dump.communicate()
        captured += counted(output, "packets captured")
        dropped += counted(output, "packets dropped by kernel")
    report |= {"records": captured, "lost": dropped}


@contextmanager
def bpftrace(_bed: Any, _hosts: Any, directory: Path, report: Report) -> Iterator[None]:
    """Print ten fields of every inbound packet."""
    path = directory / "bpftrace.txt"
    with path.open("w") as file:
        trace = subprocess.Popen(
            ["unshare", "-m", "sh", "-c", WITH_TRACEFS, f'BEGIN {{ printf("begun\\n"); }} {BPFTRACE}'],
            stdout=file,
            stderr=subprocess.PIPE,
            text=True,
        )
        while "begun" not in path.read_text()[:100]:
            if trace.poll() is not None:
                raise SystemExit(f"bpftrace: {trace.stderr.read() if trace.stderr else ''}")
        yield
        trace.terminate()
        _, output = trace.communicate()
    with path.open("rb") as file:
        report["records"] = sum(1 for _ in file)
    report["lost"] = sum(
        int(word) for line in output.splitlines() if "Lost" in line for word in line.split() if word.isdigit()
    )


INSTRUMENTS: dict[str, Callable[..., Any]] = {
    "off": parshall_log(1, on=False),
    "ppl10": parshall_log(10, on=True),
    "ppl1": parshall_log(1, on=True),
    "tcpdump": tcpdump,
    "bpftrace": bpftrace,
}


def wait_for_line(stream: Any, text: str) -> None:
    """Read lines until one holds the text."""
    for line in stream:
        if text in line:
            return
    raise SystemExit(f"a program ended before it printed {text!r}")


def counted(output: str, what: str) -> int:
    """Return the number in front of some words in tcpdump's last lines."""
    return next((int(line.split()[0]) for line in output.splitlines() if line.endswith(what)), 0)


class Transfer:
    """Bulk transfers that run while instruments come and go."""

    def __init__(self, stack: ExitStack, flows: int, mtu_bytes: int) -> None:
        self.bed = stack.enter_context(Testbed())
        cpus = (0, (os.cpu_count() or 1) - 1)
        self.sender = self.bed.host("sender", cpu=cpus[0])
        self.receiver = self.bed.host("receiver", cpu=cpus[1])
        link = self.bed.link(self.sender, self.receiver, offloads=False, backend="veth")
        self.hosts = [(host, link.interface(host)) for host in (self.sender, self.receiver)]
        for host, interface in self.hosts:
            host.run(["ip", "link", "set", interface, "mtu", str(mtu_bytes)])
        self.server = self.receiver.popen(["iperf3", "-s", "-1", "-p", str(PORT)], stdout=subprocess.DEVNULL)
        self.receiver.wait_for_listener(PORT)
        command = ["iperf3", "-c", link.address(self.receiver), "-p", str(PORT), "-t", "86400", "-P", str(flows)]
        self.client = self.sender.popen(command, stdout=subprocess.DEVNULL)
        stack.callback(self.end)
        while self.received_bytes() < 100_000_000:
            if self.client.poll() is not None:
                raise SystemExit("iperf3 ended before it had sent 100 MB")
            time.sleep(0.05)

    def received_bytes(self) -> int:
        """Return what the receiver's interface has taken in, frames and all."""
        interface = self.hosts[1][1]
        for line in Path(f"/proc/{self.server.pid}/net/dev").read_text().splitlines():
            name, _, counts = line.partition(":")
            if name.strip() == interface:
                return int(counts.split()[0])
        raise SystemExit(f"no interface {interface} in the receiver's namespace")

    def rate(self, seconds: float) -> float:
        """Return Gbit/s on the cable over the next seconds."""
        begin, begin_bytes = time.monotonic(), self.received_bytes()
        time.sleep(seconds)
        end, end_bytes = time.monotonic(), self.received_bytes()
        return (end_bytes - begin_bytes) * 8e-9 / (end - begin)

    def end(self) -> None:
        """Stop both ends."""
        for process in (self.client, self.server):
            process.terminate()
            process.wait()


def observe(transfer: Transfer, instrument: Callable[..., Any], seconds: float) -> Report:
    """Measure one stretch of a transfer under an instrument."""
    report: Report = {}
    with tempfile.TemporaryDirectory() as directory:
        begin = time.monotonic()
        with instrument(transfer.bed, transfer.hosts, Path(directory), report):
            transfer.rate(SETTLE_S)
            report["gbit_per_s"] = transfer.rate(seconds)
        # The time includes start and stop, so this is a lower bound.
        if "records" in report:
            report["records_per_s"] = report["records"] / (time.monotonic() - begin)
    return report


def measure(flows: int, mtu_bytes: int, rounds: int, seconds: float, names: list[str]) -> dict[str, list[Report]]:
    """Measure all instruments on one transfer; a report has the ratio to the bare stretches around it."""
    results: dict[str, list[Report]] = {name: [] for name in ("bare", *names)}
    with ExitStack() as stack:
        transfer = Transfer(stack, flows, mtu_bytes)
        before = transfer.rate(seconds)
        for number in range(rounds):
            turn = number % len(names)
            for name in names[turn:] + names[:turn]:
                report = observe(transfer, INSTRUMENTS[name], seconds)
                transfer.rate(SETTLE_S)
                after = transfer.rate(seconds)
                report["kept"] = report["gbit_per_s"] / statistics.mean((before, after))
                results[name].append(report)
                # No ratio can be more accurate than the differences among bare stretches.
                results["bare"].append({"gbit_per_s": after, "kept": after / before})
                before = after
            print(f"{flows} flows, round {number + 1} of {rounds}", file=sys.stderr)
    return results


def spread(values: list[float]) -> str:
    """Return the median of some values and their quartiles."""
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else 3 * values
    return f"{middle:8.3f} ({low:.3f}-{high:.3f})"


def table(flows: int, results: dict[str, list[Report]]) -> list[str]:
    """Return the lines of one table."""
    lines = [
        f"{flows} flows",
        f"  {'':9} {'throughput kept':>24} {'Gbit/s':>7} {'records/s':>11} {'lost':>9}"
        f" {'in ns':>6} {'out ns':>6} {'reader ns':>9} {'B/rec':>6}",
    ]
    for name, reports in results.items():
        cells = [spread([each["kept"] for each in reports])]
        for key, form in (
            ("gbit_per_s", "7.2f"), ("records_per_s", "11,.0f"), ("lost", "9,.0f"), ("ingress_ns", "6.0f"),
            ("egress_ns", "6.0f"), ("reader_ns_per_record", "9.0f"), ("bytes_per_record", "6.1f"),
        ):  # fmt: skip
            values = [each[key] for each in reports if each.get(key) is not None]
            width = int(form.split(".")[0].rstrip(","))
            cells.append(format(statistics.median(values), form) if values else " " * width)
        lines.append(f"  {name:9} " + " ".join(cells))
    return lines


def main() -> int:
    """Measure, print, archive."""
    parser = parser_for(__doc__, rounds=10)
    parser.add_argument("--seconds", type=float, default=1)
    parser.add_argument("--flows", default="1,10,100")
    parser.add_argument("--mtu", type=int, default=1500, help="smaller ones make more packets and records a second")
    parser.add_argument("--instruments", default=",".join(INSTRUMENTS))
    arguments = parser.parse_args()
    names = [name for name in arguments.instruments.split(",") if name != "bpftrace" or shutil.which("bpftrace")]
    raw = {}
    for flows in map(int, arguments.flows.split(",")):
        raw[flows] = measure(flows, arguments.mtu, arguments.rounds, arguments.seconds, names)
        print("\n".join(table(flows, raw[flows])), flush=True)
    versions = {
        "iperf3": version_of("iperf3", "--version"),
        "tcpdump": version_of("tcpdump", "--version"),
        "bpftrace": version_of("bpftrace", "--version") if "bpftrace" in names else None,
    }
    finish("tcp_log", {"raw": raw}, versions, arguments.archive)
    return 0


if __name__ == "__main__":
    sys.exit(main())
