"""The TCP instrument: log the state of every connection at every packet.

The command ``parshall tcp`` is a thin layer over ``TcpLog``.
"""

import ipaddress
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parshall.errors import UsageError
from parshall.host import cgroups, namespaces, privileges
from parshall.host.environment import as_json, environment
from parshall.host.quantities import many
from parshall.host.rotation import ONE_FILE, Rotation
from parshall.host.session import Session, Summary, check_choice, request_json

DEFAULT_RING_BYTES = 16 << 20
# TCP retransmits after at most this time (TCP_RTO_MAX): no SYN-ACK will follow.
DEFAULT_HANDSHAKE_SILENCE_S = 120.0
RING_BYTES_MIN, RING_BYTES_MAX = 32 << 10, 256 << 20


@dataclass(frozen=True, repr=False)
class LogSummary(Summary):
    """How a log ended.

    Attributes
    ----------
    flows : int
        Connections in the log.
    listeners : list of dict
        Listeners whose accept queue was full when somebody came, as rows of `Log.listeners`; times are integers.
    segments_unlisted : int
        Segments that came to listeners for which the kernel's table had no room.
    budget : dict or None
        What a budget came to: its ``share`` of one CPU, ``cost_share`` of the whole time and ``cost_share_max`` of
        the most expensive ten seconds (0: it was shorter), ``observed_s``, ``packets_per_log_max``, ``changes``.
    shipping : dict or None
        What was sent to a store: see `parshall.fleet.shipping.Shipper.account`.
    """

    flows: int
    listeners: list[dict[str, Any]]
    segments_unlisted: int
    budget: dict[str, Any] | None = None
    shipping: dict[str, Any] | None = None

    def _facts(self) -> list[str]:
        return [many(self.flows, "flow"), *super()._facts()]


class TcpLog(Session[LogSummary]):
    """Write the state of TCP connections, one record per packet and event, until stopped.

    Parameters
    ----------
    path : path-like
        The log; ``-`` is standard output. An existing file is replaced when logging begins, and refused while
        another process writes it.
    ppl : int
        Log every n-th packet of each flow; 1 logs all.
    budget : float, optional
        Keep what the log costs, programs and reader, below this share of one CPU: with more traffic only every second,
        fourth, ... packet of each flow is logged, and where skipping packets costs too much, packets are observed for a
        part of the time. `Log.thinning` has each change.
    on_change : bool
        Log a packet when its flow's cwnd or ssthresh changed since the last one logged (and every
        n-th packet too, when ``ppl`` is not 1).
    port : int or sequence of int
        Log only flows that have one of these ports at either end.
    host : str or sequence of str
        Log only flows that have one of these addresses (or names) at either end.
    direction : {"in", "out", "both"}
        Which packets are observed.
    cgroup : path-like, optional
        Log only sockets below this directory of the cgroup-v2 hierarchy.
    unit : str, optional
        Log only sockets of this unit of systemd: of its control group when the log begins.
    container : str, optional
        Log only sockets of this container: its name, as Docker or Podman has it, or the beginning of its ID.
    netns : path-like or str, optional
        Log only sockets of this network namespace, by name (``ip netns``) or path.
    pid : int or sequence of int
        Log only sockets of these processes: those that they hold when the log begins or make later, and the
        connections that any process accepts from them.
    buffer_bytes : int
        Bytes of the ring between kernel and reader, for each CPU: a power of two.
    policy : {"fast", "slow"}
        When the reader lags: overwrite and count ("fast"), or drop in the kernel and count ("slow").
    compression : {"auto", "lz4", "zstd", "none"}
        How the rows are compressed: ``auto`` takes LZ4 at 25,000 records a second and more, and zstd below. LZ4 takes
        less CPU time, zstd makes about half the bytes.
    handshake_silence_s : float
        A passive open that has been silent for so many seconds has failed: its flow ends.
    rotation : Rotation
        When a new file begins, and which files stay: ``day.arrow`` is then ``day.000001.arrow``, ... Without, the log
        is one file.
    environment_extra : dict, optional
        Added to the environment at the head of the log.
    is_stopping : callable, optional
        Polled while a FIFO has no reader; when it returns true, the start is cancelled with KeyboardInterrupt.

    Raises
    ------
    UsageError
        An argument is out of range or invalid.
    ParshallError
        Privileges or kernel features are missing, or the file cannot be created.

    Examples
    --------
    >>> with TcpLog("flows.arrow", port=5201) as log:  # doctest: +SKIP
    ...     run_experiment()
    >>> log.summary.ledger["complete"]  # doctest: +SKIP
    True
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        ppl: int = 1,
        budget: float | None = None,
        on_change: bool = False,
        port: int | Sequence[int] = (),
        host: str | Sequence[str] = (),
        direction: str = "both",
        cgroup: str | os.PathLike[str] | None = None,
        unit: str | None = None,
        container: str | None = None,
        netns: str | os.PathLike[str] | None = None,
        pid: int | Sequence[int] = (),
        buffer_bytes: int = DEFAULT_RING_BYTES,
        policy: str = "fast",
        compression: str = "auto",
        handshake_silence_s: float = DEFAULT_HANDSHAKE_SILENCE_S,
        rotation: Rotation = ONE_FILE,
        environment_extra: dict[str, Any] | None = None,
        is_stopping: Callable[[], bool] | None = None,
    ) -> None:
        if not 1 <= ppl < 1 << 32:
            raise UsageError(f"--ppl {ppl}: expected 1 (every packet) to {(1 << 32) - 1}")
        if budget is not None and not 0 < budget <= 1:
            raise UsageError(f"--budget {budget:g}: expected a share of one CPU above 0, at most 1, such as 0.01 or 1%")
        if budget is not None and (ppl != 1 or on_change):
            raise UsageError("--budget: decides how packets are thinned; leave out --ppl and --on-change")
        if buffer_bytes.bit_count() != 1 or not RING_BYTES_MIN <= buffer_bytes <= RING_BYTES_MAX:
            raise UsageError(f"--buffer {buffer_bytes}: expected a power of two from 32K to 256M")
        check_choice("--policy", policy, ("fast", "slow"))
        check_choice("--direction", direction, ("in", "out", "both"))
        check_choice("--compression", compression, ("auto", "lz4", "zstd", "none"))
        if not 0 < handshake_silence_s < 1e9:
            raise UsageError(f"handshake_silence_s {handshake_silence_s}: expected seconds above 0")
        if rotation.is_on and str(path) == "-":
            raise UsageError("-o -: standard output does not rotate; name a file, or leave out the rotation")
        ports = [port] if isinstance(port, int) else list(port)
        for number in ports:
            if not 0 < number < 65536:
                raise UsageError(f"--port {number}: expected a port from 1 to 65535")
        hosts = [host] if isinstance(host, str) else host
        addresses = [address for name in hosts for address in addresses_of(name)]
        namespace = None if netns is None else namespaces.find(netns)
        pids = [pid] if isinstance(pid, int) else list(pid)
        for number in pids:
            _check_process(number)
        privileges.require_bpf("tcp")
        cgroup = cgroups.chosen(cgroup, unit, container)
        from parshall import _native

        # Held open, because the kernel reuses the inode numbers of removed namespaces.
        self._namespace = None if namespace is None else namespace.open("rb")
        self.path = Path(path)
        options = {
            "packets_per_log": ppl,
            "budget": budget,
            "on_change": on_change,
            "ports": ports,
            "hosts": [str(address) for address in addresses],
            "direction": direction,
            "cgroup": str(cgroup) if cgroup else None,
            "netns": None if namespace is None else str(namespace),
            "pids": pids,
            "ring_bytes": buffer_bytes,
            "policy": policy,
            "compression": compression,
            "shipped": rotation.is_shipped,
        }
        inode = None if self._namespace is None else os.fstat(self._namespace.fileno()).st_ino
        request = {
            "path": self.path,
            "environment": as_json(environment() | (environment_extra or {})),
            "options": options | {"netns_inode": inode, "handshake_silence_s": handshake_silence_s},
            "options_text": as_json(options),
            "rotation": rotation.request(),
        }
        self._native: _native.TcpLog = _native.TcpLog(request_json(request), is_stopping)

    def switch(self, on: bool) -> None:
        """Attach or detach the hooks; while they are detached, no program runs for any packet."""
        self._native.switch(on)

    def _summarize(self, account: dict[str, Any]) -> LogSummary:
        return LogSummary(**account)


def _check_process(pid: int) -> None:
    """Raise `UsageError` unless a number is the ID of a process, not of another thread."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        raise UsageError(f"--pid {pid}: no such process") from None
    process = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("Tgid:"))
    if process != pid:
        raise UsageError(f"--pid {pid}: is a thread of process {process}; give --pid {process}")


def addresses_of(host: str) -> list[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    """Return the addresses of a host; raise `UsageError` if its name cannot be resolved."""
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
