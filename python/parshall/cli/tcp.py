"""``parshall tcp``: parse the options, write the log, show progress, print the ledger."""

import contextlib
import json
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from parshall.cli import options
from parshall.cli.confinement import without_threads_of_allocators
from parshall.cli.listener_text import listener_lines
from parshall.cli.options import budget_option, count_option, log_file, ring_bytes
from parshall.cli.publishing import published
from parshall.cli.watch import End, watch
from parshall.errors import UsageError
from parshall.host.command import GRACE_S, Command
from parshall.host.ledger_text import budget_text, ledger_lines
from parshall.host.messages import progress_line, report_start, say, show
from parshall.host.quantities import bytes_text, many
from parshall.host.rotation import Rotation
from parshall.host.stopping import Stopping
from parshall.instruments.tcp import DEFAULT_RING_BYTES, LogSummary, TcpLog

if TYPE_CHECKING:
    from parshall.fleet.shipping import Shipper

COMMAND_SETTINGS = {
    "context_settings": {"allow_interspersed_args": False},
    "epilog": "With CMD, only the sockets of CMD and its children are logged; the exit status is that of CMD.",
}
# What a log of a quiet host takes (docs/measurements/budget.md).
_LEAST_BUDGET = 0.0025
# Why CMD was ended early.
_REASONS = {End.ENDED: "because the log had ended", End.TIME_OVER: "after {:g} s"}


def command(
    cmd: Annotated[list[str] | None, typer.Argument(metavar="[-- CMD...]", help="Run CMD and log its sockets")] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Log file; - is standard output")
    ] = None,
    ppl: Annotated[int, count_option("--ppl", help="Log every N-th packet of each flow")] = 1,
    budget: Annotated[
        float | None,
        budget_option(help="Thin out so that it costs less than this of one CPU: 1%"),
    ] = None,
    on_change: Annotated[
        bool, typer.Option("--on-change", help="Log a packet when cwnd or ssthresh of its flow changed")
    ] = False,
    port: options.Ports = None,
    host: options.Hosts = None,
    direction: Annotated[str, typer.Option("--direction", metavar="in|out|both", help="Packets to log")] = "both",
    cgroup: options.Cgroup = None,
    unit: options.Unit = None,
    container: options.Container = None,
    netns: options.Netns = None,
    pid: options.Pids = None,
    duration: options.Duration = None,
    buffer: Annotated[int, options.buffer_option(DEFAULT_RING_BYTES)] = DEFAULT_RING_BYTES,
    policy: options.Policy = "fast",
    compression: Annotated[
        str, typer.Option("--compression", metavar="auto|lz4|zstd|none", help="Compression of the log")
    ] = "auto",
    rotate_size: options.RotateSize = None,
    rotate_time: options.RotateTime = None,
    rotate_files: options.RotateFiles = None,
    keep: options.Keep = None,
    ship: options.Ship = None,
    ship_as: options.ShipAs = None,
    metrics: options.MetricsAddress = None,
    otlp: options.Otlp = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> int:
    """Log the state of TCP connections at every packet, with what the logging lost and cost."""
    named = [(name, each) for name, each in (("cgroup", cgroup), ("unit", unit), ("container", container)) if each]
    if cmd and named:
        raise UsageError(f"--{named[0][0]} {named[0][1]}: CMD runs in a cgroup of its own; give one or the other")
    if cmd and pid:
        raise UsageError(f"--pid {pid[0]}: with CMD, its sockets are logged; give one or the other")
    if cmd and str(output) == "-":
        raise UsageError("-o -: CMD writes to standard output, too; name a file, or a pipe that is not it")
    if str(output) == "-" and sys.stdout.isatty():
        raise UsageError("-o -: standard output is a terminal; send it to a file or a pipe")
    path = log_file(output) or Path(f"tcp-{datetime.now():%Y%m%d-%H%M%S}.arrow")
    rotation = Rotation(rotate_size, rotate_time, rotate_files, keep)
    if ship_as is not None and ship is None:
        raise UsageError(f"--ship-as {ship_as}: is the name of this host for --ship; give that, too")
    with contextlib.ExitStack() as stack:
        # A port that is taken is a mistake before anything is logged.
        shown = stack.enter_context(published("tcp", metrics, otlp, quiet=quiet))
        shipper = None if ship is None else _shipper(path, ship, ship_as, rotation, quiet)
        child = stack.enter_context(Command(cmd)) if cmd else None
        stopping = stack.enter_context(Stopping())
        log = TcpLog(
            path,
            ppl=ppl,
            budget=budget,
            on_change=on_change,
            port=port or (),
            host=host or (),
            direction=direction,
            cgroup=child.cgroup if child else cgroup,
            unit=unit,
            container=container,
            netns=netns,
            pid=pid or (),
            buffer_bytes=ring_bytes(buffer),
            policy=policy,
            compression=compression,
            # The shipper removes what it has sent.
            rotation=rotation.shipped if shipper else rotation,
            environment_extra={"command": shlex.join(cmd)} if cmd else None,
            is_stopping=stopping.is_requested,
        )
        if shown:
            shown.account = _accounts(log, shipper)
        if budget is not None and budget < _LEAST_BUDGET and not quiet:
            say("tcp", f"--budget {budget:.3g}: a log of a quiet host alone takes some {_LEAST_BUDGET:.2%} of a CPU")
        with log:
            if shipper:
                stack.enter_context(shipper)
            report_start("tcp", f"logging to {'standard output' if str(path) == '-' else path}", quiet=quiet)
            if child:
                stopping.ignore_interrupts()
                child.start()
            has_child_ended = child.has_ended if child else None
            end = watch(
                "tcp",
                log,
                stopping,
                _progress,
                quiet=quiet,
                duration_s=duration,
                is_done=has_child_ended,
                # The control group is removed at the end.
                outputs=[
                    *([child.cgroup] if child else ()),
                    *([path] if rotation.is_on else ()),
                    *([shipper.store.directory / path.name] if shipper and shipper.store.is_local else ()),
                ],
            )
            if end in _REASONS:
                # Nothing more is logged, so the log does not wait for the command.
                log.stop()
            status = _end(child, end, duration) if child else 0
        summary = log.stop()
        if shipper:
            summary = replace(summary, shipping=_shipped(shipper, quiet))
    if as_json or not quiet:
        _show(path, summary, as_json)
    if summary.failure:
        say("tcp", summary.failure)
        return status or 1
    return status or (1 if summary.shipping and summary.shipping["files_waiting"] else 0)


def _shipper(path: Path, url: str, host: str | None, rotation: Rotation, quiet: bool) -> "Shipper":
    # It asks the store before there is a log, and so before privileges are given up.
    with without_threads_of_allocators():
        import pyarrow.fs  # noqa: F401

        from parshall.fleet.shipping import Shipper

    start_of_line = "\r\033[K" if sys.stderr.isatty() else ""
    # A host that does not answer takes seconds.
    with progress_line("tcp", "asking the store", quiet=quiet):
        return Shipper(path, url, rotation, ship_as=host, say=partial(say, "tcp", start_of_line=start_of_line))


def _accounts(log: TcpLog, shipper: "Shipper | None") -> Callable[[], dict[str, Any] | None]:
    """Return what gives the account of a log, with that of its shipper."""

    def account() -> dict[str, Any] | None:
        found = log.account()
        return found | {"shipping": shipper.account()} if found is not None and shipper is not None else found

    return account


def _shipped(shipper: "Shipper", quiet: bool) -> dict[str, Any]:
    """Wait until the last files were sent, and return the account."""
    with progress_line("tcp", f"shipping to {shipper.store.url}", quiet=quiet):
        return shipper.finish()


def shipping_lines(summary: LogSummary) -> Iterator[str]:
    """Yield what was sent to a store; nothing without one."""
    shipping = summary.shipping
    if shipping is None:
        return
    left = [
        f"{many(shipping[key], 'file')} {what}"
        for key, what in (("files_waiting", "kept here, not shipped"), ("files_refused", "kept here, without a head"))
        if shipping[key]
    ]
    failures = [many(shipping["failures"], "attempt") + " failed"] if shipping["failures"] else []
    yield "  " + "; ".join(
        [
            f"shipped: {many(shipping['files_shipped'], 'file')}, {bytes_text(shipping['bytes_shipped'])}, as "
            f"{shipping['host']} to {shipping['url']}, {shipping['cpu_s']:.2f} CPU s",
            *left,
            *failures,
        ]
    )


def _end(child: Command, end: End, duration_s: float | None) -> int:
    """End a command that still runs, and return its status; after a signal, wait for it without a limit."""
    if child.has_ended():
        return child.wait()
    child.request_end()
    if end not in _REASONS:
        return child.wait()
    status = child.wait(GRACE_S)
    how = f"; SIGTERM did not end it within {GRACE_S:g} s, SIGKILL did" if status == 128 + signal.SIGKILL else ""
    say("tcp", f"CMD was ended {_REASONS[end].format(duration_s)}{how}")
    return status


def budget_lines(summary: LogSummary) -> Iterator[str]:
    """Yield what a budget came to; nothing without one."""
    budget = summary.budget
    if budget is None:
        return
    wall_s = summary.ledger["cost"]["wall_s"]
    most = budget["packets_per_log_max"]
    thinned = "every packet" if most == 1 else f"every packet to one of {most:,} of a flow"
    yield f"  {budget_text(budget)}; {thinned}; packets observed for {budget['observed_s']:.1f} of {wall_s:.1f} s"


def _progress(status: dict[str, Any], elapsed_s: float) -> str:
    return (
        f"{status['records']:,} records  {status['flows']:,} flows  "
        f"{status['overwritten']:,} lost  {status['log_bytes'] / 1e6:.1f} MB"
    )


def _show(path: Path, summary: LogSummary, as_json: bool) -> None:
    if as_json:
        # Standard output may be the log itself.
        print(json.dumps({"log": str(path)} | asdict(summary)), file=sys.stderr if str(path) == "-" else sys.stdout)
        return
    title = f"{path}: {many(summary.flows, 'flow')}"
    extras = (*budget_lines(summary), *shipping_lines(summary))
    show(title, *listener_lines(summary), *ledger_lines(summary.ledger), *extras, file=sys.stderr)
