"""The measurement of the tour: two flows compete for a bottleneck, with a TCP log at both ends."""

import contextlib
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parshall import bulk, privileges
from parshall.cgroups import TemporaryCgroup
from parshall.errors import ParshallError, UsageError
from parshall.stopping import Stopping
from parshall.tcp import LogSummary, TcpLog
from parshall.testbed import Host, Link, Testbed

RATE_BPS = 100e6
DELAY_MS = 3.0
# 100 Mbit/s x 6 ms are 75 kB, or 50 full packets of 1514 bytes; twice that lets a loss-based flow keep
# the link busy after it has halved its window, and adds at most 12 ms of waiting.
QUEUE_PACKETS = 100
FIRST_PORT = 5001
# How long a flow may take to drain its send buffer after its time is over.
_DRAIN_S = 10.0
_POLL_INTERVAL_S = 0.05


@dataclass(frozen=True)
class Measurement:
    """What the tour measured.

    Attributes
    ----------
    logs : dict of str to pathlib.Path
        The log of each host, by the host's name.
    summaries : dict of str to LogSummary
        The summary of each log, by the host's name.
    flows : list of dict
        Per flow: ``congestion_control``, ``port``, ``local_port``, ``received_bytes``.
    testbed : dict
        Hosts and links with their parameters, and the counters of each link in ``statistics``.
    """

    logs: dict[str, Path]
    summaries: dict[str, LogSummary]
    flows: list[dict[str, Any]]
    testbed: dict[str, Any]


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
    with contextlib.ExitStack() as stack:
        cgroups = {}
        for name in ("sender", "receiver"):
            cgroup = TemporaryCgroup(name)
            stack.callback(cgroup.remove)
            cgroups[name] = cgroup.path
        bed = stack.enter_context(Testbed())
        progress(
            f"Setting up a testbed: sender and receiver, joined by a link of {RATE_BPS / 1e6:.0f} Mbit/s with "
            f"{DELAY_MS:g} ms delay in each direction and a queue of {QUEUE_PACKETS} packets"
        )
        sender, receiver = bed.host("sender"), bed.host("receiver")
        link = bed.link(sender, receiver, rate_bps=RATE_BPS, delay_ms=DELAY_MS, queue_packets=QUEUE_PACKETS)
        progress(f"Backend of the link: {link.backend}")

        controls = _two_controls(progress)
        ports = {FIRST_PORT + number: name for number, name in enumerate(controls)}
        reading = _start_receiver(receiver, link, cgroups["receiver"], ports)
        progress("Attaching the hooks: one log for the sender's sockets, one for the receiver's")
        logs = {
            name: stack.enter_context(_log(directory / f"{name}.arrow", host, cgroups[name]))
            for name, host in (("sender", sender), ("receiver", receiver))
        }
        progress(f"{' and '.join(name.upper() for name in controls)} compete for {duration_s:g} s")
        sending = [
            _start(sender, cgroups["sender"], "send", link.address(receiver), str(port), name, str(duration_s))
            for port, name in ports.items()
        ]
        _wait([*sending, reading], duration_s + _DRAIN_S, stopping)
        progress("The flows have ended; detaching the hooks and closing the logs")
        summaries = {name: log.stop() for name, log in logs.items()}
        results = [_result(program, f"the {name} sender") for program, name in zip(sending, controls, strict=True)]
        received = {line["port"]: line["received_bytes"] for line in _result(reading, "the receiver") or []}
        description = bed.describe() | {"statistics": [link.statistics() for link in bed.links]}
    flows = [
        {"port": port, "congestion_control": name, "received_bytes": received.get(port)} | (result or {})
        for (port, name), result in zip(ports.items(), results, strict=True)
    ]
    return Measurement({name: log.path for name, log in logs.items()}, summaries, flows, description)


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


def _log(path: Path, host: Host, cgroup: Path) -> TcpLog:
    # Inside the host, so that the log records that host's environment.
    with host.enter():
        return TcpLog(path, cgroup=cgroup, environment_extra={"host": host.name})


def _start_receiver(host: Host, link: Link, cgroup: Path, ports: dict[int, str]) -> "subprocess.Popen[str]":
    pairs = [f"{port}:{name}" for port, name in ports.items()]
    program = _start(host, cgroup, "receive", link.address(host), *pairs)
    for port in ports:
        host.wait_for_listener(port, program=program)
    return program


def _start(host: Host, cgroup: Path, *arguments: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "parshall.bulk", "--cgroup", str(cgroup), *arguments]
    # The ends block SIGINT: on Ctrl-C this process ends the flows and keeps the logs.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        return host.popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _wait(programs: "list[subprocess.Popen[str]]", timeout_s: float, stopping: Stopping | None) -> None:
    """Wait until all programs have ended, one has failed, or a stop is requested; terminate the others."""
    waiting = stopping or Stopping()
    deadline_s = time.monotonic() + timeout_s
    while any(program.poll() is None for program in programs):
        if any(program.poll() not in (None, 0) for program in programs):
            break
        if waiting.wait(_POLL_INTERVAL_S):
            break
        if time.monotonic() > deadline_s:
            raise ParshallError(
                f"the flows did not end within {timeout_s:g} s; check whether the machine is overloaded"
            )
    for program in programs:
        if program.poll() is None:
            program.terminate()


def _result(program: "subprocess.Popen[str]", name: str) -> Any:
    """Return the result of a program; None if it was terminated."""
    output, errors = program.communicate()
    if program.returncode > 0:
        last_line = (errors.strip().splitlines() or ["no output"])[-1]
        raise ParshallError(f"{name} ended with status {program.returncode}: {last_line}")
    return json.loads(output) if program.returncode == 0 else None
