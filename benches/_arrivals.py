"""The times at which packets arrive at a veth, by an XDP program of its own that drops them."""

import ctypes
import mmap
import os
import struct
from typing import Any

import numpy as np

# Half of them for each of two queues.
PLACES = 1 << 21
SOURCE = f"""
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
struct {{
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, {PLACES});
	__type(key, __u32);
	__type(value, __u64);
}} arrivals SEC(".maps");
/* Two queues, perhaps of two CPUs, have a half each. */
struct {{ __u64 packets, pad[7]; }} seen[2];
SEC("xdp") int stamp(struct xdp_md *context)
{{
	__u32 half = context->rx_queue_index & 1;
	__u32 place = half * {PLACES // 2} + (seen[half].packets++ & ({PLACES // 2} - 1));
	__u64 *time_ns = bpf_map_lookup_elem(&arrivals, &place);
	if (time_ns)
		*time_ns = bpf_ktime_get_ns();
	return XDP_DROP;
}}
char LICENSE[] SEC("license") = "Dual MIT/GPL";
"""
BPF_PROG_GET_FD_BY_ID = 13
_SYS_BPF = {"x86_64": 321, "aarch64": 280}
_BPF_MAP_GET_FD_BY_ID, _BPF_OBJ_GET_INFO_BY_FD = 14, 15
# Where struct bpf_prog_info has nr_map_ids and map_ids, and struct bpf_map_info max_entries.
_MAP_COUNT_OFFSET, _MAP_IDS_OFFSET, _MAX_ENTRIES_OFFSET, _INFO_BYTES = 52, 56, 16, 80
_MAPS_MAX = 8


def read_arrivals_ns(attached: dict[str, Any]) -> np.ndarray:
    """Return the times (CLOCK_MONOTONIC, ns) that the program noted, in the order of arrival.

    Parameters
    ----------
    attached : dict
        ``ip -j -d link show`` of the interface that has the program.
    """
    map_ids = (ctypes.c_uint32 * _MAPS_MAX)()
    request = bytearray(_INFO_BYTES)
    struct.pack_into("=I", request, _MAP_COUNT_OFFSET, _MAPS_MAX)
    struct.pack_into("=Q", request, _MAP_IDS_OFFSET, ctypes.addressof(map_ids))
    program = bpf(BPF_PROG_GET_FD_BY_ID, struct.pack("=III", attached["xdp"]["prog"]["id"], 0, 0))
    try:
        (count,) = struct.unpack_from("=I", _information(program, request), _MAP_COUNT_OFFSET)
    finally:
        os.close(program)
    for number in map_ids[:count]:
        descriptor = bpf(_BPF_MAP_GET_FD_BY_ID, struct.pack("=III", number, 0, 0))
        try:
            (entries,) = struct.unpack_from("=I", _information(descriptor, bytearray(_INFO_BYTES)), _MAX_ENTRIES_OFFSET)
            if entries == PLACES:
                with mmap.mmap(descriptor, 8 * PLACES, mmap.MAP_SHARED, mmap.PROT_READ) as mapped:
                    times_ns = np.frombuffer(bytes(mapped), np.int64)
                return np.sort(times_ns[times_ns > 0])
        finally:
            os.close(descriptor)
    raise RuntimeError("the program at the interface is not ours")


def bpf(command: int, attributes: bytes) -> int:
    """Make the system call; return what it gives."""
    libc = ctypes.CDLL(None, use_errno=True)
    result = libc.syscall(_SYS_BPF[os.uname().machine], command, attributes, len(attributes))
    if result < 0:
        raise OSError(ctypes.get_errno(), f"bpf({command})")
    return int(result)


def _information(descriptor: int, request: bytearray) -> bytes:
    buffer = (ctypes.c_char * len(request)).from_buffer(request)
    bpf(_BPF_OBJ_GET_INFO_BY_FD, struct.pack("=IIQ", descriptor, len(request), ctypes.addressof(buffer)))
    return bytes(buffer)
