"""Counting the sizes of IP packets at an interface, as they pass."""

import socket
import struct
import sys
import time
from collections import Counter

from parshall.errors import ParshallError, UsageError
from parshall.sizes import Counts
from parshall.stopping import Stopping

_ETH_P_ALL = 3
_SOL_PACKET, _PACKET_STATISTICS = 263, 6
_SO_RCVBUFFORCE = 33
_RECEIVE_BUFFER_BYTES = 64 << 20
# Link header, tags and the lengths in the IP header lie within them.
_HEAD_BYTES = 64
_TAGS = (0x8100, 0x88A8)
_LOOK_S = 0.1


def count_live(interface: str, duration_s: float | None = None, packets: int | None = None) -> Counts:
    """Count until the time is over, so many packets were seen, or Ctrl-C.

    The ledger says how many packets the kernel dropped, since this reader was too slow for them; a fast link is
    better captured (``parshall capture``) and counted from the file.

    Raises
    ------
    UsageError
        A limit is out of bounds.
    ParshallError
        No such interface, or no permission.
    """
    if duration_s is not None and not duration_s > 0:
        raise UsageError(f"--duration {duration_s}: expected seconds above 0")
    if packets is not None and packets < 1:
        raise UsageError(f"--count {packets}: expected 1 packet or more")
    try:
        tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        tap.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _RECEIVE_BUFFER_BYTES)
        tap.bind((interface, _ETH_P_ALL))
    except OSError as error:
        raise ParshallError(
            f"interface {interface}: cannot be listened at: {error.strerror}; `ip link` names those there are, "
            "and packet sockets need CAP_NET_RAW (run as root)"
        ) from error
    sizes: Counter[int] = Counter()
    ledger = dict.fromkeys(("seen", "ipv4", "ipv6", "not_ip", "cut_short", "lost_by_capture"), 0)
    print(f"counting at {interface}; Ctrl-C ends it", file=sys.stderr)
    with tap, Stopping() as stopping:
        tap.settimeout(_LOOK_S)
        deadline = None if duration_s is None else time.monotonic() + duration_s
        while not stopping.wait(0) and (packets is None or ledger["seen"] < packets):
            if deadline is not None and time.monotonic() >= deadline:
                break
            try:
                head = tap.recv(_HEAD_BYTES)
            except TimeoutError:
                continue
            ledger["seen"] += 1
            kind, size = ip_size(head)
            ledger[kind] += 1
            if size:
                sizes[size] += 1
        statistics = tap.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, 8)
        ledger["lost_by_capture"] = struct.unpack("II", statistics)[1]
    return Counts(sorted(sizes.items()), ledger)


def ip_size(frame: bytes) -> tuple[str, int]:
    """Return what an Ethernet frame holds, as the ledger names it, and the length of its IP packet, or 0."""
    offset = 12
    while True:
        if len(frame) < offset + 2:
            return "cut_short", 0
        ethertype = int.from_bytes(frame[offset : offset + 2], "big")
        offset += 2
        if ethertype not in _TAGS:
            break
        offset += 2
    if ethertype == 0x0800:
        size = int.from_bytes(frame[offset + 2 : offset + 4], "big")
        return ("ipv4", size) if size >= 20 else ("cut_short", 0)
    if ethertype == 0x86DD:
        if len(frame) < offset + 6:
            return "cut_short", 0
        return "ipv6", int.from_bytes(frame[offset + 4 : offset + 6], "big") + 40
    return "not_ip", 0
