"""``parshall capture``: parse the options, capture, show progress, print the ledger."""

import json
import sys
from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any

import typer

from parshall.cli import options
from parshall.cli.options import count_option, ring_bytes, snaplen_option
from parshall.cli.publishing import published
from parshall.cli.watch import Rate, watch
from parshall.errors import UsageError
from parshall.host import namespaces
from parshall.host.ledger_text import capture_ledger_lines, short_filter
from parshall.host.messages import report_start, say, show
from parshall.host.quantities import many
from parshall.host.rotation import Rotation
from parshall.host.session import Summary
from parshall.host.stopping import Stopping
from parshall.instruments.capture import DEFAULT_RING_BYTES, SNAPLEN_MAX, Capture, Output, Ring, rings

COMMAND_SETTINGS = {
    "epilog": "Several --filter EXPR --write FILE pairs are served in one pass: each packet is copied once.",
}


def command(
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[FILTER...]", help="The filter, where --filter is not given")
    ] = None,
    interface: Annotated[
        list[str] | None, typer.Option("-i", "--interface", metavar="IF", help="Network interface (repeatable)")
    ] = None,
    filter: Annotated[
        list[str] | None,
        typer.Option("--filter", metavar="EXPR", help="Capture filter, pcap-filter(7) syntax (repeatable)"),
    ] = None,
    write: Annotated[
        list[str] | None,
        typer.Option("-w", "--write", metavar="FILE", help="Capture file; - is standard output (repeatable)"),
    ] = None,
    snaplen: Annotated[int, snaplen_option("-s", "--snaplen", longest=SNAPLEN_MAX)] = SNAPLEN_MAX,
    count: Annotated[int | None, count_option("-c", "--count", help="Stop when every file has N packets")] = None,
    duration: options.Duration = None,
    direction: Annotated[
        str | None,
        typer.Option("--direction", metavar="in|out|both", help="Packets to capture [default: both; xdp: in]"),
    ] = None,
    hook: Annotated[
        str, typer.Option("--hook", metavar="auto|tcx|xdp", help="Hook; xdp is fastest and sees inbound packets only")
    ] = "auto",
    netns: options.Netns = None,
    promiscuous: Annotated[
        bool, typer.Option("--promiscuous", "-p", help="Capture packets for other hosts, too")
    ] = False,
    discard: Annotated[
        bool, typer.Option("--discard", help="Keep packets from this host (mirror port; --hook xdp)")
    ] = False,
    policy: options.Policy = "fast",
    buffer: Annotated[int, options.buffer_option(DEFAULT_RING_BYTES)] = DEFAULT_RING_BYTES,
    format: Annotated[
        str | None, typer.Option("--format", metavar="pcapng|pcap", help="File format [default: by file name]")
    ] = None,
    compress: Annotated[
        str | None, typer.Option("--compress", metavar="zstd|gzip|lz4|none", help="Compression [default: by file name]")
    ] = None,
    rotate_size: options.RotateSize = None,
    rotate_time: options.RotateTime = None,
    rotate_files: options.RotateFiles = None,
    keep: options.Keep = None,
    name: Annotated[str | None, typer.Option("--name", metavar="RING", help="Name of the ring")] = None,
    group: Annotated[
        str | None, typer.Option("--group", metavar="GROUP", help="Let this group join, and read all captured packets")
    ] = None,
    join: Annotated[str | None, typer.Option("--join", metavar="RING", help="Join a running ring")] = None,
    backend: Annotated[
        str,
        typer.Option(
            "--backend",
            metavar="ring|af-packet|tpacket-v3|af-xdp",
            help="Capture method; all but ring are for comparison",
        ),
    ] = "ring",
    load: Annotated[
        str | None,
        typer.Option(
            "--load", metavar="memcpy:N|zlib:LEVEL[,...]", help="Work on each packet, to simulate its analysis"
        ),
    ] = None,
    metrics: options.MetricsAddress = None,
    otlp: options.Otlp = None,
    show_rings: Annotated[bool, typer.Option("--list", help="List running rings, and exit")] = False,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> int:
    """Capture packets into files: many filters, many readers, one copy of each packet."""
    if show_rings:
        return _list(as_json)
    if words:
        if filter:
            raise UsageError(f"{' '.join(words)}: a second filter beside --filter {filter[0]}; give one of them")
        filter = [" ".join(words)] * max(1, len(write or ()))
    outputs = _outputs(
        filter or [],
        write or [f"capture-{datetime.now():%Y%m%d-%H%M%S}.pcapng"],
        snaplen=snaplen,
        format=format,
        compress=compress,
        rotation=Rotation(rotate_size, rotate_time, rotate_files, keep),
        load=load,
    )
    ring = None
    if join is None:
        if not interface:
            raise UsageError("no interface: name one with -i, or a ring with --join; --list shows running rings")
        ring = Ring(
            interface,
            netns=netns,
            name=name,
            hook=hook,
            direction=direction,
            # Elsewhere it is the memory of a socket.
            buffer_bytes=ring_bytes(buffer, "1M") if backend == "ring" else buffer,
            policy=policy,
            promiscuous=promiscuous,
            group=group,
            discard=discard,
        )
    elif interface or name or group or netns:
        given = (
            ("interfaces", "-i", interface),
            ("name", "--name", name),
            ("group", "--group", group),
            ("network namespace", "--netns", netns),
        )
        what, option = next((what, option) for what, option, value in given if value)
        raise UsageError(f"--join {join}: a ring has its {what} already; leave out {option}")
    if backend != "ring" and (metrics or otlp):
        raise UsageError(f"--backend {backend}: has no account while it runs; leave out --metrics and --otlp")
    with published("capture", metrics, otlp, quiet=quiet) as shown, Stopping() as stopping:
        capture = Capture(outputs, ring, join=join, count=count, backend=backend, is_stopping=stopping.is_requested)
        if shown:
            shown.account = capture.account
        with capture:
            where = f"capturing at {', '.join(capture.interfaces)}{f' (ring {capture.ring})' if capture.ring else ''}"
            report_start("capture", where, quiet=quiet)
            rate = Rate()
            watch(
                "capture",
                capture,
                stopping,
                lambda status, elapsed_s: _progress(status, rate.next(status["packets"], elapsed_s)),
                quiet=quiet,
                duration_s=duration,
                outputs=[output.path for output in outputs if output.path is not None and str(output.path) != "-"],
            )
        summary = capture.stop()
    # Standard output may carry the packets.
    if as_json or not quiet:
        json_to = sys.stderr if any(str(output.path) == "-" for output in outputs) else sys.stdout
        _show(summary, as_json, json_to, rotates=rotate_size is not None or rotate_time is not None)
    if summary.failure:
        say("capture", summary.failure)
        return 1
    return 0


def _outputs(filters: list[str], files: list[str], **settings: Any) -> list[Output]:
    """Pair filters and files in their order; without filters every file gets all packets."""
    if filters and len(filters) != len(files):
        raise UsageError(
            f"{len(filters)} --filter and {len(files)} --write: give one --filter for each --write; "
            "--filter '' selects all packets"
        )
    pairs = zip(files, filters or [""] * len(files), strict=True)
    return [Output(file, expression, **settings) for file, expression in pairs]


def _progress(status: dict[str, Any], rate_pps: float) -> str:
    return (
        f"{status['packets']:,} packets  {rate_pps:,.0f}/s  "
        f"{status['lost']:,} lost  {status['wire_bytes'] / 1e6:.1f} MB"
    )


def _show(summary: Summary, as_json: bool, json_to: Any, *, rotates: bool) -> None:
    if as_json:
        print(json.dumps(asdict(summary)), file=json_to)
    else:
        show(*capture_ledger_lines(summary.ledger, rotates=rotates), file=sys.stderr)


def _list(as_json: bool) -> int:
    found = rings()
    if as_json:
        print(json.dumps(found))
        return 0
    if not found:
        show("no rings are running", file=sys.stderr)
    for ring in found:
        if "unreadable" in ring:
            show(ring["unreadable"])
            continue
        readers = f"group {ring['group']}" if ring["group"] else "root only"
        size = f"{ring['ring_bytes'] >> 20} MiB for each of {ring['lanes']} CPUs"
        # Interfaces of several namespaces have one name.
        netns = namespaces.other_of(ring["keeper_pid"])
        where = f" in netns {netns}" if netns else ""
        show(f"{ring['name']}: {', '.join(ring['hooks'])}{where}; {ring['policy']} reader, {size}; {readers}")
        for subscriber in ring["subscribers"]:
            expression = short_filter(subscriber["filter"])
            show(
                f"  process {subscriber['pid']}: {expression}, up to {subscriber['snaplen']} bytes; "
                f"{subscriber['matched']:,} of {many(subscriber['seen'], 'packet')} matched, "
                f"{subscriber['dropped']:,} found no room"
            )
    return 0
