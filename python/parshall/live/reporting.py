"""A process that makes reports of saved spans.

It is started before the privileges are given up, since nothing can be started after that. Each line of standard input
is a directory, as JSON; the answer to each is a line: the page, or what went wrong.
"""

import contextlib
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from parshall.errors import ParshallError


class Reporter:
    """Makes reports in a process of its own, until the end of the block."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        pipe = subprocess.PIPE
        self._process: subprocess.Popen[bytes] | None = None
        self._problem = "the process that makes reports has ended"
        command = [sys.executable, "-P", "-m", "parshall.live.reporting"]
        try:
            self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, start_new_session=True)
        except OSError as error:
            # The page does without.
            self._problem = f"{sys.executable}: {error.strerror}"

    def __enter__(self) -> "Reporter":
        return self

    def __exit__(self, *exception: object) -> None:
        if self._process is None:
            return
        assert self._process.stdin and self._process.stdout
        self._process.stdin.close()
        self._process.stdout.close()
        # A report that is being made is not waited for.
        self._process.kill()
        self._process.wait()

    def make(self, directory: Path) -> Path:
        """Make the report of a saved span, and return its page.

        Raises
        ------
        ParshallError
            It cannot be made.
        """
        line = b""
        with self._lock, contextlib.suppress(OSError, ValueError):
            if self._process is not None and self._process.stdin and self._process.stdout:
                self._process.stdin.write(json.dumps(str(directory)).encode() + b"\n")
                self._process.stdin.flush()
                line = self._process.stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line else {"problem": self._problem}
        if problem := answer.get("problem"):
            raise ParshallError(f"the report of {directory} could not be made: {problem}")
        return Path(answer["page"])


def _serve() -> None:
    output = os.fdopen(os.dup(1), "wb")
    # What libraries print is no answer.
    os.dup2(2, 1)
    for line in sys.stdin:
        directory = Path(json.loads(line))
        try:
            from parshall.instruments.tcp_log import read
            from parshall.report import write_report

            answer = {"page": str(write_report({directory.name: read(directory)}, directory, directory.name))}
        except (ParshallError, OSError, MemoryError) as error:
            answer = {"problem": str(error)}
        output.write(json.dumps(answer).encode() + b"\n")
        output.flush()


if __name__ == "__main__":
    _serve()
