"""Lines on the standard error output, and consoles for tables and bars."""

import os
import sys
from typing import TYPE_CHECKING

from parshall.errors import printable

if TYPE_CHECKING:
    from rich.console import Console


def say(command: str, text: str, *, start_of_line: str = "") -> None:
    """Say something beside the output, on one line that nothing in it can break."""
    print(f"{start_of_line}parshall: {command}: {printable(text)}", file=sys.stderr, flush=True)


def report_start(command: str, what: str, *, quiet: bool) -> None:
    """Say that measuring has begun: whoever waits for it reads this line."""
    if not quiet:
        say(command, f"started, {what}")


def shows_progress(*, quiet: bool) -> bool:
    """Whether somebody sees a line that is written again and again."""
    return not quiet and sys.stderr.isatty()


def plain_console(*, stderr: bool = False) -> "Console":
    """Return a console that colours nothing by itself, and writes no style at all under NO_COLOR.

    Without colours rich would still write bold and dim, which are escape codes, too.
    """
    from rich.console import Console

    return Console(highlight=False, stderr=stderr, color_system=None if os.environ.get("NO_COLOR") else "auto")
