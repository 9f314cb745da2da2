"""``parshall cpu``: parse the options, look at the CPUs again and again, give the summary."""

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from parshall import privileges
from parshall.cpu import (
    STATES,
    HookProfile,
    Profile,
    Summary,
    Usage,
    hook_line,
    longest_stretch,
    machine_line,
    read_lines,
    read_ticks,
    summarise,
    summary_lines,
    text_line,
)
from parshall.errors import CommandError, UsageError
from parshall.quantities import parse_seconds
from parshall.stopping import Stopping

if TYPE_CHECKING:
    from parshall._native import HookTimes

COMMAND_SETTINGS = {
    "context_settings": {"allow_interspersed_args": False},
    "epilog": "`parshall cpu trim FILE` calculates the summary of an output anew. "
    "With CMD, the profile ends with it, and its exit status is ours.",
}
_CANNOT_RUN = 127


def command(
    cmd: Annotated[list[str] | None, typer.Argument(metavar="[trim FILE | -- CMD...]", help="See below.")] = None,
    interval: Annotated[float, typer.Option(metavar="S", help="Seconds between two looks.")] = 0.5,
    limit: Annotated[
        float, typer.Option("-l", "--limit", metavar="PERCENT", help="Summarise where idle is below it.")
    ] = 95.0,
    all_lines: Annotated[bool, typer.Option("-a", "--all", help="Summarise the whole time.")] = False,
    duration: Annotated[str | None, typer.Option(metavar="TIME", help="Stop after 90, 90s, 10m, 1h.")] = None,
    per_cpu: Annotated[bool, typer.Option("--per-cpu", help="Tell each CPU beside all together.")] = False,
    hooks: Annotated[
        bool, typer.Option("--hooks", help="Tell the time of the eBPF programs, too; it costs each run some ns.")
    ] = False,
    machine: Annotated[bool, typer.Option("--machine", help="Numbers between colons, as cpusage -o.")] = False,
    output: Annotated[Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write there.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Give everything as JSON at the end.")] = False,
) -> int:
    """Tell what the CPUs spend their time on, and the average while they were busy."""
    if not 0.01 <= interval <= 3600:
        raise UsageError(f"--interval {interval}: expected seconds from 0.01 to 3600")
    if not 0 < limit <= 100:
        raise UsageError(f"--limit {limit}: expected percent above 0 and up to 100")
    duration_s = None if duration is None else parse_seconds("--duration", duration)
    # Idle may be 100 % exactly, which counts when everything does.
    limit = 101.0 if all_lines or limit == 100 else limit
    separator = "--" in sys.argv
    if cmd and cmd[0] == "trim" and not separator:
        if len(cmd) != 2:
            raise UsageError("trim: expected one FILE, an output of parshall cpu or cpusage")
        return _trim(Path(cmd[1]), limit, as_json)
    with _opened(output) as out:
        return _profile(out, cmd, interval, limit, duration_s, per_cpu, hooks, machine, as_json)


@contextlib.contextmanager
def _opened(path: Path | None) -> Iterator[TextIO]:
    """Give the file, or the standard output, which stays open."""
    if path is None:
        yield sys.stdout
        return
    with path.open("w") as file:
        yield file


def _trim(path: Path, limit: float, as_json: bool) -> int:
    lines, usages = read_lines(path)
    stretch = longest_stretch(usages, limit)
    if as_json:
        print(json.dumps({"lines": len(lines), "summary": _summary(summarise(usages, stretch), len(usages[0]))}))
        return 0
    for line in lines:
        print(line)
    for line in summary_lines(usages, limit):
        print(line)
    if not stretch:
        print(f"parshall: cpu: {path}: idle was never below {limit:g} %, so there is no average", file=sys.stderr)
    return 0


def _profile(
    out: TextIO,
    cmd: list[str] | None,
    interval_s: float,
    limit: float,
    duration_s: float | None,
    per_cpu: bool,
    hooks: bool,
    machine: bool,
    as_json: bool,
) -> int:
    profile, hook_profile, hook_times = Profile(), HookProfile(), _hook_times() if hooks else None
    profile.look(read_ticks())
    if hook_times:
        hook_profile.look(hook_times.read())
    child = _start(cmd) if cmd else None
    began = due = time.monotonic()
    with Stopping(leave_interrupts_to=child) as stopping:
        stops = False
        while not stops:
            due += interval_s
            stops = _wait(stopping, child, due, None if duration_s is None else began + duration_s)
            line = profile.look(read_ticks())
            if hook_times:
                hook_profile.look(hook_times.read())
            if line is not None and not as_json:
                _print_line(out, profile, line, per_cpu, machine)
    hook_list = hook_profile.times(time.monotonic() - began)
    status = 0 if child is None else _status(child)
    stretch = longest_stretch(profile.lines, limit)
    if as_json:
        told = _as_json(profile, stretch, limit, interval_s)
        if hooks:
            told["hooks"] = [asdict(hook) for hook in hook_list]
        print(json.dumps(told), file=out)
    else:
        _print_summary(out, summarise(profile.lines, stretch), machine, limit)
        for hook in hook_list:
            print(hook_line(hook), file=out)
        if hooks and not hook_list:
            print("hooks: no eBPF program ran", file=out)
    return status


def _hook_times() -> "HookTimes":
    privileges.require_bpf("cpu")
    from parshall import _native

    return _native.HookTimes()


def _start(cmd: list[str]) -> "subprocess.Popen[bytes]":
    try:
        return subprocess.Popen(cmd)
    except OSError as error:
        raise CommandError(
            f"{cmd[0]}: cannot be run: {error.strerror}; check the name and PATH", _CANNOT_RUN
        ) from error


def _status(child: "subprocess.Popen[bytes]") -> int:
    status = child.wait()
    return 128 - status if status < 0 else status


def _wait(stopping: Stopping, child: "subprocess.Popen[bytes] | None", due_s: float, end_s: float | None) -> bool:
    """Wait until the next look is due; true when it is the last."""
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


def _print_line(out: TextIO, profile: Profile, line: Usage, per_cpu: bool, machine: bool) -> None:
    render = machine_line if machine else text_line
    print(render(line), file=out, flush=True)
    if per_cpu:
        for name in sorted(profile.per_cpu, key=lambda cpu: int(cpu[3:])):
            latest = profile.per_cpu[name][-1]
            if latest is not None:
                print(f"{name} {render(latest)}", file=out, flush=True)


def _print_summary(out: TextIO, summary: Summary | None, machine: bool, limit: float) -> None:
    print("---Summary---", file=out)
    if summary is None:
        print(f"parshall: cpu: idle was never below {limit:g} %; see --limit and --all", file=sys.stderr)
        return
    for name, usage in (("Min", summary.minimum), ("Max", summary.maximum), ("Avg", summary.average)):
        print(f"{name}:{machine_line(usage)}" if machine else f"{name}: {text_line(usage)}", file=out)


def _summary(summary: Summary | None, states: int) -> dict[str, object] | None:
    if summary is None:
        return None
    # FreeBSD's cpusage has five states, the last of which is the interrupts.
    names = ("user", "nice", "system", "idle", "interrupt") if states == 5 else STATES[:states]

    def named(usage: Usage) -> dict[str, float]:
        return dict(zip(names, usage, strict=True))

    return {
        "first_interval": summary.first,
        "intervals": summary.intervals,
        "min": named(summary.minimum),
        "max": named(summary.maximum),
        "avg": named(summary.average),
    }


def _as_json(profile: Profile, stretch: range, limit: float, interval_s: float) -> dict[str, object]:
    return {
        "interval_s": interval_s,
        "limit_percent": min(limit, 100.0),
        "states": STATES,
        "all": profile.lines,
        "cpus": profile.per_cpu,
        "summary": _summary(summarise(profile.lines, stretch), len(STATES)),
    }
