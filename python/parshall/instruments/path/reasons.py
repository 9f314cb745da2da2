"""What frequent drop reasons of the kernel mean, and where to look first (include/net/dropreason-core.h)."""

MEANINGS = {
    "NO_SOCKET": "no socket has its port and address",
    "SOCKET_RCVBUFF": "the socket's receive buffer is full: its reader is too slow",
    "SOCKET_FILTER": "the socket's filter rejected it",
    "SOCKET_BACKLOG": "too much waits for a socket that is in use",
    "PROTO_MEM": "the protocol's memory is used up (net.ipv4.tcp_mem, udp_mem)",
    "IP_INHDR": "a bad IP header, or its TTL ran out",
    "IP_INADDRERRORS": "not for this host: is forwarding off?",
    "IP_INNOROUTES": "no route to its destination",
    "IP_OUTNOROUTES": "no route to its destination",
    "IP_RPFILTER": "its source would be reached by another interface (rp_filter)",
    "IP_INVALID_SOURCE": "no address that may be a source",
    "IP_LOCAL_SOURCE": "its source is an address of this host",
    "UNICAST_IN_L2_MULTICAST": "an address of one host in a frame to many",
    "OTHERHOST": "its frame was for another host",
    "NETFILTER_DROP": "a rule of nftables or iptables",
    "QDISC_DROP": "a queue discipline: its queue is full, or it keeps it short",
    "QDISC_OVERLIMIT": "a queue discipline: its queue is full",
    "QDISC_CONGESTED": "a queue discipline keeps its queue short",
    "FQ_FLOW_LIMIT": "fq: too much of its flow waits",
    "FQ_HORIZON_LIMIT": "fq: due too far in the future",
    "TC_INGRESS": "a filter or program of tc, on the way in",
    "TC_EGRESS": "a filter or program of tc, on the way out",
    "XDP": "an XDP program",
    "BPF_CGROUP_EGRESS": "a program of the socket's control group",
    "CPU_BACKLOG": "the backlog of its CPU is full (net.core.netdev_max_backlog)",
    "FULL_RING": "the reader of its TUN or TAP device is too slow",
    "TAP_FILTER": "the filter of its TAP device",
    "DEV_READY": "its interface is not up",
    "NEIGH_FAILED": "its neighbour does not answer ARP or neighbour discovery",
    "NEIGH_QUEUEFULL": "too many wait for the answer of their neighbour",
    "NEIGH_DEAD": "its neighbour's entry was removed",
    "UNHANDLED_PROTO": "nothing here handles its protocol",
    "IP_CSUM": "a wrong checksum of IP",
    "TCP_CSUM": "a wrong checksum of TCP",
    "UDP_CSUM": "a wrong checksum of UDP",
    "ICMP_CSUM": "a wrong checksum of ICMP",
    "PKT_TOO_SMALL": "shorter than its headers say",
    "PKT_TOO_BIG": "longer than the MTU of the way out",
    "DUP_FRAG": "a fragment that came before",
    "FRAG_REASM_TIMEOUT": "other fragments did not come in time",
    "FRAG_TOO_FAR": "its other fragments are too far away",
    "TCP_OLD_DATA": "data that came before",
    "TCP_OFOMERGE": "data that came before",
    "TCP_OVERWINDOW": "behind the receive window",
    "TCP_ZEROWINDOW": "the receive window is closed",
    "TCP_OLD_ACK": "acknowledges nothing new",
    "TCP_OLD_SEQUENCE": "a sequence number before the window",
    "TCP_INVALID_SEQUENCE": "a sequence number outside of the window",
    "TCP_LISTEN_OVERFLOW": "the listener's accept queue is full: its program accepts too slowly, or its limit is low",
    "TCP_OFO_QUEUE_PRUNE": "out of order, and memory was short",
    "TCP_FLAGS": "flags that its connection does not take",
    "TCP_RESET": "a reset, which ended its connection",
    "TCP_RFC7323_PAWS": "a timestamp older than the last one (PAWS)",
    "TCP_CLOSE": "its connection was closed",
    "TCP_FASTOPEN": "data that the Fast Open handshake had",
    "IPV6DISABLED": "IPv6 is disabled there",
    "IP_NOPROTO": "nothing here handles its IP protocol",
    "SECURITY_HOOK": "a security module, such as SELinux",
    "XFRM_POLICY": "a policy of IPsec",
    "SKB_CSUM": "a wrong checksum",
    "NOMEM": "no memory",
    "PACKET_SOCK_ERROR": "the queue of a packet socket is full",
    "VXLAN_VNI_NOT_FOUND": "no VXLAN has its number",
}
"""Reason without ``SKB_DROP_REASON_`` -> a short meaning."""


_SUBSYSTEM_SHIFT = 16


def reason_name(number: int, names: dict[int, str], subsystems: dict[int, str]) -> str:
    """Return the name of a drop reason; its number, and its subsystem, where none is known.

    Parameters
    ----------
    number : int
        The kernel's number; the high 16 bits are those of a subsystem, 0 for the core.
    names : dict
        Names by number.
    subsystems : dict
        Names of subsystems by number.

    Returns
    -------
    str
        ``NETFILTER_DROP``, ``OVS_DROP_METER``, ``reason 200``, ``OPENVSWITCH reason 40``, ``subsystem 9 reason 1``.
    """
    if number in names:
        return names[number]
    subsystem, low = divmod(number, 1 << _SUBSYSTEM_SHIFT)
    if not subsystem:
        return f"reason {low}"
    return f"{subsystems.get(subsystem, f'subsystem {subsystem}')} reason {low}"


def described(reason: str) -> str:
    """Return a meaning behind a colon, as ``: no route to its destination``; empty where none is known."""
    meaning = MEANINGS.get(reason)
    return f": {meaning}" if meaning else ""
