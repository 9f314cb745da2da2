"""Logs under test: `parshall tcp` as a process, and the account that every log must keep."""

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import polars as pl

import parshall
from conversation import check_balance

PARSHALL = Path(sys.executable).with_name("parshall")
# Four for events, two for packets.
HOOKS = 6
PACKET_HOOKS = ("tcp_ingress", "tcp_egress")
EVENT_HOOKS = ("tcp_retransmit", "tcp_congestion_state", "tcp_close")


class Logger:
    """A `parshall tcp` that runs, its hooks attached."""

    def __init__(
        self, until: Callable[..., None], *arguments: str | Path, hooks: int = HOOKS, **options: Any
    ) -> None:
        self.process = subprocess.Popen(
            [PARSHALL, "tcp", *arguments],
            stdin=subprocess.DEVNULL,
            **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options},
        )
        try:
            until("the hooks are attached", lambda: self.has_ended() or links_of(self.process.pid) >= hooks)
        except BaseException:
            self.process.kill()
            raise

    def __enter__(self) -> "Logger":
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Leave no process behind."""
        if not self.has_ended():
            self.process.kill()
        self.process.communicate()

    def has_ended(self) -> bool:
        """Whether the process has ended."""
        return self.process.poll() is not None

    def end(self, number: int | None = None, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
        """Send a signal, if one is given, wait for the end, and return what was said."""
        if number is not None:
            self.process.send_signal(number)
        said = self.process.communicate(timeout=timeout_s)
        return subprocess.CompletedProcess(self.process.args, self.process.returncode, *said)


def links_of(pid: int) -> int:
    """Number of eBPF links that a process holds: its attached programs."""
    found = 0
    try:
        for path in Path(f"/proc/{pid}/fdinfo").iterdir():
            found += "link_id:" in path.read_text()
    except OSError:
        return 0
    return found


def run(*arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run `parshall` to its end."""
    return subprocess.run(
        [PARSHALL, *arguments],
        **{"stdin": subprocess.DEVNULL, "capture_output": True, "text": True, "timeout": 60, **options},
    )


def the_complaint(said: str) -> str:
    """The one line that the command said, without its name."""
    (line,) = said.splitlines()
    assert line.startswith("parshall: tcp: "), line
    return line.removeprefix("parshall: tcp: ")


def total(ledger: dict[str, Any], what: str, hooks: Sequence[str]) -> int:
    """Sum of a column, or of a cause of loss, over some hooks."""
    accounts = [account for account in ledger["hooks"] if account["hook"] in hooks]
    assert len(accounts) == len(hooks)
    return sum(account[what] if what in account else account["lost"][what] for account in accounts)


def rows_of(log: Any) -> pl.DataFrame:
    """The rows of a log, names as text."""
    return pl.from_arrow(log.records).with_columns(pl.col("direction", "event", "state", "ca_state").cast(pl.String))


def packets_of(rows: pl.DataFrame, flow: int) -> pl.DataFrame:
    """The packets of a flow, in the order of its own count."""
    return rows.filter(flow=flow, event="packet").sort("flow_seq")


def check_log(path: Path, *, is_thinned: bool = False) -> tuple[Any, dict[str, Any]]:
    """Hold a log that has ended against its ledger, hook by hook and flow by flow.

    Returns
    -------
    log, ledger
        The log that was read, and its final ledger.
    """
    log = parshall.read(path)
    assert log.complete, log.truncation
    ledger = log.ledger
    check_balance(ledger)
    rows, flows = rows_of(log), log.flows.to_pylist()
    assert len(rows) == total(ledger, "logged", (*PACKET_HOOKS, *EVENT_HOOKS))
    per_flow = {
        (row["flow"], row["is_packet"]): row
        for row in rows.group_by("flow", is_packet=pl.col("event") == "packet")
        .agg(pl.len(), pl.col("flow_seq").n_unique().alias("distinct"), pl.col("flow_seq").max().alias("last"))
        .iter_rows(named=True)
    }
    nothing = {"len": 0, "distinct": 0, "last": 0}
    for flow in flows:
        packets = per_flow.get((flow["flow"], True), nothing)
        events = per_flow.get((flow["flow"], False), nothing)
        kept_back = sum(flow[f"packets_{why}"] for why in ("filtered", "thinned", "dropped", "overwritten", "unwritten"))
        assert flow["packets_seen"] == flow["packets_logged"] + kept_back, flow
        lost = sum(flow[f"events_{why}"] for why in ("dropped", "overwritten", "unwritten"))
        assert flow["events_seen"] == flow["events_logged"] + lost, flow
        assert (packets["len"], events["len"]) == (flow["packets_logged"], flow["events_logged"]), flow
        # Every packet has a number of its own, so what is not in the log is a gap in the numbers.
        assert packets["distinct"] == packets["len"], flow
        assert packets["last"] <= flow["packets_seen"], flow
        if not is_thinned:
            assert flow["packets_seen"] - packets["distinct"] == kept_back, flow
    wanted = total(ledger, "seen", PACKET_HOOKS) - total(ledger, "filtered", PACKET_HOOKS)
    unknown = total(ledger, "failed", PACKET_HOOKS) + total(ledger, "missed", PACKET_HOOKS)
    assert sum(flow["packets_seen"] for flow in flows) == wanted - unknown
    wanted = total(ledger, "seen", EVENT_HOOKS) - total(ledger, "filtered", EVENT_HOOKS)
    assert sum(flow["events_seen"] for flow in flows) == wanted - total(ledger, "missed", EVENT_HOOKS)
    for what, hook_column in (("thinned", "thinned"), ("dropped", "dropped"), ("unwritten", "unwritten")):
        assert sum(flow[f"packets_{what}"] for flow in flows) == total(ledger, hook_column, PACKET_HOOKS)
    overwritten = sum(flow["packets_overwritten"] for flow in flows)
    assert overwritten == total(ledger, "overwritten", PACKET_HOOKS)
    return log, ledger


def account_text(ledger: dict[str, Any]) -> str:
    """The ledger for a message of a failed test."""
    return json.dumps(ledger["hooks"])
