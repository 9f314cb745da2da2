"""The stages of the packet path: their names, and where each is in the kernel."""

from collections.abc import Collection

# In the order in which packets pass them; `enum path_stage` of bpf/abi.h.
STAGES = {
    "xdp": "native XDP of the interfaces named by -i: the driver has a packet",
    "gro": "tracepoint napi_gro_receive_entry: a driver hands a packet to GRO",
    "netif_rx": "tracepoint netif_rx: a packet enters the backlog of a CPU",
    "receive": "tracepoint netif_receive_skb: the stack takes it",
    "tcx_ingress": "tcx ingress of the interfaces named by -i",
    "pre_routing": "netfilter hook, behind all others",
    "local_in": "netfilter hook, behind all others",
    "socket_in": "cgroup_skb/ingress: the socket is found",
    "tcp_receive": "tracepoint tcp_probe: an established connection takes it",
    "data_ready": "tracepoint sk_data_ready: its data is in the receive queue",
    "copy": "tracepoint skb_copy_datagram_iovec: a reader copies it",
    "forward": "netfilter hook, behind all others",
    "local_out": "netfilter hook, before all others",
    "post_routing": "netfilter hook, behind all others",
    "socket_out": "cgroup_skb/egress",
    "queue": "tracepoint net_dev_queue: on the way to the queue discipline",
    "qdisc_enqueue": "tracepoint qdisc_enqueue",
    "qdisc_dequeue": "tracepoint qdisc_dequeue",
    "start_xmit": "tracepoint net_dev_start_xmit: the driver gets it",
    "xmit": "tracepoint net_dev_xmit: the driver has taken it",
    "drop": "tracepoint kfree_skb: dropped, with the reason",
    "consume": "tracepoint consume_skb: used up",
}
"""Name of a stage -> where it is."""

WHOLE = "whole"
"""In tables of times, beside the stages: from the first stage to the last."""
ALL_STAGES = tuple(name for name in STAGES if name not in ("xdp", "tcx_ingress"))
"""Those that need no interface."""
LIGHT_STAGES = ("gro", "netif_rx", "receive", "local_in", "local_out", "queue", "start_xmit", "drop")
"""The stages of the histogram mode: forwarded packets pass four of them."""
READY_STAGE = "data_ready"
"""Where reads begin."""
SOCKET_STAGE = "socket_in"
"""Where what comes in finds its socket, and with it its control group."""
SENDING_STAGES = ("local_out", "post_routing", "socket_out", "queue", "qdisc_enqueue", "start_xmit", "xmit")
"""A packet of this host passes one of these first."""


def is_receiver_unknown(stages: Collection[str]) -> bool:
    """Whether packets that come in are measured at these stages, and none says whose they are."""
    return bool({"gro", "netif_rx", "receive"} & {*stages}) and SOCKET_STAGE not in stages
