"""Where a router loses packets, by the kernel's own counters."""

from dataclasses import dataclass, fields
from pathlib import Path

from parshall.host.netlink import route_socket
from parshall.router.testbed import RouterTestbed
from parshall.router.tunnel import TUN
from parshall.testbed import Host

# Counters of /proc/net/snmp and /proc/net/netstat of packets that the stack gave up.
_IP_DROPS = ("InHdrErrors", "InAddrErrors", "InUnknownProtos", "InDiscards", "OutDiscards", "OutNoRoutes")
_EXTENSION_DROPS = ("InNoRoutes", "InTruncatedPkts")


@dataclass(frozen=True)
class Counters:
    """Packets lost so far at each place.

    Attributes
    ----------
    backlog : int
        Dropped because the backlog of the router's CPU was full. The counter is the CPU's: other traffic of the machine
        counts, too.
    stack : int
        Given up by the router's IP: no route, a bad header, no memory.
    egress : int
        Dropped by the router's egress interface: its queue, or the ring of the link's far end.
    tun : int
        Dropped because the queue of the gateway's TUN device was full.
    """

    backlog: int
    stack: int
    egress: int
    tun: int

    @classmethod
    def read(cls, bed: RouterTestbed) -> "Counters":
        """Read the counters of a testbed's router."""
        tun = _transmit_drops(bed.router, TUN) if bed.setup.tunnel else 0
        return cls(_backlog(bed.setup.router_cpu), _stack(bed.router), _transmit_drops(bed.router, bed.egress), tun)

    def since(self, before: "Counters") -> "Counters":
        """Return what was counted since an earlier reading."""
        return Counters(*(getattr(self, each.name) - getattr(before, each.name) for each in fields(self)))


def _backlog(cpu: int) -> int:
    """Return the second column of ``/proc/net/softnet_stat`` for a CPU."""
    for row, line in enumerate(Path("/proc/net/softnet_stat").read_text().splitlines()):
        fields = [int(field, 16) for field in line.split()]
        # Kernels from 5.10 on name the CPU in the 13th column.
        if (fields[12] if len(fields) > 12 else row) == cpu:
            return fields[1]
    return 0


def _stack(host: Host) -> int:
    with host.enter():
        tables = [Path("/proc/thread-self/net") / name for name in ("snmp", "netstat")]
        lines = [line.split() for table in tables for line in table.read_text().splitlines()]
    total = 0
    for names, values in zip(lines[::2], lines[1::2], strict=True):
        wanted = {"Ip:": _IP_DROPS, "IpExt:": _EXTENSION_DROPS}.get(names[0], ())
        total += sum(int(value) for name, value in zip(names, values, strict=True) if name in wanted)
    return total


def _transmit_drops(host: Host, interface: str) -> int:
    with host.enter(), route_socket() as route:
        (link,) = route.get_links(ifname=interface)
        return int(link.get_attr("IFLA_STATS64")["tx_dropped"])
