"""What plays a link: a plain veth pair, the kernel's queueing disciplines, or our relay."""

import json
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

from parshall import _native
from parshall.errors import ParshallError, UsageError
from parshall.testbed import namespaces
from parshall.testbed.links import Cable, lay
from parshall.testbed.names import current_owner
from parshall.testbed.shaping import Shaping

# Realtime priority of the relay, the lowest there is: above every ordinary program, below the
# kernel's own realtime threads.
RELAY_FIFO_PRIORITY = 1
# A bucket of tbf holds what passes in this time: the kernel's timers wake it late by less.
_BURST_S = 200e-6


def choose(wanted: str, shapings: tuple[Shaping, Shaping], offloads: bool) -> str:
    """Choose the backend of a link.

    Parameters
    ----------
    wanted : str
        "auto", or the name of a backend.
    shapings : tuple of Shaping
        Both directions.
    offloads : bool
        Whether the hosts' offloads stay on.

    Returns
    -------
    str
        "veth" when nothing is shaped; else "kernel" where this kernel has netem and tbf and the
        parameters are theirs too, found by trying; else "relay".

    Raises
    ------
    UsageError
        When the backend asked for cannot play these parameters.
    """
    plain = all(shaping.is_plain for shaping in shapings)
    kernel_lacks = _kernel_lacks(shapings)
    if wanted == "auto":
        if plain:
            return "veth"
        # A rate alone would need only tbf. Yet the levels of one factor (delay 0, 1, 10 ms) must
        # not be played by different backends.
        wanted = "relay" if kernel_lacks or kernel_offers("netem") is not None else "kernel"
    if wanted == "veth" and not plain:
        raise UsageError("link: backend 'veth' shapes nothing; choose 'auto', 'kernel' or 'relay'")
    if wanted == "kernel" and kernel_lacks:
        raise UsageError(f"link: backend 'kernel' cannot play this: {kernel_lacks}; choose 'relay'")
    if wanted == "relay" and offloads:
        raise UsageError("link: the relay carries packets, not super-packets; leave offloads off")
    if wanted not in ("veth", "kernel", "relay"):
        raise UsageError(f"link: backend {wanted!r} is unknown; choose 'auto', 'veth', 'kernel' or 'relay'")
    return wanted


@cache
def kernel_offers(qdisc: str) -> str | None:
    """Try a queueing discipline in a namespace of its own; None when it works, else why not."""
    if shutil.which("tc") is None:
        return "tc(8) is not installed (package iproute2)"
    parameters = {"tbf": ["rate", "1mbit", "burst", "2000", "limit", "2000"], "netem": ["delay", "1ms"]}[
        qdisc
    ]
    name = current_owner().name(f"probe-{qdisc}")
    path = namespaces.create(name)
    try:
        _tc(path, "qdisc", "add", "dev", "lo", "root", qdisc, *parameters)
    except ParshallError:
        return f"this kernel has no {qdisc}"
    finally:
        namespaces.remove(name)
    return None


def _kernel_lacks(shapings: tuple[Shaping, Shaping]) -> str | None:
    for shaping in shapings:
        if shaping.queue_packets is not None and shaping.queue_bytes is not None:
            return "its queues have one bound, in packets or in bytes"
        if shaping.jitter_ms:
            return "netem lets packets overtake each other when their delay varies"
        if shaping.needs_netem and (reason := kernel_offers("netem")):
            return reason
        if shaping.rate_bps is not None and (reason := kernel_offers("tbf")):
            return reason
    return None


class Veth:
    """The hosts' interfaces are each other's peers."""

    name = "veth"

    def __init__(self, cable: Cable, offloads: bool) -> None:
        lay(cable, offloads_on=offloads)

    def start(self) -> None:
        """Nothing to start."""

    def statistics(self) -> dict[str, Any]:
        """Nothing beyond the interfaces' own counters."""
        return {}

    def close(self) -> dict[str, Any]:
        """Nothing to stop: the interfaces go with their namespaces."""
        return {}


class _Between:
    """A namespace of its own between the hosts, with the interfaces `a` and `b`."""

    def __init__(self, namespace: str, cable: Cable, offloads: bool) -> None:
        self.namespace = namespace
        self.path = namespaces.create(namespace)
        # In here nobody speaks: no address, no neighbour discovery.
        with namespaces.entered(self.path):
            switch = Path("/proc/sys/net/ipv6/conf/default/disable_ipv6")
            if switch.exists():
                switch.write_text("1")
        for end, name, mac in ((cable.a, "a", "02:70:73:ff:ff:01"), (cable.b, "b", "02:70:73:ff:ff:02")):
            lay(Cable(end, (self.path, name, mac), cable.mtu), offloads_on=offloads)


class Relay(_Between):
    """Our relay; see docs/testbed.md."""

    name = "relay"

    def __init__(
        self, namespace: str, cable: Cable, shapings: tuple[Shaping, Shaping], cpu: int | None, seed: int
    ) -> None:
        super().__init__(namespace, cable, offloads=False)
        self._running = False
        self._final: dict[str, Any] | None = None
        self._relay = _native.Relay(
            "a",
            "b",
            netns_path=str(self.path),
            cpu=cpu,
            a_to_b=shapings[0].for_relay(),
            b_to_a=shapings[1].for_relay(),
            seed=seed,
            fifo_priority=RELAY_FIFO_PRIORITY,
            mtu=cable.mtu,
        )

    def start(self) -> None:
        """Take packets from now on."""
        self._relay.start()
        self._running = True

    def statistics(self) -> dict[str, Any]:
        """Return the relay's ledger, the last one when it has stopped."""
        return {"relay": self._relay.statistics() if self._running else self._final}

    def close(self) -> dict[str, Any]:
        """Stop the thread, remove the namespace, return the final ledger."""
        try:
            if self._running:
                self._running = False
                self._final = self._relay.stop()
        finally:
            namespaces.remove(self.namespace)
        return {"relay": self._final}


class Kernel(_Between):
    """The kernel's own disciplines.

    ::

        a = bridge = left (tbf) - right = bridge = b (netem)      and the same back

    One direction is queued and serialised where it enters the cable in the middle, and lost and
    delayed where it leaves the namespace: the relay's order.
    """

    name = "kernel"

    def __init__(
        self, namespace: str, cable: Cable, shapings: tuple[Shaping, Shaping], offloads: bool, seed: int
    ) -> None:
        super().__init__(namespace, cable, offloads)
        middle = ((self.path, "left", "02:70:73:ff:ff:03"), (self.path, "right", "02:70:73:ff:ff:04"))
        lay(Cable(*middle, cable.mtu), offloads_on=offloads)
        for bridge, ports in (("bridge-a", ("a", "left")), ("bridge-b", ("b", "right"))):
            self._ip("link", "add", bridge, "type", "bridge", "stp_state", "0", "mcast_snooping", "0")
            for port in ports:
                self._ip("link", "set", port, "promisc", "on", "master", bridge)
            self._ip("link", "set", bridge, "mtu", str(cable.mtu), "up")
        for number, (shaping, entry, leave) in enumerate(
            zip(shapings, ("left", "right"), ("b", "a"), strict=True)
        ):
            self._serialise(shaping, entry, cable.mtu)
            self._delay(shaping, leave, seed + number)

    def start(self) -> None:
        """Nothing to start: the kernel works from the moment it is told."""

    def statistics(self) -> dict[str, Any]:
        """Return the statistics of the disciplines by interface, as ``tc -s -j`` has them."""
        interfaces = ("left", "right", "a", "b")
        return {
            "qdiscs": {
                name: json.loads(_tc(self.path, "-s", "-j", "qdisc", "show", "dev", name))
                for name in interfaces
            }
        }

    def close(self) -> dict[str, Any]:
        """Return the last statistics and remove the namespace."""
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
        burst_bytes = max(frame_bytes, round(shaping.rate_bps / 8 * _BURST_S))
        limit_bytes = shaping.queue_bytes or (shaping.queue_packets or 1) * frame_bytes
        rate = ["rate", f"{round(shaping.rate_bps)}bit", "burst", str(burst_bytes), "limit", str(limit_bytes)]
        overhead = ["overhead", str(shaping.overhead_bytes)] if shaping.overhead_bytes else []
        _tc(self.path, "qdisc", "add", "dev", interface, "root", "handle", "1:", "tbf", *rate, *overhead)
        if shaping.queue_packets is not None:
            # tbf itself bounds bytes; the queue inside it can bound packets.
            queue = ["handle", "10:", "pfifo", "limit", str(shaping.queue_packets)]
            _tc(self.path, "qdisc", "add", "dev", interface, "parent", "1:1", *queue)

    def _delay(self, shaping: Shaping, interface: str, seed: int) -> None:
        if not shaping.needs_netem:
            return
        # Nothing is dropped for want of room here: the queue's bound is in front.
        parameters = ["limit", "1000000", "delay", f"{round(shaping.delay_ms * 1e6)}ns"]
        if shaping.loss:
            parameters += ["loss", "random", f"{shaping.loss * 100:.8f}%"]
        add = ("qdisc", "add", "dev", interface, "root", "netem", *parameters)
        try:
            _tc(self.path, *add, "seed", str(seed))
        except ParshallError:
            # netem has a seed since Linux 6.4: without it losses are random, but never the same.
            _tc(self.path, *add)

    def _ip(self, *arguments: str) -> None:
        _command(self.path, "ip", *arguments)


def _tc(path: Path, *arguments: str) -> str:
    return _command(path, "tc", *arguments)


def _command(path: Path, *command: str) -> str:
    with namespaces.entered(path):
        result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        reason = (result.stderr.strip().splitlines() or ["no reason given"])[0]
        raise ParshallError(f"link: {' '.join(command)} failed: {reason}")
    return result.stdout
