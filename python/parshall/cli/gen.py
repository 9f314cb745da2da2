"""``parshall gen``: parse the options, send, show how it goes, give the account."""

import json
import re
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from parshall.cli import gen_receive
from parshall.cli.gen_text import account_lines
from parshall.errors import UsageError
from parshall.generate import BACKENDS, Generator, Report
from parshall.quantities import parse_seconds
from parshall.stopping import Stopping

COMMAND_SETTINGS = {
    "epilog": "Laws of sizes: SIZE, LOW-HIGH, imix, imix-tcp, imix-ipsec, thesis, procfs:FILE, dist:FILE, sizes:FILE. "
    "Laws of gaps: none, fixed, poisson, weibull:shape=, pareto:shape=, lognormal:variation=, bursts:size=, onoff, "
    "pareto-onoff, trace:FILE. See docs/gen.md.",
}
_LOOK_INTERVAL_S = 0.02
_PROGRESS_INTERVAL_S = 0.5
_LISTED_MAX = 4096
_PREFIXES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_NUMBER = re.compile(r"(\d+(?:\.\d+)?(?:[eE]\d+)?)\s*([kMGT]?)(?:bit/s|bps|pps)?")


def command(
    context: typer.Context,
    interface: Annotated[str, typer.Option("-i", "--interface", metavar="IF", help="The interface that sends.")],
    sizes: Annotated[str, typer.Option(metavar="SPEC", help="Law of the sizes of the IP packets, in bytes.")] = "46",
    gap: Annotated[
        str | None, typer.Option(metavar="LAW", help="Law of the gaps. Default: fixed with a rate, otherwise none.")
    ] = None,
    replay: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Send the frames of a capture file, when they were."),
    ] = None,
    rate: Annotated[str | None, typer.Option(metavar="BPS", help="Bits of frames per second: 500M, 2.5G.")] = None,
    pps: Annotated[str | None, typer.Option(metavar="N", help="Packets per second: 900k, 1M.")] = None,
    load: Annotated[float | None, typer.Option(metavar="SHARE", help="Share of --line, above 0 and up to 1.")] = None,
    line: Annotated[
        str | None, typer.Option(metavar="BPS", help="Rate of the line for --load: 1G; preamble and gap count.")
    ] = None,
    count: Annotated[int | None, typer.Option(metavar="N", help="Packets in all. Default: until Ctrl-C.")] = None,
    duration: Annotated[str | None, typer.Option(metavar="TIME", help="Stop after 90, 90s, 10m, 1h.")] = None,
    seed: Annotated[int, typer.Option(metavar="S", help="Seed: it fixes every byte and every gap.")] = 1,
    src: Annotated[str, typer.Option(metavar="A", help="Source: ADDRESS, FIRST-LAST, ADDRESS/PREFIX.")] = "198.18.0.1",
    dst: Annotated[str, typer.Option(metavar="A", help="Destination, as --src.")] = "198.18.1.1",
    sport: Annotated[str, typer.Option(metavar="P", help="Source port: PORT or FIRST-LAST.")] = "9",
    dport: Annotated[str, typer.Option(metavar="P", help="Destination port, as --sport.")] = "9",
    src_mac: Annotated[
        str | None, typer.Option("--src-mac", metavar="M", help="Source MAC or FIRST-LAST. Default: the interface's.")
    ] = None,
    dst_mac: Annotated[
        str, typer.Option("--dst-mac", metavar="M", help="Destination MAC or FIRST-LAST.")
    ] = "02:00:00:00:00:02",
    flows: Annotated[
        int | None, typer.Option(metavar="N", help="Number of flows. Default: values of the longest range.")
    ] = None,
    order: Annotated[str, typer.Option(metavar="cycling|random", help="How packets choose their flow.")] = "cycling",
    protocol: Annotated[str, typer.Option(metavar="udp|tcp|N", help="Protocol above IP.")] = "udp",
    vlan: Annotated[str | None, typer.Option(metavar="ID[.PRIORITY]", help="VLAN tag.")] = None,
    stamp: Annotated[
        bool, typer.Option("--stamp", help="Sequence number and send time (CLOCK_MONOTONIC) in the payload.")
    ] = False,
    receive: Annotated[
        bool,
        typer.Option("--receive", help="The other end: take account of --count stamped packets that arrive at IF."),
    ] = False,
    backend: Annotated[
        str | None,
        typer.Option(metavar="|".join(BACKENDS), help="What sends. Default: xdp; af-packet for what it cannot replay."),
    ] = None,
    cpu: Annotated[
        str | None, typer.Option(metavar="N[,N...]", help="CPUs that send, each its share: 0, 0,2 or 0-3.")
    ] = None,
    queue: Annotated[
        str | None, typer.Option(metavar="N[,N...]", help="af-xdp: queue for each CPU. Default: 0, 1, ...")
    ] = None,
    netns: Annotated[str | None, typer.Option(metavar="NAME", help="Network namespace of the interface.")] = None,
    yes_on: Annotated[
        str | None, typer.Option("--yes-on", metavar="IF", help="Send though IF is no test interface.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Give the account as JSON.")] = False,
) -> int:
    """Send packets whose sizes and gaps follow a law, the same bytes for the same seed."""
    if order not in ("cycling", "random"):
        raise UsageError(f"--order {order}: expected cycling or random")
    duration_s = None if duration is None else parse_seconds("--duration", duration)
    number, priority = _vlan(vlan)
    if receive:
        gen_receive.refuse_what_only_sends(context)
        return gen_receive.receive(
            interface,
            count=count,
            duration_s=duration_s,
            as_json=as_json,
            namespace=netns,
            is_ipv6=":" in dst,
            protocol=protocol,
            destination_port=dport,
        )
    with Stopping() as stopping:
        generator = Generator(
            interface,
            sizes=sizes,
            gap=None if gap and gap.startswith("trace:") else gap,
            recorded_gaps_ns=_recorded_gaps(gap),
            replay=replay,
            rate_bps=None if rate is None else quantity("--rate", rate),
            pps=None if pps is None else quantity("--pps", pps),
            load=load,
            line_bps=None if line is None else quantity("--line", line),
            count=count,
            seed=seed,
            source=src,
            destination=dst,
            source_port=sport,
            destination_port=dport,
            source_mac=src_mac,
            destination_mac=dst_mac,
            flows=flows,
            is_random=order == "random",
            protocol=protocol,
            vlan=number,
            vlan_priority=priority,
            is_stamped=stamp,
            backend=backend,
            cpu=None if cpu is None else numbers("--cpu", cpu),
            queue=None if queue is None else numbers("--queue", queue),
            namespace=netns,
            allowed_interface=yes_on,
        )
        with generator:
            _watch(generator, stopping, count, duration_s)
    report = generator.finish()
    _show(report, as_json)
    error = report.account["error"]
    if error is not None:
        print(f"parshall: gen: {error}; the account is of what was sent until then", file=sys.stderr)
    asked = count is not None and duration is None
    return 1 if error is not None or (asked and report.account["sent"] == 0) else 0


def quantity(option: str, text: str) -> float:
    """Return the number of a text such as ``900k``, ``2.5G`` or ``1e6``.

    Raises
    ------
    UsageError
        When it is none.
    """
    match = _NUMBER.fullmatch(text.strip())
    if not match:
        raise UsageError(f"{option} {text}: expected a number, perhaps with k, M or G, for example 900k")
    return float(match[1]) * _PREFIXES[match[2]]


def numbers(option: str, text: str) -> list[int]:
    """Return the numbers of a text such as ``0,2`` or ``0-3``.

    Raises
    ------
    UsageError
        When it is not such a list.
    """
    listed: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,9})(?:-(\d{1,9}))?\s*", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, -1)
        if not 0 <= last - first < _LISTED_MAX:
            raise UsageError(f"{option} {text}: expected a number or a list such as 0,2 or 0-3")
        listed += range(first, last + 1)
    return listed


def _vlan(text: str | None) -> tuple[int | None, int]:
    if text is None:
        return None, 0
    match = re.fullmatch(r"(\d+)(?:\.(\d+))?", text)
    if not match:
        raise UsageError(f"--vlan {text}: expected ID or ID.PRIORITY, for example 100 or 100.5")
    return int(match[1]), int(match[2] or 0)


def _recorded_gaps(gap: str | None) -> list[float] | None:
    if gap is None or not gap.startswith("trace:"):
        return None
    from parshall import _native

    path = Path(gap.removeprefix("trace:"))
    gaps_ns, backwards = _native.read_trace_gaps(path)
    if backwards:
        print(f"parshall: gen: {path}: {backwards:,} packets go back in time; their gap is 0", file=sys.stderr)
    return gaps_ns


def _watch(generator: Generator, stopping: Stopping, count: int | None, duration_s: float | None) -> None:
    """Return when everything is sent, or the run should end."""
    started = time.monotonic()
    shows_progress = sys.stderr.isatty()
    next_progress_s = 0.0
    while True:
        packets, octets, has_ended = generator.progress()
        elapsed_s = time.monotonic() - started
        if shows_progress and (has_ended or elapsed_s >= next_progress_s):
            next_progress_s = elapsed_s + _PROGRESS_INTERVAL_S
            of = "" if count is None else f" of {count:,}"
            rate = packets / elapsed_s if elapsed_s else 0.0
            line = f"\r{elapsed_s:7.1f} s  {packets:,}{of} packets  {rate / 1e3:,.0f} kpps  {octets / 1e6:,.1f} MB"
            print(line, end="\033[K", file=sys.stderr, flush=True)
        if has_ended or (duration_s is not None and elapsed_s >= duration_s):
            break
        if stopping.wait(_LOOK_INTERVAL_S):
            break
    if shows_progress:
        print(file=sys.stderr)


def _show(report: Report, as_json: bool) -> None:
    if as_json:
        print(json.dumps(report.account))
        return
    for line in account_lines(report.account):
        print(line)
