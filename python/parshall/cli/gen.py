"""``parshall gen``: parse the options, send, show progress, print the account."""

import json
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from parshall.cli import gen_receive, options
from parshall.cli.gen_text import account_lines
from parshall.cli.options import count_option, numbers_option, rate_option, share_option
from parshall.cli.watch import watch
from parshall.host.messages import report_start, say, show
from parshall.host.stopping import Stopping
from parshall.instruments.generate import BACKENDS, Generator, Report

COMMAND_SETTINGS = {
    "epilog": "Sizes: SIZE, LOW-HIGH, imix, imix-tcp, imix-ipsec, thesis, procfs:FILE, dist:FILE, sizes:FILE. "
    "Gaps: none, fixed, poisson, weibull:shape=, pareto:shape=, lognormal:variation=, bursts:size=, onoff, "
    "pareto-onoff, trace:FILE. See docs/gaps.md.",
}


def command(
    context: typer.Context,
    interface: options.Interface,
    sizes: Annotated[
        str, typer.Option("--sizes", metavar="SPEC", help="Distribution of the sizes of IP packets, bytes")
    ] = "46",
    gap: Annotated[
        str | None,
        typer.Option("--gap", metavar="SPEC", help="Distribution of the gaps [default: fixed, or no gaps]"),
    ] = None,
    replay: Annotated[
        Path | None, typer.Option("--replay", metavar="FILE", help="Send the frames of a capture file at their times")
    ] = None,
    rate: Annotated[
        float | None, rate_option("--rate", counted="bits", help="Bits of frames per second: 500M, 2.5G")
    ] = None,
    pps: Annotated[float | None, rate_option("--pps", counted="packets", help="Packets per second: 900k, 1M")] = None,
    load: Annotated[float | None, share_option("--load", help="Share of --line, above 0 and up to 1")] = None,
    line: Annotated[
        float | None, rate_option("--line", counted="bits", help="Line rate for --load, with preamble and gap: 1G")
    ] = None,
    count: Annotated[
        int | None, count_option("-c", "--count", help="Number of packets [default: until Ctrl-C]")
    ] = None,
    duration: options.Duration = None,
    seed: options.Seed = 1,
    src: Annotated[
        str, typer.Option("--src", metavar="A", help="Source: ADDRESS, FIRST-LAST or ADDRESS/PREFIX")
    ] = "198.18.0.1",
    dst: Annotated[str, typer.Option("--dst", metavar="A", help="Destination, as --src")] = "198.18.1.1",
    sport: Annotated[str, typer.Option("--sport", metavar="P", help="Source port: PORT or FIRST-LAST")] = "9",
    dport: Annotated[str, typer.Option("--dport", metavar="P", help="Destination port, as --sport")] = "9",
    src_mac: Annotated[
        str | None,
        typer.Option("--src-mac", metavar="M", help="Source MAC or FIRST-LAST [default: the interface's]"),
    ] = None,
    dst_mac: Annotated[
        str, typer.Option("--dst-mac", metavar="M", help="Destination MAC or FIRST-LAST")
    ] = "02:00:00:00:00:02",
    flows: Annotated[int | None, count_option("--flows", help="Number of flows [default: the longest range]")] = None,
    order: Annotated[
        str, typer.Option("--order", metavar="cycling|random", help="How packets choose their flow")
    ] = "cycling",
    protocol: Annotated[str, typer.Option("--protocol", metavar="udp|tcp|N", help="Protocol above IP")] = "udp",
    vlan: Annotated[str | None, typer.Option("--vlan", metavar="ID[.PRIORITY]", help="VLAN tag")] = None,
    stamp: Annotated[bool, typer.Option("--stamp", help="Put sequence number and send time into the payload")] = False,
    receive: Annotated[
        bool, typer.Option("--receive", help="Receive --count stamped packets, and report their loss")
    ] = False,
    backend: Annotated[
        str | None,
        typer.Option("--backend", metavar="|".join(BACKENDS), help="Backend that sends [default: xdp where possible]"),
    ] = None,
    cpu: Annotated[
        Any, numbers_option("--cpu", help="CPUs that send, with equal numbers of packets: 0,2 or 0-3")
    ] = None,
    queue: Annotated[Any, numbers_option("--queue", help="af-xdp: queue of each CPU [default: 0, 1, ...]")] = None,
    netns: options.Netns = None,
    yes_on: Annotated[
        str | None, typer.Option("--yes-on", metavar="IF", help="Send although IF is not a test interface")
    ] = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> int:
    """Send packets whose sizes and gaps follow distributions, the same bytes for the same seed."""
    if receive:
        gen_receive.refuse_sender_options(context)
        return gen_receive.receive(
            interface,
            count=count,
            duration_s=duration,
            quiet=quiet,
            as_json=as_json,
            netns=netns,
            is_ipv6=":" in dst,
            protocol=protocol,
            dport=dport,
        )
    with Stopping() as stopping:
        generator = Generator(
            interface,
            sizes=sizes,
            gap=None if gap and gap.startswith("trace:") else gap,
            recorded_gaps_ns=_recorded_gaps(gap),
            replay=replay,
            rate_bps=rate,
            pps=pps,
            load=load,
            line_bps=line,
            count=count,
            duration_s=duration,
            seed=seed,
            src=src,
            dst=dst,
            sport=sport,
            dport=dport,
            src_mac=src_mac,
            dst_mac=dst_mac,
            flows=flows,
            order=order,
            protocol=protocol,
            vlan=vlan,
            stamp=stamp,
            backend=backend,
            cpu=cpu,
            queue=queue,
            netns=netns,
            yes_on=yes_on,
        )
        with generator:
            report_start("gen", f"sending from {interface}", quiet=quiet)
            if generator.backend_reason and not quiet:
                say("gen", f"sends by af-packet, which is slower than xdp: {generator.backend_reason}")
            watch("gen", generator, stopping, partial(_progress, count=count), quiet=quiet)
    report = generator.stop()
    if as_json or not quiet:
        show(*([json.dumps(report.account)] if as_json else account_lines(report.account, duration)))
    error = report.account["error"]
    if error is not None:
        say("gen", f"{error}; the account covers what was sent until then")
    elif report.has_failed:
        say("gen", _nothing_arrived(interface, report))
    return 1 if report.has_failed else 0


def _nothing_arrived(interface: str, report: Report) -> str:
    sent = report.account["sent"]
    if not sent:
        return f"interface {interface}: no packet was sent; the run ended before the first packet"
    return (
        f"interface {interface}: transmitted none of {sent:,} packets; check that its other end is up, and its "
        f"counters: ip -s link show dev {interface}"
    )


def _recorded_gaps(gap: str | None) -> list[float] | None:
    if gap is None or not gap.startswith("trace:"):
        return None
    from parshall import _native

    path = Path(gap.removeprefix("trace:"))
    gaps_ns, backwards = _native.read_trace_gaps(path)
    if backwards:
        say("gen", f"{path}: {backwards:,} timestamps go backwards; the gap before them is 0")
    return gaps_ns


def _progress(status: dict[str, Any], elapsed_s: float, count: int | None) -> str:
    of = "" if count is None else f" of {count:,}"
    rate_kpps = status["packets"] / max(elapsed_s, 1e-9) / 1e3
    return f"{status['packets']:,}{of} packets  {rate_kpps:,.0f} kpps  {status['bytes'] / 1e6:,.1f} MB"
