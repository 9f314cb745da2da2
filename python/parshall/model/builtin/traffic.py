"""The traffic of the built-in models: Poisson flows of packets of a fixed length."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

from parshall.errors import UsageError
from parshall.model.network import Model


def parameter(default: Any, unit: str, what: str, *, above_zero: bool = False) -> Any:
    """Return a dataclass field with its unit and description; `above_zero` requires a value above 0."""
    return field(default=default, metadata={"unit": unit, "what": what, "above_zero": above_zero})


def transmission(rate_mbps: float) -> list[dict[str, Any]]:
    """Return the service of a link: the time that a packet takes at its rate."""
    return [{"time_ns": 0, "per_byte_ns": 8e3 / rate_mbps}]


@dataclass(frozen=True, kw_only=True)
class Traffic(ABC):
    """Flows of equal bit rate, or of equal packet rate with ``load_pps``.

    Attributes
    ----------
    packet_bytes : str
        Lengths of the flows' packets, with slashes between them.
    load_mbps, load_pps : float
        Total offered load of all flows.
    gaps : str
        ``poisson``, or ``constant``.
    """

    packet_bytes: str = parameter("172/558/1432", "B", "packet lengths, one per flow")
    load_mbps: float = parameter(200.0, "Mbit/s", "offered by all flows together, in equal bit rates")
    load_pps: float = parameter(0.0, "packets/s", "offered instead of load_mbps, in equal packet rates")
    gaps: str = parameter("poisson", "", "poisson or constant gaps of each flow")

    @abstractmethod
    def build(self) -> Model:
        """Return the network."""

    @property
    def sizes_bytes(self) -> list[float]:
        """Packet lengths of the flows; raises `UsageError` unless they are numbers above 0."""
        try:
            sizes = [float(size) for size in str(self.packet_bytes).split("/")]
        except ValueError:
            sizes = []
        if not sizes or min(sizes) <= 0:
            raise UsageError(f"packet_bytes is {self.packet_bytes!r}; expected lengths such as 172/558/1432")
        return sizes

    @property
    def flows(self) -> list[str]:
        """Names of the flows, which are the classes of their packets."""
        return [f"flow{number + 1}" for number in range(len(self.sizes_bytes))]

    @property
    def rates_pps(self) -> list[float]:
        """Packets per second that each flow offers."""
        flows = len(self.sizes_bytes)
        if self.load_pps > 0:
            return [self.load_pps / flows] * flows
        if self.load_mbps <= 0:
            raise UsageError(f"load_mbps is {self.load_mbps:g}; expected a number above 0")
        return [self.load_mbps * 1e6 / flows / (8 * size) for size in self.sizes_bytes]

    def add_sources(self, model: Model, to: list[str]) -> None:
        """Add a source per flow, with its destination."""
        distributions = {"poisson": "poisson:mean={}ns", "constant": "constant:value={}ns"}
        if self.gaps not in distributions:
            raise UsageError(f"gaps is {self.gaps!r}; expected {' or '.join(distributions)}")
        for flow, size, rate, place in zip(self.flows, self.sizes_bytes, self.rates_pps, to, strict=True):
            model.source(flow, distributions[self.gaps].format(repr(1e9 / rate)), place, size_bytes=size)
