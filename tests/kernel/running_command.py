"""A command of Parshall that runs while a test goes on."""

import signal
import subprocess
from typing import Self


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
