"""Files that are there whole or not at all, however their making ends."""

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from parshall.errors import UsageError


@contextlib.contextmanager
def new_file(path: Path, mode: str = "w") -> Iterator[tuple[IO[Any], Callable[[], None]]]:
    """Open a new file, which takes the place of the old one when it has begun.

    Parameters
    ----------
    path : pathlib.Path
        The file. What is no file (a FIFO, a device) is written to as it is.
    mode : {"w", "wb"}
        Text or bytes.

    Yields
    ------
    file
        What to write to.
    take_place
        To be called when all that may fail has been done; until then what was there stays, and without it
        the new file is removed.

    Raises
    ------
    ParshallError
        It cannot be made, or another process is writing it.
    """
    from parshall._native import OutputFile

    output = OutputFile(path)
    descriptor = output.detach()
    assert descriptor is not None, "it has just been opened"
    try:
        with os.fdopen(descriptor, mode) as file:
            yield file, output.take_place
    except OSError as error:
        error.filename = error.filename or str(path)
        raise
    finally:
        output.discard()


def refuse_input(output: Path | None, inputs: Iterable[str | Path]) -> None:
    """Raise when an output would take the place of an input.

    Raises
    ------
    UsageError
        They are one file.
    """
    for path in map(Path, inputs):
        # A pipe or a device has no place that could be taken.
        if output is not None and path.is_file() and output.exists() and output.samefile(path):
            raise UsageError(f"{output}: is an input, too, and would be replaced; name another output")


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file that takes its place when it is whole; what was there stays until then.

    Raises
    ------
    ParshallError
        It cannot be made, or another process is writing it.
    OSError
        It cannot be written.
    """
    with new_file(path, "wb") as (file, take_place):
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        take_place()
