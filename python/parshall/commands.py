"""The table of commands: where each is, what it does in one line, what it needs of the host.

The entry point imports this module first, so it imports next to nothing.
"""

from typing import NamedTuple


class Need(NamedTuple):
    """One of these things must work; they are named in the order of preference.

    Attributes
    ----------
    one_of
        Names of probes.
    otherwise
        What is lost when not the first of them serves but a later one; what is lost at all when
        the need is only a wish.
    """

    one_of: tuple[str, ...]
    otherwise: str = ""


class Rule(NamedTuple):
    """What a command needs, what it can do without at a loss, and which commands it uses itself."""

    needs: tuple[Need, ...] = ()
    wishes: tuple[Need, ...] = ()
    uses: tuple[str, ...] = ()


class Command(NamedTuple):
    """A command: its module, its line in the help text, its needs."""

    module: str
    line: str
    rule: Rule = Rule()


def _each(*names: str) -> tuple[Need, ...]:
    return tuple(Need((name,)) for name in names)


def _each_wish(otherwise: str, *names: str) -> tuple[Need, ...]:
    return tuple(Need((name,), otherwise) for name in names)


_COST = Need(("bpf.run_time_stats",), "the cost of a hook in nanoseconds per event is not known")

COMMANDS = {
    "tcp": Command(
        "parshall.cli.tcp",
        "Log the state of TCP connections at every packet",
        Rule(
            needs=_each(
                "host.btf",
                "cgroup.v2",
                "map.array_mmapable",
                "map.sk_storage",
                "program.cgroup_skb_ingress",
                "program.cgroup_skb_egress",
                "program.helpers",
                "program.of_tcp",
            ),
            wishes=(
                Need(("program.tp_btf",), "retransmissions and changes of state are not recorded"),
                Need(("program.tracepoints",), "some events of the sockets are not recorded"),
                _COST,
            ),
        ),
    ),
    "capture": Command(
        "parshall.cli.capture",
        "Capture packets: many filters and files, one copy",
        Rule(
            needs=(
                *_each("host.btf", "map.array_mmapable", "program.helpers", "program.of_capture"),
                Need(
                    ("attach.tcx", "attach.xdp_native", "attach.xdp_generic"),
                    "packets are taken by XDP alone, and what this host sends is not seen",
                ),
            ),
            wishes=(
                Need(("attach.xdp_native",), "--hook xdp takes packets behind the driver, at a higher cost"),
                _COST,
            ),
        ),
    ),
    "extcap": Command("parshall.cli.extcap", "Offer interfaces and rings to Wireshark", Rule(uses=("capture",))),
    "convert": Command("parshall.cli.convert", "Convert a TCP state log into another format"),
    "model": Command("parshall.cli.model", "Run, sweep, compare, plan queueing models of packet paths"),
    "gen": Command(
        "parshall.cli.gen",
        "Generate packets with distributions of sizes and gaps",
        Rule(needs=_each("host.btf", "program.xdp", "program.xdp_live_frames", "program.helpers")),
    ),
    "sizes": Command(
        "parshall.cli.sizes",
        "Count packet sizes, or draw from their distribution",
        Rule(wishes=_each_wish("--from live cannot be used", "host.btf", "program.of_capture")),
    ),
    "cpu": Command(
        "parshall.cli.cpu",
        "Measure what the CPUs spend their time on",
        Rule(wishes=_each_wish("--hooks cannot be used", "host.btf")),
    ),
    "report": Command("parshall.cli.report", "Write a report of logs: figures, losses, cost"),
    "demo": Command(
        "parshall.cli.demo",
        "Take the tour: measure a testbed, write its report",
        Rule(uses=("testbed", "tcp")),
    ),
    "doctor": Command("parshall.cli.doctor", "Check what this host can do, and what is missing"),
}

# What commands build on, without a command of its own.
FEATURES = {
    "testbed": Rule(
        needs=(
            *_each("network.namespace", "link.veth"),
            Need(("qdisc.tbf", "qdisc.htb")),
            Need(
                ("qdisc.netem", "socket.af_packet_v3"),
                "delay, jitter and loss are played by Parshall's own relay in user space",
            ),
        ),
    ),
}
