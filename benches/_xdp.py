"""Keeps a small program at an interface until Ctrl-C: ``python benches/_xdp.py drop|arrivals|pass INTERFACE [FILE]``.

drop
    XDP drops all packets.
arrivals
    XDP notes the time of each packet, and drops it; the times are in FILE at the end (``numpy.save``; ns).
pass
    XDP sends each packet out of its interface again: the least that a generator by live frames does.
"""

import json
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import _floor
import numpy as np
from _arrivals import SOURCE, read_arrivals_ns
from _object import compiled

DROP = """
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
SEC("xdp") int drop(struct xdp_md *context) { return XDP_DROP; }
char LICENSE[] SEC("license") = "Dual MIT/GPL";
"""
PROGRAMS = {"drop": DROP, "arrivals": SOURCE, "pass": _floor.SOURCE}


def main() -> int:
    """Attach the program, wait, and detach it."""
    what, interface, *file = sys.argv[1:]
    link = ["ip", "link", "set", "dev", interface, "xdpdrv"]
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    with tempfile.TemporaryDirectory() as directory:
        program = compiled(Path(directory), PROGRAMS[what], what)
        if program is None:
            sys.exit("clang or the headers of libbpf are missing: make build")
        subprocess.run([*link, "obj", program, "sec", "xdp"], check=True)
    try:
        print("started", file=sys.stderr, flush=True)
        signal.sigwait({signal.SIGINT, signal.SIGTERM})
        if file:
            shown = subprocess.check_output(["ip", "-j", "-d", "link", "show", "dev", interface])
            np.save(file[0], read_arrivals_ns(json.loads(shown)[0]))
    finally:
        subprocess.run([*link, "off"], check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
