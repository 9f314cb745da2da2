"""Lines on the standard error output, and consoles for tables and bars."""

import os
import sys
from typing import IO, TYPE_CHECKING

from parshall.errors import printable

if TYPE_CHECKING:
    from rich.console import Console


def say(command: str, text: str, *, start_of_line: str = "") -> None:
    """Print a message on standard error, on one line, with control characters escaped."""
    print(f"{start_of_line}parshall: {command}: {printable(text)}", file=sys.stderr, flush=True)


def show(*lines: object, file: IO[str] | None = None) -> None:
    """Print lines of text. Text that others chose, such as names, cannot end a line or control the terminal."""
    print(*(printable(str(line)) for line in lines), sep="\n", file=file, flush=True)


def report_start(command: str, what: str, *, quiet: bool) -> None:
    """Report that the measurement has begun; scripts wait for this line."""
    if not quiet:
        say(command, f"started, {what}")


def plain_console(*, stderr: bool = False) -> "Console":
    """Return a console without automatic colours, and without any style under NO_COLOR.

    Without colours, rich would still write the escape codes of bold and dim.
    """
    from rich.console import Console

    return Console(highlight=False, stderr=stderr, color_system=None if os.environ.get("NO_COLOR") else "auto")
