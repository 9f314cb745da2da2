"""The cost of live frames whose program only redirects them: the upper bound for generators that use them.

``python benches/_floor.py INTERFACE SECONDS`` sends from an interface that has the program (`_xdp.py`).
"""

import ctypes
import json
import struct
import subprocess
import sys
import time

from _arrivals import BPF_PROG_GET_FD_BY_ID, bpf

SOURCE = """
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
SEC("xdp") int pass_on(struct xdp_md *context) { return bpf_redirect(context->ingress_ifindex, 0); }
char LICENSE[] SEC("license") = "Dual MIT/GPL";
"""
_FRAMES = 4_000_000
_BATCH = 64
_FRAME_BYTES = 60
_BPF_PROG_TEST_RUN = 10
_LIVE_FRAMES = 1 << 1


def send(interface: str, duration_s: float) -> dict[str, int]:
    """Send live frames from an interface that has the program; return how many, and how long it took (ns).

    Parameters
    ----------
    interface : str
        The interface, in this process's network namespace.
    duration_s : float
        Seconds after which no more frames are begun.
    """
    attached = json.loads(subprocess.check_output(["ip", "-j", "-d", "link", "show", "dev", interface]))[0]
    frame = ctypes.create_string_buffer(bytes(_FRAME_BYTES), _FRAME_BYTES)
    # struct xdp_md: data, data_end, data_meta, ingress_ifindex, rx_queue_index, egress_ifindex
    context = ctypes.create_string_buffer(struct.pack("=6I", 0, _FRAME_BYTES, 0, attached["ifindex"], 0, 0), 24)
    descriptor = bpf(BPF_PROG_GET_FD_BY_ID, struct.pack("=III", attached["xdp"]["prog"]["id"], 0, 0))
    request = struct.pack("=IIIIQQ", descriptor, 0, _FRAME_BYTES, 0, ctypes.addressof(frame), 0)
    request += struct.pack("=IIIIQQIII", _FRAMES, 0, 24, 0, ctypes.addressof(context), 0, _LIVE_FRAMES, 0, _BATCH)
    began_ns, sent = time.monotonic_ns(), 0
    while (elapsed_ns := time.monotonic_ns() - began_ns) < duration_s * 1e9:
        bpf(_BPF_PROG_TEST_RUN, request)
        sent += _FRAMES
    return {"sent": sent, "elapsed_ns": elapsed_ns}


if __name__ == "__main__":
    print(json.dumps(send(sys.argv[1], float(sys.argv[2]))))
