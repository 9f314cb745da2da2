"""Measures round-trip times by sparse UDP datagrams, as a person at a full link feels them.

``python -m parshall.lab.echo --answer ADDRESS`` answers; ``python -m parshall.lab.echo ADDRESS -d 10`` asks 50 times a
second and prints one JSON object: ``sent``, ``received``, and of the round-trip times in milliseconds ``mean``,
``median``, ``p90``, ``p99`` and ``max``, null where nothing came back.
"""

import argparse
import contextlib
import json
import socket
import statistics
import time
from typing import Any

from parshall.host.messages import report_start
from parshall.host.quantities import parse_seconds
from parshall.host.stopping import Stopping

PORT = 5299
_INTERVAL_S = 0.02
# For answers that are under way when the last question was sent.
_LAST_S = 2.0
# How often the server looks whether it is to end.
_LOOK_S = 0.1
# Microseconds.
_DIGITS = 3


def answer(address: str) -> None:
    """Send every datagram back, until SIGINT or SIGTERM."""
    with Stopping() as stopping, _socket_at(address) as answering:
        answering.bind((address, PORT))
        answering.settimeout(_LOOK_S)
        report_start("echo", f"answering at {address}", quiet=False)
        while not stopping.is_requested():
            with contextlib.suppress(TimeoutError):
                question, asker = answering.recvfrom(64)
                answering.sendto(question, asker)


def ask(address: str, duration_s: float) -> dict[str, Any]:
    """Ask at even intervals for some seconds; return counts and round-trip times in milliseconds."""
    round_trips_ms: dict[int, float] = {}
    with _socket_at(address) as asking:
        asking.connect((address, PORT))
        began_s = time.monotonic()
        count = max(1, round(duration_s / _INTERVAL_S))
        for number in range(count):
            # Of the whole run: a late question does not delay the others.
            _collect(asking, began_s + number * _INTERVAL_S, round_trips_ms)
            with contextlib.suppress(OSError):
                asking.send(number.to_bytes(4, "big") + time.monotonic_ns().to_bytes(8, "big"))
        until_s = time.monotonic() + _LAST_S
        while len(round_trips_ms) < count and time.monotonic() < until_s:
            _collect(asking, min(until_s, time.monotonic() + _INTERVAL_S), round_trips_ms)
    return {"sent": count, "received": len(round_trips_ms), **_summary(list(round_trips_ms.values()))}


def _collect(asking: socket.socket, until_s: float, round_trips_ms: dict[int, float]) -> None:
    """Take the answers that come until a time."""
    while (left_s := until_s - time.monotonic()) > 0:
        asking.settimeout(left_s)
        try:
            answered = asking.recv(64)
        except TimeoutError:
            return
        except ConnectionRefusedError:
            continue
        if len(answered) == 12:
            taken_ms = (time.monotonic_ns() - int.from_bytes(answered[4:], "big")) / 1e6
            round_trips_ms.setdefault(int.from_bytes(answered[:4], "big"), taken_ms)


def _summary(values_ms: list[float]) -> dict[str, float | None]:
    if len(values_ms) < 2:
        return dict.fromkeys(("mean", "median", "p90", "p99", "max"), values_ms[0] if values_ms else None)
    cuts = statistics.quantiles(values_ms, n=100, method="inclusive")
    found = {"mean": statistics.fmean(values_ms), "median": cuts[49], "p90": cuts[89], "p99": cuts[98]}
    return {name: round(value, _DIGITS) for name, value in (found | {"max": max(values_ms)}).items()}


def _socket_at(address: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return socket.socket(family, socket.SOCK_DGRAM)


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="parshall.lab.echo", description=__doc__)
    parser.add_argument("address")
    parser.add_argument("--answer", action="store_true", help="answer at this address")
    parser.add_argument("-d", "--duration", default="1s", help="how long to ask")
    given = parser.parse_args()
    if given.answer:
        answer(given.address)
    else:
        print(json.dumps(ask(given.address, parse_seconds("--duration", given.duration))))


if __name__ == "__main__":
    main()
