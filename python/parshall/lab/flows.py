"""TCP flows that begin at random times, whether earlier ones have ended or not, and how long each takes.

``python -m parshall.lab.flows --serve ADDRESS`` sends what it is asked for. ``python -m parshall.lab.flows ADDRESS
--load 10M`` opens flows whose bytes are 10 Mbit/s in the mean, at the times of a Poisson process (an open loop: a slow
flow does not delay the next one), with sizes of a bounded Pareto distribution. It prints one JSON object: counts,
completion times of short and long flows, and each flow.
"""

import argparse
import asyncio
import contextlib
import json
import math
import random
import secrets
import signal
import socket
from collections.abc import Iterator, Sequence
from typing import Any

from parshall.errors import UsageError
from parshall.host.messages import report_start
from parshall.host.quantities import parse_rate, parse_seconds
from parshall.host.stopping import Stopping

PORT = 5298
SHORT_BYTES_MAX = 10_000
"""A short flow has at most so many bytes: what the initial window of Linux takes at once."""
# For flows that are under way when the last one has begun.
_LAST_S = 10.0
_LOOK_S = 0.1
_CHUNK = bytes(64 << 10)
_SIZE_BYTES = 8
TCP_CONGESTION: int = getattr(socket, "TCP_CONGESTION", 13)


class Sizes:
    """A bounded Pareto distribution of sizes, bytes.

    Parameters
    ----------
    least, most : int
        Bounds, bytes.
    shape : float
        Exponent of the tail; not 1. The smaller, the more of the bytes are in few large flows.

    Notes
    -----
    Mean and quantiles after M. Crovella, M. Harchol-Balter, C. Murta: Task Assignment in a Distributed System, 1998.
    """

    def __init__(self, least: int, most: int, shape: float) -> None:
        if not 0 < least < most or shape <= 0 or shape == 1:
            raise UsageError(
                f"sizes {least} to {most}, shape {shape:g}: expected 0 < least < most, and a shape above 0 but not 1"
            )
        self._least, self._most, self._shape = float(least), float(most), float(shape)

    @property
    def mean(self) -> float:
        """Mean size, bytes."""
        low, high, shape = self._least, self._most, self._shape
        mass = math.pow(low, shape) / (1 - math.pow(low / high, shape))
        return mass * shape / (shape - 1) * (math.pow(low, 1 - shape) - math.pow(high, 1 - shape))

    def draw(self, chance: random.Random) -> int:
        """Return a size."""
        ratio = math.pow(self._least / self._most, self._shape)
        return round(self._least * math.pow(1 - chance.random() * (1 - ratio), -1 / self._shape))


def serve(address: str, congestion_control: str) -> None:
    """Send each client as many bytes as it asks for, until SIGINT or SIGTERM."""

    async def send(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            left = int.from_bytes(await reader.readexactly(_SIZE_BYTES), "big")
            while left > 0:
                writer.write(_CHUNK[:left])
                left -= len(_CHUNK)
                await writer.drain()
        writer.close()

    async def run() -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as listening:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if congestion_control:
                listening.setsockopt(socket.IPPROTO_TCP, TCP_CONGESTION, congestion_control.encode())
            listening.bind((address, PORT))
            ended = asyncio.Event()
            for number in (signal.SIGINT, signal.SIGTERM):
                asyncio.get_running_loop().add_signal_handler(number, ended.set)
            server = await asyncio.start_server(send, sock=listening, backlog=4096)
            report_start("flows", f"sending at {address}", quiet=False)
            await ended.wait()
            server.close()

    asyncio.run(run())


def planned(duration_s: float, load_bps: float, sizes: Sizes, seed: int) -> Iterator[tuple[float, int]]:
    """Yield when each flow begins, s, and its size, bytes, one after the other: a day has millions of them."""
    chance = random.Random(seed)
    rate_per_s = load_bps / 8 / sizes.mean
    begin_s = chance.expovariate(rate_per_s)
    while begin_s < duration_s:
        yield begin_s, sizes.draw(chance)
        begin_s += chance.expovariate(rate_per_s)


def ask(address: str, duration_s: float, load_bps: float, sizes: Sizes, seed: int) -> dict[str, Any]:
    """Open flows at random times for some seconds.

    Parameters
    ----------
    address : str
        Where `serve` listens.
    duration_s : float
        In which flows begin, seconds.
    load_bps : float
        Payload of all flows in the mean, bit/s.
    sizes : Sizes
        Sizes of the flows.
    seed : int
        The same seed gives the same times and sizes.

    Returns
    -------
    dict
        ``opened``, ``completed``, ``unfinished`` and ``failed`` flows; ``bytes`` that came; ``late_p99_ms``: how much
        later than planned flows began; ``short`` and ``long``: ``flows`` and their completion times from connect to
        the last byte, ms (an unfinished flow takes longer than all others; null: such a one); and ``flows``, a list of
        seconds since the first, bytes and ms (or null).
    """
    begun: list[tuple[float, int]] = []
    took_ms: list[float | None] = []
    late_ms: list[float] = []
    came = failed = 0

    async def flow(number: int, size: int) -> None:
        nonlocal came, failed
        clock = asyncio.get_running_loop().time
        began_s, left = clock(), size
        try:
            reader, writer = await asyncio.open_connection(address, PORT)
            try:
                writer.write(size.to_bytes(_SIZE_BYTES, "big"))
                while content := await reader.read(len(_CHUNK)):
                    came += len(content)
                    left -= len(content)
            finally:
                writer.close()
        except OSError:
            failed += 1
            return
        if left == 0:
            took_ms[number] = 1e3 * (clock() - began_s)
        else:
            failed += 1

    async def run(stopping: Stopping) -> None:
        clock = asyncio.get_running_loop().time
        first_s = clock()
        under_way = set()
        for number, (begin_s, size) in enumerate(planned(duration_s, load_bps, sizes, seed)):
            while (left_s := first_s + begin_s - clock()) > 0 and not stopping.is_requested():
                await asyncio.sleep(min(left_s, _LOOK_S))
            if stopping.is_requested():
                break
            late_ms.append(-1e3 * left_s)
            begun.append((begin_s, size))
            took_ms.append(None)
            task = asyncio.create_task(flow(number, size))
            under_way.add(task)
            task.add_done_callback(under_way.discard)
        if under_way:
            await asyncio.wait(under_way, timeout=_LAST_S)
        for task in list(under_way):
            task.cancel()

    with Stopping() as stopping:
        asyncio.run(run(stopping))
    completed = sum(each is not None for each in took_ms)
    pairs = list(zip(begun, took_ms, strict=True))
    return {
        "opened": len(begun),
        "completed": completed,
        "unfinished": len(begun) - completed - failed,
        "failed": failed,
        "bytes": came,
        "late_p99_ms": _quantile(late_ms, 0.99),
        "short": _summary([each for (_, size), each in pairs if size <= SHORT_BYTES_MAX]),
        "long": _summary([each for (_, size), each in pairs if size > SHORT_BYTES_MAX]),
        "flows": [[round(begin_s, 6), size, each and round(each, 3)] for (begin_s, size), each in pairs],
    }


def _summary(took_ms: Sequence[float | None]) -> dict[str, Any]:
    return {
        "flows": len(took_ms),
        **{f"p{percent}": _quantile(took_ms, percent / 100) for percent in (50, 90, 99)},
    }


def _quantile(values: Sequence[float | None], share: float) -> float | None:
    """Return the least value that a share of all reaches; None where that is none, or none is known."""
    if not values:
        return None
    found = sorted(math.inf if value is None else value for value in values)[math.ceil(share * len(values)) - 1]
    return round(found, 3) if math.isfinite(found) else None


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="parshall.lab.flows", description=__doc__)
    parser.add_argument("address")
    parser.add_argument("--serve", action="store_true", help="send what clients ask for, from this address")
    parser.add_argument("--congestion", default="", help="congestion control of what is sent; default: the host's")
    parser.add_argument("-d", "--duration", default="1s", help="how long flows begin")
    parser.add_argument("--load", default="10M", help="bits per second of all flows in the mean")
    parser.add_argument("--least", type=int, default=1_000, help="smallest flow, bytes")
    parser.add_argument("--most", type=int, default=1_000_000, help="largest flow, bytes")
    parser.add_argument("--shape", type=float, default=1.2, help="exponent of the tail of sizes")
    parser.add_argument("--seed", type=int, help="of times and sizes; default: another one each time")
    given = parser.parse_args()
    if given.serve:
        serve(given.address, given.congestion)
        return
    try:
        sizes = Sizes(given.least, given.most, given.shape)
        duration_s = parse_seconds("--duration", given.duration)
        load_bps = parse_rate("--load", given.load, "bits")
    except UsageError as error:
        parser.error(str(error))
    seed = secrets.randbits(32) if given.seed is None else given.seed
    print(json.dumps({"seed": seed, **ask(given.address, duration_s, load_bps, sizes, seed)}))


if __name__ == "__main__":
    main()
