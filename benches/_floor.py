"""The cost of live frames whose program only redirects them: the upper bound for generators that use them."""

import ctypes
import os
import struct
import time
from typing import Any

from _arrivals import BPF_PROG_GET_FD_BY_ID, bpf

from parshall.testbed import Host

SOURCE = """
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
SEC("xdp") int pass_on(struct xdp_md *context) { return bpf_redirect(context->ingress_ifindex, 0); }
char LICENSE[] SEC("license") = "Dual MIT/GPL";
"""
FRAMES = 4_000_000
_BATCH = 64
_FRAME_BYTES = 60
_BPF_PROG_TEST_RUN = 10
_LIVE_FRAMES = 1 << 1


def send(host: Host, attached: dict[str, Any], cpu: int) -> float:
    """Send `FRAMES` frames from the interface that has the program; return how long it took, s.

    Parameters
    ----------
    host : Host
        Whose interface it is.
    attached : dict
        ``ip -j -d link show`` of the interface.
    cpu : int
        CPU that sends.
    """
    frame = ctypes.create_string_buffer(bytes(_FRAME_BYTES), _FRAME_BYTES)
    # struct xdp_md: data, data_end, data_meta, ingress_ifindex, rx_queue_index, egress_ifindex
    context = ctypes.create_string_buffer(struct.pack("=6I", 0, _FRAME_BYTES, 0, attached["ifindex"], 0, 0), 24)
    descriptor = bpf(BPF_PROG_GET_FD_BY_ID, struct.pack("=III", attached["xdp"]["prog"]["id"], 0, 0))
    request = struct.pack("=IIIIQQ", descriptor, 0, _FRAME_BYTES, 0, ctypes.addressof(frame), 0)
    request += struct.pack("=IIIIQQIII", FRAMES, 0, 24, 0, ctypes.addressof(context), 0, _LIVE_FRAMES, 0, _BATCH)
    allowed = os.sched_getaffinity(0)
    try:
        with host.enter():
            os.sched_setaffinity(0, {cpu})
            began = time.monotonic()
            bpf(_BPF_PROG_TEST_RUN, request)
            return time.monotonic() - began
    finally:
        os.sched_setaffinity(0, allowed)
        os.close(descriptor)
