"""``bsd-router``: a computer that forwards packets with the networking code of 4.4BSD (Figures 3.3 and 3.16)."""

import math
from dataclasses import dataclass
from typing import Any

from parshall.errors import UsageError
from parshall.model.builtin.hardware import RESIDUE, Router
from parshall.model.builtin.traffic import parameter
from parshall.model.network import Model

# The sink of forwarded packets in every built-in model.
FORWARDED = "forwarded"
# Service times of the five grains, us at 1 GHz. Their sum without dmarx is published (Table 3-I); dmarx
# follows from the load of the live-lock. We divide the rest by numbers of instructions (3.7.1).
GRAINS_US = {"dmarx": 3.568, "ipintrq": 6.132, "ifsnd": 1.050, "ipreturn": 0.934, "ifeotx": 1.148}
# Table 3-I: routes, and the forwarding time in us at 600 MHz.
LOOKUP_US = {4: 15.44, 16: 15.98, 64: 16.16, 128: 16.37, 256: 16.56, 512: 16.81, 1024: 17.41}
# Priorities of the processor: the noise has 0.
PRIORITIES = {"dmarx": 1, "ifeotx": 2, "ifsnd": 3, "ipreturn": 4, "ipintrq": 5}


@dataclass(frozen=True, kw_only=True)
class ForwardingRouter(Router):
    """The common part of routers whose processor executes the five grains."""

    routes: int = parameter(4, "routes", "size of the routing table")
    grain_scale: float = parameter(1.0, "", "factor of all grains: calibration B of 3.8.1 is 11.2 / 12.832")
    fixed_us: str = parameter(
        "", "us", "parts of grains that no clock changes, such as dmarx=1.2/ifeotx=0.4: I/O instructions (3.7.1)"
    )

    def grain_us(self, grain: str) -> float:
        """Return a grain's time at 1 GHz."""
        return self.grain_scale * (GRAINS_US[grain] + (self.lookup_us() if grain == "ipintrq" else 0.0))

    def grain_fixed_us(self, grain: str) -> float:
        """Return the part of a grain's time that no clock changes."""
        return self._fixed_us().get(grain, 0.0)

    def _fixed_us(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for part in filter(None, self.fixed_us.split("/")):
            grain, _, text = part.partition("=")
            try:
                number = float(text)
            except ValueError:
                number = math.nan
            if grain not in GRAINS_US or grain in found or not 0 <= number <= self.grain_us(grain):
                raise UsageError(
                    f"fixed_us is {self.fixed_us!r}; expected parts of {', '.join(GRAINS_US)}, each once and from 0 to "
                    "the time of its grain, such as dmarx=1.2/ifeotx=0.4"
                )
            found[grain] = number
        return found

    def grain_work(self, grain: str, share: float = 1.0) -> list[dict[str, Any]]:
        """Return the service of a grain, or of a share of it."""
        return self.work(share * self.grain_us(grain), fixed_us=share * self.grain_fixed_us(grain))

    def lookup_us(self) -> float:
        """Return the lookup time beyond that of a table of 4 routes, us at 1 GHz.

        Linear interpolation of Table 3-I over the logarithm of the table size, extrapolated beyond the last entry.
        """
        if self.routes < 1:
            raise UsageError(f"routes is {self.routes}; expected 1 or more")
        sizes = list(LOOKUP_US)
        above = next((at for at, size in enumerate(sizes) if size >= self.routes), len(sizes) - 1)
        low, high = (sizes[max(above, 1) - 1], sizes[max(above, 1)])
        part = math.log(max(self.routes, 4) / low) / math.log(high / low)
        return 0.6 * (LOOKUP_US[low] + part * (LOOKUP_US[high] - LOOKUP_US[low]) - LOOKUP_US[4])


@dataclass(frozen=True, kw_only=True)
class BsdRouter(ForwardingRouter):
    """Five grains with preemptive priorities, like BSD's interrupts."""

    ip_queue: int = parameter(50, "packets", "IP input queue")

    def build(self) -> Model:
        """Return the network."""
        model = Model("bsd-router")
        model.station("cpu", kind="preemptive-resume", clock_mhz=self.cpu_mhz)
        self.add_noise(model)
        self.add_bus(model)
        rings = {port: [_waits_for(f"dmarx{port}")] for port in set(self.entries())}
        self.add_reception(model, rings)

        def add_grain(grain: str, to: Any, capacity: int | None, port: int | str = "") -> None:
            service = self.protocols() if grain == "ipintrq" else self.grain_work(grain)
            limits = {"priority": PRIORITIES[grain], "capacity_packets": capacity}
            model.queue(f"{grain}{port}", "cpu", service, to, **limits)

        for port in rings:
            add_grain("dmarx", "ipintrq", self.rx_ring, port)
        add_grain("ipintrq", ["ifsnd", "ipreturn"], self.ip_queue)
        add_grain("ifsnd", _waits_for("dmatx"), self.tx_queue)
        add_grain("ipreturn", RESIDUE, None)
        add_grain("ifeotx", RESIDUE, None)
        self.add_transmission(model, [FORWARDED, "ifeotx"])
        return model

    def protocols(self) -> list[dict[str, Any]]:
        """Return the service of the protocols layer."""
        return self.grain_work("ipintrq")


def _waits_for(queue: str) -> dict[str, Any]:
    return {"to": queue, "blocks": True}
