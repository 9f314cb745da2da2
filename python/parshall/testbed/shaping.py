"""What a direction of a link does to packets: one set of parameters, whichever backend plays it."""

from dataclasses import asdict, dataclass, fields, replace
from numbers import Integral, Real
from typing import Any

from parshall.errors import UsageError

DEFAULT_QUEUE_PACKETS = 1000
_WHOLE = frozenset({"queue_packets", "queue_bytes", "overhead_bytes"})


@dataclass(frozen=True)
class Shaping:
    """One direction of a link, in the order queue, rate, loss, delay.

    Attributes
    ----------
    rate_bps : float, optional
        Bits per second; None is no limit, and then no queue forms. A packet's size is its Ethernet
        header and payload (a full packet of MTU 1500 has 1514 bytes), plus `overhead_bytes`.
    delay_ms : float
        Delay of this direction alone, milliseconds.
    jitter_ms : float
        Half the width (uniform) or standard deviation (normal) of the random part of the delay,
        milliseconds. Packets keep their order.
    jitter_law : str
        "uniform" or "normal".
    loss : float
        Probability with which a packet is lost, each independently, 0 to 1.
    queue_packets : int, optional
        Packets that the queue holds, the one being sent included; 1000 when a rate is given and no
        bound is.
    queue_bytes : int, optional
        Bytes that the queue holds.
    overhead_bytes : int
        Bytes added to every packet for rate and queue; 24 for the wire time of real Ethernet.

    Raises
    ------
    UsageError
        When a value is outside its range.
    """

    rate_bps: float | None = None
    delay_ms: float = 0.0
    jitter_ms: float = 0.0
    jitter_law: str = "uniform"
    loss: float = 0.0
    queue_packets: int | None = None
    queue_bytes: int | None = None
    overhead_bytes: int = 0

    def __post_init__(self) -> None:
        """Check the ranges."""
        ranges = {
            "rate_bps": (1, 1e12),
            "delay_ms": (0, 3.6e6),
            "jitter_ms": (0, 3.6e6),
            "loss": (0, 1),
            "queue_packets": (1, 1 << 24),
            "queue_bytes": (1, 1 << 32),
            "overhead_bytes": (0, 4096),
        }
        for name, (low, high) in ranges.items():
            value = getattr(self, name)
            if value is None:
                continue
            # Numbers of numpy are such, too, and become plain ones: results and the relay take them as JSON.
            if not isinstance(value, Real):
                raise UsageError(f"link: {name} {value!r} is no number; its unit stands in its name")
            if not low <= float(value) <= high:
                raise UsageError(f"link: {name} {value} is outside {low} to {high:g}")
            plain = int(value) if isinstance(value, Integral) else float(value)
            if name in _WHOLE:
                if plain != int(plain):
                    raise UsageError(f"link: {name} {value} is no whole number")
                plain = int(plain)
            object.__setattr__(self, name, plain)
        if self.jitter_law not in ("uniform", "normal"):
            raise UsageError(f"link: jitter_law {self.jitter_law!r} is unknown; choose 'uniform' or 'normal'")
        if (self.queue_packets or self.queue_bytes) and self.rate_bps is None:
            raise UsageError("link: a queue bound without rate_bps has no effect; give rate_bps")
        if self.rate_bps is not None and self.queue_packets is None and self.queue_bytes is None:
            object.__setattr__(self, "queue_packets", DEFAULT_QUEUE_PACKETS)

    @property
    def is_plain(self) -> bool:
        """Whether packets just pass."""
        return self.rate_bps is None and not (self.delay_ms or self.jitter_ms or self.loss)

    @property
    def needs_netem(self) -> bool:
        """Whether more than a rate is asked for."""
        return bool(self.delay_ms or self.jitter_ms or self.loss)

    def altered(self, changes: dict[str, Any] | None) -> "Shaping":
        """Return a copy with some parameters changed, as the other direction of a link wants them."""
        unknown = set(changes or {}) - {field.name for field in fields(self)}
        if unknown:
            raise UsageError(f"link: parameter {sorted(unknown)[0]!r} is unknown; see help(Shaping)")
        return replace(self, **(changes or {}))

    def as_dict(self) -> dict[str, Any]:
        """Parameters by name, for results."""
        return asdict(self)

    def for_relay(self) -> dict[str, Any]:
        """Parameters as `parshall._native.Relay` takes them."""
        return {
            "rate_bps": None if self.rate_bps is None else round(self.rate_bps),
            "overhead_bytes": self.overhead_bytes,
            "delay_ns": round(self.delay_ms * 1e6),
            "jitter_ns": round(self.jitter_ms * 1e6),
            "jitter_law": self.jitter_law,
            "loss_probability": self.loss,
            "queue_packets": self.queue_packets,
            "queue_bytes": self.queue_bytes,
        }
