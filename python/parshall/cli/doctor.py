"""``parshall doctor``: what this host can do, what not, why, and how to mend it."""

import dataclasses
import json
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from parshall.cli import options
from parshall.cli.messages import plain_console
from parshall.commands import COMMANDS
from parshall.doctor.decisions import Decision, decide
from parshall.doctor.probes import Cause, Probe, Status, probe_host

if TYPE_CHECKING:
    from rich.console import Console

FORMAT = "parshall-doctor/1"
COLOURS = {"works": "green", "degraded": "yellow", "unsupported": "red", "forbidden": "magenta"}
# In a pipe a line is one fact, however long it is.
PIPE_WIDTH = 2000


def command(
    as_json: options.Json = False,
    clean: Annotated[bool, typer.Option("--clean", help="Remove leftovers of killed runs first")] = False,
) -> int:
    """Say what this host can do, what not, why, and how to mend it.

    Everything is found out by trying. Without root it says what it could not try. The exit status is 0
    when every command works, if at a loss, and 1 when one cannot.
    """
    removed = _clean() if clean else []
    probes = probe_host()
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
    return 1 if any(decision.status == "cannot" for decision in decisions) else 0


def _clean() -> list[str]:
    """Remove what killed runs left; return the names of what is gone."""
    # Imported here, because the testbed brings libraries along that only this needs.
    from parshall.testbed import names

    removed = [f"{leftover.kind} {leftover.name}" for leftover in names.clean()]
    from parshall import _native

    # An installation for analysis makes no rings.
    clean_rings = getattr(_native, "clean_capture_rings", list)
    return removed + [f"capture ring {name}" for name in clean_rings()]


def _word(status: Status, cause: Cause | None) -> Text:
    """Return the one word for a state: what cannot be used is called by its cause."""
    word = cause if status == "cannot" and cause is not None else status
    return Text(word, style=COLOURS.get(word, "bold red"))


def _print(removed: Sequence[str], decisions: Sequence[Decision], probes: Sequence[Probe], *, cleaned: bool) -> None:
    console = plain_console()
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    for name in removed:
        console.print(f"removed: {name}")
    if cleaned and not removed:
        console.print("nothing was left to remove")

    _print_rows(console, "Commands", [(d.command, _word(d.status, d.cause), d.why, d.remedy) for d in decisions])
    _print_rows(console, "Probes", [(p.name, _word(p.status, p.cause), p.detail, p.remedy) for p in probes])

    console.print()
    forbidden = sum(probe.cause == "forbidden" and probe.status == "cannot" for probe in probes)
    if forbidden:
        who = "Not run as root" if os.geteuid() else "Root without all capabilities"
        console.print(f"{who}: {forbidden} of {len(probes)} things could not be tried.")
    counts = [sum(decision.status == status for decision in decisions) for status in ("works", "degraded", "cannot")]
    console.print("Commands: {} work, {} degraded, {} cannot be used.".format(*counts))


def _print_rows(console: "Console", title: str, rows: Sequence[tuple[str, Text, str, str]]) -> None:
    """Print a table of name, state and what is to be said, the remedy on a line of its own."""
    table = Table.grid(padding=(0, 2))
    for name, word, detail, remedy in rows:
        table.add_row(f"  {name}", word, detail)
        if remedy:
            table.add_row("", "", Text(f"-> {remedy}", style="dim"))
    with console.capture() as capture:
        console.print(table)
    console.print(f"\n{title}", style="bold")
    # The grid pads its last column; nobody wants the blanks.
    for line in capture.get().splitlines():
        print(line.rstrip())
