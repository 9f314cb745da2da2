"""What is offered to a router: gaps, rate, sizes, flows."""

from dataclasses import asdict, dataclass
from typing import Any

from parshall import _native
from parshall.errors import UsageError
from parshall.host.session import check_text

# The chapter's second kind of traffic: four superposed on/off sources with geometric periods and gaps (3.6).
_ON_OFF = "onoff:sources=4,on=50,off=150,gap=4"
GAPS = {
    "constant": "fixed",
    "poisson": "poisson",
    "bursts": "bursts:size=16",
    "onoff": _ON_OFF,
    # Two sources at once, each with half of the packets.
    "mixed": "poisson + bursts:size=16",
    # Gaps of 2 to 10 service times when the rate is a sixth of the capacity (3.5.6).
    "random": "uniform:low=2us,high=10us",
    # As fast as the generator can: overload.
    "none": "none",
}
KINDS = tuple(GAPS)
# Those that have a rate, and so are a user's to choose.
PACED = tuple(kind for kind in KINDS if kind != "none")


MTU_BYTES = 1500
# Headers of IPv4 and UDP, and the stamp by which a packet is known again.
_LEAST_BYTES = 44


def check_kind(kind: str) -> None:
    """Raise `UsageError` unless traffic of a kind can be sent at a rate."""
    check_text("--traffic", kind)
    if kind in PACED:
        return
    # Gaps of the generator's have parameters, or are those of several sources.
    if not any(sign in kind for sign in ":+"):
        raise UsageError(
            f"--traffic {kind}: expected {', '.join(PACED)}, or gaps as of `parshall gen --gap`, such as bursts:size=64"
        )
    if "trace:" in kind:
        raise UsageError(f"--traffic {kind}: gaps of a file are for `parshall gen`; give a distribution")
    try:
        _native.check_gaps(kind, 1e3)
    except UsageError as error:
        raise UsageError(f"--traffic: {error}") from None


@dataclass(frozen=True)
class Traffic:
    """A workload.

    Attributes
    ----------
    kind : str
        Distribution of the gaps: one of `KINDS`, of which "none" sends as fast as it can, whatever the rate, or text as
        of ``parshall gen --gap``, with a parameter.
    pps : float
        Mean rate, packets/s.
    sizes : str
        Sizes of the IP packets, as ``parshall gen --sizes``.
    flows : int
        Number of flows, which send in turn.
    seed : int
        Seed of everything that is drawn.
    """

    kind: str = "poisson"
    pps: float = 100_000
    sizes: str = "64"
    flows: int = 1
    seed: int = 1

    def __post_init__(self) -> None:
        if self.kind != "none":
            check_kind(self.kind)
        if not 0 < self.pps < 1e9:
            raise UsageError(f"--pps {self.pps:g}: expected a rate above 0")
        if not 1 <= self.flows <= 250:
            raise UsageError(f"--flows {self.flows}: expected 1 to 250")
        # Here, since the generator would name an interface of the testbed, which is none of the user's.
        if self.sizes.isdecimal() and int(self.sizes) > MTU_BYTES:
            raise UsageError(f"--sizes {self.sizes}: links of the testbed take packets of at most {MTU_BYTES} bytes")

    @property
    def raised_sizes(self) -> str | None:
        """What is said of sizes that are too small for headers and stamp; None where none is known to be."""
        if not self.sizes.isdecimal() or int(self.sizes) >= _LEAST_BYTES:
            return None
        return f"--sizes {self.sizes}: packets have {_LEAST_BYTES} bytes, those of headers and stamp"

    @property
    def gap(self) -> str:
        """Distribution of the gaps, as ``parshall gen --gap``."""
        return GAPS.get(self.kind, self.kind)

    @property
    def paced_pps(self) -> float | None:
        """Mean rate; None when packets are sent as fast as the generator can."""
        return None if self.kind == "none" else self.pps

    def describe(self) -> dict[str, Any]:
        """Return the workload, to be stored with results."""
        return asdict(self)
