"""A generator and the packets that arrive from it."""

import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ETH_P_ALL = 3
SO_RCVBUFFORCE = 33
SOL_PACKET, PACKET_AUXDATA = 263, 8
TP_STATUS_VLAN_VALID = 1 << 4
# Not the interface's own address, from which the host sends, too.
SOURCE_MAC = "02:50:00:00:00:01"


def generator(xdp_link: Any, **options: Any) -> Any:
    """Start a generator at the sending end."""
    from parshall.instruments.generate import Generator

    sender, _, link = xdp_link
    return Generator(link.interface(sender), netns=sender.path, src_mac=SOURCE_MAC, **options)


def gen(xdp_link: Any, *words: str) -> list[str]:
    """Return the command that sends from the sending end."""
    sender, _, link = xdp_link
    return [sys.executable, "-m", "parshall", "gen", "-i", link.interface(sender), "--netns", str(sender.path), *words]


@dataclass(frozen=True)
class Departures:
    """When the packets of a run were due, and when they were sent: CLOCK_MONOTONIC, ns."""

    due_ns: Any
    sent_ns: Any

    def assert_punctual(self) -> None:
        """Check that none was sent early, and that those were on time whose sender had its CPU."""
        late_ns = self.sent_ns - self.due_ns
        # A packet due in half of a batch's time leaves with the one before: at most BATCH_NS_MAX of generate.bpf.c.
        assert late_ns.min() >= -1000
        # On a busy machine most packets are late, by the time for which the sender waited for its CPU. What a sender is
        # late of its own, all of them are.
        assert np.quantile(late_ns, 0.01) < 100_000


def departures(xdp_link: Any, path: Path, **options: Any) -> tuple[dict[str, Any], Departures]:
    """Return the account of a run, and when its packets were due and sent."""
    account = generator(xdp_link, departure_log=path, **options).wait().account
    rows = np.fromfile(path, np.dtype([("due", "u8"), ("sent", "u8"), ("bytes", "u4"), ("flow", "u4")]))
    return account, Departures(rows["due"].astype(np.int64), rows["sent"].astype(np.int64))


def write_trace(path: Any, frames: list[bytes], gap_us: int = 0) -> None:
    """Write a capture file in which every gap is `gap_us` longer than the one before it."""
    with path.open("wb") as file:
        file.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1))
        for number, frame in enumerate(frames):
            time_us = number * (number + 1) // 2 * gap_us
            head = struct.pack("<IIII", 5 + time_us // 10**6, time_us % 10**6, len(frame), len(frame))
            file.write(head + frame)


def said_after_ctrl_c(command: list[str], wait: Callable[[], object]) -> str:
    """Run a command, send it Ctrl-C after a wait, and return what it printed."""
    program = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        wait()
        program.send_signal(signal.SIGINT)
        text, errors = program.communicate(timeout=30)
    finally:
        program.kill()
    assert program.returncode == 0, errors
    return text


@contextmanager
def tapped(xdp_link: Any) -> Iterator[Callable[[int], list[bytes]]]:
    """Yield a function that reads `count` frames as on the wire, with the VLAN tag that the kernel stripped."""
    _, receiver, link = xdp_link
    with receiver.enter():
        opened = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    opened.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 256 << 20)
    opened.setsockopt(SOL_PACKET, PACKET_AUXDATA, 1)
    opened.bind((link.interface(receiver), ETH_P_ALL))
    opened.settimeout(10)

    def read(count: int) -> list[bytes]:
        frames: list[bytes] = []
        source_mac = bytes.fromhex(SOURCE_MAC.replace(":", ""))
        while len(frames) < count:
            frame, controls, _, _ = opened.recvmsg(1 << 14, 256)
            if frame[6:12] != source_mac:
                continue
            (auxiliary,) = [data for level, kind, data in controls if (level, kind) == (SOL_PACKET, PACKET_AUXDATA)]
            status = int.from_bytes(auxiliary[:4], sys.byteorder)
            if status & TP_STATUS_VLAN_VALID:
                tag = int.from_bytes(auxiliary[16:18], sys.byteorder)
                frame = frame[:12] + b"\x81\x00" + tag.to_bytes(2, "big") + frame[12:]
            frames.append(frame)
        return frames

    with opened:
        yield read
