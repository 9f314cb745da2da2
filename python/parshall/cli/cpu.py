"""``parshall cpu``: parse the options, sample the CPU time, print the summary."""

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from parshall.cli import options
from parshall.cli.options import Accepted, percent_option, time_option
from parshall.errors import CommandError, UsageError
from parshall.host import privileges
from parshall.host.command import exit_status
from parshall.host.installation import require_kernel_side
from parshall.host.messages import report_start, say, show
from parshall.host.stopping import Stopping
from parshall.host.whole_file import new_file
from parshall.instruments import cpu

if TYPE_CHECKING:
    from parshall._native import HookTimes

COMMAND_SETTINGS = {
    "context_settings": {"allow_interspersed_args": False},
    "epilog": "`parshall cpu trim FILE` computes the summary of a saved output. "
    "With CMD, the profile ends when CMD ends; the exit status is that of CMD.",
}
_CANNOT_RUN = 127
_INTERVALS = Accepted("a time from 10ms to 1h", lambda time_s: 0.01 <= time_s <= 3600)


def command(
    cmd: Annotated[
        list[str] | None, typer.Argument(metavar="[trim FILE | -- CMD...]", help="File to summarise, or CMD to run")
    ] = None,
    interval: Annotated[
        float, time_option("--interval", help="Time between two samples: 0.5, 500ms", accepted=_INTERVALS)
    ] = 0.5,
    limit: Annotated[float, percent_option("-l", "--limit", help="Summarise while idle is below this")] = 95.0,
    all_lines: Annotated[bool, typer.Option("-a", "--all", help="Summarise the whole time")] = False,
    duration: options.Duration = None,
    per_cpu: Annotated[bool, typer.Option("--per-cpu", help="Print each CPU, too, not only their sum")] = False,
    hooks: Annotated[
        bool, typer.Option("--hooks", help="Print the time of eBPF programs; costs some ns per run")
    ] = False,
    machine: Annotated[bool, typer.Option("--machine", help="Print numbers between colons, as cpusage -o")] = False,
    output: options.OutputFile = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> int:
    """Measure how the CPUs spend their time, and the average while they were busy."""
    if not 0 < limit <= 100:
        raise UsageError(f"--limit {limit}: expected percent above 0 and up to 100")
    # Above 100, so that intervals with exactly 100 % idle are included.
    limit = 101.0 if all_lines or limit == 100 else limit
    separator = "--" in sys.argv
    if cmd and cmd[0] == "trim" and not separator:
        if len(cmd) != 2 or cmd[1].startswith("-"):
            raise UsageError(
                "trim: expected one FILE, the output of parshall cpu or cpusage; options stand before trim: "
                "parshall cpu --json trim FILE"
            )
        return _trim(Path(cmd[1]), limit, as_json)
    with _opened(output) as (out, commit):
        return _profile(out, commit, cmd, interval, limit, duration, per_cpu, hooks, machine, quiet, as_json)


@contextlib.contextmanager
def _opened(path: Path | None) -> Iterator[tuple[IO[Any], Callable[[], None]]]:
    """Yield the output file and the function that moves it into place; standard output stays open."""
    if path is None or str(path) == "-":
        yield sys.stdout, lambda: None
        return
    with new_file(path) as opened:
        yield opened


def _trim(path: Path, limit: float, as_json: bool) -> int:
    lines, usages = cpu.read_profile(path)
    stretch = cpu.summarise(usages, limit)
    if as_json:
        print(json.dumps({"lines": len(lines), "summary": _summary(stretch, len(usages[0]))}))
        return 0
    show(*lines, *cpu.summary_lines(usages, limit))
    if not stretch:
        say("cpu", f"{path}: idle was never below {limit:g} %, so there is no average; raise --limit")
    return 0


def _profile(
    out: IO[Any],
    commit: Callable[[], None],
    cmd: list[str] | None,
    interval_s: float,
    limit: float,
    duration_s: float | None,
    per_cpu: bool,
    hooks: bool,
    machine: bool,
    quiet: bool,
    as_json: bool,
) -> int:
    # Text is written at once, so that a profile of days needs no memory for it.
    profile, stretch = cpu.Profile(is_kept=as_json), cpu.LongestStretch(limit)
    hook_profile, hook_times = cpu.HookProfile(), _hook_times() if hooks else None
    profile.add(cpu.read_ticks())
    if hook_times:
        hook_profile.add(hook_times.read())
    child = _start(cmd) if cmd else None
    report_start("cpu", f"one sample every {interval_s:g} s", quiet=quiet)
    began = due = looked_s = time.monotonic()
    with Stopping() as stopping:
        if child is not None:
            stopping.ignore_interrupts()
        stops = False
        while not stops:
            due += interval_s
            stops = _wait(stopping, child, due, None if duration_s is None else began + duration_s)
            line, now_s = profile.add(cpu.read_ticks()), time.monotonic()
            if hook_times:
                hook_profile.add(hook_times.read())
            if line is not None:
                stretch.add(line, now_s - looked_s)
                looked_s = now_s
            if line is not None and not as_json:
                _print_line(out, profile, line, per_cpu, machine)
                # Not before: a profile that is killed at its start would leave an empty file.
                commit()
    hook_list = hook_profile.times(time.monotonic() - began)
    status = 0 if child is None else exit_status(child.wait())
    if as_json:
        report: dict[str, object] = {
            "interval_s": interval_s,
            "limit_percent": min(limit, 100.0),
            "states": cpu.STATES,
            "all": profile.lines,
            "cpus": profile.per_cpu,
            "summary": _summary(stretch.summary, len(cpu.STATES)),
        }
        if hooks:
            report["hooks"] = [asdict(hook) for hook in hook_list]
        print(json.dumps(report), file=out)
    else:
        _print_summary(out, stretch.summary, machine, limit, is_empty=not profile.lines)
        for hook in hook_list:
            show(cpu.hook_line(hook), file=out)
        if hooks and not hook_list:
            show("hooks: no eBPF program ran", file=out)
    out.flush()
    commit()
    return status


def _hook_times() -> "HookTimes":
    require_kernel_side()
    # Of the capability that was split, the kernel asks for the whole here.
    privileges.require("cpu", "CAP_SYS_ADMIN")
    privileges.require_type_information()
    from parshall import _native

    return _native.HookTimes()


def _start(cmd: list[str]) -> "subprocess.Popen[bytes]":
    try:
        return subprocess.Popen(cmd)
    except OSError as error:
        raise CommandError(
            f"{cmd[0]}: cannot be run: {error.strerror}; check the name and PATH", _CANNOT_RUN
        ) from error


def _wait(stopping: Stopping, child: "subprocess.Popen[bytes] | None", due_s: float, end_s: float | None) -> bool:
    """Wait until the next sample is due; return true when it is the last one."""
    while True:
        now = time.monotonic()
        if (end_s is not None and now >= end_s) or (child is not None and child.poll() is not None):
            return True
        left = due_s - now
        if left <= 0:
            return False
        step = min(left, 0.05 if child is not None else left, left if end_s is None else max(0.0, end_s - now))
        if stopping.wait(step):
            return True


def _print_line(out: IO[Any], profile: cpu.Profile, line: cpu.Usage, per_cpu: bool, machine: bool) -> None:
    render = cpu.machine_line if machine else cpu.text_line
    show(render(line), file=out)
    if per_cpu:
        for name in sorted(profile.per_cpu, key=lambda cpu: int(cpu[3:])):
            latest = profile.per_cpu[name][-1]
            if latest is not None:
                show(f"{name} {render(latest)}", file=out)


def _print_summary(
    out: IO[Any], summary: cpu.Summary | None, machine: bool, limit: float, *, is_empty: bool = False
) -> None:
    show("---Summary---", file=out)
    if summary is None:
        # A summary without a line needs its reason, under -q, too.
        if is_empty:
            say("cpu", "nothing was measured: the kernel counted no time of the CPUs meanwhile; measure for longer")
        else:
            say("cpu", f"idle was never below {limit:g} %; see --limit and --all")
        return
    for name, usage in (("Min", summary.minimum), ("Max", summary.maximum), ("Avg", summary.average)):
        show(f"{name}:{cpu.machine_line(usage)}" if machine else f"{name}: {cpu.text_line(usage)}", file=out)


def _summary(summary: cpu.Summary | None, states: int) -> dict[str, object] | None:
    if summary is None:
        return None
    # FreeBSD's cpusage has five states, the last of which is interrupts.
    names = ("user", "nice", "system", "idle", "interrupt") if states == 5 else cpu.STATES[:states]

    usages = {"min": summary.minimum, "max": summary.maximum, "avg": summary.average}
    named = {name: dict(zip(names, usage, strict=True)) for name, usage in usages.items()}
    return {"first_interval": summary.first, "intervals": summary.intervals, **named}
