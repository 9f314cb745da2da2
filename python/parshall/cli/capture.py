"""``parshall capture``: parse the options, capture, show how it goes, give the account."""

import json
import sys
import time
from datetime import datetime
from typing import Annotated, Any

import typer

from parshall.capture import DEFAULT_RING_BYTES, SNAPLEN_MAX, Capture, Output, Ring, Summary, rings
from parshall.cli.ledger_text import capture_ledger_lines
from parshall.errors import UsageError
from parshall.quantities import parse_bytes, parse_seconds
from parshall.stopping import Stopping

COMMAND_SETTINGS = {
    "epilog": "Several --filter EXPR --write FILE pairs are served in one pass: each packet is copied once.",
}
_LOOK_INTERVAL_S = 0.05
_PROGRESS_INTERVAL_S = 0.5
_MANY = "may be repeated"


def command(
    interface: Annotated[
        list[str] | None, typer.Option("-i", "--interface", metavar="IF", help=f"Capture here; {_MANY}.")
    ] = None,
    filter: Annotated[
        list[str] | None, typer.Option(metavar="EXPR", help=f"Packets that pcap-filter(7) says; {_MANY}.")
    ] = None,
    write: Annotated[
        list[str] | None, typer.Option("-w", "--write", metavar="FILE", help=f"Where to; - is a pipe; {_MANY}.")
    ] = None,
    snaplen: Annotated[int, typer.Option("-s", "--snaplen", metavar="N", help="Most bytes of a packet.")] = SNAPLEN_MAX,
    count: Annotated[
        int | None, typer.Option("-c", "--count", metavar="N", help="End when every file has N packets.")
    ] = None,
    duration: Annotated[str | None, typer.Option(metavar="TIME", help="End after this time: 90, 10m, 1h.")] = None,
    direction: Annotated[
        str | None,
        typer.Option(metavar="in|out|both", help="Which packets. Default: both; with --hook xdp those that come in."),
    ] = None,
    hook: Annotated[
        str, typer.Option(metavar="auto|tcx|xdp", help="Where packets are taken; xdp is fastest, and sees in only.")
    ] = "auto",
    promiscuous: Annotated[bool, typer.Option("--promiscuous", "-p", help="Also packets that are for others.")] = False,
    discard: Annotated[
        bool,
        typer.Option("--discard", help="Nothing that comes in reaches this host: for a mirror port; with --hook xdp."),
    ] = False,
    policy: Annotated[
        str,
        typer.Option(
            metavar="fast|slow",
            help="When a reader lags: overwrite, and it counts (fast), or drop in the kernel and count (slow).",
        ),
    ] = "fast",
    buffer: Annotated[
        str, typer.Option(metavar="SIZE", help="Ring between kernel and readers, for each CPU.")
    ] = f"{DEFAULT_RING_BYTES >> 20}M",
    format: Annotated[
        str | None, typer.Option(metavar="pcapng|pcap", help="Format of the files; by their names if not given.")
    ] = None,
    compress: Annotated[
        str | None, typer.Option(metavar="zstd|gzip|none", help="Compression; by the files' names if not given.")
    ] = None,
    rotate_size: Annotated[str | None, typer.Option(metavar="SIZE", help="A new file at this size.")] = None,
    rotate_time: Annotated[str | None, typer.Option(metavar="TIME", help="A new file after this time.")] = None,
    rotate_files: Annotated[int | None, typer.Option(metavar="N", help="Keep the N newest files.")] = None,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="What others join the ring by.")] = None,
    group: Annotated[
        str | None,
        typer.Option(metavar="GROUP", help="Its members may join, and see everything that anybody here captures."),
    ] = None,
    join: Annotated[str | None, typer.Option(metavar="RING", help="Join this ring in place of founding one.")] = None,
    backend: Annotated[
        str,
        typer.Option(metavar="ring|af-packet|tpacket-v3|af-xdp", help="The ring, or a way of others, to compare with."),
    ] = "ring",
    show_rings: Annotated[bool, typer.Option("--list", help="Show the rings that run, and do nothing else.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Give the account as JSON.")] = False,
) -> int:
    """Capture packets into files: any number of filters and readers, one copy of a packet, and what was lost."""
    if show_rings:
        return _list(as_json)
    outputs = _outputs(
        filter or [],
        write or [f"capture-{datetime.now():%Y%m%d-%H%M%S}.pcapng"],
        snaplen=snaplen,
        format=format,
        compression=compress,
        rotate_bytes=None if rotate_size is None else parse_bytes("--rotate-size", rotate_size),
        rotate_s=None if rotate_time is None else parse_seconds("--rotate-time", rotate_time),
        rotate_files=rotate_files,
    )
    duration_s = None if duration is None else parse_seconds("--duration", duration)
    ring = None
    if join is None:
        if not interface:
            raise UsageError("no interface: name one with -i, or a ring with --join; --list shows those that run")
        if policy not in ("fast", "slow"):
            raise UsageError(f"--policy {policy}: expected fast or slow")
        ring = Ring(
            interface,
            name=name,
            hook=hook,
            direction=direction,
            ring_bytes=parse_bytes("--buffer", buffer),
            slow_reader=policy == "slow",
            promiscuous=promiscuous,
            group=group,
            discard=discard,
        )
    elif interface or name or group:
        option = "-i" if interface else "--name" if name else "--group"
        raise UsageError(f"--join {join}: the ring is there already, so {option} cannot be given")
    with Stopping() as stopping:
        capture = Capture(outputs, ring, join=join, count=count, backend=backend, is_stopping=stopping.is_asked)
        with capture:
            _watch(capture, stopping, duration_s)
        summary = capture.stop()
    # Standard output may be the capture itself.
    _show(summary, as_json, sys.stderr if any(str(output.path) == "-" for output in outputs) else sys.stdout)
    if summary.failure:
        print(f"parshall: capture: {summary.failure}", file=sys.stderr)
        return 1
    return 0


def _outputs(filters: list[str], files: list[str], **settings: Any) -> list[Output]:
    """Pair filters and files: the first with the first, and so on; without filters everything goes everywhere."""
    if filters and len(filters) != len(files):
        raise UsageError(
            f"{len(filters)} --filter and {len(files)} --write: give one of each for every file; "
            "--filter '' takes everything"
        )
    pairs = zip(files, filters or [""] * len(files), strict=True)
    return [Output(file, expression, **settings) for file, expression in pairs]


def _watch(capture: Capture, stopping: Stopping, duration_s: float | None) -> None:
    """Return when the capture should end: asked to, time over, or it ended by itself."""
    started = time.monotonic()
    shows_progress = sys.stderr.isatty()
    start_of_line = "\r\033[K" if shows_progress else ""
    next_progress_s = 0.0
    packets_before, before_s = 0, 0.0
    has_ended = False
    while not has_ended and not stopping.wait(_LOOK_INTERVAL_S):
        elapsed_s = time.monotonic() - started
        status = capture.status()
        has_ended = status["has_ended"]
        _notify(status, start_of_line)
        if shows_progress and elapsed_s >= next_progress_s:
            next_progress_s = elapsed_s + _PROGRESS_INTERVAL_S
            rate_pps = (status["packets"] - packets_before) / max(elapsed_s - before_s, 1e-9)
            packets_before, before_s = status["packets"], elapsed_s
            line = (
                f"\r{elapsed_s:7.1f} s  {status['packets']:,} packets  {rate_pps:,.0f}/s  "
                f"{status['lost']:,} lost  {status['wire_bytes'] / 1e6:.1f} MB"
            )
            print(line, end="\033[K", file=sys.stderr, flush=True)
        if duration_s is not None and elapsed_s >= duration_s:
            break
    _notify(capture.status(), start_of_line)
    if shows_progress:
        print(file=sys.stderr)


def _notify(status: dict[str, Any], start_of_line: str) -> None:
    """Say what has happened, over the line that shows progress, not behind it."""
    for notice in status["notices"]:
        print(f"{start_of_line}parshall: capture: {notice}", file=sys.stderr)


def _show(summary: Summary, as_json: bool, where: Any) -> None:
    if as_json:
        print(json.dumps({"ledger": summary.ledger, "failure": summary.failure}), file=where)
        return
    for line in capture_ledger_lines(summary.ledger):
        print(line, file=sys.stderr)


def _list(as_json: bool) -> int:
    found = rings()
    if as_json:
        print(json.dumps(found))
        return 0
    if not found:
        print("no ring runs", file=sys.stderr)
    for ring in found:
        if "unreadable" in ring:
            print(ring["unreadable"])
            continue
        admits = f"group {ring['group']}" if ring["group"] else "root only"
        size = f"{ring['ring_bytes'] >> 20} MiB for each of {ring['lanes']} CPUs"
        print(f"{ring['name']}: {', '.join(ring['hooks'])}; {ring['policy']} reader, {size}; {admits}")
        for subscriber in ring["subscribers"]:
            wants = subscriber["filter"] or "everything"
            print(f"  process {subscriber['pid']}: {wants}, up to {subscriber['snaplen']} bytes")
    return 0
