"""Captures under test: `parshall capture` as a process, frames of known bytes, and files as lists of packets."""

import ctypes
import errno
import functools
import itertools
import json
import os
import platform
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from running_command import RunningCommand

import parshall.instruments.capture
from host_state import BPF_SYSCALL
from ledgers import unbalanced

PARSHALL = Path(sys.executable).with_name("parshall")
RUN_DIRECTORY = Path("/run/parshall")
# An EtherType for experiments (IEEE 802), which no host answers.
EXPERIMENT = 0x88B5
_numbers = itertools.count(1)
# Bytes that count up, more than any frame has.
_COUNTING = bytes(range(256)) * 257

Packets = list[tuple[int, bytes]]


@functools.cache
def has_tcx() -> bool:
    """Whether this kernel has tcx (Linux 6.6 or newer): then it lists an interface's programs, even none.

    `parshall doctor` tries everything, which takes long on a busy machine.
    """
    bpf_prog_query, bpf_tcx_ingress, loopback = 16, 46, 1
    attributes = struct.pack("=II56x", loopback, bpf_tcx_ingress)
    libc = ctypes.CDLL(None, use_errno=True)
    status = libc.syscall(BPF_SYSCALL[platform.machine()], bpf_prog_query, attributes, len(attributes))
    if status != 0 and ctypes.get_errno() != errno.EINVAL:
        raise OSError(ctypes.get_errno(), "bpf(BPF_PROG_QUERY) of tcx programs")
    return status == 0


def skip_without_tcx() -> None:
    """Skip a test that needs tcx."""
    if not has_tcx():
        pytest.skip("this kernel has no tcx, by which sent packets are captured: see attach.tcx of `parshall doctor`")


def ring_name() -> str:
    """A name that no other session uses."""
    return f"test-{os.getpid()}-{next(_numbers)}"


class Capturer(RunningCommand):
    """A `parshall capture` that runs and has subscribed."""

    def __init__(
        self,
        until: Callable[..., None],
        host: Any,
        *arguments: str | Path,
        join: str | None = None,
        subscribers: int = 1,
        **options: Any,
    ) -> None:
        self.ring = join or ring_name()
        command = [PARSHALL, "capture", *arguments, *(["--join", join] if join else ["--name", self.ring])]
        settings = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        with host.enter():
            self.process = subprocess.Popen(command, **(settings | options))
        try:
            # Python starts slowly on a busy machine.
            until("it has subscribed", lambda: len(self._subscribers()) >= subscribers, timeout_s=60)
            # A file gets its name when its writing begins.
            files = [after for before, after in pairwise(arguments) if before in ("-w", "--write") and after != "-"]
            until("its files are there", lambda: self._subscribers() and all(Path(file).exists() for file in files))
        except BaseException:
            self.process.kill()
            raise

    def _subscribers(self) -> list[dict[str, Any]]:
        assert not self.has_ended(), self.process.communicate()
        return subscribers_of(self.ring, self.process.pid)

    def end(self, number: int | None = signal.SIGINT, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
        """Send a signal, by default that of Ctrl-C, wait for the end, and return the output."""
        return super().end(number, timeout_s)

    def keeper(self) -> int:
        """Process ID of the keeper."""
        return rings()[self.ring]["keeper_pid"]


def run(host: Any, *arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run `parshall capture` to its end."""
    with host.enter():
        return subprocess.run(
            [PARSHALL, "capture", *arguments],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, **options,
        )  # fmt: skip


def rings() -> dict[str, dict[str, Any]]:
    """The rings that run, by name."""
    return {ring["name"]: ring for ring in parshall.instruments.capture.rings()}


def subscribers_of(ring: str, process: int | None = None) -> list[dict[str, Any]]:
    """Subscribers of a ring; with `process`, only those of that process."""
    found = rings().get(ring, {}).get("subscribers", [])
    return [one for one in found if process in (None, one["pid"])]


def account_of(result: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """The ledger that a capture printed as JSON, after a check that it balances."""
    (line,) = result.stdout.splitlines()
    ledger = json.loads(line)["ledger"]
    check_balance(ledger)
    return ledger


def check_balance(ledger: dict[str, Any]) -> None:
    """Every account must balance, by its own numbers and by what kernel and reader counted."""
    assert ledger["complete"]
    assert not list(unbalanced(ledger))
    for subscriber in ledger["subscribers"]:
        lost = {cause: total(subscriber, cause) for cause in ("overwritten", "dropped")}
        assert lost["overwritten"] <= ledger["sequence_gaps"], ledger
        tallies = subscriber["hooks"]
        assert sum(tally["dropped"] for tally in tallies) == lost["dropped"]
        for tally in tallies:
            assert tally["read"] + tally["dropped"] <= tally["matched"] <= tally["seen"], tally


def total(subscriber: dict[str, Any], what: str) -> int:
    """Sum of a column, or of a cause of loss, over the interfaces of one subscriber."""
    accounts = subscriber["interfaces"]
    return sum(account[what] if what in account else account["lost"][what] for account in accounts)


def packets_of(path: Path) -> Packets:
    """The packets of a file, wire length and captured bytes, as tcpdump understands it."""
    done = subprocess.run(["tcpdump", "-r", path, "-w", "-"], capture_output=True)
    assert done.returncode == 0, done.stderr
    return classic_packets(done.stdout)


def classic_packets(data: bytes) -> Packets:
    """The packets of a classic pcap file in the byte order of this host; one that is half written is not among them."""
    packets = []
    at = 24
    while at + 16 <= len(data):
        _, _, captured, wire = struct.unpack_from("=IIII", data, at)
        if at + 16 + captured > len(data):
            break
        packets.append((wire, data[at + 16 : at + 16 + captured]))
        at += 16 + captured
    return packets


def written_frames(path: Path, kinds: Iterable[int] = (EXPERIMENT,)) -> int:
    """How many frames of some EtherTypes are in a pcapng file that is being written, by its definition."""
    data, wanted = path.read_bytes(), {kind.to_bytes(2, "big") for kind in kinds}
    enhanced_packet_block, head_bytes = 6, 28
    frames = at = 0
    while at + 8 <= len(data):
        block_type, block_bytes = struct.unpack_from("=II", data, at)
        if at + block_bytes > len(data):
            break
        ether_type_at = at + head_bytes + 12
        frames += block_type == enhanced_packet_block and data[ether_type_at : ether_type_at + 2] in wanted
        at += block_bytes
    return frames


def frame(number: int, frame_bytes: int, kind: int = EXPERIMENT, destination: str = "ff:ff:ff:ff:ff:ff") -> bytes:
    """An Ethernet frame whose bytes follow from its number."""
    head = bytes.fromhex(destination.replace(":", "")) + bytes.fromhex("027073ffffff") + kind.to_bytes(2, "big")
    first = number & 0xFF
    return head + number.to_bytes(4, "big") + _COUNTING[first : first + frame_bytes - 18]


class Sender:
    """Sends frames from an interface of a host.

    On a busy machine the queue of the other end may be full: the cable drops the frame and reports ENOBUFS. A capture
    at the other end has not seen it, so it is sent again; one at this end (`captured_here`) has seen it.
    """

    def __init__(self, host: Any, interface: str, captured_here: bool = False) -> None:
        with host.enter():
            self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        self.socket.bind((interface, 0))
        self._captured_here = captured_here

    def send(self, frames: list[bytes], timeout_s: float = 20) -> None:
        """Send frames one after another, from one CPU.

        Each CPU has a queue of its own to the other end, so frames of a thread that moves may overtake each other.
        """
        deadline, before = time.monotonic() + timeout_s, os.sched_getaffinity(0)
        os.sched_setaffinity(0, {min(before)})
        try:
            for one in frames:
                while not self._is_sent(one) and not self._captured_here:
                    assert time.monotonic() < deadline, f"the other end's queue is full for {timeout_s} s"
                    time.sleep(0.001)
        finally:
            os.sched_setaffinity(0, before)

    def _is_sent(self, one: bytes) -> bool:
        try:
            self.socket.send(one)
        except OSError as error:
            if error.errno != errno.ENOBUFS:
                raise
            return False
        return True

    def close(self) -> None:
        """Close the socket."""
        self.socket.close()
