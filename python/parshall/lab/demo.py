"""The measurement of the tour: two flows compete for a bottleneck, with a TCP log at both ends."""

import signal
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parshall.errors import UsageError
from parshall.host import privileges
from parshall.host.stopping import Stopping
from parshall.host.temporary import TemporaryDirectory
from parshall.lab import Host, Link, Program, Run, Setting, bulk, cycle, parshall
from parshall.lab.sites import Scene, TestbedSite
from parshall.lab.study import SERVER, WORKLOAD

RATE_BPS = 100e6
DELAY_MS = 3.0
# 100 Mbit/s x 6 ms are 75 kB, or 50 full packets of 1514 bytes; twice that lets a loss-based flow keep
# the link busy after it has halved its window, and adds at most 12 ms of waiting.
QUEUE_PACKETS = 100
FIRST_PORT = 5001
ENDS = ("sender", "receiver")
# How long a flow may take to drain its send buffer after its time is over.
_DRAIN_S = 10.0
_TERMINATED = -signal.SIGTERM


@dataclass(frozen=True)
class Measurement:
    """What the tour measured.

    Attributes
    ----------
    logs : dict of str to dict
        The summary of the log of each host, as ``parshall tcp --json`` prints it, by the host's name.
    flows : list of dict
        Per flow: ``congestion_control``, ``port``, ``local_port``, ``received_bytes``.
    testbed : dict
        Hosts and links with their parameters, and the counters of each link in ``statistics``.
    """

    logs: dict[str, dict[str, Any]]
    flows: list[dict[str, Any]]
    testbed: dict[str, Any]


def setting(directory: Path, controls: Mapping[int, str], duration_s: float) -> Setting:
    """Return two flows that compete for a bottleneck, and a log of each end.

    Parameters
    ----------
    directory : pathlib.Path
        Directory of the logs ``sender.arrow`` and ``receiver.arrow``.
    controls : mapping of int to str
        Congestion control of the flow to each port.
    duration_s : float
        How long the flows send, seconds.
    """
    # Braces of the path are no names of hosts.
    into = str(directory).replace("{", "{{").replace("}", "}}")
    own = ("--netns", "/proc/self/ns/net")
    ends = [sys.executable, "-P", "-m", "parshall.lab.bulk"]
    ports = [f"{port}:{control}" for port, control in controls.items()]
    receive = [*ends, "receive", "{receiver.address}", *ports]
    return Setting(
        hosts=[Host(name) for name in ENDS],
        links=[Link(*ENDS, rate_bps=RATE_BPS, delay_ms=DELAY_MS, queue_packets=QUEUE_PACKETS)],
        programs=[
            *(parshall(name, "tcp", *own, "-o", f"{into}/{name}.arrow", name=name) for name in ENDS),
            Program("receive", "receiver", receive, SERVER, ready="listening"),
            *(
                Program(
                    sender_name(port),
                    "sender",
                    [*ends, "send", "{receiver.address}", str(port), control, str(duration_s)],
                    WORKLOAD,
                    end_s=duration_s + _DRAIN_S,
                    statuses=(0, _TERMINATED),
                )
                for port, control in controls.items()
            ),
        ],
        duration_s=duration_s,
    )


def sender_name(port: int) -> str:
    """Return the name of the program that sends to a port."""
    return f"send-{port}"


def measure(
    directory: Path,
    duration_s: float,
    *,
    progress: Callable[[str], None] = lambda _: None,
    stopping: Stopping | None = None,
) -> Measurement:
    """Let two flows compete on a testbed and log the TCP state of both ends.

    Parameters
    ----------
    directory
        Directory of the logs ``sender.arrow`` and ``receiver.arrow``; created if needed.
    duration_s
        How long the flows send, seconds.
    progress
        Called with a sentence before each step.
    stopping
        When a stop is requested, the flows end early, and the logs are kept.

    Raises
    ------
    ParshallError
        Privileges are missing, or a part of the measurement failed.
    """
    privileges.require_bpf("demo", "CAP_SYS_ADMIN")
    if directory.exists() and not directory.is_dir():
        raise UsageError(f"{directory}: not a directory; name another with -o")
    directory.mkdir(parents=True, exist_ok=True)
    progress(
        f"Setting up a testbed: sender and receiver, joined by a link of {RATE_BPS / 1e6:.0f} Mbit/s with "
        f"{DELAY_MS:g} ms delay in each direction and a queue of {QUEUE_PACKETS} packets"
    )
    controls = {FIRST_PORT + number: name for number, name in enumerate(_two_controls(progress))}

    def show(step: str, scene: Scene) -> None:
        if step == cycle.START:
            progress(f"Backend of the link: {scene.describe()['links'][0]['backend']}")
            progress("Attaching the hooks: one log for the sender's sockets, one for the receiver's")
        elif step == cycle.TRAFFIC:
            progress(f"{' and '.join(name.upper() for name in controls.values())} compete for {duration_s:g} s")
        else:
            progress("The flows have ended; detaching the hooks and closing the logs")

    with TemporaryDirectory("demo") as outputs:
        chosen = setting(directory, controls, duration_s)
        record = cycle.measure(TestbedSite(), chosen, outputs, progress=show, stopping=stopping)
        run = Run(outputs, record)
        received = {line["port"]: line["received_bytes"] for line in run.result("receive")}
        flows = [
            {"port": port, "congestion_control": control, "received_bytes": received[port]}
            # A flow that was ended early has no result of its own.
            | (run.result(sender_name(port)) if run.text(sender_name(port)) else {})
            for port, control in controls.items()
        ]
        return Measurement({name: run.result(name) for name in ENDS}, flows, record["testbed"])


def offers(congestion_control: str) -> bool:
    """Return whether this kernel offers a congestion control; loads its module if needed."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.setsockopt(socket.IPPROTO_TCP, bulk.TCP_CONGESTION, congestion_control.encode())
        except OSError:
            return False
    return True


def _two_controls(progress: Callable[[str], None]) -> list[str]:
    chosen = []
    for wanted in ("cubic", "bbr"):
        chosen.append(wanted if offers(wanted) else "reno")
        if chosen[-1] != wanted:
            progress(f"This kernel does not offer {wanted}; using reno instead")
    return chosen
