"""The command line in the process of the test: without the half second in which a process loads its libraries.

For what the process does not matter to: requests that are refused, and commands that read and write files. Signals,
privileges, closed streams and what runs until it is stopped need a process.
"""

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import IO

from parshall.cli.main import main


def parshall(
    *arguments: object, cwd: str | os.PathLike[str] | None = None, stdin: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run the command line to its end; return its status and output as `subprocess.run` does."""
    words = [os.fspath(each) if isinstance(each, os.PathLike) else str(each) for each in arguments]
    with contextlib.ExitStack() as places:
        given, output, errors = (places.enter_context(tempfile.TemporaryFile("w+", newline="")) for _ in range(3))
        given.write(stdin)
        given.seek(0)
        if cwd is not None:
            places.enter_context(contextlib.chdir(cwd))
        try:
            with _as_stream("stdin", given), _as_stream("stdout", output), _as_stream("stderr", errors):
                main(words)
        except SystemExit as ended:
            status = ended.code
        for each in (output, errors):
            each.seek(0)
        return subprocess.CompletedProcess(["parshall", *words], status, output.read(), errors.read())


@contextlib.contextmanager
def _as_stream(name: str, file: IO[str]) -> Iterator[None]:
    """Let a file be a standard stream: that of Python, and the descriptor, which compiled code uses."""
    number = ("stdin", "stdout", "stderr").index(name)
    before, kept = getattr(sys, name), os.dup(number)
    os.dup2(file.fileno(), number)
    setattr(sys, name, file)
    try:
        yield
    finally:
        file.flush()
        setattr(sys, name, before)
        os.dup2(kept, number)
        os.close(kept)
