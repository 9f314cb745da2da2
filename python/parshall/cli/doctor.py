"""``parshall doctor``: what works on this host, what does not, why, and how to fix it."""

import dataclasses
import json
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from threading import Thread
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from parshall.cli import options
from parshall.cli.main import INTERRUPTED
from parshall.errors import UsageError, printable
from parshall.host.commands import COMMANDS
from parshall.host.doctor.decisions import Decision, decide
from parshall.host.doctor.probes import Cause, Probe, Status, probe_host
from parshall.host.messages import plain_console, say, show

if TYPE_CHECKING:
    from rich.console import Console

FORMAT = "parshall-doctor/1"
COLOURS = {
    "works": "green",
    "degraded": "yellow",
    "unsupported": "red",
    "forbidden": "magenta",
    "not installed": "yellow",
}
# In a pipe, lines are not wrapped.
PIPE_WIDTH = 2000
# A narrower column of sentences is hard to read.
_ROOM_MIN = 50
# What takes longer says what it does.
_SILENT_S = 1.0


def command(
    as_json: options.Json = False,
    clean: Annotated[bool, typer.Option("--clean", help="Remove leftovers of killed runs first")] = False,
    grant: Annotated[
        str | None, typer.Option("--grant", metavar="GROUP", help="Let a group join rings, read logs, start the units")
    ] = None,
    revoke: Annotated[bool, typer.Option("--revoke", help="Take back what --grant gave")] = False,
) -> int:
    """Check what works on this host, what does not, why, and how to fix it.

    Each feature is tried. Without root, it lists what could not be tried. The exit status is 0 when
    every command works, even if degraded, and 1 when one cannot be used; what is not installed does
    not count.
    """
    if grant is not None or revoke:
        if as_json or clean or (grant is not None and revoke):
            raise UsageError(
                f"{'--grant' if grant is not None else '--revoke'}: is a run of its own; leave out the others"
            )
        _delegate(grant)
        return 0
    removed = remove_leftovers() if clean else []
    probes = _probe_interruptibly()
    decisions = decide(probes, [*COMMANDS, "testbed"])
    if as_json:
        report = {
            "format": FORMAT,
            "removed": removed,
            "commands": [dataclasses.asdict(decision) for decision in decisions],
            "probes": [dataclasses.asdict(probe) for probe in probes],
        }
        print(json.dumps(report, indent=2))
    else:
        _print(removed, decisions, probes, cleaned=clean)
    return 1 if any(map(_is_failure, decisions)) else 0


def _is_failure(decision: Decision) -> bool:
    """Whether a command cannot be used, and not only for want of a package that nobody asked for."""
    return decision.status == "cannot" and decision.cause != "not installed"


def _delegate(group: str | None) -> None:
    """Give a group what members may do; without one, take it back."""
    from parshall.host import delegation

    outcome = delegation.revoke() if group is None else delegation.grant(group)
    show(*(outcome.done or ["nothing changed" if group else "nothing was granted"]))
    show(*outcome.advice) if outcome.advice else None


def _probe_interruptibly() -> list[Probe]:
    """Try the features in a thread, so that Ctrl-C need not wait for the kernel, which may take seconds."""
    probed: Future[list[Probe]] = Future()

    def probe() -> None:
        try:
            probed.set_result(probe_host())
        except Exception as error:
            probed.set_exception(error)

    Thread(target=probe, name="probes", daemon=True).start()
    try:
        try:
            return probed.result(timeout=_SILENT_S)
        except TimeoutError:
            if sys.stderr.isatty():
                say("doctor", "trying each program in the kernel, which checks it first")
            return probed.result()
    except KeyboardInterrupt:
        # An interpreter that ends in order would wait for the thread, or stop it in the middle.
        os._exit(INTERRUPTED)


def remove_leftovers() -> list[str]:
    """Remove leftovers of killed runs; return their names."""
    # Imported here: only --clean needs the libraries of the testbed.
    from parshall.host import names

    removed = [f"{leftover.kind} {leftover.name}" for leftover in names.clean()]
    from parshall import _native

    # An analysis-only installation creates no rings.
    clean_rings = getattr(_native, "clean_capture_rings", list)
    return removed + [f"capture ring {name}" for name in clean_rings()]


def _word(status: Status, cause: Cause | None) -> Text:
    """Return the word for a status; for what cannot be used, its cause."""
    word = cause if status == "cannot" and cause is not None else status
    return Text(word, style=COLOURS.get(word, "bold red"))


def _print(removed: Sequence[str], decisions: Sequence[Decision], probes: Sequence[Probe], *, cleaned: bool) -> None:
    console = plain_console()
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    for name in removed:
        show(f"removed: {name}")
    if cleaned and not removed:
        console.print("no leftovers found")

    _print_rows(console, "Commands", list(_command_rows(decisions)))
    _print_rows(console, "Probes", [(p.name, _word(p.status, p.cause), p.detail, p.remedy) for p in probes])

    console.print()
    forbidden = sum(probe.cause == "forbidden" and probe.status == "cannot" for probe in probes)
    if forbidden:
        process = "Not run as root" if os.geteuid() else "Root without all capabilities"
        console.print(f"{process}: {forbidden} of {len(probes)} probes could not be tried.")
    counts = [sum(decision.status == status for decision in decisions) for status in ("works", "degraded", "cannot")]
    console.print("Commands: {} work, {} degraded, {} cannot be used.".format(*counts))


def _command_rows(decisions: Sequence[Decision]) -> Iterator[tuple[str, Text, str, str]]:
    """Yield the row of each command; of several that lack the same, the first one says what."""
    first: dict[tuple[str, str, str], str] = {}
    for decision in decisions:
        named = first.setdefault((decision.status, decision.why, decision.remedy), decision.command)
        is_same = bool(decision.why) and named != decision.command
        texts = (f"as {named}", "") if is_same else (decision.why, decision.remedy)
        yield (decision.command, _word(decision.status, decision.cause), *texts)


def _print_rows(console: "Console", title: str, rows: Sequence[tuple[str, Text, str, str]]) -> None:
    """Print name, status and detail of each row, with the remedy on a line of its own.

    Where the third column would be narrow, what does not fit goes below, over the whole width.
    """
    names, words = (max(len(str(row[at])) for row in rows) for at in (0, 1))
    column = names + words + 6
    room = console.width - column
    below = column if room >= _ROOM_MIN else 6
    lines: list[Text] = []
    for name, word, detail, remedy in rows:
        head = Text.assemble(f"  {name:{names}}  ", word, " " * (words - len(word)))
        texts = [Text(printable(detail)), *([Text(f"-> {printable(remedy)}", style="dim")] if remedy else [])]
        wrapped = [line for text in texts for line in text.wrap(console, console.width - below)]
        for text in wrapped:
            text.rstrip()
        if not detail or len(texts[0]) <= room or below == column:
            head = Text.assemble(head, "  ", wrapped.pop(0))
        lines += [head, *(Text.assemble(" " * below, line) for line in wrapped)]
    with console.capture() as capture:
        console.print(*lines, sep="\n", soft_wrap=True)
    console.print(f"\n{title}", style="bold")
    for line in capture.get().splitlines():
        print(line.rstrip())
