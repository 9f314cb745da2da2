"""The table of commands: the module, the help line and the host requirements of each.

The entry point imports this module first, so it imports almost nothing.
"""

from typing import NamedTuple


class Need(NamedTuple):
    """Alternatives, in order of preference; one of them must work.

    Attributes
    ----------
    one_of
        Names of probes.
    consequence
        What the command lacks when only a later alternative works; for an optional need, when it
        does not work.
    """

    one_of: tuple[str, ...]
    consequence: str = ""


class Rule(NamedTuple):
    """What a command needs, what it can do without when degraded, and which commands it uses."""

    needs: tuple[Need, ...] = ()
    optional: tuple[Need, ...] = ()
    uses: tuple[str, ...] = ()
    # Network namespaces have names in a directory of root's: capabilities alone do not do.
    is_for_root: bool = False


class Command(NamedTuple):
    """A command: its module, its line in the help text, its needs."""

    module: str
    line: str
    rule: Rule = Rule()


def _each(*names: str) -> tuple[Need, ...]:
    return tuple(Need((name,)) for name in names)


def _each_optional(consequence: str, *names: str) -> tuple[Need, ...]:
    return tuple(Need((name,), consequence) for name in names)


_COST = Need(("bpf.run_time_stats",), "the cost of a hook in nanoseconds per event is unknown")

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
            optional=(
                Need(("program.tp_btf",), "retransmissions and state changes are not recorded"),
                Need(("program.tracepoints",), "some socket events are not recorded"),
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
                    "only XDP captures packets, and outbound packets are not seen",
                ),
            ),
            optional=(
                Need(("attach.xdp_native",), "--hook xdp captures packets after the driver, at a higher cost"),
                _COST,
            ),
        ),
    ),
    "path": Command(
        "parshall.cli.path",
        "Measure where packets spend their time in the kernel",
        Rule(
            needs=_each("host.btf", "map.array_mmapable", "program.helpers", "program.of_path"),
            optional=(_COST,),
        ),
    ),
    "extcap": Command("parshall.cli.extcap", "Offer interfaces and rings to Wireshark", Rule(uses=("capture",))),
    "pcap": Command(
        "parshall.cli.pcap", "Run tcpdump, Suricata and the like on a shared ring", Rule(uses=("capture",))
    ),
    "convert": Command("parshall.cli.convert", "Convert a TCP state log into another format"),
    "model": Command("parshall.cli.model", "Run, sweep, compare, plan queueing models of packet paths"),
    "gen": Command(
        "parshall.cli.gen",
        "Generate packets with distributions of sizes and gaps",
        Rule(needs=_each("host.btf", "program.xdp", "program.xdp_live_frames", "program.helpers")),
    ),
    "router": Command(
        "parshall.cli.router",
        "Measure a router of this kernel: latency, loss, capacity",
        # Its links have no delay, so that no discipline is needed.
        Rule(
            needs=_each("network.namespace", "link.veth", "attach.tcx", "attach.xdp_native", "map.array_mmapable"),
            uses=("gen",),
            is_for_root=True,
        ),
    ),
    "sizes": Command(
        "parshall.cli.sizes",
        "Count packet sizes, or draw from their distribution",
        Rule(optional=_each_optional("--from live cannot be used", "host.btf", "program.of_capture")),
    ),
    "cpu": Command(
        "parshall.cli.cpu",
        "Measure how the CPUs spend their time",
        Rule(optional=_each_optional("--hooks cannot be used", "host.btf")),
    ),
    "show": Command("parshall.cli.show", "Show the flows of a log in the terminal, also while it is written"),
    "live": Command("parshall.cli.live", "Show what runs on a page of this host", Rule(uses=("tcp",))),
    "mcp": Command(
        "parshall.cli.mcp", "Answer an agent: read-only tools by MCP", Rule(needs=_each("installation.mcp"))
    ),
    "report": Command("parshall.cli.report", "Write a report of logs: figures, losses, cost"),
    "lab": Command(
        "parshall.cli.lab",
        "Run studies: experiments with repeats, and their reports",
        Rule(uses=("testbed", "tcp", "capture", "gen"), is_for_root=True),
    ),
    "demo": Command(
        "parshall.cli.demo",
        "Take the tour: measure a testbed, write a report",
        Rule(uses=("testbed", "tcp"), is_for_root=True),
    ),
    "doctor": Command("parshall.cli.doctor", "Check what this host can do, and what is missing"),
}

# Features that commands build on, without a command of their own.
FEATURES = {
    "testbed": Rule(
        is_for_root=True,
        needs=(
            *_each("network.namespace", "link.veth"),
            Need(("qdisc.tbf", "qdisc.htb")),
            Need(
                ("qdisc.netem", "socket.af_packet_v3"),
                "packets of links with a delay may be late on a busy machine",
            ),
        ),
    ),
}
