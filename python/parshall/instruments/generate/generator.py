"""A run of the generator."""

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parshall.errors import ParshallError, UsageError, printable
from parshall.host import privileges
from parshall.host.installation import require_kernel_side
from parshall.host.namespaces import find
from parshall.host.quantities import duration_text, many
from parshall.host.session import Session, request_json
from parshall.instruments.generate.interface import Interface, interface_facts
from parshall.instruments.generate.preflight import default_backend, reasons_not_to_send, request_errors
from parshall.instruments.generate.surroundings import reasons_to_confirm

BACKENDS = ("xdp", "af-packet", "af-xdp", "pktgen")
# Capabilities that backends without eBPF programs require.
_NEEDS: dict[str, tuple[str, ...]] = {
    "af-packet": ("CAP_NET_RAW", "CAP_NET_ADMIN"),
    "af-xdp": ("CAP_NET_RAW",),
    "pktgen": ("CAP_NET_ADMIN",),
}


@dataclass(frozen=True)
class Report:
    """The account of a run.

    Attributes
    ----------
    account : dict
        Packets requested, sent, transmitted and lost; the sent sizes and gaps beside the requested
        ones; the digest. See ``docs/gen.md``.
    """

    account: dict[str, Any]

    @property
    def digest(self) -> str | None:
        """Digest of the planned packets up to the last sent: equal for equal workload, seed and number of packets.

        It does not depend on which packets arrived. None for ``pktgen``, which chooses the packets itself.
        """
        digest: str | None = self.account["digest"]
        return digest

    @property
    def has_failed(self) -> bool:
        """Whether an error ended the run, or no packet was sent, or the interface transmitted none."""
        account = self.account
        had_to_send = account["requested"] is not None and account["requested"] > 0
        has_lost_all = account["arrived"] == 0 and account["sent"] > 0
        return account["error"] is not None or has_lost_all or (had_to_send and account["sent"] == 0)


class Generator(Session[Report]):
    """Send packets from an interface until the count is reached or it is stopped.

    Parameters
    ----------
    interface : str
        The sending interface.
    sizes : str
        Distribution of the sizes of IP packets: ``64``, ``40-1500``, ``imix``, ``procfs:FILE``, ... (``docs/gen.md``).
    gap : str, optional
        Distribution of the gaps: ``fixed``, ``poisson``, ``bursts:size=8``, ... Default: no gaps, or equal gaps when a
        rate is given.
    replay : path-like, optional
        A capture file of whole Ethernet frames, which are sent unchanged and at their recorded times, instead of
        generated packets: once, or repeatedly until `count`. `gap` and the rates change the times.
    rate_bps, pps, load, line_bps : float, optional
        Rate: bits of frames per second, packets per second, or a fraction of a line rate in bit/s.
    count : int, optional
        Total number of packets. Default: until ``stop``.
    duration_s : float, optional
        Duration from the first packet, seconds. With gaps, the packets that are due within it; if the host does not
        keep up, the run ends at most 50 ms later.
    seed : int
        Seed of all random numbers.
    src, dst : str
        IP addresses: ``ADDRESS``, ``FIRST-LAST`` or ``ADDRESS/PREFIX``.
    sport, dport : str
        ``PORT`` or ``FIRST-LAST``.
    src_mac, dst_mac : str, optional
        ``ADDRESS`` or ``FIRST-LAST``. Default source: that of the interface.
    flows : int, optional
        Number of flows. Default: the length of the longest range.
    order : {"cycling", "random"}
        How packets choose their flow: in turn, or at random.
    protocol : str
        ``udp``, ``tcp`` or an IP protocol number.
    vlan : int or str, optional
        VLAN tag: ``ID`` or ``ID.PRIORITY``.
    stamp : bool
        Whether to put sequence number and send time (CLOCK_MONOTONIC) into the payload.
    backend : str, optional
        ``xdp`` (live frames), ``af-packet``, ``af-xdp`` or ``pktgen``. Default: ``xdp``; ``af-packet`` where live
        frames would be lost, and for a replay of frames that are too long for them (`backend_reason` says it).
    cpu : int or sequence of int, optional
        Sending CPU. Of n CPUs, the k-th sends the packets k, k + n, k + 2n and so on, so that the digest stays the
        same; not with ``pktgen``.
    queue : int or sequence of int, optional
        With ``af-xdp``: the interface's queue for each CPU. Default: queue k for the k-th CPU.
    netns : path-like or str, optional
        Network namespace of the interface, by name or path.
    yes_on : str, optional
        Name of the interface, to send although it is not a test interface.
    departure_log : path-like, optional
        File for what was sent when, 24 bytes a packet in the machine's byte order, written at the end: due and sent
        (CLOCK_MONOTONIC, ns, 8 bytes each), size of the IP packet and flow (4 bytes each). Needs gaps.
    parameters : dict, optional
        ``precision``, ``bin_bytes``, ``maximum_bytes`` of the representation of sizes.

    Attributes
    ----------
    backend_reason : str, optional
        Why the default is ``af-packet`` here; None when it is ``xdp``, or a backend was given.

    Raises
    ------
    UsageError
        An argument is out of range or invalid, packets are longer than the MTU, or the interface is not a test
        interface and `yes_on` does not name it.
    ParshallError
        The packets would not arrive, or privileges are missing.

    Examples
    --------
    >>> with Generator("veth0", sizes="imix", pps=1e5, count=1000, seed=1) as generator:  # doctest: +SKIP
    ...     print(generator.stop().digest)
    """

    def __init__(
        self,
        interface: str,
        *,
        sizes: str = "46",
        gap: str | None = None,
        recorded_gaps_ns: list[float] | None = None,
        replay: str | os.PathLike[str] | None = None,
        rate_bps: float | None = None,
        pps: float | None = None,
        load: float | None = None,
        line_bps: float | None = None,
        count: int | None = None,
        duration_s: float | None = None,
        seed: int = 1,
        src: str = "198.18.0.1",
        dst: str = "198.18.1.1",
        sport: str = "9",
        dport: str = "9",
        src_mac: str | None = None,
        dst_mac: str = "02:00:00:00:00:02",
        flows: int | None = None,
        order: str = "cycling",
        protocol: str = "udp",
        vlan: int | str | None = None,
        stamp: bool = False,
        backend: str | None = None,
        cpu: int | Sequence[int] | None = None,
        queue: int | Sequence[int] | None = None,
        netns: str | os.PathLike[str] | None = None,
        yes_on: str | None = None,
        departure_log: str | os.PathLike[str] | None = None,
        parameters: dict[str, int] | None = None,
    ) -> None:
        if count is not None and not 0 < count < 1 << 64:
            raise UsageError(f"--count {count}: expected a number from 1 to 2^64 - 1")
        if duration_s is not None and not 1e-9 <= duration_s < 1e9:
            raise UsageError(f"--duration {duration_s} s: expected a time above 0")
        if backend is not None and backend not in BACKENDS:
            raise UsageError(f"--backend {backend}: expected one of {', '.join(BACKENDS)}")
        if order not in ("cycling", "random"):
            raise UsageError(f"--order {order}: expected cycling or random")
        vlan_id, vlan_priority = _vlan(vlan)
        if not 0 <= seed < 1 << 64:
            raise UsageError(f"--seed {seed}: expected a number from 0 to 2^64 - 1")
        # The file is read twice: to plan the run, and to send.
        if replay is not None and (str(replay) == "-" or (Path(replay).exists() and not Path(replay).is_file())):
            raise UsageError(
                f"--replay {replay}: expected a regular file, since it is read twice; write it to a disk first"
            )
        if backend in (None, "xdp"):
            privileges.require_bpf("gen")
        else:
            require_kernel_side()
            privileges.require("gen", *_NEEDS[backend])
        from parshall import _native

        path = None if netns is None else find(netns)
        self.interface: Interface = interface_facts(interface, path)
        request: dict[str, Any] = {
            "interface": interface,
            "namespace": None if path is None else str(path),
            "cpus": _numbers("--cpu", cpu),
            "queues": _numbers("--queue", queue),
            "backend": backend or "xdp",
            "mtu_bytes": self.interface.mtu_bytes,
            "sizes": sizes,
            "gap": gap,
            "recorded_gaps_ns": recorded_gaps_ns,
            "replay": None if replay is None else str(replay),
            "rate_bps": rate_bps,
            "pps": pps,
            "load": load,
            "line_bps": line_bps,
            "count": count,
            "duration_ns": None if duration_s is None else round(duration_s * 1e9),
            "seed": seed,
            "source": src,
            "destination": dst,
            "source_port": sport,
            "destination_port": dport,
            "source_mac": src_mac or self.interface.mac,
            "has_own_mac": src_mac is None,
            "destination_mac": dst_mac,
            "flows": flows,
            "is_random": order == "random",
            "protocol": protocol,
            "vlan": vlan_id,
            "vlan_priority": vlan_priority,
            "is_stamped": stamp,
            "departure_log": None if departure_log is None else str(departure_log),
            **(parameters or {}),
        }
        self.request = request
        plan = json.loads(_native.describe_workload(request_json(request)))
        self.plan: dict[str, Any] = plan
        if count is None:
            request["count"] = plan["replayed_packets"]
        self.backend_reason: str | None = None
        if backend is None:
            backend, self.backend_reason = default_backend(
                self.interface, is_replay=replay is not None, fits_live_frames=plan["fits_live_frames"]
            )
        request["backend"] = backend
        _check(self.interface, plan, request["backend"])
        if yes_on not in (None, interface):
            raise UsageError(f"--yes-on {yes_on}: the packets go to {interface}; name it, or leave the option out")
        reasons = [] if yes_on == interface else reasons_to_confirm(interface, path)
        if reasons:
            raise UsageError(
                f"interface {interface}: {' and '.join(reasons)}; nothing was sent. To send "
                f"{_described(request, plan)} anyway, add --yes-on {interface}"
            )
        self._native = _native.Session("generate", request_json(request))

    def _summarize(self, account: dict[str, Any]) -> Report:
        return Report(account)


def _described(request: dict[str, Any], plan: dict[str, Any]) -> str:
    """Return in words what would be sent."""
    count, duration_ns, replay = request["count"], request["duration_ns"], request["replay"]
    packets = "packets" if count is None else many(count, "packet")
    if replay is None:
        packets += f" from {request['source']} to {request['destination']}"
    else:
        packets += f" of {printable(replay)}"
    end = "" if duration_ns is None else f", for {duration_text(duration_ns)} at most"
    if count is None and duration_ns is None:
        end = ", until it is stopped,"
    gap_ns = plan["mean_gap_ns"]
    pace = f"{1e9 / gap_ns:,.0f} a second" if gap_ns else "as fast as possible"
    return f"{packets} in frames of {plan['mean_frame_bytes']:.0f} bytes on average, {pace}{end}"


def _numbers(option: str, value: int | Sequence[int] | None) -> list[int]:
    if value is None:
        return []
    numbers = [value] if isinstance(value, int) else list(value)
    if not numbers or min(numbers) < 0:
        raise UsageError(f"{option} {value}: expected one or more numbers of at least 0")
    return numbers


def _vlan(tag: int | str | None) -> tuple[int | None, int]:
    if tag is None:
        return None, 0
    match = re.fullmatch(r"(\d{1,9})(?:\.(\d{1,9}))?", str(tag), re.ASCII)
    if not match:
        raise UsageError(f"--vlan {tag}: expected ID or ID.PRIORITY, for example 100 or 100.5")
    return int(match[1]), int(match[2] or 0)


def _check(interface: Interface, plan: dict[str, Any], backend: str) -> None:
    reasons = reasons_not_to_send(interface, plan["largest_ip_bytes"], backend)
    if reasons:
        is_usage = reasons == request_errors(interface, plan["largest_ip_bytes"])
        raise (UsageError if is_usage else ParshallError)(
            f"interface {interface.name}: no packet would arrive, so nothing was sent: " + "; ".join(reasons)
        )
