"""``bsd-router-functions``: a queue per function of BSD's networking code (Figure 3.4), without bus and noise.

The chapter presents this model as less accurate than ``bsd-router``, because the times of functions are
correlated (3.6.1). We divided the grains among their functions.
"""

from dataclasses import dataclass

from parshall.model.builtin.bsd import FORWARDED, ForwardingRouter
from parshall.model.builtin.hardware import RESIDUE
from parshall.model.builtin.traffic import parameter, transmission
from parshall.model.network import Model

# function -> (grain, part of the grain, priority, capacity, next). Priorities as in 3.4.2.
FUNCTIONS = {
    "if_intr": ("dmarx", 0.4, 3, "rx_ring", "if_read"),
    "if_read": ("dmarx", 0.4, 2, None, "ether_input"),
    "ether_input": ("dmarx", 0.2, 1, None, "ip_input"),
    "ip_input": ("ipintrq", 0.3, 7, "ip_queue", "ip_forward"),
    "ip_forward": ("ipintrq", 0.4, 6, None, "ip_output"),
    "ip_output": ("ipintrq", 0.2, 5, None, "ether_output"),
    "ether_output": ("ipintrq", 0.1, 4, None, "if_start"),
    "if_start": ("ifsnd", 1.0, 2, "tx_queue", "link"),
}


@dataclass(frozen=True, kw_only=True)
class BsdFunctions(ForwardingRouter):
    """Eight functions with preemptive priorities."""

    ip_queue: int = parameter(50, "packets", "IP input queue")

    def build(self) -> Model:
        """Return the network."""
        model = Model("bsd-router-functions")
        model.station("cpu", kind="preemptive-resume", clock_mhz=self.cpu_mhz).station("link")
        self.add_sources(model, ["if_intr"] * len(self.flows))
        for function, (grain, part, priority, capacity, after) in FUNCTIONS.items():
            to = [after, "return"] if function == "ether_output" else [after]
            model.queue(
                function,
                "cpu",
                self.grain_work(grain, part),
                to,
                priority=priority,
                capacity_packets=None if capacity is None else getattr(self, capacity),
            )
        # The return through the protocols' functions, and the interrupt at the end of a transmission.
        model.queue("return", "cpu", self.grain_work("ipreturn"), RESIDUE, priority=4)
        model.queue("if_eotx", "cpu", self.grain_work("ifeotx"), RESIDUE, priority=2)
        service = transmission(self.link_mbps)
        model.queue("link", "link", service, [FORWARDED, "if_eotx"], capacity_packets=self.nic_packets)
        return model
