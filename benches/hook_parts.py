"""What the parts of the capture program cost: nanoseconds a packet, without traffic.

Run as root: ``benches/run hook_parts`` or ``.venv/bin/python benches/hook_parts.py [--rounds 21]
[--sizes 60,128,...] [--ring-mib 128] [--archive [NAME]]``. Compiles ``bpf/capture.bpf.c`` several times, with parts
left out or put in the place of others, and runs every variant by ``BPF_PROG_TEST_RUN`` on one frame, 200,000 times a
round, one behind the other (the example ``hook_parts``), with a filter that takes everything and into a ring of the
usual shape that nobody reads.

alone               a program that drops, without filter: what a test run costs by itself
jump                filter, jump, and a program that drops
jump clock          the same, and the clock is read
jump length         the same without the clock, and the packet's length is read
whole               the capture program
without clock, without length, without copy, without all three
copied by helper    whole, but every packet is copied as those of more than 2 KiB are
"""

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from _object import ROOT, compiled
from _record import finish, parser_for

SOURCE = """
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "copy.h"
#ifdef WITHOUT_CLOCK
#define bpf_ktime_get_ns() 1ULL
#endif
#ifdef WITHOUT_LENGTH
static __always_inline __u32 linear_bytes(struct xdp_md *packet)
{
	__u64 bytes = (void *)(long)packet->data_end - (void *)(long)packet->data;

	asm volatile("" : "+r"(bytes)); /* else the compiler subtracts 32 bits of a pointer */
	return bytes;
}
#define bpf_xdp_get_buff_len linear_bytes
#endif
#ifdef COPIED
#define copy_linear(...) COPIED
#endif
#ifdef ONLY
#define capture_xdp unused
#endif
#include "capture.bpf.c"
#ifdef ONLY
#undef capture_xdp
SEC("xdp.frags") int capture_xdp(struct xdp_md *packet)
{
	return (ONLY) ? XDP_DROP : XDP_PASS;
}
#endif
"""
NO_CLOCK, NO_LENGTH, NO_COPY = "-DWITHOUT_CLOCK", "-DWITHOUT_LENGTH", "-DCOPIED=1"
VARIANTS: dict[str, tuple[str, ...]] = {
    "alone": ("-DONLY=1",),
    "jump": ("-DONLY=1",),
    "jump clock": ("-DONLY=bpf_ktime_get_ns()",),
    "jump length": ("-DONLY=bpf_xdp_get_buff_len(packet)",),
    "whole": (),
    "without clock": (NO_CLOCK,),
    "without length": (NO_LENGTH,),
    "without copy": (NO_COPY,),
    "without all three": (NO_CLOCK, NO_LENGTH, NO_COPY),
    "copied by helper": ("-DCOPIED=0",),
}


def main() -> int:
    """Measure, print, archive."""
    parser = parser_for(__doc__, rounds=21)
    parser.add_argument("--sizes", default="60,128,320,645,1500")
    parser.add_argument("--ring-mib", type=int, default=128)
    arguments = parser.parse_args()
    build = ["cargo", "build", "--release", "--workspace", "--example", "hook_parts"]
    subprocess.run(build, cwd=ROOT, check=True)
    with tempfile.TemporaryDirectory() as directory:
        objects = []
        for name, options in VARIANTS.items():
            compiled_object = compiled(Path(directory), SOURCE, name, *options)
            if compiled_object is None:
                raise SystemExit("hook_parts needs clang and libbpf's headers: run make build")
            objects.append(f"{name}={compiled_object}")
        command: list[str | Path] = [
            ROOT / "target/release/examples/hook_parts",
            *map(str, (arguments.rounds, arguments.sizes, arguments.ring_mib << 20)),
            *objects,
        ]
        output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    raw: dict[str, dict[str, list[int]]] = {}
    for line in output.splitlines():
        frame_bytes, name, numbers = line.split("\t")
        raw.setdefault(frame_bytes, {})[name] = json.loads(numbers)
    for frame_bytes, variants in raw.items():
        print(f"{frame_bytes} bytes: ns a packet, median and quartiles")
        for name, runs_ns in variants.items():
            low, middle, high = statistics.quantiles(runs_ns, n=4, method="inclusive")
            print(f"  {name:20} {middle:6.0f} {low:6.0f}-{high:.0f}")
    finish("hook_parts", {"raw_ns": raw}, {}, arguments.archive)
    return 0


if __name__ == "__main__":
    sys.exit(main())
