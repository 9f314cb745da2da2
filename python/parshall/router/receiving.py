"""Where an interface's packets are processed: receive packet steering, or a NAPI thread, on a given CPU."""

import os
import shlex

from pyroute2.netlink import NLM_F_DUMP, NLM_F_REQUEST, genlmsg
from pyroute2.netlink.exceptions import NetlinkError
from pyroute2.netlink.generic import GenericNetlinkSocket

from parshall.errors import ParshallError
from parshall.testbed import Host

_NAPI_GET = 11
_VERSION = 1


class _Napi(genlmsg):  # type: ignore[misc]  # pyroute2 has no types.
    """``NETDEV_CMD_NAPI_GET`` of the family netdev (linux/netdev.h)."""

    prefix = "NETDEV_A_NAPI_"
    nla_map = (
        ("NETDEV_A_NAPI_UNSPEC", "none"),
        ("NETDEV_A_NAPI_IFINDEX", "uint32"),
        ("NETDEV_A_NAPI_ID", "uint32"),
        ("NETDEV_A_NAPI_IRQ", "uint32"),
        ("NETDEV_A_NAPI_PID", "uint32"),
    )


def steer(host: Host, interface: str, cpu: int) -> None:
    """Hand the packets that an interface receives to the softirq of a CPU (RPS)."""
    mask = f"{1 << cpu:x}"
    # The file takes groups of 32 bits.
    groups = [mask[max(0, end - 8) : end] for end in range(len(mask), 0, -8)][::-1]
    _write(host, f"/sys/class/net/{interface}/queues/rx-0/rps_cpus", ",".join(groups))


def use_thread(host: Host, interface: str, cpu: int) -> int:
    """Process the packets that an interface receives in a NAPI thread on a CPU, and return the thread's number.

    Raises
    ------
    ParshallError
        The kernel has no NAPI threads, or does not name them.
    """
    _write(host, f"/sys/class/net/{interface}/threaded", "1")
    threads = _threads(host, interface)
    if not threads:
        raise ParshallError(
            f"interface {interface}: the kernel names no NAPI thread (it needs Linux 6.7); use the set-up rps"
        )
    for thread in threads:
        os.sched_setaffinity(thread, {cpu})
    return threads[0]


def _write(host: Host, path: str, value: str) -> None:
    """Write a file of the sysfs of a host's namespace, which shows the interfaces of who mounted it."""
    command = f"mount -t sysfs sysfs /sys && printf %s {shlex.quote(value)} > {shlex.quote(path)}"
    done = host.run(["unshare", "--mount", "sh", "-c", command], check=False)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or ["no message"]
        raise ParshallError(f"{path}: cannot be set to {value}: {lines[-1]}; it needs CAP_NET_ADMIN and CAP_SYS_ADMIN")


def _threads(host: Host, interface: str) -> list[int]:
    """Return the numbers of the NAPI threads of an interface."""
    from parshall.host.netlink import netlink_socket, route_socket

    with host.enter():
        with route_socket() as route:
            (index,) = route.link_lookup(ifname=interface)
        with netlink_socket(GenericNetlinkSocket) as family:
            try:
                family.bind("netdev", _Napi)
                request = _Napi()
                request["cmd"], request["version"] = _NAPI_GET, _VERSION
                request["attrs"] = [("NETDEV_A_NAPI_IFINDEX", index)]
                found = family.nlm_request(request, msg_type=family.prid, msg_flags=NLM_F_REQUEST | NLM_F_DUMP)
                threads = [napi.get_attr("NETDEV_A_NAPI_PID") for napi in found]
            except NetlinkError:
                return []
    return [thread for thread in threads if thread]
