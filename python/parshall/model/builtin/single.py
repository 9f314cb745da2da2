"""``single-queue``: one server, one queue, the simplest model of a router."""

from dataclasses import dataclass

from parshall.model.builtin.bsd import FORWARDED
from parshall.model.builtin.traffic import Traffic, parameter
from parshall.model.network import Model


@dataclass(frozen=True, kw_only=True)
class SingleQueue(Traffic):
    """All of a router's work as one service: its mean is that of ``bsd-router`` at the same clock."""

    cpu_mhz: float = parameter(1000.0, "MHz", "clock of the processor")
    servers: int = parameter(1, "", "processors")
    service_us: float = parameter(12.832, "us at 1 GHz", "time per packet")
    service_distribution: str = parameter("constant", "", "constant or exponential")
    queue: int = parameter(50, "packets", "capacity of the queue; 0 is no limit")

    def build(self) -> Model:
        """Return the network."""
        model = Model("single-queue").station("cpu", servers=self.servers, clock_mhz=self.cpu_mhz)
        key = {"constant": "value", "exponential": "mean"}.get(self.service_distribution, "mean")
        service = [{"time_ns": f"{self.service_distribution}:{key}={self.service_us}us", "measured_at_mhz": 1000.0}]
        self.add_sources(model, ["queue"] * len(self.flows))
        return model.queue("queue", "cpu", service, FORWARDED, capacity_packets=self.queue or None)
