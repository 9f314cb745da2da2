"""A box between two hosts that treats single segments by a script, and its account of them."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import polars as pl

PROGRAM = Path(__file__).with_name("scripted_box.py")


@dataclass(frozen=True)
class Rule:
    """What happens to some segments; see scripted_box.py for their numbers.

    Attributes
    ----------
    source : str
        "client" or "server".
    kind : str
        "syn" (also SYN-ACK), "data", "ack" (without payload), "fin".
    action : str
        "drop", "hold" (by `delay_ms`, what comes later waits behind it), "let_overtake" (by `delay_ms`, what comes
        later goes ahead), or "too_big" (drop it and return an ICMP error with `mtu`).
    numbers, transmissions
        Which segments, and which of their transmissions; None: all.
    """

    source: str
    kind: str
    action: str
    numbers: tuple[int, ...] | None = None
    transmissions: tuple[int, ...] | None = (1,)
    delay_ms: float = 0
    mtu: int = 0


@contextmanager
def real_time() -> Iterator[None]:
    """Run the calling thread, and those that it starts, before all others: busy programs delay none of its packets.

    A thread that is put off the CPU may hold the lock of a socket, and then TCP answers late.
    """
    before = os.sched_getscheduler(0)
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    try:
        yield
    finally:
        os.sched_setscheduler(0, before, os.sched_param(0))


class MiddleBox:
    """Two hosts and the box between them; each host is one hop away from the other.

    Attributes
    ----------
    left, right : Host
        The hosts of client and server.
    log : polars.DataFrame
        What came to the box, after `forwarding` ended: source, kind, number, transmission, seq, payload_bytes,
        duplicate_begin, duplicate_end (of a D-SACK), time_s, due_s (by the script), forwarded_s (null: not forwarded;
        of a packet above the MTU, the time of the ICMP message to its sender).
    """

    def __init__(self, bed: Any) -> None:
        self.left, self._box, self.right = bed.host("left"), bed.host("box"), bed.host("right")
        self._links = bed.link(self.left, self._box), bed.link(self._box, self.right)
        self.log = pl.DataFrame()
        self._program: Any = None
        for (host, link), (other, far) in zip(self._sides, self._sides[::-1], strict=True):
            interface = link.interface(host)
            # One skb is one segment.
            host.run(["ip", "link", "set", "dev", interface, "gso_max_segs", "1"])
            for family in (4, 6):
                address = far.address(other, family)
                host.run(["ip", "route", "add", address, "dev", interface])
                neighbour = [address, "lladdr", far.end(other).mac, "dev", interface, "nud", "permanent"]
                host.run(["ip", "neighbour", "replace", *neighbour])

    @property
    def _sides(self) -> list[tuple[Any, Any]]:
        return list(zip((self.left, self.right), self._links, strict=True))

    def address(self, family: int) -> str:
        """Return the address of the server's host."""
        return str(self._links[1].address(self.right, family))

    def was_on_time(self, tolerance_ms: float) -> bool:
        """Whether the machine let the box forward every packet when the script wanted it."""
        late_s = (self.log["forwarded_s"] - self.log["due_s"]).drop_nulls()
        return bool((late_s * 1000 <= tolerance_ms).all())

    def wait_for_quiet(self) -> None:
        """Wait until no packet is under way."""
        self._program.stdin.write("\n")
        self._program.stdin.flush()
        assert self._program.stdout.readline() == "quiet\n"

    @contextmanager
    def forwarding(self, port: int, rules: Sequence[Rule], delay_ms: float) -> Iterator[None]:
        """Forward the connection of a port by these rules, with a delay in each direction."""
        interfaces = [link.interface(self._box) for link in self._links]
        script = {"port": port, "delay_ms": delay_ms, "interfaces": interfaces, "rules": [asdict(r) for r in rules]}
        program = self._box.popen(
            [sys.executable, "-S", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        try:
            program.stdin.write(json.dumps(script) + "\n")
            program.stdin.flush()
            assert program.stdout.readline() == "forwarding\n"
            self._program = program
            yield
            output, _ = program.communicate(timeout=30)
        finally:
            program.kill()
            program.wait()
        assert program.returncode == 0
        types = {"time_s": pl.Float64, "due_s": pl.Float64, "forwarded_s": pl.Float64}
        self.log = pl.DataFrame(json.loads(output), schema_overrides=types, infer_schema_length=None)
