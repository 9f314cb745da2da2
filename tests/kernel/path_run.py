"""Runs of ``parshall path`` that tests make, and checks of their ledgers."""

import subprocess
import sys
from pathlib import Path
from typing import Any

from running_command import RunningCommand

from ledgers import unbalanced
from parshall.instruments.path import PathLog

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


def complete_log(path: Path) -> PathLog:
    """Return a log after a check that it was ended in order and balances."""
    log = PathLog(path)
    assert log.complete
    check_balance(log.ledger)
    return log


def slow_queue(host: Any, interface: str, limit_bytes: int) -> None:
    """Let an interface send so slowly that packets wait."""
    words = ["rate", "8kbit", "burst", "2000", "limit", str(limit_bytes)]
    host.run(["tc", "qdisc", "replace", "dev", interface, "root", "tbf", *words])


def check_balance(ledger: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Assert that every packet and read is accounted; return the accounts by name."""
    assert not list(unbalanced(ledger))
    return {account["hook"]: account for account in ledger["hooks"]}
