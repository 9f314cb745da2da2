"""A command in its own control group, so that its sockets can be identified."""

import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Self

from parshall.errors import CommandError
from parshall.host.cgroups import TemporaryCgroup

# Seconds from SIGTERM to SIGKILL.
GRACE_S = 2.0


def exit_status(returncode: int) -> int:
    """Return the exit status of a shell for that of a process; after a signal, 128 + its number."""
    return returncode if returncode >= 0 else 128 - returncode


class Command:
    """Run a command in its own control group, which is removed when the context ends.

    Parameters
    ----------
    arguments : list of str
        Program and arguments.

    Raises
    ------
    CommandError
        The program does not exist (status 127) or cannot be run (status 126), as in shells.
    """

    def __init__(self, arguments: list[str]) -> None:
        self.arguments = arguments
        self._process: subprocess.Popen[bytes] | None = None
        self._own: TemporaryCgroup | None = None

    @property
    def cgroup(self) -> Path:
        """Directory of the control group."""
        assert self._own is not None, "enter the context first"
        return self._own.path

    def __enter__(self) -> Self:
        program = self.arguments[0]
        if shutil.which(program) is None:
            if Path(program).exists():
                raise CommandError(f"{program}: cannot be run; make it executable", 126)
            raise CommandError(f"{program}: no such command; check the name and PATH", 127)
        self._own = TemporaryCgroup("cmd")
        return self

    def start(self) -> None:
        """Start the command inside the group, before it can open its first socket."""
        procs = self.cgroup / "cgroup.procs"

        def enter_group() -> None:
            with procs.open("w") as file:
                file.write(str(os.getpid()))

        sys.stdout.flush()
        try:
            self._process = subprocess.Popen(self.arguments, preexec_fn=enter_group)
        except OSError as error:
            raise CommandError(f"{self.arguments[0]}: {error.strerror}", 126) from None

    def has_ended(self) -> bool:
        """Whether the command has ended."""
        return self._process is not None and self._process.poll() is not None

    def request_end(self) -> None:
        """Send SIGTERM to a command that still runs."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()

    def wait(self, grace_s: float | None = None) -> int:
        """Wait for the end of the command; after `grace_s` seconds, kill its whole group.

        Returns
        -------
        int
            Its exit status; after a signal, 128 + its number.
        """
        if self._process is None:
            return 0
        try:
            status = self._process.wait(grace_s)
        except subprocess.TimeoutExpired:
            # Since Linux 5.14. On older kernels, the children of the command continue.
            with contextlib.suppress(OSError):
                (self.cgroup / "cgroup.kill").write_text("1")
            self._process.kill()
            status = self._process.wait()
        return exit_status(status)

    def __exit__(self, *exception: object) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        if self._own is not None:
            self._own.remove()
