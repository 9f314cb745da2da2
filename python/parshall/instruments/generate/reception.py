"""Statistics of received stamped packets: loss, duplicates, reordering and latency."""

import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow
import pyarrow.compute

STAMP_BYTES = 16
_ETHERNET_BYTES, _TAG_BYTES = 14, 4
_IPV4_BYTES, _IPV6_BYTES = 20, 40
_TRANSPORT_BYTES = {"udp": 8, "tcp": 20}
_QUANTILES = (0.0, 0.5, 0.9, 0.99, 1.0)
# Maximum number of packets of a run; the generator did not write larger sequence numbers.
_SEQUENCE_MAX = 1 << 36


def stamp_offset_bytes(*, is_ipv6: bool = False, protocol: str = "udp", is_tagged: bool = False) -> int:
    """Return the offset of the stamp in a frame: the start of the payload."""
    ip_bytes = _IPV6_BYTES if is_ipv6 else _IPV4_BYTES
    return _ETHERNET_BYTES + is_tagged * _TAG_BYTES + ip_bytes + _TRANSPORT_BYTES.get(protocol, 0)


@dataclass
class Reception:
    """Count the stamped packets of one run of the generator, in the order of their arrival.

    Memory grows with the packets: 9 bytes each.

    Parameters
    ----------
    offset_bytes : int
        Offset of the stamp, see `stamp_offset_bytes`.

    Examples
    --------
    >>> reception = Reception()
    >>> for batch in capture.batches():  # doctest: +SKIP
    ...     reception.add(batch)
    >>> reception.summary(sent=1_000_000)  # doctest: +SKIP
    """

    offset_bytes: int = field(default_factory=stamp_offset_bytes)
    received: int = 0
    reordered: int = 0
    duplicates: int = 0
    too_short: int = 0
    foreign: int = 0
    _next: int = 0
    _seen: np.ndarray = field(default_factory=lambda: np.zeros(1024, bool), repr=False)
    _latencies_ns: list[np.ndarray] = field(default_factory=list, repr=False)

    def add(self, batch: pyarrow.RecordBatch) -> None:
        """Count the packets of a batch of ``Capture.batches``: its ``time`` and ``packet``."""
        stamps = pyarrow.compute.binary_slice(
            batch.column("packet"), self.offset_bytes, self.offset_bytes + STAMP_BYTES
        )
        whole = pyarrow.compute.equal(pyarrow.compute.binary_length(stamps), STAMP_BYTES)
        self.too_short += len(stamps) - (pyarrow.compute.sum(whole).as_py() or 0)
        words = np.frombuffer(b"".join(stamps.filter(whole).to_pylist()), ">u8").reshape(-1, 2)
        times_ns = batch.column("time").filter(whole).cast(pyarrow.int64()).to_numpy()
        ours = words[:, 0] < _SEQUENCE_MAX
        self.foreign += int((~ours).sum())
        words, times_ns = words[ours], times_ns[ours]
        self._count(words[:, 0].astype(np.int64))
        # Stamps are CLOCK_MONOTONIC, capture times UTC.
        self._latencies_ns.append(times_ns - _utc_offset_ns() - words[:, 1].astype(np.int64))

    def _count(self, sequences: np.ndarray) -> None:
        if not len(sequences):
            return
        self.received += len(sequences)
        # A packet is reordered if it arrives after one that was sent later (RFC 4737, 3.3).
        highest = np.maximum.accumulate(np.concatenate(([self._next - 1], sequences)))
        self.reordered += int((sequences < highest[:-1]).sum())
        self._next = int(highest[-1]) + 1
        if self._next > len(self._seen):
            grown = np.zeros(max(self._next, 2 * len(self._seen)), bool)
            grown[: len(self._seen)] = self._seen
            self._seen = grown
        distinct = np.unique(sequences)
        self.duplicates += len(sequences) - int((~self._seen[distinct]).sum())
        self._seen[distinct] = True

    @property
    def highest(self) -> int:
        """Highest sequence number that arrived; -1 before the first packet."""
        return self._next - 1

    def summary(self, sent: int | None = None) -> dict[str, Any]:
        """Return the account: ``sent = received - duplicates + lost``.

        Parameters
        ----------
        sent : int, optional
            Number of packets sent. Default: up to the highest sequence number that arrived.

        Returns
        -------
        dict
            ``received``, ``duplicates``, ``reordered``, ``too_short`` (packets without a stamp), ``foreign`` (packets
            whose sequence number is not among those ``sent``), ``lost``, and ``latency_ns``: minimum, median, 90 %,
            99 %, maximum; None when nothing arrived. Clocks of different hosts differ; then only differences between
            latencies are meaningful.
        """
        arrived = self.received - self.duplicates
        sent_count = self._next if sent is None else sent
        # Packets with numbers beyond those sent come from another run.
        beyond = arrived - int(self._seen[:sent_count].sum())
        latencies = np.concatenate(self._latencies_ns) if self._latencies_ns else np.empty(0)
        return {
            "received": self.received - beyond,
            "duplicates": self.duplicates,
            "reordered": self.reordered,
            "too_short": self.too_short,
            "foreign": self.foreign + beyond,
            "lost": sent_count - (arrived - beyond),
            "latency_ns": [float(value) for value in np.quantile(latencies, _QUANTILES)] if len(latencies) else None,
        }


def _utc_offset_ns() -> int:
    """Return the offset from CLOCK_MONOTONIC to UTC, from the fastest of a few readings."""
    readings = []
    for _ in range(8):
        before = time.monotonic_ns()
        now = time.time_ns()
        after = time.monotonic_ns()
        readings.append((after - before, now - (before + after) // 2))
    return min(readings)[1]
