"""Offers a workload to a router, and counts what became of it."""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from parshall.errors import ParshallError, UsageError
from parshall.instruments.generate import Generator
from parshall.router.counters import Counters
from parshall.router.edges import Edge, Edges, Passage
from parshall.router.routes import FIRST_DESTINATION
from parshall.router.setup import RPS
from parshall.router.testbed import RouterTestbed
from parshall.router.traffic import Traffic
from parshall.router.tunnel import tunnel, wait_for_delivery

PORT = 9
_SOURCE = "198.18.0.1"
_COUNT_MAX = 1 << 26
_CHECK_PACKETS, _CHECK_PPS = 50, 1000.0
# Packets in the router have left when the sink counts none for this long.
_QUIET_S = 0.02
# The same while packets are missing that no counter calls lost.
_MISSING_S = 1.0
_DRAIN_S = 5.0
_POLL_INTERVAL_S = 0.05


@dataclass(frozen=True)
class Offered:
    """What was offered, and what became of it.

    Attributes
    ----------
    ledger : dict
        ``sent``, ``received`` and ``lost`` by place: sent = received + the sum of lost.
    sender : dict
        The generator's account.
    sink : dict
        The account of the sink's edge, see `Passage`.
    passed : list of Passage
        What passed the edges that were asked for.
    gateway : dict or None
        The account of the router's gateway.
    """

    ledger: dict[str, Any]
    sender: dict[str, Any]
    sink: dict[str, int]
    passed: list[Passage]
    gateway: dict[str, int] | None = None

    @property
    def lost_share(self) -> float:
        """Share of the packets that did not reach the sink."""
        return 1.0 - float(self.ledger["received"]) / float(max(1, self.ledger["sent"]))

    @property
    def elapsed_s(self) -> float:
        """Time from the first packet to the last."""
        return 1e-9 * float(self.sender["elapsed_ns"])

    @property
    def sent_pps(self) -> float:
        """Rate of sending, packets/s."""
        return float(self.ledger["sent"]) / max(self.elapsed_s, 1e-9)

    @property
    def received_pps(self) -> float:
        """Rate at which packets reached the sink, packets/s, by the sink's clock.

        After the last packet was sent, a full queue still empties: what it held did not pass while packets were sent.
        """
        timed, timed_ns = self.sink["timed"], self.sink["timed_ns"]
        if timed and timed_ns:
            return 1e9 * float(timed) / float(timed_ns)
        return float(self.ledger["received"]) / max(self.elapsed_s, 1e-9)


def offer(
    bed: RouterTestbed,
    traffic: Traffic,
    count: int,
    *,
    log: Path | None = None,
    stamp_log: Path | None = None,
    edges: Sequence[Edge] = (),
) -> Offered:
    """Send packets through a router, and count them at the sink, which discards them.

    Parameters
    ----------
    bed : RouterTestbed
        The testbed.
    traffic : Traffic
        The workload.
    count : int
        Number of packets.
    log : pathlib.Path, optional
        File for what was sent when; see ``parshall.instruments.generate.Generator``.
    stamp_log : pathlib.Path, optional
        File for the order in which the gateway sent the packets; see ``parshall.router.Gateway``.
    edges : sequence of Edge
        Where to record times.

    Raises
    ------
    ParshallError
        The router does not forward, no packet left it, or the packets were not sent.
    UsageError
        An argument is out of range.
    """
    if not 1 <= count <= _COUNT_MAX:
        raise UsageError(f"--count {count}: expected 1 to {_COUNT_MAX:,} packets")
    bed.check_forwarding()
    own = [Edge(bed.outside.interface(bed.sink), bed.sink.path, "xdp", discard=True), *_napi(bed)]
    with ExitStack() as stack:
        gateways = None
        if bed.setup.tunnel:
            if not bed.is_tunnel_checked:
                check_tunnel(bed)
            gateways = stack.enter_context(
                tunnel(bed, cipher=bed.setup.tunnel, stamp_log=stamp_log, stamp_capacity=count)
            )
        recording = stack.enter_context(Edges([*own, *edges]))
        bed.start_receiving()
        before = Counters.read(bed)
        account = _send(bed, traffic, count, log)
        _wait_until_quiet(recording, lambda: account["sent"] - _lost(bed, account, Counters.read(bed).since(before)))
        lost = Counters.read(bed).since(before)
        passed = recording.stop()
        gateway = gateways.near.stop() if gateways else None
    ledger = _ledger(account, passed[0].account["packets"], lost, gateway)
    if not ledger["received"]:
        raise ParshallError(
            f"router: none of {ledger['sent']} packets left it: lost {ledger['lost']}; check its routes and rules"
        )
    return Offered(ledger, account, passed[0].account, passed[len(own) :], gateway)


def check_tunnel(bed: RouterTestbed) -> None:
    """Send some packets through both gateways, to know that what is measured is a tunnel.

    While a router is measured the sink only counts datagrams: decrypting them would take the CPUs' time.

    Raises
    ------
    ParshallError
        The peer is missing, or packets did not come through.
    """
    assert bed.setup.tunnel is not None
    with tunnel(bed, cipher=bed.setup.tunnel, has_far_end=True) as gateways, Edges(_napi(bed)):
        bed.start_receiving()
        _send(bed, Traffic("constant", pps=_CHECK_PPS), _CHECK_PACKETS, None)
        wait_for_delivery(gateways, _CHECK_PACKETS)
    bed.is_tunnel_checked = True


def _napi(bed: RouterTestbed) -> list[Edge]:
    """Return what gives the router's interface NAPI: without GRO, a veth has it only with an XDP program."""
    return [] if bed.setup.gro else [Edge(bed.ingress, bed.router.path, "xdp")]


def _send(bed: RouterTestbed, traffic: Traffic, count: int, log: Path | None) -> dict[str, Any]:
    first, last = _SOURCE.rsplit(".", 1)
    destinations = bed.setup.destinations
    interface = bed.inside.interface(bed.source)
    with Generator(
        interface,
        sizes=traffic.sizes,
        gap=traffic.gap,
        pps=traffic.paced_pps,
        count=count,
        seed=traffic.seed,
        src=f"{_SOURCE}-{first}.{int(last) + traffic.flows - 1}",
        dst=f"{FIRST_DESTINATION}-{FIRST_DESTINATION + destinations - 1}",
        dport=str(PORT),
        dst_mac=bed.inside.end(bed.router).mac,
        # Flow k has the k-th source and the k-th destination, which start again when they are used up.
        flows=max(traffic.flows, destinations),
        order="random" if destinations > 1 else "cycling",
        stamp=True,
        cpu=bed.setup.generator_cpu,
        netns=bed.source.path,
        # A gateway's TUN device looks like an exit. All that the router can reach is the testbed's.
        yes_on=interface if bed.setup.tunnel else None,
        departure_log=log,
    ) as generator:
        # Polling would take the CPUs' time from what is measured.
        if traffic.paced_pps:
            time.sleep(count / traffic.paced_pps)
        while not generator.status()["has_ended"]:
            time.sleep(_POLL_INTERVAL_S)
    account = generator.stop().account
    if account["error"] is not None:
        raise ParshallError(f"router: the packets were not all sent: {account['error']}")
    if account["sent"] != count:
        raise ParshallError(f"router: the generator sent {account['sent']:,} of {count:,} packets; measure again")
    return account


def _lost(bed: RouterTestbed, account: dict[str, Any], lost: Counters) -> int:
    """Return how many packets the generator and the router's counters say were lost."""
    # Where packets do not wait in the backlog, its counter is of other traffic.
    others = lost.backlog if bed.setup.receive != RPS else 0
    counted: int = (account["lost"] or 0) + sum(astuple(lost))
    return counted - others


def _wait_until_quiet(recording: Edges, expected: Callable[[], int]) -> None:
    """Wait until the router holds no packet of the measurement, of which `expected` can reach the sink.

    A router whose CPU others take is quiet, too, while it holds packets: as long as some are missing it is given time.
    """
    deadline_s = time.monotonic() + _DRAIN_S
    seen, since_s = -1, time.monotonic()
    while (now_s := time.monotonic()) < deadline_s:
        packets = recording.packets()[0]
        if packets != seen:
            seen, since_s = packets, now_s
        elif now_s - since_s > (_QUIET_S if packets >= expected() else _MISSING_S):
            return
        time.sleep(_QUIET_S / 4)


def _ledger(account: dict[str, Any], received: int, lost: Counters, gateway: dict[str, int] | None) -> dict[str, Any]:
    """Return the account: what no counter explains is unknown."""
    sent = account["sent"]
    left = sent - received
    places = {"ring": account["lost"] or 0, "egress": lost.egress, "stack": lost.stack, "backlog": lost.backlog}
    if gateway is not None:
        given_up = sum(gateway[name] for name in ("oversized", "send_failed"))
        places |= {"tun": lost.tun, "gateway": given_up}
    known: dict[str, int] = {}
    for place, packets in places.items():
        # Counters of the machine may include packets of others.
        known[place] = max(0, min(packets, left))
        left -= known[place]
    return {"sent": sent, "received": received, "lost": {**known, "unknown": left}}
