"""The command line in children of a process that has loaded it: no command waits for the libraries.

For installations, privileges and directories that are not the test's own, where `in_process` cannot run a command.
"""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

# Runs a command for each line that it reads, and prints what came of it. A child ends as the command's process does.
SERVER = """
import ctypes, json, os, subprocess, sys, tempfile
from parshall.cli import options
from parshall.cli.main import main
for line in iter(sys.stdin.readline, ""):
    request = json.loads(line)
    outputs = [tempfile.TemporaryFile() for _ in range(2)]
    child = os.fork()
    if not child:
        if request["mounts"]:
            CLONE_NEWNS, CLONE_NEWNET = 0x00020000, 0x40000000
            assert ctypes.CDLL(None).unshare(CLONE_NEWNS | CLONE_NEWNET) == 0
            subprocess.run(["sh", "-e", "-c", request["mounts"]], check=True)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for number, output in enumerate(outputs, 1):
            os.dup2(output.fileno(), number)
        os.chdir(request["cwd"])
        os.environ.update(request["environment"])
        main(request["words"])
        os._exit(1)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    for output in outputs:
        output.seek(0)
    print(json.dumps([status, *(output.read().decode() for output in outputs)]), flush=True)
"""


class Forked:
    """A process that runs commands, each in a child of its own; `with` ends it."""

    def __init__(self, prefix: Sequence[str] = (), python: str | Path = sys.executable, **options: Any) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen([*prefix, python, "-c", SERVER], stdin=pipe, stdout=pipe, text=True, **options)

    def __enter__(self) -> "Forked":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.communicate(timeout=60)

    def run(
        self, *words: str, cwd: str | Path = "/", environment: Mapping[str, str] | None = None, mounts: str = ""
    ) -> "subprocess.CompletedProcess[str]":
        """Run a command to its end, after a script that mounts what only the command shall see."""
        assert self.process.stdin and self.process.stdout
        request = {"words": words, "cwd": str(cwd), "environment": dict(environment or {}), "mounts": mounts}
        print(json.dumps(request), file=self.process.stdin, flush=True)
        status, output, errors = json.loads(self.process.stdout.readline())
        return subprocess.CompletedProcess(["parshall", *words], status, output, errors)
