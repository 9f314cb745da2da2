"""TCP conversations between hosts of a testbed, as tcpdump and ss see them."""

import json
import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MARKER = b"everything before has passed"


@contextmanager
def on_one_cpu() -> Iterator[None]:
    """Keep the calling thread on one CPU, so that its packets keep their order.

    Each CPU has a backlog, and on a busy host a thread of the kernel takes packets out of it some time later.
    """
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def socket_at(host: Any, address: str, kind: socket.SocketKind) -> socket.socket:
    """Open a socket on a host, of the family of an address."""
    with host.enter():
        return socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, kind)


@contextmanager
def connection(client: Any, server: Any, address: str, port: int) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Connect a client's socket to one of a server; close both in good order, the client first."""
    listener, active = (socket_at(host, address, socket.SOCK_STREAM) for host in (server, client))
    with listener, active:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen()
        for each in (active, listener):
            each.settimeout(60)
        active.connect((address, port))
        passive, _ = listener.accept()
        with passive:
            passive.settimeout(60)
            yield active, passive
            # Each side says that it has no more to send and hears the same from the other before
            # it closes: so all packets but the last acknowledgement have a socket at both ends.
            active.shutdown(socket.SHUT_WR)
            while passive.recv(65536):
                pass
            passive.shutdown(socket.SHUT_WR)
            while active.recv(65536):
                pass


def transfer_for(source: socket.socket, sink: socket.socket, seconds: float) -> None:
    """Send from one socket to the other for some seconds, on the last CPU, and read until the end of the stream."""
    end_s = time.monotonic() + seconds

    def send() -> None:
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        while time.monotonic() < end_s:
            source.sendall(bytes(1 << 16))
        source.shutdown(socket.SHUT_WR)

    sending = threading.Thread(target=send)
    sending.start()
    while sink.recv(1 << 20):
        pass
    sending.join()


def transfer(source: socket.socket, sink: socket.socket, payload_bytes: int) -> None:
    """Send so many bytes from one socket to the other and wait until they have arrived."""

    def receive() -> None:
        left = payload_bytes
        while left:
            received = sink.recv(min(left, 1 << 20))
            if not received:
                raise EOFError(f"{left} bytes are missing at the end")
            left -= len(received)

    receiver = threading.Thread(target=receive)
    receiver.start()
    chunk = bytes(1 << 16)
    for start in range(0, payload_bytes, len(chunk)):
        source.sendall(chunk[: payload_bytes - start])
    receiver.join(60)
    assert not receiver.is_alive(), "the transfer did not end"


@dataclass(frozen=True)
class Packet:
    """A segment as tcpdump captured it; sequence numbers are absolute."""

    time_s: float
    source_address: str
    source_port: int
    seq: int
    ack: int
    flags: int
    payload_bytes: int


class Tcpdump:
    """An independent witness: tcpdump at one interface, read by tshark."""

    def __init__(self, host: Any, interface: str, port: int, path: Path) -> None:
        self.path = path
        self._process = host.popen(
            [
                "tcpdump",
                "-i",
                interface,
                "-s",
                "128",
                "-B",
                "65536",
                "--time-stamp-precision=nano",
                "--immediate-mode",
                "-U",
                "-w",
                str(path),
                "port",
                str(port),
            ],
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._process.stderr is not None
        for line in self._process.stderr:
            if "listening on" in line:
                return
        raise AssertionError("tcpdump did not start")

    def stop(self, wait: Callable[..., None]) -> list[Packet]:
        """End tcpdump when it has written the marker, and return its packets; it must not have dropped any."""
        wait(f"{self.path.name} holds the marker", lambda: MARKER in self.path.read_bytes()[-4096:])
        self._process.terminate()
        _, errors = self._process.communicate(timeout=30)
        assert "0 packets dropped by kernel" in errors, errors
        fields = [
            "frame.time_epoch",
            "ip.src",
            "ipv6.src",
            "tcp.srcport",
            "tcp.seq_raw",
            "tcp.ack_raw",
            "tcp.flags",
            "tcp.len",
        ]
        command = [
            "tshark",
            "-r",
            str(self.path),
            "-Y",
            "tcp",
            "-T",
            "fields",
            "-o",
            "tcp.analyze_sequence_numbers:false",
        ]
        text = subprocess.run(
            [*command, *(word for field in fields for word in ("-e", field))],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        packets = []
        for line in text.splitlines():
            time, four, six, port, seq, ack, flags, length = line.split("\t")
            packets.append(Packet(float(time), four or six, int(port), int(seq), int(ack), int(flags, 16), int(length)))
        return packets


def send_marker(source: Any, address: str, port: int) -> None:
    """Send a packet that marks the end of a capture: all earlier packets have passed."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with source.enter():
        marking = socket.socket(family, socket.SOCK_DGRAM)
    with marking:
        marking.sendto(MARKER, (address, port))


def socket_statistics(host: Any, port: int) -> dict[str, str]:
    """Return the values of ``ss -ti`` for the one established connection with this port at either end."""
    text = host.run(["ss", "-tinHO", "state", "established", f"( sport = :{port} or dport = :{port} )"]).stdout
    (line,) = text.strip().splitlines()
    found = {}
    for word in line.split():
        key, colon, value = word.partition(":")
        if colon:
            found.setdefault(key, value)
    return found


def ledger_of(log: Any) -> dict[str, Any]:
    """The ledger of a stopped log, after checking that it balances."""
    summary = log.stop()
    assert summary.failure is None
    check_balance(summary.ledger)
    return summary.ledger


def check_balance(ledger: dict[str, Any]) -> None:
    """Fail unless seen = filtered + thinned + logged + lost for every hook, and the gaps agree."""
    assert ledger["complete"]
    for account in ledger["hooks"]:
        lost = sum(account["lost"].values())
        kept = account["filtered"] + account["thinned"] + account["logged"]
        assert account["seen"] == kept + lost, json.dumps(account)
    overwritten = sum(account["lost"]["overwritten"] for account in ledger["hooks"])
    assert overwritten == ledger["sequence_gaps"]


def account(ledger: dict[str, Any], hook: str) -> dict[str, Any]:
    """The account of one hook."""
    (found,) = [each for each in ledger["hooks"] if each["hook"] == hook]
    return found
