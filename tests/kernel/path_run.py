"""Runs of ``parshall path`` that tests make, and checks of their ledgers."""

import subprocess
import sys
from pathlib import Path
from typing import Any

from running_command import RunningCommand

COMMAND = [sys.executable, "-m", "parshall", "path"]


class Measurement(RunningCommand):
    """A `parshall path` that runs, its programs attached."""

    def __init__(self, *arguments: str | Path, **options: Any) -> None:
        settings = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen([*COMMAND, *map(str, arguments)], **(settings | options))
        assert self.process.stderr
        self.begun = next((line for line in self.process.stderr if ": started, " in line), "")
        assert self.begun, f"it ended before it began: {self.process.wait()}"


def run(*arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    return subprocess.run(
        [*COMMAND, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
        **options,
    )


def check_balance(ledger: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Assert that every packet and read is accounted; return the accounts by name."""
    for account in ledger["hooks"]:
        lost = sum(account["lost"].values())
        assert account["seen"] == account["filtered"] + account["thinned"] + account["logged"] + lost, account
    return {account["hook"]: account for account in ledger["hooks"]}
