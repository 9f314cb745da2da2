"""The router's testbed: source, router and sink in network namespaces, joined by veth."""

from parshall.errors import ParshallError
from parshall.host import privileges
from parshall.host.installation import require_kernel_side
from parshall.router import receiving, routes, rules
from parshall.router.setup import RPS, Setup
from parshall.testbed import Testbed


class RouterTestbed(Testbed):
    """A source, a router and a sink; removed at the end of the ``with`` block in any case.

    Parameters
    ----------
    setup : Setup, optional
        The router's set-up.

    Attributes
    ----------
    source, router, sink : Host
        The hosts.
    inside, outside : Link
        Links of the router: from the source, and to the sink.
    napi_thread : int or None
        The thread that processes the router's packets, of the set-up "threaded".
    is_tunnel_checked : bool
        Whether packets came through both gateways of the set-up's tunnel.

    Examples
    --------
    >>> with RouterTestbed(Setup(receive="rps")) as bed:  # doctest: +SKIP
    ...     measurement = measure(bed, Traffic("poisson", pps=100_000), count=100_000)
    """

    __test__ = False

    def __init__(self, setup: Setup | None = None) -> None:
        require_kernel_side()
        privileges.require_bpf("router")
        super().__init__()
        self.setup = setup or Setup()
        self.napi_thread: int | None = None
        self.is_tunnel_checked = False
        try:
            self._build()
        except BaseException:
            self.close()
            raise

    def _build(self) -> None:
        self.source = self.host("source", cpu=self.setup.generator_cpu)
        self.router = self.host("router", cpu=self.setup.router_cpu)
        self.sink = self.host("sink", cpu=self.setup.generator_cpu)
        self.inside = self.link(self.source, self.router)
        self.outside = self.link(self.router, self.sink)
        for name, value in (
            ("net.ipv4.ip_forward", 1),
            # Packets come from addresses to which there is no route.
            ("net.ipv4.conf.all.rp_filter", 0),
            (f"net.ipv4.conf.{self.ingress}.rp_filter", 0),
            ("net.ipv4.conf.all.send_redirects", 0),
        ):
            self.router.sysctl(name, value)
        if self.setup.gro:
            self.router.run(["ethtool", "-K", self.ingress, "gro", "on"])
        gateway = self.outside.address(self.sink)
        routes.fill(self.router, gateway, self.setup.routes, self.setup.destinations)
        rules.add(self.router, self.setup.rules)

    def start_receiving(self) -> None:
        """Set where the router's packets are processed; call it when all programs at its interfaces are attached."""
        cpu = self.setup.router_cpu
        if self.setup.receive == RPS:
            receiving.steer(self.router, self.ingress, cpu)
        else:
            self.napi_thread = receiving.use_thread(self.router, self.ingress, cpu)

    @property
    def ingress(self) -> str:
        """The router's interface to the source."""
        return self.inside.interface(self.router)

    @property
    def egress(self) -> str:
        """The router's interface to the sink."""
        return self.outside.interface(self.router)

    def check_forwarding(self) -> None:
        """Raise `ParshallError` unless the router forwards packets."""
        if self.router.sysctl("net.ipv4.ip_forward") == "0":
            raise ParshallError(
                "router: forwards no packets: net.ipv4.ip_forward is 0; set it: sysctl -w net.ipv4.ip_forward=1"
            )
