"""Lines on the standard error output that are no errors, and consoles for tables and bars."""

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def report_start(command: str, what: str, *, quiet: bool) -> None:
    """Say that measuring has begun: whoever waits for it reads this line."""
    if not quiet:
        print(f"parshall: {command}: started, {what}", file=sys.stderr, flush=True)


def shows_progress(*, quiet: bool) -> bool:
    """Whether somebody sees a line that is written again and again."""
    return not quiet and sys.stderr.isatty()


def plain_console(*, stderr: bool = False) -> "Console":
    """Return a console that colours nothing by itself, and writes no style at all under NO_COLOR.

    Without colours rich would still write bold and dim, which are escape codes, too.
    """
    from rich.console import Console

    return Console(highlight=False, stderr=stderr, color_system=None if os.environ.get("NO_COLOR") else "auto")
