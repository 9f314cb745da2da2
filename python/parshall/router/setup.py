"""What a router is set up for: how it receives, what it looks up, what it filters."""

import os
from dataclasses import asdict, dataclass
from typing import Any

from parshall.errors import UsageError
from parshall.host.session import check_choice

RPS, THREADED = "rps", "threaded"
RECEIVE = (RPS, THREADED)
TUNNELS = ("aes-gcm", "chacha20")
# The kernel's own largest table in a test took 2 s to fill.
ROUTES_MAX = 1_000_000
# One flow for each.
DESTINATIONS_MAX = 1 << 16


@dataclass(frozen=True)
class Setup:
    """A router's set-up: one level of each factor.

    Attributes
    ----------
    receive : {"rps", "threaded"}
        Where the router's packets are processed: by the softirq of its CPU, to which receive packet steering (RPS)
        hands them, or by a NAPI thread bound to that CPU.
    gro : bool
        Whether its interfaces merge packets of a flow (generic receive offload).
    routes : int
        Entries of the routing table that the test adds, the destinations' among them.
    rules : int
        nftables rules that each forwarded packet passes.
    tunnel : {"aes-gcm", "chacha20"}, optional
        Cipher of the security gateway through which packets leave the router. Default: none.
    cpu, sender_cpu : int, optional
        CPUs of the router and of the generator. Default: the last and the first that this process may use.
    destinations : int
        Entries of the routing table that packets go to, each packet to a random one of them.
    """

    receive: str = RPS
    gro: bool = True
    routes: int = 4
    rules: int = 0
    tunnel: str | None = None
    cpu: int | None = None
    sender_cpu: int | None = None
    destinations: int = 1

    def __post_init__(self) -> None:
        check_choice("--receive", self.receive, RECEIVE)
        check_choice("--tunnel", self.tunnel, TUNNELS)
        if not 1 <= self.routes <= ROUTES_MAX:
            raise UsageError(f"--routes {self.routes}: expected 1 to {ROUTES_MAX:,}")
        if not 1 <= self.destinations <= DESTINATIONS_MAX:
            raise UsageError(f"--destinations {self.destinations}: expected 1 to {DESTINATIONS_MAX:,}")
        if self.destinations > self.routes:
            raise UsageError(
                f"--destinations {self.destinations:,}: more than the {self.routes:,} entries of the routing table; "
                "give as many by --routes"
            )
        if self.destinations > 1 and self.tunnel is not None:
            raise UsageError(f"--destinations {self.destinations:,}: a security gateway has one; leave out --tunnel")
        if not 0 <= self.rules <= 10_000:
            raise UsageError(f"--rules {self.rules}: expected 0 to 10,000")
        usable = os.sched_getaffinity(0)
        for option, cpu in (("--router-cpu", self.cpu), ("--sender-cpu", self.sender_cpu)):
            if cpu is not None and cpu not in usable:
                raise UsageError(f"{option} {cpu}: cannot be used; choose one of {sorted(usable)}")

    @property
    def router_cpu(self) -> int:
        """CPU of the router."""
        return max(os.sched_getaffinity(0)) if self.cpu is None else self.cpu

    @property
    def generator_cpu(self) -> int:
        """CPU of the generator."""
        return min(os.sched_getaffinity(0)) if self.sender_cpu is None else self.sender_cpu

    @property
    def shares_cpu(self) -> bool:
        """Whether router and generator share a CPU: then latencies include the generator's work."""
        return self.router_cpu == self.generator_cpu

    def describe(self) -> dict[str, Any]:
        """Return the set-up, to be stored with results."""
        return asdict(self) | {"cpu": self.router_cpu, "sender_cpu": self.generator_cpu}
