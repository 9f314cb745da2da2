"""Bulk flows: a sender that sends as fast as TCP allows, and a receiver.

Run as ``python -m parshall.lab.bulk send|receive ...``. The receiver says when it listens; it ends when the flows have
ended. SIGINT ends its waiting for further ones.
"""

import argparse
import contextlib
import json
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence

CHUNK_BYTES = 256 * 1024
# Python has the name for Linux; mypy checks for every platform.
TCP_CONGESTION: int = getattr(socket, "TCP_CONGESTION", 13)


def send(address: str, port: int, congestion_control: str, duration_s: float) -> dict[str, object]:
    """Send to a receiver for some seconds, and close.

    Parameters
    ----------
    address, port
        The receiver.
    congestion_control
        Name of the kernel's module.
    duration_s
        Seconds from the established connection to the last byte handed to the kernel.

    Returns
    -------
    dict
        ``congestion_control``, ``local_port`` and ``handed_over_bytes``.
    """
    payload = memoryview(bytes(CHUNK_BYTES))
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    handed_over_bytes = 0
    with socket.socket(family, socket.SOCK_STREAM) as flow:
        flow.setsockopt(socket.IPPROTO_TCP, TCP_CONGESTION, congestion_control.encode())
        flow.connect((address, port))
        local_port = flow.getsockname()[1]
        deadline_s = time.monotonic() + duration_s
        # A flow whose path has failed must end, too.
        while (left_s := deadline_s - time.monotonic()) > 0:
            flow.settimeout(left_s)
            try:
                handed_over_bytes += flow.send(payload)
            except TimeoutError:
                break
    return {
        "congestion_control": congestion_control,
        "local_port": local_port,
        "handed_over_bytes": handed_over_bytes,
    }


def receive(address: str, ports: Sequence[tuple[int, str]]) -> list[dict[str, object]]:
    """Accept one flow on each port and read it until it is closed.

    Parameters
    ----------
    address
        Where to listen.
    ports
        Port and congestion control of the accepted connection. The receiver's congestion control has
        almost no effect, but gives both ends the same name in their flow tables.

    Returns
    -------
    list of dict
        ``port`` and ``received_bytes`` of each, in the order of `ports`.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    received_bytes = dict.fromkeys((port for port, _ in ports), 0)

    def read(listening: socket.socket, port: int) -> None:
        with listening:
            try:
                flow, _ = listening.accept()
            except OSError:
                # SIGINT came first.
                return
        buffer = bytearray(CHUNK_BYTES)
        with flow:
            while count := flow.recv_into(buffer):
                received_bytes[port] += count

    readers, waiting = [], []
    for port, congestion_control in ports:
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.setsockopt(socket.IPPROTO_TCP, TCP_CONGESTION, congestion_control.encode())
        listening.bind((address, port))
        listening.listen(1)
        waiting.append(listening)
        readers.append(threading.Thread(target=read, args=(listening, port)))

    def stop(*_: object) -> None:
        for each in waiting:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    signal.signal(signal.SIGINT, stop)
    for reader in readers:
        reader.start()
    print("listening", file=sys.stderr, flush=True)
    for reader in readers:
        reader.join()
    # There is nothing more to end; without this, one that comes while the interpreter ends would kill it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return [{"port": port, "received_bytes": count} for port, count in received_bytes.items()]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one end, and print its result as one line of JSON."""
    parser = argparse.ArgumentParser(prog="python -m parshall.lab.bulk", description=__doc__)
    ends = parser.add_subparsers(dest="end", required=True)
    sender = ends.add_parser("send")
    sender.add_argument("address")
    sender.add_argument("port", type=int)
    sender.add_argument("congestion_control")
    sender.add_argument("duration_s", type=float)
    receiver = ends.add_parser("receive")
    receiver.add_argument("address")
    receiver.add_argument("ports", nargs="+", metavar="PORT:CONGESTION_CONTROL")
    chosen = parser.parse_args(arguments)
    if chosen.end == "send":
        result: object = send(chosen.address, chosen.port, chosen.congestion_control, chosen.duration_s)
    else:
        pairs = (text.split(":", 1) for text in chosen.ports)
        result = receive(chosen.address, [(int(port), name) for port, name in pairs])
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
