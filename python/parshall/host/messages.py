"""Lines on the standard error output, and consoles for tables and bars."""

import contextlib
import os
import shutil
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, TYPE_CHECKING

from parshall.errors import printable

if TYPE_CHECKING:
    from rich.console import Console

_CLEAR = "\r\x1b[K"
# What takes longer says what it does, as often.
_SILENT_S = 1.0
# Without a terminal, a line as often.
LINES_S = 60.0
_IS_LINE_SHOWN = threading.Event()


def say(command: str, text: str, *, start_of_line: str = "") -> None:
    """Print a message on standard error, on one line, with control characters escaped."""
    if _IS_LINE_SHOWN.is_set():
        start_of_line = _CLEAR
    print(f"{start_of_line}parshall: {command}: {printable(text)}", file=sys.stderr, flush=True)


def show(*lines: object, file: IO[str] | None = None) -> None:
    """Print lines of text. Text that others chose, such as names, cannot end a line or control the terminal."""
    print(*(printable(str(line)) for line in lines), sep="\n", file=file, flush=True)


def show_paragraphs(entries: Iterable[tuple[str, Sequence[tuple[str, object]]]]) -> None:
    """Print headings, and below each its sentences by name: wrapped on a terminal, one line each elsewhere."""
    width = max(shutil.get_terminal_size().columns, 40) if sys.stdout.isatty() else sys.maxsize
    for heading, sentences in entries:
        indents = [(heading, "", "  ")] + [(f"{name}: {text}", "  ", "    ") for name, text in sentences]
        for text, first, others in indents:
            show(*textwrap.wrap(printable(text), width, initial_indent=first, subsequent_indent=others))


def report_start(command: str, what: str, *, quiet: bool) -> None:
    """Report that the measurement has begun; scripts wait for this line."""
    if not quiet:
        say(command, f"started, {what}")


@contextlib.contextmanager
def progress_line(command: str, what: str, *, quiet: bool = False) -> Iterator[Callable[[str], None]]:
    """While entered, show on one line what is done and for how long; without a terminal, on a line a minute.

    The line of a terminal comes after a second, or with another text, and goes at the end. Yields a function that takes
    the text. What it says is a note for others, too.
    """
    # The help text needs messages, and no notes.
    from parshall.host.running import Note

    with Note(command) as note:
        note.write(what)
        if quiet:
            yield note.write
            return
        with _line(command, what) if sys.stderr.isatty() else _lines(command, what) as change:

            def change_both(text: str) -> None:
                note.write(text)
                change(text)

            yield change_both


@contextlib.contextmanager
def _repeating(act: Callable[[], None], every_s: float) -> Iterator[None]:
    """While entered, act every so many seconds, in a thread."""
    ended = threading.Event()

    def act_until_end() -> None:
        while not ended.wait(every_s):
            act()

    acting = threading.Thread(target=act_until_end, name="progress", daemon=True)
    acting.start()
    try:
        yield
    finally:
        ended.set()
        acting.join()


@contextlib.contextmanager
def _lines(command: str, what: str) -> Iterator[Callable[[str], None]]:
    """As `progress_line`, elsewhere: logs of scripts, and pipes."""
    text, began_s = what, time.monotonic()

    def change(another: str) -> None:
        nonlocal text
        text = another

    with _repeating(lambda: say(command, f"{text}, {time.monotonic() - began_s:.0f} s"), LINES_S):
        yield change


@contextlib.contextmanager
def _line(command: str, what: str) -> Iterator[Callable[[str], None]]:
    """As `progress_line`, on a terminal."""
    text, began_s = what, time.monotonic()

    def draw() -> None:
        elapsed_s = int(time.monotonic() - began_s)
        # The text may have names of files, which may contain any byte.
        line = printable(f"{command}: {text}{f', {elapsed_s} s' if elapsed_s else ''}")
        print(f"{_CLEAR}{line[: shutil.get_terminal_size().columns - 1]}", end="", file=sys.stderr, flush=True)
        _IS_LINE_SHOWN.set()

    def change(another: str) -> None:
        nonlocal text
        text = another
        draw()

    try:
        with _repeating(draw, _SILENT_S):
            yield change
    finally:
        # On a busy machine the thread may have had no time to.
        if time.monotonic() - began_s >= _SILENT_S and not _IS_LINE_SHOWN.is_set():
            draw()
        if _IS_LINE_SHOWN.is_set():
            _IS_LINE_SHOWN.clear()
            print(_CLEAR, end="", file=sys.stderr, flush=True)


def plain_console(*, stderr: bool = False) -> "Console":
    """Return a console without automatic colours, and without any style under NO_COLOR.

    Without colours, rich would still write the escape codes of bold and dim.
    """
    from rich.console import Console

    return Console(highlight=False, stderr=stderr, color_system=None if os.environ.get("NO_COLOR") else "auto")
