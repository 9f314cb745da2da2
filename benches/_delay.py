"""A study whose answer is known: a hook keeps the sender's CPU for some time at each packet.

`laboratory.py` runs it, and puts the compiled hooks where ``DELAYS`` says, a directory.
"""

import os

from parshall.lab import Host, Link, Measure, Program, Setting, Statement, Study, grid, iperf3
from parshall.lab.study import INSTRUMENT

DELAYS_NS = [0, 1_000, 2_000, 4_000, 8_000, 16_000]
# A difference that matters, as a share.
LEAST = 0.02
ATTACH = """tc qdisc add dev "$0" clsact && tc filter add dev "$0" egress bpf da obj "$1" sec tc || exit 1
trap 'tc qdisc del dev "$0" clsact; exit 0' INT TERM
echo started >&2; sleep 86400 & wait"""


def setting(level, duration_s):
    """Return two hosts on a cable, a transfer, and a hook at the sender."""
    program = f"{os.environ.get('DELAYS', '.')}/delay-{level['delay']}.o"
    words = ["bash", "-c", ATTACH, "{sender.interface}", program]
    hooks = [Program("hook", "sender", words, INSTRUMENT, ready="started", is_json=False)] if level["delay"] else []
    return Setting(
        [Host("sender", cpu=0), Host("receiver", cpu=-1)],
        [Link("sender", "receiver")],
        [*hooks, *iperf3("sender", "receiver", duration_s)],
        duration_s,
    )


def slower(table):
    """Whether a transfer with the hook is slower."""
    delay = table.levels("delay")[-1]
    return table.judge("throughput", {"delay": 0}, {"delay": delay}, -1, margin=LEAST)


study = Study(
    name="delay",
    title="Is a transfer slower whose sender is delayed at each packet?",
    question="iperf3 sends over a cable as fast as TCP goes, and a hook of the sender waits at each packet.",
    setting=setting,
    levels=grid(delay=DELAYS_NS),
    units={"delay": "ns"},
    switched=["delay"],
    has_controls=False,
    measures=[Measure("throughput", "Mbit/s", lambda run: 8e-6 * run.received("receiver", what="bytes") / run.wall_s)],
    statements=[Statement("delay", "the transfer is slower", slower)],
)
