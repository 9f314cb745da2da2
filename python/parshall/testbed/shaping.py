"""The shaping of one direction of a link: the same parameters for all backends."""

from dataclasses import dataclass, fields, replace
from numbers import Integral, Real
from typing import Any

from parshall.errors import UsageError

DEFAULT_QUEUE_PACKETS = 1000
DISCIPLINES = ("drop-tail", "codel", "fq-codel", "pie")
# What else a link has; see `parshall.testbed.Testbed.link`.
LINK_OPTIONS = ("reverse", "mtu", "offloads", "backend", "cpu", "seed")
_WHOLE = frozenset({"queue_packets", "queue_bytes", "overhead_bytes"})


@dataclass(frozen=True)
class Shaping:
    """One direction of a link, in the order queue, rate, loss, delay.

    Attributes
    ----------
    rate_bps : float, optional
        Bits per second; None is unlimited, without a queue. The size of a packet is that of its Ethernet
        header and payload (a full packet of MTU 1500 has 1514 bytes), plus `overhead_bytes`.
    delay_ms : float
        Delay of this direction alone, milliseconds.
    jitter_ms : float
        Half the width (uniform) or standard deviation (normal) of the random part of the delay,
        milliseconds. Packets keep their order.
    jitter_distribution : str
        Distribution of the jitter: "uniform" or "normal".
    loss : float
        Loss probability, independent for each packet, 0 to 1.
    queue_packets : int, optional
        Capacity of the queue, including the packet being sent; 1000 by default if there is a rate.
    queue_bytes : int, optional
        Capacity of the queue, bytes.
    overhead_bytes : int
        Bytes added to every packet for rate and queue; 24 models the wire time of Ethernet.
    discipline : str
        Which packets the queue drops: "drop-tail" (the newest when it is full), "codel" (RFC 8289), "fq-codel"
        (RFC 8290) or "pie" (RFC 8033).
    ecn : bool
        Whether the discipline marks packets whose hosts negotiated ECN (RFC 3168) in place of dropping them.
    target_ms : float, optional
        Waiting time that the discipline accepts, milliseconds; by default 5 of CoDel and FQ-CoDel, 15 of PIE.
    interval_ms : float, optional
        Interval of CoDel and FQ-CoDel, milliseconds; 100 by default.

    Raises
    ------
    UsageError
        A value is outside its range.
    """

    rate_bps: float | None = None
    delay_ms: float = 0.0
    jitter_ms: float = 0.0
    jitter_distribution: str = "uniform"
    loss: float = 0.0
    queue_packets: int | None = None
    queue_bytes: int | None = None
    overhead_bytes: int = 0
    discipline: str = DISCIPLINES[0]
    ecn: bool = False
    target_ms: float | None = None
    interval_ms: float | None = None

    def __post_init__(self) -> None:
        ranges = {
            "rate_bps": (1, 1e12),
            "delay_ms": (0, 3.6e6),
            "jitter_ms": (0, 3.6e6),
            "loss": (0, 1),
            "queue_packets": (1, 1 << 24),
            "queue_bytes": (1, 1 << 32),
            "overhead_bytes": (0, 4096),
            "target_ms": (0, 3.6e6),
            "interval_ms": (0.001, 3.6e6),
        }
        for name, (low, high) in ranges.items():
            value = getattr(self, name)
            if value is None:
                continue
            # Numpy numbers become plain ones, since results and the relay need JSON.
            if not isinstance(value, Real):
                raise UsageError(f"link: {name} {value!r}: is not a number; give one, in the unit of the name")
            if not low <= float(value) <= high:
                raise UsageError(f"link: {name} {value}: expected a number from {low} to {high:g}")
            plain = int(value) if isinstance(value, Integral) else float(value)
            if name in _WHOLE:
                if plain != int(plain):
                    raise UsageError(f"link: {name} {value}: expected a whole number")
                plain = int(plain)
            object.__setattr__(self, name, plain)
        if self.jitter_distribution not in ("uniform", "normal"):
            raise UsageError(
                f"link: jitter_distribution {self.jitter_distribution!r}: is unknown; choose 'uniform' or 'normal'"
            )
        if (self.queue_packets or self.queue_bytes) and self.rate_bps is None:
            raise UsageError("link: a queue limit has no effect without rate_bps; give rate_bps")
        if self.discipline not in DISCIPLINES:
            names = ", ".join(f"'{name}'" for name in DISCIPLINES)
            raise UsageError(f"link: discipline {self.discipline!r}: is unknown; choose one of {names}")
        if self.discipline != "drop-tail" and self.rate_bps is None:
            raise UsageError(f"link: discipline '{self.discipline}' has no queue without rate_bps; give rate_bps")
        if self.discipline == "drop-tail" and (self.ecn or self.target_ms is not None):
            raise UsageError("link: 'drop-tail' marks nothing and has no target; choose another discipline")
        if self.discipline not in ("codel", "fq-codel") and self.interval_ms is not None:
            raise UsageError("link: interval_ms is of 'codel' and 'fq-codel'; choose one of them")
        if self.rate_bps is not None and self.queue_packets is None and self.queue_bytes is None:
            object.__setattr__(self, "queue_packets", DEFAULT_QUEUE_PACKETS)

    @property
    def is_plain(self) -> bool:
        """Whether packets pass without shaping."""
        return self.rate_bps is None and not (self.delay_ms or self.jitter_ms or self.loss)

    @property
    def needs_netem(self) -> bool:
        """Whether delay, jitter or loss is needed."""
        return bool(self.delay_ms or self.jitter_ms or self.loss)

    def with_changes(self, changes: dict[str, Any] | None) -> "Shaping":
        """Return a copy with some parameters changed, for the other direction of a link."""
        unknown = set(changes or {}) - {field.name for field in fields(self)}
        if unknown:
            raise UsageError(f"link: parameter {sorted(unknown)[0]!r}: is unknown; see help(Shaping)")
        return replace(self, **(changes or {}))

    def for_relay(self) -> dict[str, Any]:
        """Return the parameters in the format of the relay."""
        return {
            "rate_bps": None if self.rate_bps is None else round(self.rate_bps),
            "overhead_bytes": self.overhead_bytes,
            "delay_ns": round(self.delay_ms * 1e6),
            "jitter_ns": round(self.jitter_ms * 1e6),
            "jitter_distribution": self.jitter_distribution,
            "loss_probability": self.loss,
            "queue_packets": self.queue_packets,
            "queue_bytes": self.queue_bytes,
            "discipline": self.discipline,
            "is_ecn": self.ecn,
            "target_ns": None if self.target_ms is None else round(self.target_ms * 1e6),
            "interval_ns": None if self.interval_ms is None else round(self.interval_ms * 1e6),
        }
