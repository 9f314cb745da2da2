"""The backend that plays a link with the kernel's queueing disciplines (tbf, netem)."""

import json
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

from parshall.errors import ParshallError
from parshall.host import namespaces
from parshall.host.names import current_owner
from parshall.testbed.cables import Cable, create_cable
from parshall.testbed.players import MiddleNamespace
from parshall.testbed.shaping import Shaping

# A bucket of tbf holds the bytes of this time, and at least two packets: the rate is kept while its
# timer is late by less (with one packet, a busy machine lost 2.3 % of 20 Mbit/s).
_BURST_S = 500e-6
# Older tools count a delay in ticks of 64 ns, in 32 bits.
NETEM_DELAY_MAX_MS = 270_000.0
# Parameters for trying whether the kernel has a discipline.
_TRIALS = {"tbf": ["rate", "1mbit", "burst", "2000", "limit", "2000"], "netem": ["delay", "1ms"]}


@cache
def kernel_offers(qdisc: str) -> str | None:
    """Try a queueing discipline in a temporary namespace; return None if it works, else the reason."""
    if shutil.which("tc") is None:
        return "tc(8) is not installed (package iproute2)"
    name = current_owner().name(f"probe-{qdisc}")
    path = namespaces.create(name)
    try:
        _tc(path, "qdisc", "add", "dev", "lo", "root", qdisc, *_TRIALS[qdisc])
    except ParshallError:
        return f"this kernel has no {qdisc}"
    finally:
        namespaces.remove(name)
    return None


class Kernel(MiddleNamespace):
    """Plays a link with the kernel's disciplines.

    ::

        a = bridge = left (tbf) - right = bridge = b (netem)      and likewise back

    Packets of a direction are queued and serialised where they enter the cable in the middle, and
    lost and delayed where they leave the namespace, in the same order as in the relay.
    """

    name = "kernel"

    def __init__(
        self, namespace: str, cable: Cable, shapings: tuple[Shaping, Shaping], offloads: bool, seed: int
    ) -> None:
        super().__init__(namespace, cable, offloads)
        middle = ((self.path, "left", "02:70:73:ff:ff:03"), (self.path, "right", "02:70:73:ff:ff:04"))
        create_cable(Cable(*middle, cable.mtu), offloads_on=offloads)
        for bridge, ports in (("bridge-a", ("a", "left")), ("bridge-b", ("b", "right"))):
            ip = ("ip", "link")
            _command(self.path, *ip, "add", "name", bridge, "type", "bridge", "stp_state", "0", "mcast_snooping", "0")
            for port in ports:
                _command(self.path, *ip, "set", "dev", port, "master", bridge)
            _command(self.path, *ip, "set", "dev", bridge, "mtu", str(cable.mtu), "up")
        forward, back = shapings
        self._serialise(forward, "left", cable.mtu)
        self._delay(forward, "b", seed)
        self._serialise(back, "right", cable.mtu)
        self._delay(back, "a", seed + 1)

    def statistics(self) -> dict[str, Any]:
        """Return the statistics of the disciplines by interface, as ``tc -s -j`` prints them."""
        show = ("-s", "-j", "qdisc", "show", "dev")
        interfaces = ("left", "right", "a", "b")
        return {"qdiscs": {name: json.loads(_tc(self.path, *show, name)) for name in interfaces}}

    def close(self) -> dict[str, Any]:
        """Return the final statistics and remove the namespace."""
        if not self.path.exists():
            return {}
        try:
            return self.statistics()
        finally:
            namespaces.remove(self.namespace)

    def _serialise(self, shaping: Shaping, interface: str, mtu: int) -> None:
        if shaping.rate_bps is None:
            return
        frame_bytes = mtu + 18 + shaping.overhead_bytes
        burst_bytes = max(2 * frame_bytes, round(shaping.rate_bps / 8 * _BURST_S))
        limit_bytes = shaping.queue_bytes or (shaping.queue_packets or 1) * frame_bytes
        rate = ["rate", f"{round(shaping.rate_bps)}bit", "burst", str(burst_bytes), "limit", str(limit_bytes)]
        overhead = ["overhead", str(shaping.overhead_bytes)] if shaping.overhead_bytes else []
        _tc(self.path, "qdisc", "add", "dev", interface, "root", "handle", "1:", "tbf", *rate, *overhead)
        if shaping.queue_packets is not None:
            # tbf limits bytes; its inner queue can limit packets.
            queue = ["handle", "10:", "pfifo", "limit", str(shaping.queue_packets)]
            _tc(self.path, "qdisc", "add", "dev", interface, "parent", "1:1", *queue)

    def _delay(self, shaping: Shaping, interface: str, seed: int) -> None:
        if not shaping.needs_netem:
            return
        add = ("qdisc", "add", "dev", interface, "root", "netem", *netem_parameters(shaping))
        try:
            _tc(self.path, *add, "seed", str(seed))
        except ParshallError:
            # netem has a seed since Linux 6.4; without it, losses are not reproducible.
            _tc(self.path, *add)


def netem_parameters(shaping: Shaping) -> list[str]:
    """Return the arguments of tc for delay and loss."""
    # The limit is never reached, since the queue is in front. Fractions of us, because the tc of Debian 12
    # does not support ns.
    parameters = ["limit", "1000000", "delay", f"{shaping.delay_ms * 1e3:.3f}us"]
    if shaping.loss:
        parameters += ["loss", "random", f"{shaping.loss * 100:.8f}%"]
    return parameters


def _tc(path: Path, *arguments: str) -> str:
    return _command(path, "tc", *arguments)


def _command(path: Path, *command: str) -> str:
    with namespaces.entered(path):
        result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        reason = (result.stderr.strip().splitlines() or ["no reason given"])[0]
        raise ParshallError(f"link: {' '.join(command)} failed: {reason}")
    return result.stdout
