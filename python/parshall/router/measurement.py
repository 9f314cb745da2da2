"""A measurement: what was offered to a router, and when each packet arrived and left."""

import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow
import pyarrow.parquet

from parshall.errors import ParshallError
from parshall.host.environment import environment
from parshall.host.temporary import TemporaryDirectory
from parshall.host.whole_file import new_file
from parshall.router import gateway
from parshall.router.edges import Edge
from parshall.router.offer import PORT, offer
from parshall.router.prediction import latencies_ns
from parshall.router.testbed import RouterTestbed
from parshall.router.traffic import Traffic
from parshall.router.tunnel import departures_by_stamp

_ETHERNET_BYTES, _FRAME_BYTES_MIN = 14, 60
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
        frame), ``due_ns``, ``arrival_ns`` and ``departure_ns`` (int64, CLOCK_MONOTONIC). A lost packet has no
        departure. A packet is due when the workload says so; it arrives when the generator has sent it.
    ledger : dict
        ``sent``, ``received`` and ``lost`` by place: sent = received + the sum of lost.
    cost : dict
        Runs of the recording program and its time for each packet, ns, where the kernel's run-time statistics were on.
    sender : dict
        The generator's account.
    gateway : dict or None
        The account of the router's gateway.
    setup, traffic : dict
        What was measured.
    """

    table: pyarrow.Table
    ledger: dict[str, Any]
    cost: dict[str, Any]
    sender: dict[str, Any]
    gateway: dict[str, int] | None
    setup: dict[str, Any]
    traffic: dict[str, Any]

    @property
    def lost_share(self) -> float:
        """Share of the packets that did not leave the router."""
        return 1.0 - float(self.ledger["received"]) / float(max(1, self.ledger["sent"]))

    @property
    def offered_pps(self) -> float:
        """Rate of arrivals, packets/s."""
        return self._pps("arrival_ns")

    @property
    def planned_pps(self) -> float:
        """Rate at which packets were due, packets/s: of few packets with random gaps not the one that was asked for."""
        return self._pps("due_ns")

    def _pps(self, column: str) -> float:
        times_ns = self.table.column(column).to_numpy()
        return 1e9 * (len(times_ns) - 1) / max(1, int(np.ptp(times_ns))) if len(times_ns) > 1 else 0.0

    @property
    def latency_ns(self) -> np.ndarray:
        """Departure less arrival of the packets that left, int64, in the order of sending."""
        return latencies_ns(self.table)

    def write(self, to: Path | IO[bytes]) -> None:
        """Write the table as Parquet, with all else in its metadata as JSON.

        Parameters
        ----------
        to : pathlib.Path or binary file
            A path is replaced when the new file is complete.

        Raises
        ------
        ParshallError, OSError
            As by `parshall.host.whole_file.write_whole`.
        """
        if isinstance(to, Path):
            with new_file(to, "wb") as (file, commit):
                self.write(file)
                commit()
            return
        beside = {name: getattr(self, name) for name in ("ledger", "cost", "sender", "gateway", "setup", "traffic")}
        beside["environment"] = environment()
        metadata = {**(self.table.schema.metadata or {}), METADATA_KEY: json.dumps(beside, default=str).encode()}
        # In memory first: of a full disk pyarrow's own error names no file.
        content = io.BytesIO()
        pyarrow.parquet.write_table(self.table.replace_schema_metadata(metadata), content, compression="zstd")
        to.write(content.getbuffer())
        to.flush()


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
        Whether to record departures; otherwise packets are only counted, at the sink, and the router does no extra
        work.

    Raises
    ------
    ParshallError
        The router does not forward, no packet left it, or the packets were not sent.
    UsageError
        An argument is out of range.
    """
    port = gateway.PORT if bed.setup.tunnel else PORT
    departures = [Edge(bed.egress, bed.router.path, "out", capacity=count, port=port)] if records else []
    with TemporaryDirectory("router") as directory:
        log, stamp_log = directory / "departures", directory / "stamps"
        offered = offer(bed, traffic, count, log=log, stamp_log=stamp_log, edges=departures)
        sent = np.fromfile(log, _SENT)
        departures_ns = offered.passed[0].times_ns if records else np.zeros(len(sent), np.uint64)
        if records and bed.setup.tunnel:
            departures_ns = departures_by_stamp(departures_ns, stamp_log, count)
        if records:
            _check_times(int(np.count_nonzero(departures_ns)), offered.ledger["received"])
    return Measurement(
        _table(sent, departures_ns),
        offered.ledger,
        {name: offered.passed[0].account[name] for name in ("runs", "run_ns")} if records else {},
        offered.sender,
        offered.gateway,
        bed.setup.describe(),
        traffic.describe(),
    )


def _check_times(with_time: int, received: int) -> None:
    """Raise `ParshallError` when packets reached the sink whose time at the router's exit is missing."""
    if with_time < received:
        raise ParshallError(
            f"router: {received:,} packets reached the sink, but {with_time:,} have a time at the router's exit; "
            "measure again"
        )


def _table(sent: np.ndarray, departures_ns: np.ndarray) -> pyarrow.Table:
    departures = departures_ns[: len(sent)].astype(np.int64)
    frames = np.maximum(sent["ip_bytes"] + _ETHERNET_BYTES, _FRAME_BYTES_MIN)
    return pyarrow.table(
        {
            "sequence": np.arange(len(sent), dtype=np.uint64),
            "flow": sent["flow"].copy(),
            "bytes": frames.astype(np.uint32),
            "due_ns": sent["due_ns"].astype(np.int64),
            "arrival_ns": sent["sent_ns"].astype(np.int64),
            "departure_ns": pyarrow.array(departures, mask=departures == 0),
        }
    )
