"""``parshall tcp``: parse the options, make the log, show how it goes, give the account."""

import contextlib
import json
import shlex
import signal
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from parshall.cli.ledger_text import ledger_lines
from parshall.command import GRACE_S, Command
from parshall.errors import UsageError
from parshall.quantities import parse_seconds
from parshall.stopping import Stopping
from parshall.tcp import DEFAULT_RING_BYTES, RING_BYTES_MAX, Summary, TcpLog

COMMAND_SETTINGS = {
    "context_settings": {"allow_interspersed_args": False},
    "epilog": "With CMD, only the sockets of CMD and its children are logged, and its exit status is ours.",
}
_LOOK_INTERVAL_S = 0.05
_PROGRESS_INTERVAL_S = 0.5


def command(
    cmd: Annotated[list[str] | None, typer.Argument(metavar="[-- CMD...]", help="Run CMD, log it.")] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="The log; - is standard output.")
    ] = None,
    ppl: Annotated[int, typer.Option(metavar="N", help="Log every N-th packet of each flow.")] = 1,
    on_change: Annotated[bool, typer.Option("--on-change", help="Log when a flow's cwnd or ssthresh changed.")] = False,
    port: Annotated[
        list[int] | None, typer.Option(metavar="P", help="Only flows with this port; may be repeated.")
    ] = None,
    host: Annotated[
        list[str] | None, typer.Option(metavar="A", help="Only flows with this host; may be repeated.")
    ] = None,
    direction: Annotated[str, typer.Option(metavar="in|out|both", help="Which packets.")] = "both",
    cgroup: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Only sockets below this cgroup (version 2).")
    ] = None,
    duration: Annotated[str | None, typer.Option(metavar="TIME", help="Stop after 90, 90s, 10m, 1h.")] = None,
    ring_mib: Annotated[
        int, typer.Option(metavar="MIB", help="Ring between kernel and reader, for each CPU.")
    ] = DEFAULT_RING_BYTES >> 20,
    policy: Annotated[
        str,
        typer.Option(
            metavar="fast|slow",
            help="When the reader lags: overwrite and count (fast), or drop in the kernel and count (slow).",
        ),
    ] = "fast",
    as_json: Annotated[bool, typer.Option("--json", help="Give the account as JSON.")] = False,
) -> int:
    """Log the state of TCP connections at every packet, in and out, with what the logging lost and cost."""
    duration_s = None if duration is None else parse_seconds("--duration", duration)
    if policy not in ("fast", "slow"):
        raise UsageError(f"--policy {policy}: expected fast or slow")
    if ring_mib.bit_count() != 1 or not 1 <= ring_mib <= RING_BYTES_MAX >> 20:
        raise UsageError(f"--ring-mib {ring_mib}: expected a power of two from 1 to {RING_BYTES_MAX >> 20}")
    if cmd and cgroup:
        raise UsageError(f"--cgroup {cgroup}: CMD runs in a cgroup of its own; give one or the other")
    if cmd and str(output) == "-":
        raise UsageError("-o -: CMD writes to standard output, too; name a file, or a pipe that is not it")
    if str(output) == "-" and sys.stdout.isatty():
        raise UsageError("-o -: standard output is a terminal; send it to a file or a pipe")
    path = output or Path(f"tcp-{datetime.now():%Y%m%d-%H%M%S}.arrow")
    with contextlib.ExitStack() as stack:
        child = stack.enter_context(Command(cmd)) if cmd else None
        stopping = stack.enter_context(Stopping(leave_interrupts_to=child))
        log = TcpLog(
            path,
            packets_per_log=ppl,
            on_change=on_change,
            ports=port or (),
            hosts=host or (),
            direction=direction,
            cgroup=child.cgroup if child else cgroup,
            ring_bytes=ring_mib << 20,
            slow_reader=policy == "slow",
            environment_extra={"command": shlex.join(cmd)} if cmd else None,
        )
        with log:
            if child:
                child.start()
            reason = _watch(log, child, stopping, duration_s)
            if reason is not None:
                # Time is over, or nothing can be logged any more: the log does not wait for the command.
                log.stop()
            status = _end(child, reason) if child else 0
        summary = log.stop()
    _show(path, summary, as_json)
    if summary.failure:
        print(f"parshall: tcp: {summary.failure}", file=sys.stderr)
        return status or 1
    return status


def _end(child: Command, reason: str | None) -> int:
    """End a command that still runs, and return its status; who asks us to end, and not it, waits for it."""
    if child.has_ended():
        return child.wait()
    child.request_end()
    if reason is None:
        return child.wait()
    status = child.wait(GRACE_S)
    how = f"; SIGTERM did not end it within {GRACE_S:g} s, SIGKILL did" if status == 128 + signal.SIGKILL else ""
    print(f"parshall: tcp: CMD was ended {reason}{how}", file=sys.stderr)
    return status


def _watch(log: TcpLog, child: Command | None, stopping: Stopping, duration_s: float | None) -> str | None:
    """Return when the log should end: asked to or CMD done; or, told by the text, time over or the log failed."""
    reason = None
    started = time.monotonic()
    shows_progress = sys.stderr.isatty()
    next_progress_s = 0.0
    while not stopping.wait(_LOOK_INTERVAL_S):
        elapsed_s = time.monotonic() - started
        status = log.status()
        if shows_progress and elapsed_s >= next_progress_s:
            next_progress_s = elapsed_s + _PROGRESS_INTERVAL_S
            line = (
                f"\r{elapsed_s:7.1f} s  {status['records']:,} records  {status['flows']:,} flows  "
                f"{status['overwritten']:,} lost  {status['log_bytes'] / 1e6:.1f} MB"
            )
            print(line, end="\033[K", file=sys.stderr, flush=True)
        if child and child.has_ended():
            break
        if status["has_ended"]:
            reason = "because the log had ended"
            break
        if duration_s is not None and elapsed_s >= duration_s:
            reason = f"after {duration_s:g} s"
            break
    if shows_progress:
        print(file=sys.stderr)
    return reason


def _show(path: Path, summary: Summary, as_json: bool) -> None:
    if as_json:
        account = {
            "log": str(path),
            "flows": summary.flows,
            "ledger": summary.ledger,
            "failure": summary.failure,
        }
        # Standard output may be the log itself.
        print(json.dumps(account), file=sys.stderr if str(path) == "-" else sys.stdout)
        return
    print(f"{path}: {summary.flows:,} flows", file=sys.stderr)
    for line in ledger_lines(summary.ledger):
        print(line, file=sys.stderr)
