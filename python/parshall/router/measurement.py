"""A measurement: what was offered to a router, and when each packet arrived and left."""

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet

from parshall.environment import environment
from parshall.errors import ParshallError, UsageError
from parshall.generate import Generator
from parshall.generate.generator import Report
from parshall.router.counters import Counters
from parshall.router.edges import Edge, Edges
from parshall.router.testbed import RouterTestbed
from parshall.router.traffic import Traffic

_SOURCE, _DESTINATION, _PORT = "198.18.0.1", "198.18.1.1", 9
_ETHERNET_BYTES, _FRAME_BYTES_MIN = 14, 60
# Packets in the router have left when the sink counts none for this long.
_QUIET_S = 0.02
_DRAIN_S = 5.0
_POLL_INTERVAL_S = 0.05
# An entry of the generator's departure log.
_SENT = np.dtype([("due_ns", "u8"), ("sent_ns", "u8"), ("ip_bytes", "u4"), ("flow", "u4")])
METADATA_KEY = b"parshall.router"


@dataclass(frozen=True)
class Measurement:
    """What became of each packet.

    Attributes
    ----------
    table : pyarrow.Table
        One row a packet, in the order of sending: ``sequence`` (uint64), ``flow`` (uint32), ``bytes`` (uint32, of the
        frame), ``arrival_ns`` and ``departure_ns`` (int64, CLOCK_MONOTONIC). A lost packet has no departure.
    ledger : dict
        ``sent``, ``received`` and ``lost`` by place: sent = received + the sum of lost.
    cost : dict
        Runs of the recording program and its time for each packet, ns, where the kernel's run-time statistics were on.
    sender : dict
        The generator's account.
    setup, traffic : dict
        What was measured.
    """

    table: pyarrow.Table
    ledger: dict[str, Any]
    cost: dict[str, Any]
    sender: dict[str, Any]
    setup: dict[str, Any]
    traffic: dict[str, Any]

    @property
    def lost_share(self) -> float:
        """Share of the packets that did not leave the router."""
        return 1.0 - float(self.ledger["received"]) / max(1, self.ledger["sent"])

    @property
    def offered_pps(self) -> float:
        """Rate of arrivals, packets/s."""
        arrivals = self.table.column("arrival_ns").to_numpy()
        return 1e9 * (len(arrivals) - 1) / max(1, int(arrivals.max() - arrivals.min())) if len(arrivals) > 1 else 0.0

    @property
    def latency_ns(self) -> np.ndarray:
        """Departure less arrival of the packets that left, int64, in the order of sending."""
        left = self.table.filter(pyarrow.compute.is_valid(self.table.column("departure_ns")))
        return left.column("departure_ns").to_numpy() - left.column("arrival_ns").to_numpy()

    def write(self, path: Path) -> None:
        """Write the table as Parquet, with all else in its metadata as JSON."""
        import json

        beside = {name: getattr(self, name) for name in ("ledger", "cost", "sender", "setup", "traffic")}
        beside["environment"] = environment()
        metadata = {**(self.table.schema.metadata or {}), METADATA_KEY: json.dumps(beside, default=str).encode()}
        pyarrow.parquet.write_table(self.table.replace_schema_metadata(metadata), path, compression="zstd")


def measure(bed: RouterTestbed, traffic: Traffic, count: int, *, records: bool = True) -> Measurement:
    """Offer a workload to a router, and record when each packet arrives and leaves.

    A packet arrives when the generator hands it to the link. It leaves when the router's stack hands it to the egress
    interface.

    Parameters
    ----------
    bed : RouterTestbed
        The testbed.
    traffic : Traffic
        The workload.
    count : int
        Number of packets.
    records : bool
        Whether to record departures; otherwise the packets that leave are only counted, at the sink, and the router does
        no extra work.

    Raises
    ------
    ParshallError
        The router does not forward, no packet left it, or the packets were not sent.
    UsageError
        An argument is out of range.
    """
    if not 1 <= count <= 1 << 26:
        raise UsageError(f"--count {count}: expected 1 to {1 << 26:,} packets")
    bed.check_forwarding()
    sink = Edge(bed.outside.interface(bed.sink), bed.sink.path, "xdp", discard=True)
    edges = [sink]
    if records:
        edges.append(Edge(bed.egress, bed.router.path, "out", capacity=count, port=_PORT))
    if not bed.setup.gro:
        # Without GRO, a veth has NAPI only with an XDP program.
        edges.append(Edge(bed.ingress, bed.router.path, "xdp"))
    with tempfile.TemporaryDirectory(prefix="parshall-router-") as directory:
        log = Path(directory) / "departures"
        with Edges(edges) as recording:
            bed.start_receiving()
            before = Counters.read(bed)
            report = _send(bed, traffic, count, log)
            _wait_until_quiet(recording)
            lost = Counters.read(bed).since(before)
            passed = recording.stop()
        sent = np.fromfile(log, _SENT)
    received = passed[0].account["packets"]
    ledger = _ledger(report, len(sent), received, lost)
    if not received:
        raise ParshallError(
            f"router: none of {len(sent)} packets left it: lost {ledger['lost']}; check its routes and rules"
        )
    departures_ns = passed[1].times_ns if records else np.zeros(len(sent), np.uint64)
    return Measurement(
        _table(sent, departures_ns),
        ledger,
        {name: passed[1].account[name] for name in ("runs", "run_ns")} if records else {},
        report.account,
        bed.setup.describe(),
        traffic.describe(),
    )


def _send(bed: RouterTestbed, traffic: Traffic, count: int, log: Path) -> Report:
    setup = bed.setup
    first, rest = _SOURCE.rsplit(".", 1)
    with Generator(
        bed.inside.interface(bed.source),
        sizes=traffic.sizes,
        gap=traffic.gap,
        pps=traffic.pps,
        count=count,
        seed=traffic.seed,
        src=f"{_SOURCE}-{first}.{int(rest) + traffic.flows - 1}",
        dst=_DESTINATION,
        dport=str(_PORT),
        dst_mac=bed.inside.end(bed.router).mac,
        flows=traffic.flows,
        stamp=True,
        cpu=setup.generator_cpu,
        netns=bed.source.path,
        departure_log=log,
    ) as generator:
        # Polling would take the CPUs' time from what is measured.
        time.sleep(count / traffic.pps)
        while not generator.status()["has_ended"]:
            time.sleep(_POLL_INTERVAL_S)
    report = generator.stop()
    if report.account["error"] is not None:
        raise ParshallError(f"router: the packets were not all sent: {report.account['error']}")
    return report


def _wait_until_quiet(recording: Edges) -> None:
    """Wait until the router holds no packet of the measurement."""
    deadline_s = time.monotonic() + _DRAIN_S
    seen, since_s = -1, time.monotonic()
    while (now_s := time.monotonic()) < deadline_s:
        packets = recording.packets()[0]
        if packets != seen:
            seen, since_s = packets, now_s
        elif now_s - since_s > _QUIET_S:
            return
        time.sleep(_QUIET_S / 4)


def _ledger(report: Report, sent: int, received: int, lost: Counters) -> dict[str, Any]:
    """Return the account: what no counter explains is unknown."""
    left = sent - received
    places = {"ring": report.account["lost"] or 0, "egress": lost.egress, "stack": lost.stack, "backlog": lost.backlog}
    known: dict[str, int] = {}
    for place, packets in places.items():
        # Counters of the machine may include packets of others.
        known[place] = max(0, min(packets, left))
        left -= known[place]
    return {"sent": sent, "received": received, "lost": {**known, "unknown": left}}


def _table(sent: np.ndarray, departures_ns: np.ndarray) -> pyarrow.Table:
    departures = departures_ns[: len(sent)].astype(np.int64)
    frames = np.maximum(sent["ip_bytes"] + _ETHERNET_BYTES, _FRAME_BYTES_MIN)
    return pyarrow.table(
        {
            "sequence": np.arange(len(sent), dtype=np.uint64),
            "flow": sent["flow"].copy(),
            "bytes": frames.astype(np.uint32),
            "arrival_ns": sent["sent_ns"].astype(np.int64),
            "departure_ns": pyarrow.array(departures, mask=departures == 0),
        }
    )
