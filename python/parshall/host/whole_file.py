"""Atomic output files: complete, or not created at all."""

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from parshall.errors import UsageError


@contextlib.contextmanager
def new_file(path: Path, mode: str = "w", *, below: Path | None = None) -> Iterator[tuple[IO[Any], Callable[[], None]]]:
    """Open a new file that replaces an old one once writing has begun.

    Parameters
    ----------
    path : pathlib.Path
        The file. A FIFO or device is opened and written directly.
    mode : {"w", "wb"}
        Text or bytes.
    below : pathlib.Path, optional
        A directory whose content others may have made; `path` is relative to it. Missing directories between the two
        are created. A symbolic link, a FIFO or a device in the way is an error.

    Yields
    ------
    file
        The open file.
    commit
        Moves the new file into place; call it when nothing more can fail. Until then the old file stays; without
        the call, the new file is removed.

    Raises
    ------
    ParshallError
        The file cannot be created, or another process is writing it.
    """
    from parshall._native import OutputFile

    output = OutputFile(path, below)
    descriptor = output.detach()
    assert descriptor is not None, "the file has just been opened"
    try:
        with os.fdopen(descriptor, mode) as file:
            yield file, output.commit
    except OSError as error:
        error.filename = error.filename or str(path if below is None else below / path)
        raise
    finally:
        output.discard()


def refuse_input(output: Path | None, inputs: Iterable[str | Path]) -> None:
    """Raise `UsageError` when an output would replace an input."""
    for path in map(Path, inputs):
        # Pipes and devices are not replaced.
        if output is not None and path.is_file() and output.exists() and output.samefile(path):
            raise UsageError(f"{output}: is also an input, and would be replaced; name another output")


def write_whole(path: Path, content: str | bytes, *, below: Path | None = None) -> None:
    """Write a file atomically: the old file stays until the new one is complete. Arguments as for `new_file`.

    Raises
    ------
    ParshallError
        The file cannot be created, or another process is writing it.
    OSError
        The file cannot be written.
    """
    with new_file(path, "wb", below=below) as (file, commit):
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        commit()
