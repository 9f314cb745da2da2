"""Memory of the TCP state log over a long run at full rate.

Run as root: ``benches/run tcp_soak`` or ``.venv/bin/python benches/tcp_soak.py [--minutes 10]``. Two
hosts on one cable, segmentation offloads off, one flow as fast as it goes, ``parshall tcp`` with its
defaults. The resident memory of the logger (the rings included) is read every two seconds. Prints
one JSON object; fails when the memory of the second half of the run exceeds that of the first half by more
than 1 MiB, or the whole exceeds the rings by more than 100 MiB, or the ledger does not balance.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from _record import finish, parser_for, version_of

from parshall.tcp import DEFAULT_RING_BYTES
from parshall.testbed import Testbed

FLOW_RING_BYTES = 4 << 20
MIB = 1 << 20


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process, shared mappings included."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise SystemExit(f"process {pid} has ended")


def main() -> int:
    """Run the soak; return 1 when memory grew or the ledger does not balance."""
    parser = parser_for(__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    arguments = parser.parse_args()
    seconds = arguments.minutes * 60
    with Testbed() as bed, tempfile.TemporaryDirectory() as directory:
        sender, receiver = bed.host("sender", cpu=0), bed.host("receiver", cpu=(os.cpu_count() or 1) - 1)
        link = bed.link(sender, receiver, offloads=False, backend="veth")
        server = receiver.popen(["iperf3", "-s", "-1"], stdout=subprocess.DEVNULL)
        receiver.wait_for_listener(5201)
        account = Path(directory) / "account.json"
        with account.open("w") as output:
            # The file is thrown away: ten minutes would be gigabytes. All work up to write(2) is done.
            logger = subprocess.Popen(
                [sys.executable, "-m", "parshall", "tcp", "-o", "/dev/null", "--json"], stdout=output
            )
        client = sender.popen(
            ["iperf3", "-c", link.address(receiver), "-t", f"{seconds:g}", "-J"], stdout=subprocess.PIPE
        )
        samples = []
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and logger.poll() is None:
            time.sleep(2)
            samples.append(resident_bytes(logger.pid))
        result = json.loads(client.communicate()[0])
        server.wait()
        logger.send_signal(signal.SIGINT)
        logger.wait()
        ledger = json.loads(account.read_text())["ledger"]
    rings_bytes = (os.cpu_count() or 1) * (DEFAULT_RING_BYTES + FLOW_RING_BYTES)
    half = len(samples) // 2
    # The first seconds fill the rings for the first time.
    growth_bytes = max(samples[half:]) - max(samples[: max(half, 1)])
    unbalanced = [
        each["hook"]
        for each in ledger["hooks"]
        if each["seen"] != each["filtered"] + each["thinned"] + each["logged"] + sum(each["lost"].values())
    ]
    records = sum(each["logged"] for each in ledger["hooks"])
    results = {
        "minutes": arguments.minutes,
        "gbit_per_s": result["end"]["sum_received"]["bits_per_second"] / 1e9,
        "records": records,
        "records_per_s": records / seconds,
        "lost": sum(sum(each["lost"].values()) for each in ledger["hooks"]),
        "reader_ns_per_record": ledger["cost"]["reader_cpu_s"] * 1e9 / max(records, 1),
        "rings_mib": rings_bytes / MIB,
        "resident_mib": {
            "first": samples[0] / MIB,
            "max_first_half": max(samples[: max(half, 1)]) / MIB,
            "max_second_half": max(samples[half:]) / MIB,
        },
        "growth_mib": growth_bytes / MIB,
        "unbalanced_hooks": unbalanced,
        "resident_samples_bytes": samples,
    }
    finish("tcp_soak", results, {"iperf3": version_of("iperf3", "--version")}, arguments.archive)
    is_flat = growth_bytes <= MIB and max(samples) <= rings_bytes + 100 * MIB
    return 0 if is_flat and not unbalanced else 1


if __name__ == "__main__":
    sys.exit(main())
