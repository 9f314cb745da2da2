"""Logs under test: `parshall tcp` as a process, and the account that every log must keep."""

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import polars as pl
from conversation import check_balance
from running_command import RunningCommand

import parshall

PARSHALL = Path(sys.executable).with_name("parshall")
# Process IDs of the loggers of this session.
STARTED: set[int] = set()
# Ten programs for events, two for packets.
HOOKS = 12
PACKET_HOOKS = ("tcp_ingress", "tcp_egress")
EVENT_HOOKS = ("tcp_retransmit", "tcp_congestion_state", "tcp_close")


class Logger(RunningCommand):
    """A `parshall tcp` that runs, its hooks attached."""

    def __init__(self, until: Callable[..., None], *arguments: str | Path, hooks: int = HOOKS, **options: Any) -> None:
        self.process = subprocess.Popen(
            [PARSHALL, "tcp", *arguments],
            stdin=subprocess.DEVNULL,
            **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options},
        )
        STARTED.add(self.process.pid)
        try:
            until("the hooks are attached", lambda: self.has_ended() or links_of(self.process.pid) >= hooks)
        except BaseException:
            self.process.kill()
            raise


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
    pipe = subprocess.PIPE
    settings = {"stdin": subprocess.DEVNULL, "stdout": pipe, "stderr": pipe, "text": True, **options}
    with subprocess.Popen([PARSHALL, *arguments], **settings) as process:
        STARTED.add(process.pid)
        try:
            output = process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, *output)


def error_line(errors: str) -> str:
    """The one line of error output, without the command's name."""
    (line,) = (line for line in errors.splitlines() if ": started, " not in line)
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
    """Check a finished log against its ledger, hook by hook and flow by flow.

    Returns
    -------
    log, ledger
        The log that was read, and its final ledger.
    """
    log = parshall.read(path)
    assert log.complete, log.truncation
    ledger = log.ledger
    check_balance(ledger)
    rows, flows = rows_of(log), pl.from_arrow(log.flows)
    assert len(rows) == total(ledger, "logged", (*PACKET_HOOKS, *EVENT_HOOKS)), account_text(ledger)
    is_packet = pl.col("event") == "packet"
    found = rows.group_by("flow").agg(
        packets=is_packet.sum().cast(pl.UInt64),
        events=(~is_packet).sum().cast(pl.UInt64),
        distinct=pl.col("flow_seq").filter(is_packet).n_unique().cast(pl.UInt64),
        last=pl.col("flow_seq").filter(is_packet).max(),
    )
    assert set(found["flow"]) <= set(flows["flow"])
    accounts = flows.join(found, on="flow", how="left").with_columns(
        pl.col("packets", "events", "distinct", "last").fill_null(0)
    )
    lost_packets = pl.sum_horizontal(f"packets_{cause}" for cause in ("dropped", "overwritten", "unwritten"))
    lost_events = pl.sum_horizontal(f"events_{cause}" for cause in ("dropped", "overwritten", "unwritten"))
    kept_back = pl.col("packets_filtered") + pl.col("packets_thinned") + lost_packets
    promises = {
        "packets balance": pl.col("packets_seen") == pl.col("packets_logged") + kept_back,
        "events balance": pl.col("events_seen") == pl.col("events_logged") + lost_events,
        "packets are there": pl.col("packets_logged") == pl.col("packets"),
        "events are there": pl.col("events_logged") == pl.col("events"),
        # Packets are numbered, so a missing packet leaves a gap in the numbers.
        "numbers differ": pl.col("distinct") == pl.col("packets"),
        "numbers are below what was seen": pl.col("last") <= pl.col("packets_seen"),
    }
    if not is_thinned:
        promises["gaps are what was lost"] = pl.col("packets_seen") - pl.col("distinct") == kept_back
    again = rows.filter(event="retransmit").group_by("flow").agg(again=pl.col("gso_segs").sum().cast(pl.UInt32))
    accounts = accounts.join(again, on="flow", how="left").with_columns(pl.col("again").fill_null(0))
    promises["retransmissions are there"] = pl.col("retransmits_logged").fill_null(pl.col("again")) == pl.col("again")
    if not total(ledger, "missed", EVENT_HOOKS):
        # A flow whose account never came has no counts; one that goes on may send again before its account is read.
        parts = pl.sum_horizontal(f"retransmits_{part}" for part in ("logged", "failed", "lost"))
        promises["retransmissions balance"] = pl.col("retransmits_total").fill_null(0) == parts.fill_null(0)
    for promise, holds in promises.items():
        broken = accounts.filter(~holds)
        assert broken.is_empty(), f"{len(broken)} flows break {promise!r}: {broken.row(0, named=True)}"
    wanted = total(ledger, "seen", PACKET_HOOKS) - total(ledger, "filtered", PACKET_HOOKS)
    unknown = total(ledger, "failed", PACKET_HOOKS) + total(ledger, "missed", PACKET_HOOKS)
    assert flows["packets_seen"].sum() == wanted - unknown, account_text(ledger)
    wanted = total(ledger, "seen", EVENT_HOOKS) - total(ledger, "filtered", EVENT_HOOKS)
    assert flows["events_seen"].sum() == wanted - total(ledger, "missed", EVENT_HOOKS), account_text(ledger)
    for cause in ("thinned", "dropped", "overwritten", "unwritten"):
        assert flows[f"packets_{cause}"].sum() == total(ledger, cause, PACKET_HOOKS), account_text(ledger)
    check_causes(log)
    return log, ledger


def check_causes(log: Any) -> None:
    """Check why segments were sent again, as the table of flows says it, against the table of retransmissions."""
    judged = pl.from_arrow(log.retransmissions).with_columns(pl.col("cause").cast(pl.String).fill_null("unknown"))
    expected: dict[int, dict[str, int]] = {}
    for flow, cause, segments in judged.group_by("flow", "cause").agg(pl.col("segments").sum()).iter_rows():
        expected.setdefault(flow, {})[cause] = segments
    states = log.flow_states().table()
    if states.is_empty():
        return
    # What has no rows with a socket, such as a handshake, has no state.
    for flow, text in states.filter(pl.col("records").is_not_null())["flow", "retransmitted_for"].iter_rows():
        found = {
            cause: int(segments) for segments, cause in (part.split() for part in (text or "").split(", ") if part)
        }
        assert found == expected.get(flow, {}), f"flow {flow}: {text}"


def account_text(ledger: dict[str, Any]) -> str:
    """The ledger for a message of a failed test."""
    return json.dumps(ledger["hooks"])


@contextlib.contextmanager
def small_disk(directory: Path, size: str) -> Iterator[Path]:
    """A file system of this size."""
    directory.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", directory], check=True)
    try:
        yield directory
    finally:
        subprocess.run(["umount", directory], check=True)
