"""``linux-napi``: a Linux router whose softirq polls the rings of its cards (NAPI).

A poll takes up to ``dev_weight`` packets of a card; a cycle up to ``netdev_budget`` packets or
``netdev_budget_usecs``, after which ksoftirqd shares the processor with other tasks. The times are parameters, to be
set from measurements; the defaults are round numbers for a current processor.
"""

from dataclasses import dataclass

from parshall.model.builtin.bsd import FORWARDED
from parshall.model.builtin.hardware import NOISE, RESIDUE
from parshall.model.builtin.traffic import Traffic, parameter, transmission
from parshall.model.network import Model


@dataclass(frozen=True, kw_only=True)
class LinuxNapi(Traffic):
    """Rings, polling on each CPU, a qdisc, a link; receive packet steering by ``rps_share``."""

    load_mbps: float = parameter(500.0, "Mbit/s", "offered by all flows together, in equal bit rates")
    rings: int = parameter(2, "", "receive queues that one CPU polls; flows enter them in turn", above_zero=True)
    rx_ring: int = parameter(256, "packets", "descriptors of a receive queue")
    poll_us: float = parameter(0.6, "us", "cost of a poll, even if it finds no packet")
    wake_us: float = parameter(0.0, "us", "time to wake an idle CPU, in place of its first poll; 0 is none")
    packet_us: float = parameter(1.2, "us", "softirq work per packet, driver to qdisc")
    per_byte_ns: float = parameter(0.0, "ns", "softirq work per byte, of copies or checksums")
    dev_weight: int = parameter(64, "packets", "packets of a receive queue in one poll")
    netdev_budget: int = parameter(300, "packets", "packets of a cycle")
    netdev_budget_usecs: float = parameter(2000.0, "us", "time of a cycle")
    task_us: float = parameter(4000.0, "us", "time for other tasks after a cycle that exhausted its budget")
    task_load: float = parameter(0.0, "", "fraction of the CPU that other tasks need")
    stalls_per_s: float = parameter(0.0, "1/s", "Poisson stalls of the first CPU: other interrupts, a hypervisor")
    stall_us: float = parameter(20.0, "us", "mean of their exponential length")
    interrupt_us: float = parameter(5.0, "us", "cost of a timer interrupt")
    interrupt_period_ms: float = parameter(4.0, "ms", "period of timer interrupts (HZ); 0 is none")
    rps_share: float = parameter(0.0, "", "fraction of the packets that RPS steers to another CPU")
    max_backlog: int = parameter(1000, "packets", "netdev_max_backlog of that CPU")
    steer_us: float = parameter(0.3, "us", "cost of receiving a steered packet")
    qdisc: int = parameter(1000, "packets", "txqueuelen")
    link_mbps: float = parameter(10_000.0, "Mbit/s", "rate of the outbound link", above_zero=True)

    def build(self) -> Model:
        """Return the network."""
        model = Model("linux-napi")
        polling = {
            "policy": "polling",
            "batch": self.dev_weight,
            "budget": self.netdev_budget,
            "budget_ns": self.netdev_budget_usecs * 1e3,
            "yield_ns": self.task_us * 1e3,
            "visit_ns": self.poll_us * 1e3,
            **({"wake_ns": self.wake_us * 1e3} if self.wake_us > 0 else {}),
        }
        model.station("cpu0", kind="preemptive-resume", policies=[{"priority": 1, **polling}])
        self.add_sources(model, [f"ring{number % self.rings}" for number in range(len(self.flows))])
        work = [{"time_ns": self.packet_us * 1e3, "per_byte_ns": self.per_byte_ns}]
        transition: dict[str, object] = {"to": [{"place": "qdisc"}]}
        if self.rps_share > 0:
            model.station("cpu1", kind="preemptive-resume", policies=[{"priority": 1, **polling}])
            transition = {
                "to": [
                    {"place": "backlog", "probability": self.rps_share},
                    {"place": "qdisc", "probability": 1 - self.rps_share},
                ]
            }
        for number in range(min(self.rings, len(self.flows))):
            model.queue(f"ring{number}", "cpu0", work, transition, priority=1, capacity_packets=self.rx_ring)
        if self.rps_share > 0:
            steered = [{"time_ns": (self.packet_us + self.steer_us) * 1e3, "per_byte_ns": self.per_byte_ns}]
            model.queue("backlog", "cpu1", steered, "qdisc", priority=1, capacity_packets=self.max_backlog)
        if self.interrupt_period_ms > 0:
            model.source("interrupts", self.interrupt_period_ms * 1e6, "interrupts")
            model.queue("interrupts", "cpu0", self.interrupt_us * 1e3, RESIDUE, priority=0)
        if self.stalls_per_s > 0:
            model.source(NOISE, f"poisson:mean={1e9 / self.stalls_per_s!r}ns", NOISE)
            model.queue(NOISE, "cpu0", f"exponential:mean={self.stall_us!r}us", RESIDUE, priority=0)
        if self.task_load > 0:
            # Tasks of 1 ms on average, at the rate that gives `task_load`.
            model.source("tasks", f"poisson:mean={1e6 / self.task_load!r}ns", "tasks")
            model.queue("tasks", "cpu0", "exponential:mean=1ms", RESIDUE, priority=2, capacity_packets=1000)
        model.station("link")
        return model.queue("qdisc", "link", transmission(self.link_mbps), FORWARDED, capacity_packets=self.qdisc)
