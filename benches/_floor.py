"""The cost of live frames whose program only redirects them: the upper bound for generators that use them.

``python benches/_floor.py INTERFACE SECONDS [KIND BYTES]`` sends from an interface that has the program (`_xdp.py`);
Ctrl-C ends it.

empty
    Frames of zeros.
unknown
    Broadcast frames of a protocol that the stack drops.
thesis
    UDP from 192.168.10.100 to 192.168.10.12, which the filter of Schneider's thesis (Figure 6.5) accepts.
"""

import contextlib
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
# Of a call; one takes tens of milliseconds to begin and to end, so that what goes on until Ctrl-C has one.
_FRAMES, _MOST_FRAMES = 4_000_000, 2**31
_LONG_S = 60.0
_BATCH = 64
_LEAST_BYTES = 60
_BPF_PROG_TEST_RUN = 10
_LIVE_FRAMES = 1 << 1


def frame_of(kind: str, frame_bytes: int) -> bytes:
    """Return a frame of a kind."""
    if kind == "empty":
        return bytes(frame_bytes)
    if kind == "unknown":
        return bytes.fromhex("ffffffffffff02707300010188b5").ljust(frame_bytes, b"\x55")
    ethernet = bytes.fromhex("ffffffffffff0000000000010800")
    addresses = bytes([192, 168, 10, 100, 192, 168, 10, 12])
    header = struct.pack(">BBHHHBBH", 0x45, 0, frame_bytes - len(ethernet), 0, 0, 64, 17, 0) + addresses
    return (ethernet + header + struct.pack(">HHHH", 9, 9, frame_bytes - 34, 0)).ljust(frame_bytes, b"\x55")


def send(interface: str, duration_s: float, content: bytes) -> dict[str, int]:
    """Send live frames from an interface that has the program; return how many, and how long it took (ns).

    Parameters
    ----------
    interface : str
        The interface, in this process's network namespace.
    duration_s : float
        Seconds after which no more frames are begun.
    content : bytes
        The frame.
    """
    size = len(content)
    frames = _MOST_FRAMES if duration_s > _LONG_S else _FRAMES
    attached = json.loads(subprocess.check_output(["ip", "-j", "-d", "link", "show", "dev", interface]))[0]
    frame = ctypes.create_string_buffer(content, size)
    # struct xdp_md: data, data_end, data_meta, ingress_ifindex, rx_queue_index, egress_ifindex
    context = ctypes.create_string_buffer(struct.pack("=6I", 0, size, 0, attached["ifindex"], 0, 0), 24)
    descriptor = bpf(BPF_PROG_GET_FD_BY_ID, struct.pack("=III", attached["xdp"]["prog"]["id"], 0, 0))
    request = struct.pack("=IIIIQQ", descriptor, 0, size, 0, ctypes.addressof(frame), 0)
    request += struct.pack("=IIIIQQIII", frames, 0, 24, 0, ctypes.addressof(context), 0, _LIVE_FRAMES, 0, _BATCH)
    began_ns, sent = time.monotonic_ns(), 0
    with contextlib.suppress(KeyboardInterrupt):
        while (elapsed_ns := time.monotonic_ns() - began_ns) < duration_s * 1e9:
            try:
                bpf(_BPF_PROG_TEST_RUN, request)
            except InterruptedError:
                continue
            sent += frames
    return {"sent": sent, "elapsed_ns": elapsed_ns}


if __name__ == "__main__":
    interface, duration_s, kind, frame_bytes = (*sys.argv[1:], *("empty", str(_LEAST_BYTES))[len(sys.argv) - 3 :])
    print(json.dumps(send(interface, float(duration_s), frame_of(kind, int(frame_bytes)))))
