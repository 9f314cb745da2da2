"""``parshall path``: parse the options, measure, show the times of the stages, print the ledger."""

import contextlib
import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from parshall.cli import options
from parshall.cli.options import budget_option, count_option, log_file, ring_bytes, share_option
from parshall.cli.path_beside import Beside
from parshall.cli.publishing import published
from parshall.cli.watch import watch
from parshall.errors import UsageError
from parshall.host.ledger_text import ledger_lines
from parshall.host.messages import progress_line, report_start, say, show
from parshall.host.quantities import many
from parshall.host.session import Session
from parshall.host.stopping import Stopping
from parshall.instruments.path import PathProfile, PathSummary
from parshall.instruments.path.histograms import as_object
from parshall.instruments.path.profile import DEFAULT_PACKETS_MAX, DEFAULT_RING_BYTES, WINDOW_S
from parshall.instruments.path.stages import STAGES, is_receiver_unknown
from parshall.instruments.path.text import NO_COST, PROBE_COST_S, stage_lines, summary_lines, windows_text

_TIME_ONLY = "cycles, instructions: not measured (time only)"
# With fewer windows the share that was attached is far from the one that was requested.
_GROUPS_MAX = 256
_WINDOWS_MIN = 10
_JOIN_OPTIONS = ("files", "join", "to", "output", "quiet", "as_json")


def command(
    context: typer.Context,
    files: Annotated[list[Path] | None, typer.Argument(metavar="[FILE]...", help="With --join: further files")] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Log of packets; without it, histograms only")
    ] = None,
    join: Annotated[
        list[Path] | None,
        typer.Option("--join", metavar="FILE", help="Join path log, TCP log, capture (repeatable)"),
    ] = None,
    to: Annotated[
        str | None, typer.Option("--to", metavar="perfetto", help="With --join: a trace for Perfetto (with -o)")
    ] = None,
    stages: Annotated[
        str | None, typer.Option("--stages", metavar="NAME,...", help="Stages to measure (--list-stages)")
    ] = None,
    reads: Annotated[bool, typer.Option("--reads", help="Follow the readers of sockets, too")] = False,
    noise: Annotated[bool, typer.Option("--noise", help="Measure interrupts and softirqs, too")] = False,
    filter: Annotated[
        str | None, typer.Option("--filter", metavar="EXPR", help="Capture filter (pcap-filter(7) syntax)")
    ] = None,
    every: Annotated[int, count_option("--every", help="Follow one of N packets, at a random place")] = 1,
    interface: Annotated[
        list[str] | None,
        typer.Option("-i", "--interface", metavar="IF", help="Only packets that begin here (repeatable)"),
    ] = None,
    netns: options.Netns = None,
    cgroup: options.Cgroup = None,
    unit: options.Unit = None,
    container: options.Container = None,
    by: Annotated[
        str,
        typer.Option("--by", metavar="interface|connection|cgroup|command", help="Histograms for each of these, too"),
    ] = "none",
    groups_max: Annotated[
        int | None, count_option("--groups-max", help="With --by, groups with their own histograms [default: 256]")
    ] = None,
    packets_max: Annotated[
        int, count_option("--packets-max", help="Packets followed at once, a power of two")
    ] = DEFAULT_PACKETS_MAX,
    share: Annotated[float, share_option("--share", help="Attach the programs this share of the time")] = 1.0,
    budget: Annotated[
        float | None,
        budget_option(help="Attach them as long as it costs less than this: 1%"),
    ] = None,
    probe_cost: Annotated[bool, typer.Option("--probe-cost", help="Measure what the probes cost the packets")] = False,
    tcp_log: Annotated[
        Path | None, typer.Option("--tcp-log", metavar="FILE", help="Log TCP, too, and join it (with -o)")
    ] = None,
    capture: Annotated[
        Path | None, typer.Option("--capture", metavar="FILE", help="Capture at -i, too, and join it (with -o)")
    ] = None,
    duration: options.Duration = None,
    buffer: Annotated[int, options.buffer_option(DEFAULT_RING_BYTES)] = DEFAULT_RING_BYTES,
    seed: options.Seed = 1,
    metrics: options.MetricsAddress = None,
    otlp: options.Otlp = None,
    list_stages: Annotated[bool, typer.Option("--list-stages", help="List the stages and exit")] = False,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> int:
    """Measure where packets spend their time in the kernel, and where they are dropped."""
    if list_stages:
        width = max(map(len, STAGES))
        show(*(f"{name:{width}}  {where}" for name, where in STAGES.items()))
        return 0
    if join or files:
        from parshall.cli import path_join

        _check_join(context, join or [], files or [])
        return path_join.run([*(join or ()), *(files or ())], output, to, quiet=quiet, as_json=as_json)
    if to is not None:
        raise UsageError(f"--to {to}: is for files that were measured; name them with --join")
    if str(output) == "-" and sys.stdout.isatty():
        raise UsageError("-o -: standard output is a terminal; send it to a file or a pipe")
    log_file(output)
    if groups_max is not None and by == "none":
        raise UsageError(f"--groups-max {groups_max}: is for --by; without it there is one group")
    if probe_cost and (metrics or otlp):
        raise UsageError("--probe-cost: measures in turns, and its counts fall; leave out --metrics and --otlp")
    beside = Beside(output, tcp_log, capture, interface or [], netns, filter)
    with contextlib.ExitStack() as stack:
        shown = stack.enter_context(published("path", metrics, otlp, quiet=quiet))
        stopping = stack.enter_context(Stopping())
        sessions: list[Session[Any]] = []

        def gives_up() -> bool:
            # Once one file is there, the others join it: a request to stop ends all of them when they have started.
            return stopping.is_requested() and not sessions

        def start_others() -> None:
            # They replace files, which a wrong option of ours must not cost.
            for session in beside.sessions(gives_up):
                sessions.append(stack.enter_context(session))

        profile = PathProfile(
            output,
            stages=None if stages is None else [name.strip() for name in stages.split(",")],
            reads=reads,
            noise=noise,
            filter=filter,
            every=every,
            interface=interface or (),
            netns=netns,
            cgroup=cgroup,
            unit=unit,
            container=container,
            by=by,
            groups_max=groups_max or _GROUPS_MAX,
            packets_max=packets_max,
            buffer_bytes=ring_bytes(buffer),
            share=share,
            budget=budget,
            seed=seed,
            probe_cost=probe_cost,
            is_stopping=gives_up,
            before=start_others,
        )
        if shown:
            shown.account = profile.account
        with contextlib.ExitStack() as attached:
            # The kernel checks some twenty programs, which takes seconds.
            with progress_line("path", "attaching the programs", quiet=quiet):
                attached.enter_context(profile)
            if (cgroup or unit or container or by == "cgroup") and is_receiver_unknown(profile.options["stages"]):
                say("path", "what comes in has no control group without the stage socket_in: add it to --stages")
            if probe_cost and duration is not None and duration < PROBE_COST_S and not quiet:
                say(
                    "path",
                    f"--probe-cost: needs about {PROBE_COST_S} s of steady traffic; in {duration:g} s it may not know",
                )
            between_s = WINDOW_S / share
            if duration is not None and share < 1 and duration < _WINDOWS_MIN * between_s and not quiet:
                given = f"--share {share * 100:g}%: {windows_text(share)}"
                say("path", f"{given}; in {duration:g} s the share may be 0 or much larger")
            report_start("path", many(len(profile.options["stages"]), "stage"), quiet=quiet)
            watch("path", profile, stopping, _progress, quiet=quiet, duration_s=duration)
        summary = profile.stop()
        others = [session.stop() for session in sessions]
        failures = [each.failure for each in others]
    for one in summary.unavailable:
        if not quiet:
            say("path", f"stage {one['stage']}: not measured, {one['reason']}")
    if probe_cost and not summary.probe_cost and not quiet:
        say("path", NO_COST)
    if as_json or not quiet:
        joined = beside.connections() if sessions else None
        _show(output, summary, profile.environment, by, as_json, joined)
        if sessions and not as_json:
            from parshall.cli.path_join import account_line

            show(*map(account_line, beside.names, (each.ledger for each in others)), file=sys.stderr)
    failed = [failure for failure in (summary.failure, *failures) if failure]
    for failure in failed:
        say("path", failure)
    return 1 if failed else 0


def _check_join(context: typer.Context, join: list[Path], files: list[Path]) -> None:
    """Raise `UsageError` for options that measure, which files have no use for."""
    if not join:
        raise UsageError(f"{files[0]}: an argument; to join files, give --join")
    for name in context.params:
        source = context.get_parameter_source(name)
        if name not in _JOIN_OPTIONS and source is not None and source.name == "COMMANDLINE":
            option = name.replace("_", "-").removeprefix("as-")
            raise UsageError(f"--{option}: does not go with --join, which measures nothing; leave it out")


def _progress(status: dict[str, Any], elapsed_s: float) -> str:
    whole = [row for row in status["stages"] if row["stage"] == "whole"]
    paths = "  ".join(
        f"{row['path']} {row['packets']:,} p99 {row['p99_ns'] / 1000:.1f} us" for row in whole if row["p99_ns"]
    )
    return f"{status['packets']:,} packets  {status['lost']:,} lost  {paths}"


def _show(
    output: Path | None,
    summary: PathSummary,
    environment: dict[str, Any],
    by: str,
    as_json: bool,
    joined: list[dict[str, Any]] | None,
) -> None:
    if as_json:
        stream = sys.stderr if str(output) == "-" else sys.stdout
        connections = {} if joined is None else {"connections": joined}
        log = {"log": None if output is None else str(output)}
        print(json.dumps(as_object(summary, environment) | log | connections), file=stream)
        return
    lines = [*stage_lines(summary, with_groups=by != "none"), *summary_lines(summary), _TIME_ONLY]
    lines += ledger_lines(summary.ledger)
    show(*lines, file=sys.stderr)
    if joined:
        from parshall.cli import path_join

        show(*path_join.lines_of(joined), file=sys.stderr)
