"""What is offered to a router: gaps, rate, sizes, flows."""

from dataclasses import asdict, dataclass
from typing import Any

from parshall.errors import UsageError
from parshall.host.session import check_choice

# The chapter's second kind of traffic: four superposed on/off sources with geometric periods and gaps (3.6).
_ON_OFF = "onoff:sources=4,on=50,off=150,gap=4"
GAPS = {
    "constant": "fixed",
    "poisson": "poisson",
    "bursts": "bursts:size=16",
    "onoff": _ON_OFF,
    # Gaps of 2 to 10 service times when the rate is a sixth of the capacity (3.5.6).
    "random": "uniform:low=2us,high=10us",
    # As fast as the generator can: overload.
    "none": "none",
}
KINDS = tuple(GAPS)
# Those that have a rate, and so are a user's to choose.
PACED = tuple(kind for kind in KINDS if kind != "none")


MTU_BYTES = 1500


@dataclass(frozen=True)
class Traffic:
    """A workload.

    Attributes
    ----------
    kind : {"constant", "poisson", "bursts", "onoff", "random", "none"}
        Distribution of the gaps; "none" sends as fast as it can, whatever the rate.
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
        check_choice("--traffic", self.kind, KINDS)
        if not 0 < self.pps < 1e9:
            raise UsageError(f"--pps {self.pps:g}: expected a rate above 0")
        if not 1 <= self.flows <= 250:
            raise UsageError(f"--flows {self.flows}: expected 1 to 250")
        # Here, since the generator would name an interface of the testbed, which is none of the user's.
        if self.sizes.isdecimal() and int(self.sizes) > MTU_BYTES:
            raise UsageError(f"--sizes {self.sizes}: links of the testbed take packets of at most {MTU_BYTES} bytes")

    @property
    def gap(self) -> str:
        """Distribution of the gaps, as ``parshall gen --gap``."""
        return GAPS[self.kind]

    @property
    def paced_pps(self) -> float | None:
        """Mean rate; None when packets are sent as fast as the generator can."""
        return None if self.kind == "none" else self.pps

    def describe(self) -> dict[str, Any]:
        """Return the workload, to be stored with results."""
        return asdict(self)
