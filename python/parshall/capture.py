"""The capture instrument: one ring in the kernel, any number of applications, one copy of a packet.

The command ``parshall capture`` is a thin layer over :class:`Capture`.
"""

import json
import os
import platform
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from parshall import privileges
from parshall.environment import comment_of_capture
from parshall.errors import UsageError, printable
from parshall.installation import require_kernel_side
from parshall.testbed.namespaces import entered, find

if TYPE_CHECKING:
    import pyarrow

DEFAULT_RING_BYTES = 32 << 20
SNAPLEN_MAX = 262_144
# The head of a file and the account at its end take some of this.
_ROTATE_MIN_BYTES = 4096
# Characters of a wrong value that a message shows.
_SHOWN = 60
# What the kernel asks for, without a ring.
_SOCKET_NEEDS = {
    "af-packet": ("CAP_NET_RAW",),
    "tpacket-v3": ("CAP_NET_RAW",),
    "af-xdp": ("CAP_NET_RAW", "CAP_NET_ADMIN", "CAP_BPF"),
}
_OTHER_COMPRESSIONS = (".xz", ".bz2", ".lz4", ".Z")
# A small process of its own, so that whoever founded a ring may go and the others go on.
_KEEPER = (sys.executable, "-I", "-c", "from parshall._native import keep_capture_ring as keep; keep()")


@dataclass(frozen=True)
class Ring:
    """A ring that is to be founded.

    Attributes
    ----------
    interface : str or sequence of str
        Interfaces, at least one.
    netns : path-like or str, optional
        Their network namespace, by name (``ip netns``) or path. Default: that of the caller.
    name : str, optional
        What others join it by; the interfaces' names, and a number when that is taken.
    hook : {"auto", "xdp", "tcx"}
        Where packets are taken. tcx changes nothing about the interface; XDP is faster, sees what comes
        in only, and makes some drivers set their queues up again.
    direction : {"in", "out", "both"}, optional
        Which packets. Default: both; with ``hook="xdp"`` those that come in, as it sees no others.
    buffer_bytes : int
        Bytes of the ring for each CPU: a power of two.
    policy : {"fast", "slow"}
        When a reader lags: overwrite, and it counts ("fast"), or drop in the kernel what the slowest
        reader has no room for, and count ("slow").
    promiscuous : bool
        Let the interfaces take packets that are for others.
    group : str, optional
        Members of this group may join and read everything that is in the ring. Without, root only.
    discard : bool
        Let nothing that comes in reach the host, captured or not: for an interface at a mirror port. Needs
        ``hook="xdp"``.
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
        """The interfaces, also when there is one."""
        return [self.interface] if isinstance(self.interface, str) else list(self.interface)

    def _native(self) -> dict[str, Any]:
        for interface in self.interfaces:
            _check_text("--interface", interface)
        for option in ("name", "hook", "direction", "group"):
            _check_text(f"--{option}", getattr(self, option))
        if self.policy not in ("fast", "slow"):
            raise UsageError(f"--policy {self.policy}: expected fast or slow")
        return {
            "name": self.name,
            "interfaces": self.interfaces,
            "hook": self.hook,
            "direction": self.direction or ("in" if self.hook == "xdp" else "both"),
            "ring_bytes": self.buffer_bytes,
            "slow_reader": self.policy == "slow",
            "promiscuous": self.promiscuous,
            "group": self.group,
            "discard": self.discard,
        }


@dataclass(frozen=True)
class Output:
    """What one subscriber wants, and where it goes.

    Attributes
    ----------
    path : path-like or None
        The file; ``-`` is standard output; None: packets come as Arrow batches, see `Capture.batches`.
    filter : str
        In libpcap's language; empty: everything.
    snaplen : int
        Most bytes of a packet.
    format : {"pcapng", "pcap"}, optional
        By the name of the file when not given.
    compress : {"none", "gzip", "zstd"}, optional
        By the name of the file when not given.
    rotate_size_bytes, rotate_time_s, rotate_files : optional
        A new file at this size, after this time; the oldest goes when there are more than this many.
    """

    path: str | os.PathLike[str] | None
    filter: str = ""
    snaplen: int = SNAPLEN_MAX
    format: str | None = None
    compress: str | None = None
    rotate_size_bytes: int | None = None
    rotate_time_s: float | None = None
    rotate_files: int | None = None

    def _native(self) -> dict[str, Any]:
        for option in ("filter", "format", "compress"):
            _check_text(f"--{option}", getattr(self, option))
        if self.rotate_files is not None and self.rotate_files < 1:
            raise UsageError(f"--rotate-files {self.rotate_files}: expected 1 or more")
        if self.rotate_size_bytes is not None and self.rotate_size_bytes < _ROTATE_MIN_BYTES:
            raise UsageError(f"--rotate-size {self.rotate_size_bytes}: expected {_ROTATE_MIN_BYTES} bytes or more")
        suffix = Path(self.path or "").suffix
        if self.compress is None and suffix in _OTHER_COMPRESSIONS:
            raise UsageError(f"--write {self.path}: {suffix} is not written; name it .zst or .gz, or give --compress")
        return {
            "path": None if self.path is None else Path(self.path),
            "filter": self.filter,
            "snaplen": self.snaplen,
            "format": self.format,
            "compression": self.compress,
            "rotate_bytes": self.rotate_size_bytes,
            "rotate_ns": None if self.rotate_time_s is None else round(self.rotate_time_s * 1e9),
            "rotate_files": self.rotate_files,
        }


@dataclass(frozen=True)
class Summary:
    """How a capture ended.

    Attributes
    ----------
    ledger : dict
        The final account; see ``docs/capture.md``.
    failure : str or None
        What stopped the capture before it was asked to end, or the first file that took no more.
    """

    ledger: dict[str, Any]
    failure: str | None


class Capture:
    """Capture packets into files until stopped.

    Parameters
    ----------
    outputs : sequence of Output
        One subscriber each: in one pass, each packet copied once.
    ring : Ring, optional
        The ring to found.
    join : str, optional
        The ring to join, in place of founding one.
    count : int, optional
        End by itself when every output has so many packets.
    is_stopping : callable, optional
        Asked while long filters are compiled or a FIFO has no reader; when it returns true, the capture is given
        up with a KeyboardInterrupt.
    backend : {"ring", "af-packet", "tpacket-v3", "af-xdp"}
        "ring" is ours. The others are socket captures, for comparison: one socket, one filter and one
        thread an output, on one interface; see ``docs/capture-backends.md``.

    Raises
    ------
    UsageError
        An argument is out of bounds or cannot be understood, a filter that does not compile.
    ParshallError
        Missing privileges, a kernel that lacks what is needed, no such interface or ring, a file that
        cannot be made.

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
            raise UsageError("name an interface to found a ring on, or a ring to join")
        if not outputs:
            raise UsageError("nothing to write to: give a file, or - for standard output")
        if count is not None and not 0 < count < 1 << 64:
            raise UsageError(f"--count {count}: expected 1 or more")
        _check_places(outputs)
        _check_text("--join", join)
        if backend != "ring" and ring is not None and ring._native() != _of_a_socket(ring)._native():
            raise UsageError(
                f"--backend {backend}: it has one interface and no ring, so only --buffer and --promiscuous say more"
            )
        if ring is not None and backend == "ring":
            privileges.require_bpf("capture")
        elif ring is not None:
            privileges.require("capture", *_SOCKET_NEEDS[backend])
        require_kernel_side()
        from importlib.metadata import version

        from parshall import _native

        self.summary: Summary | None = None
        with nullcontext() if ring is None or ring.netns is None else entered(find(ring.netns)):
            self._capture = _native.Capture(
                [output._native() for output in outputs],
                ring=None if ring is None else ring._native(),
                join=join,
                backend=backend,
                keeper=list(_KEEPER),
                count=count,
                application=f"parshall {version('parshall')}",
                os=f"{platform.system()} {platform.release()}",
                environment=comment_of_capture(ring.interfaces if ring else ()),
                is_stopping=is_stopping,
            )

    @property
    def ring(self) -> str | None:
        """Name of the ring; None for the backends that have none."""
        return self._capture.ring

    @property
    def interfaces(self) -> list[str]:
        """Names of the ring's interfaces, by number."""
        return self._capture.interfaces

    def batches(self) -> Iterator["pyarrow.RecordBatch"]:
        """Give the packets of the output without a path, until the capture ends.

        Yields
        ------
        pyarrow.RecordBatch
            ``time`` (timestamp, ns, UTC), ``interface`` and ``direction`` ("in", "out"; dictionaries),
            ``wire_bytes`` (uint32), ``packet`` (binary: the captured bytes). At most 65,536 packets or
            about 4 MiB of bytes, and whatever there is when no more come for a moment.

        Notes
        -----
        Up to 16 batches wait. Whoever is slower than the packets makes the reader wait, and what the ring
        overwrites meanwhile is in the account.
        """
        import pyarrow

        while True:
            try:
                stream = self._capture.next_batch(0.1)
            except StopIteration:
                return
            if stream is not None:
                yield from pyarrow.RecordBatchReader.from_stream(stream)

    def request_stop(self) -> None:
        """Ask the capture to end; `batches` then gives what is left."""
        self._capture.request_stop()

    def status(self) -> dict[str, Any]:
        """Where the capture stands: ``packets``, ``wire_bytes``, ``lost``, ``notices``, ``has_ended``."""
        return self._capture.status()

    def stop(self) -> Summary:
        """Leave the ring, write what is left and return the account; once stopped, return it again."""
        if self.summary is None:
            ledger, failure = self._capture.stop()
            self.summary = Summary(json.loads(ledger), failure)
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


def _check_text(option: str, value: str | None) -> None:
    """Raise when a value is no text: the bytes of the command line need not be UTF-8."""
    if value is None:
        return
    if not isinstance(value, str):
        raise UsageError(f"{option} {value!r:.{_SHOWN}}: expected text; give a str")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        shown = printable(value[max(0, error.start - _SHOWN) : error.start + 1])
        raise UsageError(f"{option} '{shown}': character {error.start + 1} is not UTF-8; leave it out") from None


def _check_places(outputs: Sequence[Output]) -> None:
    """Raise when two outputs would write into one file, or send batches to one reader."""
    unnamed = sum(output.path is None for output in outputs)
    if unnamed > 1:
        raise UsageError(f"{unnamed} outputs without a path: batches are of one alone; give the others files")
    taken = set()
    for output in outputs:
        if output.path is None or Path(output.path).is_char_device():
            continue
        place = "-" if str(output.path) == "-" else os.path.realpath(output.path)
        if place in taken:
            raise UsageError(f"--write {output.path}: it is named twice; give every filter a file of its own")
        taken.add(place)


def _of_a_socket(ring: Ring) -> Ring:
    """What of a ring a socket can have, too."""
    return Ring(ring.interfaces[0], ring.netns, buffer_bytes=ring.buffer_bytes, promiscuous=ring.promiscuous)


def rings() -> list[dict[str, Any]]:
    """Return the rings of this host, one object each; of those that may not be read, name and reason."""
    require_kernel_side()
    from parshall import _native

    return [json.loads(ring) for ring in _native.list_capture_rings()]
