"""The times at which packets arrive at a veth, by an XDP program of its own that drops them."""

import ctypes
import json
import mmap
import os
import subprocess
from typing import Any

import numpy as np

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
__u64 seen;
SEC("xdp") int stamp(struct xdp_md *context)
{{
	__u32 place = seen++ & ({PLACES} - 1);
	__u64 *time_ns = bpf_map_lookup_elem(&arrivals, &place);
	if (time_ns)
		*time_ns = bpf_ktime_get_ns();
	return XDP_DROP;
}}
char LICENSE[] SEC("license") = "Dual MIT/GPL";
"""
_SYS_BPF = {"x86_64": 321, "aarch64": 280}
_BPF_MAP_GET_FD_BY_ID = 14


class _MapById(ctypes.Structure):
    _fields_ = [
        ("id", ctypes.c_uint32),
        ("next", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("pad", ctypes.c_uint32),
    ]


def read_arrivals_ns(attached: dict[str, Any]) -> np.ndarray:
    """Return the times (CLOCK_MONOTONIC, ns) that the program noted, in the order of arrival.

    Parameters
    ----------
    attached : dict
        ``ip -j -d link show`` of the interface that has the program.
    """
    program = attached["xdp"]["prog"]["id"]
    shown = subprocess.run(["bpftool", "-j", "prog", "show", "id", str(program)], capture_output=True, check=True)
    for number in json.loads(shown.stdout)["map_ids"]:
        told = subprocess.run(["bpftool", "-j", "map", "show", "id", str(number)], capture_output=True, check=True)
        if json.loads(told.stdout).get("name") == "arrivals":
            return _read(number)
    raise RuntimeError("the program at the interface is not ours")


def _read(map_id: int) -> np.ndarray:
    request = _MapById(id=map_id)
    libc = ctypes.CDLL(None, use_errno=True)
    fd = libc.syscall(
        _SYS_BPF[os.uname().machine], _BPF_MAP_GET_FD_BY_ID, ctypes.byref(request), ctypes.sizeof(request)
    )
    if fd < 0:
        raise OSError(ctypes.get_errno(), "the map of arrivals cannot be opened")
    try:
        with mmap.mmap(fd, 8 * PLACES, mmap.MAP_SHARED, mmap.PROT_READ) as mapped:
            times_ns = np.frombuffer(bytes(mapped), np.int64)
    finally:
        os.close(fd)
    return times_ns[times_ns > 0]
