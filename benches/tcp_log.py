"""What the TCP state log costs a saturated host: throughput kept, beside tcpdump and bpftrace.

Run as root: ``benches/run tcp_log`` or ``.venv/bin/python benches/tcp_log.py [--rounds 5]
[--seconds 4] [--flows 1,10,100] [--archive]``. Two hosts in namespaces on one cable, segmentation
offloads off, sender and receiver on a CPU each, the reader where the scheduler puts it: everything
competes for two CPUs. A round runs every instrument once, in an order that rotates from round to
round, between two runs without any; a ratio compares a run with the mean of the round's two bare
runs. Prints a table and one JSON object; ``--archive`` puts it into ``benches/archive/``.

instruments
    off        attached, and switched off
    ppl10      every tenth packet of a flow, both ends, to a file
    ppl1       every packet, both ends, to a file
    tcpdump    ``tcpdump -s 96 -w FILE`` on both ends
    bpftrace   ten fields of the tracepoint tcp_probe (inbound packets only), printed to a file
"""

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from parshall.tcp import TcpLog
from parshall.testbed import Testbed

PORT = 5201
BPFTRACE = """tracepoint:tcp:tcp_probe { printf("%llu %d %d %u %u %u %u %u %u %u\\n", nsecs, args->sport,
args->dport, args->snd_nxt, args->snd_una, args->snd_cwnd, args->ssthresh, args->snd_wnd, args->srtt,
args->rcv_wnd); }"""
# bpftrace wants tracefs and debugfs, which not every host has mounted: they are, for it alone.
WITH_TRACEFS = """mount -t tracefs none /sys/kernel/tracing; mount -t debugfs none /sys/kernel/debug
exec bpftrace -e "$0" """

Report = dict[str, Any]


@contextmanager
def nothing(_bed: Any, _hosts: Any, _directory: Path, _report: Report) -> Iterator[None]:
    """Observe nothing."""
    yield


def parshall_log(packets_per_log: int, on: bool) -> Callable[..., Any]:
    """Make the instrument that logs every n-th packet, or is attached and switched off."""

    @contextmanager
    def observe(_bed: Any, _hosts: Any, directory: Path, report: Report) -> Iterator[None]:
        log = TcpLog(directory / "log.arrow", packets_per_log=packets_per_log)
        log.switch(on)
        yield
        summary = log.stop()
        if summary.failure:
            raise SystemExit(f"the log failed: {summary.failure}")
        report |= account_of(summary.ledger)

    return observe


def account_of(ledger: dict[str, Any]) -> Report:
    """Return what a ledger says of one run."""
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
        _, said = dump.communicate()
        captured += counted(said, "packets captured")
        dropped += counted(said, "packets dropped by kernel")
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
        _, said = trace.communicate()
    with path.open("rb") as file:
        report["records"] = sum(1 for _ in file)
    report["lost"] = sum(
        int(word) for line in said.splitlines() if "Lost" in line for word in line.split() if word.isdigit()
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
    raise SystemExit(f"a program ended before it said {text!r}")


def counted(said: str, what: str) -> int:
    """Return the number in front of some words, as tcpdump says them at its end."""
    return next((int(line.split()[0]) for line in said.splitlines() if line.endswith(what)), 0)


def run(instrument: Callable[..., Any], flows: int, seconds: float) -> Report:
    """Measure one transfer under one instrument."""
    report: Report = {}
    with ExitStack() as stack:
        bed = stack.enter_context(Testbed())
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        cpus = (0, (os.cpu_count() or 1) - 1)
        sender, receiver = bed.host("sender", cpu=cpus[0]), bed.host("receiver", cpu=cpus[1])
        link = bed.link(sender, receiver, offloads=False, backend="veth")
        server = receiver.popen(["iperf3", "-s", "-1", "-p", str(PORT)], stdout=subprocess.DEVNULL)
        receiver.wait_for_listener(PORT)
        hosts = [(host, link.interface(host)) for host in (sender, receiver)]
        with instrument(bed, hosts, directory, report):
            command = ["iperf3", "-c", link.address(receiver), "-p", str(PORT), "-t", f"{seconds:g}"]
            result = sender.run([*command, "-P", str(flows), "-J"])
        server.wait()
        end = json.loads(result.stdout)["end"]
        report["gbit_per_s"] = end["sum_received"]["bits_per_second"] / 1e9
        report["seconds"] = end["sum_received"]["seconds"]
    if "records" in report:
        report["records_per_s"] = report["records"] / report["seconds"]
    return report


def measure(flows: int, rounds: int, seconds: float, names: list[str]) -> dict[str, list[Report]]:
    """Measure all instruments, round by round; every report has the ratio to the bare runs around it."""
    results: dict[str, list[Report]] = {name: [] for name in ("bare", *names)}
    for number in range(rounds):
        order = names[number % len(names) :] + names[: number % len(names)]
        bare = [run(nothing, flows, seconds)]
        reports = {name: run(INSTRUMENTS[name], flows, seconds) for name in order}
        bare.append(run(nothing, flows, seconds))
        base = statistics.mean(each["gbit_per_s"] for each in bare)
        for name, report in reports.items():
            report["kept"] = report["gbit_per_s"] / base
            results[name].append(report)
        for each in bare:
            each["kept"] = each["gbit_per_s"] / base
        results["bare"] += bare
        print(f"{flows} flows, round {number + 1} of {rounds}", file=sys.stderr)
    return results


def spread(values: list[float]) -> str:
    """Return median and range of some values."""
    return f"{statistics.median(values):8.3f} ({min(values):.3f}-{max(values):.3f})"


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


def version_of(*command: str) -> str:
    """Return the first line of what a program says of its version."""
    done = subprocess.run(command, capture_output=True, text=True)
    return ((done.stdout or done.stderr).splitlines() or ["?"])[0]


def main() -> int:
    """Measure, print, archive."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--flows", default="1,10,100")
    parser.add_argument("--instruments", default=",".join(INSTRUMENTS))
    parser.add_argument("--archive", action="store_true", help="keep the raw numbers in benches/archive/")
    arguments = parser.parse_args()
    names = [name for name in arguments.instruments.split(",") if name != "bpftrace" or shutil.which("bpftrace")]
    raw = {}
    for flows in map(int, arguments.flows.split(",")):
        raw[flows] = measure(flows, arguments.rounds, arguments.seconds, names)
        print("\n".join(table(flows, raw[flows])), flush=True)
    record = {
        "benchmark": "tcp_log",
        "command": " ".join(["benches/tcp_log.py", *sys.argv[1:]]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "kernel": platform.release(),
        "cpus": os.cpu_count(),
        "load_average_before": os.getloadavg(),
        "versions": {
            "iperf3": version_of("iperf3", "--version"),
            "tcpdump": version_of("tcpdump", "--version"),
            "bpftrace": version_of("bpftrace", "--version") if "bpftrace" in names else None,
        },
        "raw": raw,
    }
    if arguments.archive:
        path = Path(__file__).parent / "archive" / f"tcp_log-{datetime.now(UTC):%Y-%m-%d}.json"
        path.write_text(json.dumps(record, indent=1) + "\n")
        print(f"archived: {path}")
    print(json.dumps(record))
    return 0


if __name__ == "__main__":
    sys.exit(main())
