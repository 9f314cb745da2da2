"""``mogul-ramakrishnan`` and ``wfq-router``: routers that poll their cards and run each packet to completion.

Mogul and Ramakrishnan, "Eliminating receive livelock in an interrupt-driven kernel", ACM TOCS 15(3), 1997;
Figures 3.18 and 3.20. Interrupts are off while there is work; one service is the sum of the grains.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

from parshall.errors import UsageError
from parshall.model.builtin.bsd import FORWARDED, GRAINS_US, ForwardingRouter
from parshall.model.builtin.hardware import RESIDUE
from parshall.model.builtin.traffic import parameter
from parshall.model.network import Model


@dataclass(frozen=True, kw_only=True)
class RunToCompletion(ForwardingRouter):
    """A processor that takes packets from rings and runs each to completion."""

    @abstractmethod
    def policy(self) -> dict[str, Any]:
        """Return the policy by which the processor serves its rings."""

    @abstractmethod
    def rings(self) -> dict[int, list[dict[str, Any]]]:
        """Return the transitions from the bus to the rings, by port."""

    def build_as(self, name: str, rings: list[str]) -> Model:
        """Return the network."""
        model = Model(name)
        policies = [{"priority": 1, **self.policy()}]
        model.station("cpu", kind="preemptive-resume", clock_mhz=self.cpu_mhz, policies=policies)
        self.add_noise(model)
        self.add_bus(model)
        self.add_reception(model, self.rings())
        for ring in rings:
            service = self.work(sum(map(self.grain_us, GRAINS_US)), fixed_us=sum(map(self.grain_fixed_us, GRAINS_US)))
            model.queue(ring, "cpu", service, "dmatx", priority=1, capacity_packets=self.rx_ring)
        self.add_transmission(model, [FORWARDED])
        # Finished packets wait for the bus in one queue, which drops packets when it is full.
        transmission = next(queue for queue in model.queues if queue["name"] == "dmatx")
        transmission["capacity_packets"] = self.tx_ring + self.tx_queue
        if self.noise_period_ms <= 0:
            model.sinks = [sink for sink in model.sinks if sink != RESIDUE]
        return model


@dataclass(frozen=True, kw_only=True)
class MogulRamakrishnan(RunToCompletion):
    """Polling with a quota, without weights."""

    quota: int = parameter(10, "packets", "consecutive packets of a card")

    def policy(self) -> dict[str, Any]:
        """Return limited polling."""
        return {"policy": "polling", "batch": self.quota}

    def rings(self) -> dict[int, list[dict[str, Any]]]:
        """Return a ring per card; the bus blocks while it is full."""
        return {port: [{"to": f"dmarx{port}", "blocks": True}] for port in set(self.entries())}

    def build(self) -> Model:
        """Return the network."""
        return self.build_as("mogul-ramakrishnan", [f"dmarx{port}" for port in sorted(set(self.entries()))])


@dataclass(frozen=True, kw_only=True)
class WfqRouter(RunToCompletion):
    """A queue per flow, and weighted fair queueing among them (Qie et al., 2001)."""

    weight_unit: str = parameter("bytes", "", "unit of the shares: bytes, packets or time")

    def policy(self) -> dict[str, Any]:
        """Return weighted fair queueing."""
        if self.weight_unit not in ("bytes", "packets", "time"):
            raise UsageError(f"weight_unit is {self.weight_unit!r}; expected bytes, packets or time")
        return {"policy": "weighted-fair", "tags": self.weight_unit}

    def rings(self) -> dict[int, list[dict[str, Any]]]:
        """Return a queue per flow, which drops packets when it is full; blocking would let one flow stop the others."""
        entries = dict(zip(self.flows, self.entries(), strict=True))
        return {
            port: [{"to": f"dmarx.{flow}", "classes": [flow]} for flow, entry in entries.items() if entry == port]
            for port in set(entries.values())
        }

    def build(self) -> Model:
        """Return the network."""
        return self.build_as("wfq-router", [f"dmarx.{flow}" for flow in self.flows])
