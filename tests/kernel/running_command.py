"""A command of Parshall that runs while a test goes on."""

import os
import select
import signal
import subprocess
import time
from typing import IO, Any, Self

import pytest


class RunningCommand:
    """A process that is killed at the end of the block."""

    process: subprocess.Popen[str]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        if not self.has_ended():
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        self.process.communicate()

    def has_ended(self) -> bool:
        """Whether the process has ended."""
        return self.process.poll() is not None

    def end(self, number: int | None = None, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
        """Send a signal, if one is given, wait for the end, and return the output."""
        if number is not None:
            self.process.send_signal(number)
        output = self.process.communicate(timeout=timeout_s)
        return subprocess.CompletedProcess(self.process.args, self.process.returncode, *output)


def read_until(pipe: IO[Any], text: str, timeout_s: float = 60) -> str:
    """Read a pipe up to the end of the line that has this text; return what was read.

    What follows stays in the pipe, for `communicate`: Python's own reader would keep it for itself.
    """
    deadline_s = time.monotonic() + timeout_s
    read = b""
    while not (read.endswith(b"\n") and text.encode() in read):
        left_s = deadline_s - time.monotonic()
        if left_s <= 0 or not select.select([pipe], [], [], left_s)[0]:
            pytest.fail(f"still no {text!r} after {timeout_s} s: {read.decode()}")
        byte = os.read(pipe.fileno(), 1)
        if not byte:
            pytest.fail(f"it ended without {text!r}: {read.decode()}")
        read += byte
    return read.decode()
