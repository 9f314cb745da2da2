"""Packet capture: one ring in the kernel, any number of applications, one copy of each packet.

The command ``parshall capture`` is a thin layer over ``Capture``.
"""

import json
import os
import platform
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parshall.errors import UsageError
from parshall.host import privileges
from parshall.host.environment import comment_of_capture
from parshall.host.installation import require_kernel_side, version
from parshall.host.namespaces import entered, find
from parshall.host.rotation import ONE_FILE, Rotation
from parshall.host.session import Session, Summary, check_choice, check_text, request_json

if TYPE_CHECKING:
    import pyarrow

DEFAULT_RING_BYTES = 32 << 20
SNAPLEN_MAX = 262_144
# Capabilities that the kernel requires of socket captures.
_SOCKET_NEEDS = {
    "af-packet": ("CAP_NET_RAW",),
    "tpacket-v3": ("CAP_NET_RAW",),
    "af-xdp": ("CAP_NET_RAW", "CAP_NET_ADMIN", "CAP_BPF"),
}
# Work on each packet, and the largest number of each kind.
_LOADS = {"memcpy": 100_000, "zlib": 9}
_OTHER_COMPRESSIONS = (".xz", ".bz2", ".Z")
# A separate process owns the ring, so that the creator can exit while members continue.
KEEPER = (sys.executable, "-I", "-c", "from parshall._native import keep_capture_ring as keep; keep()")


@dataclass(frozen=True)
class Ring:
    """Settings of a new ring.

    Attributes
    ----------
    interface : str or sequence of str
        At least one interface.
    netns : path-like or str, optional
        Their network namespace, by name (``ip netns``) or path. Default: that of the caller.
    name : str, optional
        Name by which members join. Default: the interfaces' names, with a number if that name is taken.
    hook : {"auto", "xdp", "tcx"}
        Where packets are captured. tcx leaves the interface as it is. XDP is faster, sees inbound packets
        only, and makes some drivers reinitialise their queues.
    direction : {"in", "out", "both"}, optional
        Packets to capture. Default: both; ``in`` with ``hook="xdp"``, which sees inbound packets only.
    buffer_bytes : int
        Bytes of the ring for each CPU: a power of two.
    policy : {"fast", "slow"}
        When a reader lags: overwrite unread packets ("fast"), or drop new packets in the kernel when the
        ring of the slowest reader is full ("slow"). Both are counted.
    promiscuous : bool
        Whether the interfaces accept packets for other hosts.
    group : str, optional
        Members of this group may join, and can read all packets in the ring. Default: root only.
    discard : bool
        Drop every inbound packet after the capture, so that none reaches the host: for an interface at a
        mirror port. Requires ``hook="xdp"``.
    """

    interface: str | Sequence[str]
    netns: str | os.PathLike[str] | None = None
    name: str | None = None
    hook: str = "auto"
    direction: str | None = None
    buffer_bytes: int = DEFAULT_RING_BYTES
    policy: str = "fast"
    promiscuous: bool = False
    group: str | None = None
    discard: bool = False

    @property
    def interfaces(self) -> list[str]:
        """The interfaces as a list."""
        return [self.interface] if isinstance(self.interface, str) else list(self.interface)

    def _native(self) -> dict[str, Any]:
        for interface in self.interfaces:
            check_text("--interface", interface)
        for option in ("name", "group"):
            check_text(f"--{option}", getattr(self, option))
        check_choice("--hook", self.hook, ("auto", "xdp", "tcx"))
        check_choice("--direction", self.direction, ("in", "out", "both"))
        check_choice("--policy", self.policy, ("fast", "slow"))
        return {
            "name": self.name,
            "interfaces": self.interfaces,
            "hook": self.hook,
            "directions": self.direction or ("in" if self.hook == "xdp" else "both"),
            "ring_bytes": self.buffer_bytes,
            "slow_reader": self.policy == "slow",
            "promiscuous": self.promiscuous,
            "group": self.group,
            "discard": self.discard,
        }


@dataclass(frozen=True)
class Output:
    """A subscriber: its filter, and the destination of its packets.

    Attributes
    ----------
    path : path-like or None
        The file; ``-`` is standard output. None delivers Arrow batches, see `Capture.batches`.
    filter : str
        pcap-filter(7) expression; empty selects all packets.
    snaplen : int
        Maximum bytes of a packet to keep.
    format : {"pcapng", "pcap"}, optional
        Default: by the suffix of the file.
    compress : {"none", "gzip", "zstd"}, optional
        Default: by the suffix of the file.
    rotation : Rotation
        When a new file begins, and which files stay.
    load : str, optional
        Work on each packet before it is written, which stands for its analysis: ``memcpy:N`` copies it N times,
        ``zlib:LEVEL`` compresses it, and discards the result; both with a comma between them.
    """

    path: str | os.PathLike[str] | None
    filter: str = ""
    snaplen: int = SNAPLEN_MAX
    format: str | None = None
    compress: str | None = None
    rotation: Rotation = ONE_FILE
    load: str | None = None

    def _native(self) -> dict[str, Any]:
        check_text("--filter", self.filter)
        check_choice("--format", self.format, ("pcapng", "pcap"))
        check_choice("--compress", self.compress, ("none", "gzip", "zstd", "lz4"))
        suffix = Path(self.path or "").suffix
        if self.compress is None and suffix in _OTHER_COMPRESSIONS:
            raise UsageError(
                f"--write {self.path}: {suffix} cannot be written; name it .zst, .gz or .lz4, or give --compress"
            )
        if suffix == ".arrow":
            raise UsageError(f"--write {self.path}: is the name of a log, and a capture is pcapng or pcap")
        return {
            "path": None if self.path is None else Path(self.path),
            "filter": self.filter,
            "snaplen": self.snaplen,
            "format": self.format,
            "compression": self.compress,
            "rotation": self.rotation.request(),
            "loads": _loads(self.load),
        }


def _loads(text: str | None) -> list[dict[str, int]]:
    """Return the work on each packet as the Rust side takes it."""
    if text is None:
        return []
    check_text("--load", text)
    return [_load(text, one) for one in text.split(",")]


def _load(text: str, one: str) -> dict[str, int]:
    name, _, number = one.partition(":")
    maximum = _LOADS.get(name)
    if (
        maximum is None
        or not (number.isascii() and number.isdecimal())
        or len(number) > len(str(maximum))
        or int(number) > maximum
    ):
        expected = f"memcpy:N (up to {_LOADS['memcpy']}), zlib:LEVEL (0 to 9), or both with a comma"
        raise UsageError(f"--load {text}: expected {expected}")
    return {name: int(number)}


class Capture(Session[Summary]):
    """Capture packets into files until stopped.

    Parameters
    ----------
    outputs : sequence of Output
        The subscribers. All are served in one pass; each packet is copied once.
    ring : Ring, optional
        The ring to create.
    join : str, optional
        The ring to join; instead of `ring`.
    count : int, optional
        Stop when every output has this many packets.
    is_stopping : callable, optional
        Polled while filters are compiled and while a FIFO has no reader. When it returns true, the start is
        cancelled with KeyboardInterrupt.
    backend : {"ring", "af-packet", "tpacket-v3", "af-xdp"}
        All but "ring" are for comparison: one socket, one filter and one thread for each output, on one
        interface; see ``docs/capture-backends.md``.

    Raises
    ------
    UsageError
        An argument is out of range or invalid, or a filter does not compile.
    ParshallError
        Privileges or kernel features are missing, there is no such interface or ring, or a file cannot be
        created.

    Examples
    --------
    >>> with Capture([Output("dns.pcapng", "udp port 53")], Ring(["eth0"])) as capture:  # doctest: +SKIP
    ...     run_experiment()
    >>> capture.summary.ledger["complete"]  # doctest: +SKIP
    True
    """

    def __init__(
        self,
        outputs: Sequence[Output],
        ring: Ring | None = None,
        *,
        join: str | None = None,
        count: int | None = None,
        is_stopping: Callable[[], bool] | None = None,
        backend: str = "ring",
    ) -> None:
        if (ring is None) == (join is None):
            raise UsageError("no ring: name an interface to create one, or a ring to join")
        if not outputs:
            raise UsageError("no output: give a file, or - for standard output")
        if count is not None and not 0 < count < 1 << 64:
            raise UsageError(f"--count {count}: expected 1 or more")
        _check_destinations(outputs)
        check_text("--join", join)
        check_choice("--backend", backend, ("ring", *_SOCKET_NEEDS))
        if backend != "ring" and join is not None:
            raise UsageError(f"--backend {backend}: has no rings to join; name an interface with -i")
        if backend != "ring" and ring is not None and ring._native() != _socket_settings(ring)._native():
            raise UsageError(
                f"--backend {backend}: captures one interface without a ring; give only --buffer, -p and --netns"
            )
        if ring is not None and backend == "ring":
            privileges.require_bpf("capture")
        elif ring is not None:
            privileges.require("capture", *_SOCKET_NEEDS[backend])
        require_kernel_side()
        from parshall import _native

        request = {
            "outputs": [output._native() for output in outputs],
            "ring": None if ring is None else ring._native(),
            "join": join,
            "backend": None if backend == "ring" else backend,
            "keeper": KEEPER,
            "count": count,
            "application": f"parshall {version()}",
            "os": f"{platform.system()} {platform.release()}",
        }
        with nullcontext() if ring is None or ring.netns is None else entered(find(ring.netns)):
            request["environment"] = comment_of_capture(ring.interfaces if ring else ())
            self._native: _native.Capture = _native.Capture(request_json(request), is_stopping)

    @property
    def ring(self) -> str | None:
        """Name of the ring; None for backends without a ring."""
        return self._native.ring

    @property
    def interfaces(self) -> list[str]:
        """Names of the ring's interfaces, in the order of their numbers."""
        return self._native.interfaces

    def batches(self) -> Iterator["pyarrow.RecordBatch"]:
        """Yield the packets of the output without a path, until the capture ends.

        Yields
        ------
        pyarrow.RecordBatch
            ``time`` (timestamp, ns, UTC), ``interface`` and ``direction`` ("in", "out"; dictionaries),
            ``wire_bytes`` (uint32), ``packet`` (binary: the captured bytes). A batch has at most 65,536
            packets or about 4 MiB; when no packet arrives for a moment, it is yielded with fewer.

        Notes
        -----
        Up to 16 batches are buffered. A slow consumer makes the reader wait; the ledger counts what the ring
        overwrites meanwhile.
        """
        import pyarrow

        while True:
            try:
                stream = self._native.next_batch(0.1)
            except StopIteration:
                return
            if stream is not None:
                yield from pyarrow.RecordBatchReader.from_stream(stream)

    def _summarize(self, account: dict[str, Any]) -> Summary:
        return Summary(**account)


def _check_destinations(outputs: Sequence[Output]) -> None:
    """Raise when two outputs have the same file, or several have none."""
    unnamed = sum(output.path is None for output in outputs)
    if unnamed > 1:
        raise UsageError(f"{unnamed} outputs without a path: only one can deliver batches; give the others files")
    taken = set()
    for output in outputs:
        if output.path is None or Path(output.path).is_char_device():
            continue
        destination = "-" if str(output.path) == "-" else os.path.realpath(output.path)
        if destination in taken:
            raise UsageError(f"--write {output.path}: given twice; give every filter a file of its own")
        taken.add(destination)


def _socket_settings(ring: Ring) -> Ring:
    """Return only the settings that a socket capture supports."""
    return Ring(ring.interfaces[0], ring.netns, buffer_bytes=ring.buffer_bytes, promiscuous=ring.promiscuous)


def rings() -> list[dict[str, Any]]:
    """Return the rings of this host, one object each; for unreadable rings, the name and the reason."""
    require_kernel_side()
    from parshall import _native

    return [json.loads(ring) for ring in _native.list_capture_rings()]
