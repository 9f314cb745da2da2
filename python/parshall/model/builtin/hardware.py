"""The hardware of the routers: a processor with its noise, an I/O bus, network cards, links.

Section numbers are those of chapter 3 of O. I. Lepe-Aldama's thesis (UPC 2002), on which the BSD models are built.
"""

from dataclasses import dataclass
from typing import Any

from parshall.errors import UsageError
from parshall.model.builtin.traffic import Traffic, parameter, transmission
from parshall.model.network import Model

NOISE = "noise"
# The sink of noise and of clones, which do not count as traffic.
RESIDUE = "residue"
# The clock for which the times of grains are given.
REFERENCE_MHZ = 1000.0


@dataclass(frozen=True, kw_only=True)
class Router(Traffic):
    """The common part of all routers; ports are network cards, numbered from 1.

    All flows leave by the last port, and enter by the others in turn.
    """

    cpu_mhz: float = parameter(1000.0, "MHz", "clock of the processor, by which all its services scale")
    ports: int = parameter(2, "", "network cards")
    link_mbps: float = parameter(1000.0, "Mbit/s", "rate of the outbound link", above_zero=True)
    medium_mbps: float = parameter(0.0, "Mbit/s", "rate of each inbound link; 0: packets arrive as the flows send them")
    bus_mhz: float = parameter(100 / 3, "MHz", "clock of the I/O bus", above_zero=True)
    bus_bits: int = parameter(32, "bit", "width of the I/O bus", above_zero=True)
    bus_overhead_cycles: float = parameter(6.0, "cycles", "bus cycles of a transfer besides its data")
    bus_arbitration: str = parameter("round-robin", "", "round-robin, or reception-first")
    nic_packets: int = parameter(64, "packets", "buffer of a network card, for each direction")
    nic_bytes: int = parameter(0, "B", "the same in bytes; 0 is no limit")
    rx_ring: int = parameter(128, "packets", "receive descriptors of a card")
    tx_ring: int = parameter(64, "packets", "transmit descriptors of a card")
    tx_queue: int = parameter(50, "packets", "transmit queue of the driver")
    noise_period_ms: float = parameter(4.2, "ms", "period of the noise; 0 is none (3.5.10)")
    noise_us: float = parameter(
        5.0, "us at 1 GHz", "mean of the noise's normal distribution (fitted to the latencies of 3.8.1)"
    )
    noise_deviation_us: float = parameter(1.0, "us at 1 GHz", "its standard deviation (assumed)")

    def entries(self) -> list[int]:
        """Return the port by which each flow enters."""
        if self.ports < 2:
            raise UsageError(f"ports is {self.ports}; expected 2 or more")
        return [flow % (self.ports - 1) + 1 for flow in range(len(self.sizes_bytes))]

    def work(self, us: float, per_byte_us: float = 0.0, fixed_us: float = 0.0) -> list[dict[str, Any]]:
        """Return a service of the processor, from its time at 1 GHz and the part of it that no clock changes."""
        service = {"time_ns": (us - fixed_us) * 1e3, "per_byte_ns": per_byte_us * 1e3, "measured_at_mhz": REFERENCE_MHZ}
        return [service | ({"fixed_ns": fixed_us * 1e3} if fixed_us else {})]

    def add_noise(self, model: Model) -> None:
        """Add the other work of the processor, with the highest priority."""
        if self.noise_period_ms <= 0 or self.noise_us <= 0:
            return
        distribution = f"normal:mean={self.noise_us}us,deviation={self.noise_deviation_us}us"
        model.source(NOISE, f"constant:value={self.noise_period_ms}ms", NOISE)
        model.queue(NOISE, "cpu", [{"time_ns": distribution, "measured_at_mhz": REFERENCE_MHZ}], RESIDUE, priority=0)

    def add_reception(self, model: Model, to: dict[int, list[dict[str, Any]]]) -> None:
        """Add the inbound links and cards, up to the bus.

        `to` has the transitions from the bus for each inbound port.
        """
        entries = self.entries()
        first = "link" if self.medium_mbps > 0 else "nic"
        self.add_sources(model, [f"{first}{port}.rx" for port in entries])
        for port in sorted(set(entries)):
            if self.medium_mbps > 0:
                model.station(f"link{port}")
                # Load beyond the rate of the link is lost before the router.
                model.queue(
                    f"link{port}.rx",
                    f"link{port}",
                    transmission(self.medium_mbps),
                    f"nic{port}.rx",
                    capacity_packets=1000,
                )
            model.queue(
                f"nic{port}.rx",
                "bus",
                self._transfer(),
                to[port],
                capacity_packets=self.nic_packets,
                capacity_bytes=self.nic_bytes or None,
                frees="at-end",
                priority=0,
            )

    def add_transmission(self, model: Model, done: list[str]) -> None:
        """Add the ring of the last port, its card and its link; `done` is the destination of sent packets."""
        card = f"nic{self.ports}"
        is_equal = self._is_equal()
        model.queue(
            "dmatx",
            "bus",
            self._transfer(),
            {"to": f"{card}.tx", "blocks": True},
            capacity_packets=self.tx_ring,
            frees="at-end",
            priority=0 if is_equal else 1,
        )
        model.station(card)
        model.queue(
            f"{card}.tx",
            card,
            transmission(self.link_mbps),
            done,
            capacity_packets=self.nic_packets,
            capacity_bytes=self.nic_bytes or None,
            frees="at-end",
        )

    def add_bus(self, model: Model) -> None:
        """Add the I/O bus."""
        model.station("bus", policies=[{"priority": 0, "policy": "round-robin"}])

    def transfer_us(self, size_bytes: float) -> float:
        """Return how long a packet occupies the bus."""
        (transfer,) = self._transfer()
        return float(transfer["time_ns"] + size_bytes * transfer["per_byte_ns"]) / 1e3

    def _is_equal(self) -> bool:
        if self.bus_arbitration not in ("round-robin", "reception-first"):
            raise UsageError(f"bus_arbitration is {self.bus_arbitration!r}; expected round-robin or reception-first")
        return self.bus_arbitration == "round-robin"

    def _transfer(self) -> list[dict[str, Any]]:
        cycle_ns = 1e3 / self.bus_mhz
        return [{"time_ns": self.bus_overhead_cycles * cycle_ns, "per_byte_ns": 8 / self.bus_bits * cycle_ns}]
