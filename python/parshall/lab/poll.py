"""Polls the state of TCP connections, as Web10G's logger did: a sample of each every interval.

Run as ``python -m parshall.lab.poll --port 5201 --interval 1ms -o FILE``: the ``tcp_info`` of every connection with
this remote port (sock_diag(7)), as ``ss -ti`` shows it. It ends by SIGINT and prints one JSON object.
"""

import argparse
import json
import resource
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

from parshall.host.messages import report_start
from parshall.host.quantities import parse_seconds
from parshall.host.stopping import Stopping
from parshall.host.whole_file import new_file

_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_REQUEST_DUMP = 0x301
_DONE, _ERROR = 3, 2
_INET_DIAG_INFO = 2
_ALL_STATES = 0xFFF
_BUFFER_BYTES = 1 << 17
_HEADER = struct.Struct("=IHHII")
# inet_diag_msg: family, state, timer, retrans; then sport and dport in network order.
_PORTS = struct.Struct(">HH")
_MESSAGE_BYTES = 72
# tcp_info: offsets of tcpi_rtt, tcpi_snd_ssthresh, tcpi_snd_cwnd.
_RTT, _SSTHRESH, _CWND = 68, 76, 80


class Poller:
    """Asks the kernel for the connections to a remote port."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG)
        self._socket.settimeout(1.0)
        body = struct.pack("=BBBBI", socket.AF_INET, socket.IPPROTO_TCP, 1 << (_INET_DIAG_INFO - 1), 0, _ALL_STATES)
        connection = _PORTS.pack(0, port) + bytes(32 + 4) + b"\xff" * 8
        length = _HEADER.size + len(body) + len(connection)
        self._request = _HEADER.pack(length, _SOCK_DIAG_BY_FAMILY, _REQUEST_DUMP, 0, 0) + body + connection

    def sample(self) -> Iterator[tuple[int, int, int, int]]:
        """Yield local port, window (segments), threshold (segments) and smoothed round-trip time (us) of each."""
        self._socket.send(self._request)
        while True:
            data = self._socket.recv(_BUFFER_BYTES)
            at = 0
            while at < len(data):
                length, kind, *_ = _HEADER.unpack_from(data, at)
                if kind in (_DONE, _ERROR):
                    return
                yield from self._connection(data[at + _HEADER.size : at + length])
                at += (length + 3) & ~3

    def _connection(self, message: bytes) -> Iterator[tuple[int, int, int, int]]:
        local, remote = _PORTS.unpack_from(message, 4)
        if remote != self._port:
            return
        at = _MESSAGE_BYTES
        while at + 4 <= len(message):
            length, kind = struct.unpack_from("=HH", message, at)
            if kind == _INET_DIAG_INFO and length >= 4 + _CWND + 4:
                info = message[at + 4 : at + length]
                (rtt_us,) = struct.unpack_from("=I", info, _RTT)
                ssthresh, cwnd = struct.unpack_from("=II", info, _SSTHRESH)
                yield local, cwnd, ssthresh, rtt_us
            at += max((length + 3) & ~3, 4)


def main() -> None:
    """Poll until SIGINT; write a CSV file, and print how many samples there are."""
    parser = argparse.ArgumentParser(prog="python -m parshall.lab.poll", description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--interval", default="1ms")
    parser.add_argument("-o", "--output", type=Path, required=True)
    arguments = parser.parse_args()
    interval_s = parse_seconds("--interval", arguments.interval)
    poller = Poller(arguments.port)
    samples = late = 0
    with Stopping() as stopping, new_file(arguments.output) as (file, commit):
        print("time_ns,local_port,cwnd_segments,ssthresh_segments,srtt_us", file=file)
        report_start("poll", f"one sample every {arguments.interval}", quiet=False)
        due_s = time.monotonic()
        while not stopping.is_requested():
            now_ns = time.time_ns()
            for row in poller.sample():
                print(now_ns, *row, sep=",", file=file)
                samples += 1
            due_s += interval_s
            left_s = due_s - time.monotonic()
            if left_s < 0:
                late += 1
                due_s = time.monotonic()
            elif stopping.wait(left_s):
                break
        commit()
    usage = resource.getrusage(resource.RUSAGE_SELF)
    print(json.dumps({"samples": samples, "late": late, "cpu_s": usage.ru_utime + usage.ru_stime}))


if __name__ == "__main__":
    main()
