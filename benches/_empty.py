"""Programs that do nothing, at the places where `parshall path` has its own: what looking costs before it looks.

``python benches/_empty.py STAGE,... INTERFACE`` keeps them there until Ctrl-C.
"""

import ctypes
import signal
import socket
import struct
import sys

from _arrivals import bpf

_LOAD, _RAW_TRACEPOINT_OPEN, _LINK_CREATE = 5, 17, 28
_SCHED_CLS, _RAW_TRACEPOINT, _NETFILTER_PROGRAM = 3, 17, 32
_TCX_INGRESS, _NETFILTER = 46, 45
_ACCEPT, _TCX_NEXT = 1, -1
_EXIT = struct.pack("=BBhi", 0x95, 0, 0, 0)
_TRACEPOINTS = {
    "gro": "napi_gro_receive_entry",
    "receive": "netif_receive_skb",
    "queue": "net_dev_queue",
    "start_xmit": "net_dev_start_xmit",
    "xmit": "net_dev_xmit",
}
_HOOKS = {"pre_routing": 0, "forward": 2, "post_routing": 4}


def _load(kind: int, expected: int, verdict: int) -> int:
    program = ctypes.create_string_buffer(struct.pack("=BBhi", 0xB7, 0, 0, verdict) + _EXIT, 16)
    license_text = ctypes.create_string_buffer(b"GPL")
    request = struct.pack("=IIQQ", kind, 2, ctypes.addressof(program), ctypes.addressof(license_text))
    # log_level, log_size, log_buf, kern_version, prog_flags, prog_name, prog_ifindex, expected_attach_type
    return bpf(_LOAD, request + struct.pack("=IIQII16sII", 0, 0, 0, 0, 0, b"empty", 0, expected))


def _attach(stage: str, index: int) -> list[int]:
    if stage in _TRACEPOINTS:
        program = _load(_RAW_TRACEPOINT, 0, 0)
        name = ctypes.create_string_buffer(_TRACEPOINTS[stage].encode())
        return [program, bpf(_RAW_TRACEPOINT_OPEN, struct.pack("=QI", ctypes.addressof(name), program))]
    if stage == "tcx_ingress":
        program = _load(_SCHED_CLS, _TCX_INGRESS, _TCX_NEXT)
        return [program, bpf(_LINK_CREATE, struct.pack("=IIII48x", program, index, _TCX_INGRESS, 0))]
    program = _load(_NETFILTER_PROGRAM, _NETFILTER, _ACCEPT)
    # pf, hooknum, priority (behind all others), flags
    place = struct.pack("=IIiI", socket.AF_INET, _HOOKS[stage], 2**31 - 2, 0)
    return [program, bpf(_LINK_CREATE, struct.pack("=IIII", program, 0, _NETFILTER, 0) + place + bytes(32))]


def main() -> int:
    """Attach a program at each stage, wait, and detach them."""
    stages, interface = sys.argv[1:]
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    index = socket.if_nametoindex(interface)
    # The kernel detaches them when this process ends.
    for stage in stages.split(","):
        _attach(stage, index)
    print("started", file=sys.stderr, flush=True)
    signal.sigwait({signal.SIGINT, signal.SIGTERM})
    return 0


if __name__ == "__main__":
    sys.exit(main())
