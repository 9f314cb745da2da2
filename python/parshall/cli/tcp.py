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

from parshall.cli import options
from parshall.cli.ledger_text import ledger_lines
from parshall.cli.messages import report_start, say, shows_progress
from parshall.cli.options import count_option
from parshall.command import GRACE_S, Command
from parshall.errors import UsageError
from parshall.stopping import Stopping
from parshall.tcp import DEFAULT_RING_BYTES, Summary, TcpLog

COMMAND_SETTINGS = {
    "context_settings": {"allow_interspersed_args": False},
    "epilog": "With CMD, only the sockets of CMD and its children are logged; the exit status is that of CMD.",
}
_LOOK_INTERVAL_S = 0.05
_PROGRESS_INTERVAL_S = 0.5


def command(
    cmd: Annotated[list[str] | None, typer.Argument(metavar="[-- CMD...]", help="Run CMD and log its sockets")] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Log file; - is standard output")
    ] = None,
    ppl: Annotated[int, count_option("--ppl", help="Log every N-th packet of each flow")] = 1,
    on_change: Annotated[
        bool, typer.Option("--on-change", help="Log a packet when cwnd or ssthresh of its flow changed")
    ] = False,
    port: Annotated[
        list[int] | None, typer.Option("--port", metavar="P", help="Only flows with this port (repeatable)")
    ] = None,
    host: Annotated[
        list[str] | None, typer.Option("--host", metavar="A", help="Only flows with this host (repeatable)")
    ] = None,
    direction: Annotated[str, typer.Option("--direction", metavar="in|out|both", help="Packets to log")] = "both",
    cgroup: Annotated[
        Path | None, typer.Option("--cgroup", metavar="PATH", help="Only sockets below this cgroup (version 2)")
    ] = None,
    netns: options.Netns = None,
    pid: Annotated[
        list[int] | None, typer.Option("--pid", metavar="PID", help="Only sockets of this process (repeatable)")
    ] = None,
    duration: options.Duration = None,
    buffer: Annotated[int, options.buffer_option(DEFAULT_RING_BYTES)] = DEFAULT_RING_BYTES,
    policy: options.Policy = "fast",
    compression: Annotated[
        str, typer.Option("--compression", metavar="auto|lz4|zstd|none", help="Compression of the log")
    ] = "auto",
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> int:
    """Log the state of TCP connections at every packet, with what the logging lost and cost."""
    if cmd and cgroup:
        raise UsageError(f"--cgroup {cgroup}: CMD runs in a cgroup of its own; give one or the other")
    if cmd and pid:
        raise UsageError(f"--pid {pid[0]}: with CMD, its sockets are logged; give one or the other")
    if cmd and str(output) == "-":
        raise UsageError("-o -: CMD writes to standard output, too; name a file, or a pipe that is not it")
    if str(output) == "-" and sys.stdout.isatty():
        raise UsageError("-o -: standard output is a terminal; send it to a file or a pipe")
    path = output or Path(f"tcp-{datetime.now():%Y%m%d-%H%M%S}.arrow")
    with contextlib.ExitStack() as stack:
        child = stack.enter_context(Command(cmd)) if cmd else None
        stopping = stack.enter_context(Stopping())
        log = TcpLog(
            path,
            ppl=ppl,
            on_change=on_change,
            port=port or (),
            host=host or (),
            direction=direction,
            cgroup=child.cgroup if child else cgroup,
            netns=netns,
            pid=pid or (),
            buffer_bytes=buffer,
            policy=policy,
            compression=compression,
            environment_extra={"command": shlex.join(cmd)} if cmd else None,
            is_stopping=stopping.is_asked,
        )
        with log:
            report_start("tcp", f"logging to {'standard output' if str(path) == '-' else path}", quiet=quiet)
            if child:
                stopping.leave_interrupts()
                child.start()
            reason = _watch(log, child, stopping, duration, has_progress=shows_progress(quiet=quiet))
            if reason is not None:
                # Time is over, or nothing can be logged any more: the log does not wait for the command.
                log.stop()
            status = _end(child, reason) if child else 0
        summary = log.stop()
    if as_json or not quiet:
        _show(path, summary, as_json)
    if summary.failure:
        say("tcp", summary.failure)
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
    say("tcp", f"CMD was ended {reason}{how}")
    return status


def _watch(
    log: TcpLog, child: Command | None, stopping: Stopping, duration_s: float | None, *, has_progress: bool
) -> str | None:
    """Return when the log should end: asked to or CMD done; or, told by the text, time over or the log failed."""
    reason = None
    started = time.monotonic()
    next_progress_s = 0.0
    while not stopping.wait(_LOOK_INTERVAL_S):
        elapsed_s = time.monotonic() - started
        status = log.status()
        if has_progress and elapsed_s >= next_progress_s:
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
    if has_progress:
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
