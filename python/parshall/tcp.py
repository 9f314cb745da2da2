"""The TCP instrument: log the state of every connection at every packet.

The command ``parshall tcp`` is a thin layer over :class:`TcpLog`.
"""

import ipaddress
import json
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from parshall import privileges
from parshall.environment import environment
from parshall.errors import UsageError

DEFAULT_RING_BYTES = 16 << 20
# TCP waits at most that long before it sends anything again (TCP_RTO_MAX): no SYN-ACK will follow.
DEFAULT_HANDSHAKE_SILENCE_S = 120.0
RING_BYTES_MIN, RING_BYTES_MAX = 32 << 10, 256 << 20


@dataclass(frozen=True)
class Summary:
    """How a log ended.

    Attributes
    ----------
    ledger : dict
        The final account; see ``docs/ledger.md``.
    flows : int
        Connections in the log.
    failure : str or None
        What stopped the log before it was asked to end (a full disk, say).
    """

    ledger: dict[str, Any]
    flows: int
    failure: str | None


class TcpLog:
    """Write the state of TCP connections, one record a packet and event, until stopped.

    Parameters
    ----------
    path : path-like
        The log; an existing file is overwritten. ``-`` is standard output.
    packets_per_log : int
        Log every n-th packet of each flow; 1 logs all.
    on_change : bool
        Log a packet when its flow's cwnd or ssthresh changed since the last one logged (and every
        n-th packet too, when ``packets_per_log`` is not 1).
    ports : sequence of int
        Log only flows that have one of these ports at either end.
    hosts : sequence of str
        Log only flows that have one of these addresses (or names) at either end.
    direction : {"in", "out", "both"}
        Which packets are observed.
    cgroup : path-like, optional
        Log only sockets below this directory of the cgroup-v2 hierarchy.
    ring_bytes : int
        Bytes of the ring between kernel and reader, for each CPU: a power of two.
    slow_reader : bool
        Let the kernel side drop and count what the reader has no room for, in place of overwriting.
    handshake_silence_s : float
        A passive open that has been silent for so many seconds has come to nothing: its flow ends.
    environment_extra : dict, optional
        Added to the environment at the head of the log.

    Raises
    ------
    UsageError
        An argument is out of bounds or cannot be understood.
    ParshallError
        Missing privileges, a kernel that lacks what is needed, a file that cannot be made.

    Examples
    --------
    >>> with TcpLog("flows.arrow", ports=[5201]) as log:  # doctest: +SKIP
    ...     run_experiment()
    >>> log.summary.ledger["complete"]  # doctest: +SKIP
    True
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        packets_per_log: int = 1,
        on_change: bool = False,
        ports: Sequence[int] = (),
        hosts: Sequence[str] = (),
        direction: str = "both",
        cgroup: str | os.PathLike[str] | None = None,
        ring_bytes: int = DEFAULT_RING_BYTES,
        slow_reader: bool = False,
        handshake_silence_s: float = DEFAULT_HANDSHAKE_SILENCE_S,
        environment_extra: dict[str, Any] | None = None,
    ) -> None:
        if not 1 <= packets_per_log < 1 << 32:
            raise UsageError(f"--ppl {packets_per_log}: expected 1 (every packet) to {(1 << 32) - 1}")
        if ring_bytes.bit_count() != 1 or not RING_BYTES_MIN <= ring_bytes <= RING_BYTES_MAX:
            raise UsageError(
                f"ring of {ring_bytes} bytes: expected a power of two from {RING_BYTES_MIN} to {RING_BYTES_MAX}"
            )
        if not 0 < handshake_silence_s < 1e9:
            raise UsageError(f"handshake_silence_s {handshake_silence_s}: expected seconds above 0")
        for port in ports:
            if not 0 < port < 65536:
                raise UsageError(f"--port {port}: expected a port from 1 to 65535")
        addresses = [address for host in hosts for address in addresses_of(host)]
        privileges.require_bpf("tcp")
        from parshall import _native

        self.path = Path(path)
        self.summary: Summary | None = None
        options = {
            "packets_per_log": packets_per_log,
            "on_change": on_change,
            "ports": list(ports),
            "hosts": [str(address) for address in addresses],
            "direction": direction,
            "cgroup": str(cgroup) if cgroup else None,
            "ring_bytes": ring_bytes,
            "policy": "slow" if slow_reader else "fast",
        }
        self._log = _native.TcpLog(
            self.path,
            environment=json.dumps(environment() | (environment_extra or {})),
            options=json.dumps(options),
            packets_per_log=packets_per_log,
            on_change=on_change,
            ports=list(ports),
            hosts=addresses,
            directions=direction,
            cgroup=Path(cgroup) if cgroup else None,
            ring_bytes=ring_bytes,
            slow_reader=slow_reader,
            handshake_silence_s=handshake_silence_s,
        )

    def status(self) -> dict[str, Any]:
        """Where the log stands: ``records``, ``flows``, ``overwritten``, ``log_bytes``, ``has_ended``."""
        return self._log.status()

    def switch(self, on: bool) -> None:
        """Let the hooks observe, or not; switched off, no packet meets a program of ours."""
        self._log.switch(on)

    def stop(self) -> Summary:
        """Detach the hooks, write what is left and return the account; once stopped, return it again."""
        if self.summary is None:
            ledger, flows, failure = self._log.stop()
            self.summary = Summary(json.loads(ledger), flows, failure)
        return self.summary

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def addresses_of(host: str) -> list[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    """Return the addresses that a host's name stands for.

    Raises
    ------
    UsageError
        The name cannot be resolved.
    """
    try:
        return [ipaddress.ip_address(host)]
    except ValueError:
        pass
    try:
        found = socket.getaddrinfo(host, None, proto=socket.IPPROTO_TCP)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or "not a name"
        raise UsageError(f"--host {host}: {reason}; give an address, or a name that resolves") from None
    return sorted({ipaddress.ip_address(entry[4][0]) for entry in found}, key=str)
