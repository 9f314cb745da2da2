"""What the kernel itself counts of a namespace: /proc/net, the counters of rules, queue disciplines and interfaces."""

import json
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from path_world import text_of

from parshall.testbed import Host

Counts = Mapping[str, int]

DROPS: dict[str, Callable[[Counts], int]] = {
    # Answers of ping find no socket of a ping.
    "NO_SOCKET": lambda c: (
        c["Udp.NoPorts"] + c["Udp6.NoPorts"] + _refused(c) + c["Icmp.InEchoReps"] + c["Icmp6.InEchoReplies"]
    ),
    "SOCKET_RCVBUFF": lambda c: c["Udp.RcvbufErrors"] + c["Udp6.RcvbufErrors"],
    "UDP_CSUM": lambda c: c["Udp.InCsumErrors"] + c["Udp6.InCsumErrors"],
    "SOCKET_FILTER": lambda c: sum(
        c[f"{udp}.InErrors"] - c[f"{udp}.RcvbufErrors"] - c[f"{udp}.InCsumErrors"] - c[f"{udp}.MemErrors"]
        for udp in ("Udp", "Udp6")
    ),
    "PROTO_MEM": lambda c: c["Udp.MemErrors"] + c["Udp6.MemErrors"],
    "ICMP_CSUM": lambda c: c["Icmp.InCsumErrors"] + c["Icmp6.InCsumErrors"],
    "TCP_CSUM": lambda c: c["Tcp.InCsumErrors"],
    "IP_CSUM": lambda c: c["IpExt.InCsumErrors"],
    "IP_INHDR": lambda c: c["Ip.InHdrErrors"] - c["IpExt.InCsumErrors"] + c["Ip6.InHdrErrors"],
    "IP_INNOROUTES": lambda c: c["IpExt.InNoRoutes"] + c["Ip6.InNoRoutes"],
    "IP_INADDRERRORS": lambda c: c["Ip.InAddrErrors"] + c["Ip6.InAddrErrors"],
    "IP_NOPROTO": lambda c: c["Ip.InUnknownProtos"] + c["Ip6.InUnknownProtos"],
    "PKT_TOO_BIG": lambda c: c["Ip.FragFails"] + c["Ip6.InTooBigErrors"],
    # Of each such datagram one fragment is sent.
    "FRAG_REASM_TIMEOUT": lambda c: c["Ip.ReasmTimeout"] + c["Ip6.ReasmTimeout"],
    "NETFILTER_DROP": lambda c: c["nft"],
    "TC_INGRESS": lambda c: c["tc.eth0.clsact"],
    "TC_EGRESS": lambda c: c["tc.tun0.clsact"],
    # A link that is down has a discipline that drops all, and counts it at the interface.
    "QDISC_DROP": lambda c: c["tc.eth1.tbf"] + c["link.eth2.tx_dropped"],
    "FULL_RING": lambda c: c["link.tun0.tx_dropped"],
    "OTHERHOST": lambda c: sum(c[name] for name in c if name.endswith(".rx_otherhost")),
    "TCP_OLD_DATA": lambda c: c["TcpExt.DelayedACKLost"],
}
"""Reason of a drop -> how many packets the kernel counts for it."""
IN_SOCKETS = {
    *("NO_SOCKET", "SOCKET_RCVBUFF", "UDP_CSUM", "SOCKET_FILTER", "PROTO_MEM", "ICMP_CSUM", "TCP_CSUM"),
    *("TCP_OLD_DATA", "VXLAN_VNI_NOT_FOUND"),
}
"""Reasons of drops behind the kernel's counter InDelivers."""


def _aborted(c: Counts) -> int:
    return c["TcpExt.TCPAbortOnClose"] + c["TcpExt.TCPAbortOnData"]


def _refused(c: Counts) -> int:
    """SYNs that were answered by a reset; a connection that ends sends one, too."""
    return c["Tcp.OutRsts"] - _aborted(c)


def counters(host: Host) -> Counter[str]:
    """Read the counters of IP and what is above it."""
    found: Counter[str] = Counter()
    for name in ("snmp", "netstat"):
        lines = text_of(host, name).splitlines()
        for names, values in zip(lines[::2], lines[1::2], strict=True):
            group, *keys = names.split()
            found.update(
                {f"{group}{key}".replace(":", "."): int(n) for key, n in zip(keys, values.split()[1:], strict=True)}
            )
    for line in text_of(host, "snmp6").splitlines():
        name, number = line.split()
        group = name[: name.index("6") + 1]
        found[f"{group}.{name.removeprefix(group)}"] = int(number)
    return found


def all_counters(host: Host) -> Counter[str]:
    """Read also those of interfaces, queue disciplines and rules."""
    found = counters(host)
    for link in json.loads(host.run(["ip", "-s", "-s", "-j", "link"]).stdout):
        for side in ("rx", "tx"):
            for name, value in link["stats64"][side].items():
                found[f"link.{link['ifname']}.{side}_{name}"] += value
    for discipline in json.loads(host.run(["tc", "-s", "-j", "qdisc", "show"]).stdout):
        found[f"tc.{discipline['dev']}.{discipline['kind']}"] += discipline["drops"]
        found["backlog"] += discipline["qlen"]
    for entry in json.loads(host.run(["nft", "-j", "list", "ruleset"]).stdout)["nftables"]:
        for part in entry.get("rule", {}).get("expr", []):
            found["nft"] += part.get("counter", {}).get("packets", 0)
    return found


def grown(before: Counts, after: Counts) -> Counter[str]:
    """Return what counters have grown by."""
    return Counter({name: after[name] - before.get(name, 0) for name in after})


def drops_of(grown_by: Counts, known: Mapping[str, int]) -> dict[str, int]:
    """Return the drops of a namespace by reason; `known` are those that only the programs count."""
    found = {reason: count(grown_by) for reason, count in DROPS.items()}
    for reason, count in known.items():
        found[reason] = found.get(reason, 0) + count
    return {reason: count for reason, count in found.items() if count}


def tcp_is_quiet(host: Any) -> bool:
    """Whether no connection is under way; LISTEN (0A) and TIME_WAIT (06) are not."""
    lines = [line for name in ("tcp", "tcp6") for line in text_of(host, name).splitlines()[1:]]
    return all(line.split()[3] in ("0A", "06") for line in lines)
