"""``parshall show``: the flows of a log as a table in the terminal."""

import contextlib
import json
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from parshall.cli import options
from parshall.cli.listener_text import refusing_lines
from parshall.cli.options import count_option, time_option
from parshall.cli.stores import opened_fleet
from parshall.errors import UsageError, printable
from parshall.host.messages import progress_line, show
from parshall.host.quantities import many
from parshall.host.stopping import Stopping, exiting_on_signals

if TYPE_CHECKING:
    import polars as pl

    from parshall.fleet.reading import Fleet, HostStates
    from parshall.instruments.flow_states import FlowStates, Follower

COMMAND_SETTINGS = {"epilog": "Sorted by rate (bytes per second, both directions) with --follow, else by bytes."}
_INTERVAL_S = 1.0
_SORTS = ("rate", "bytes", "acked", "received", "retransmitted", "rtt", "cwnd", "flow")
# Lines of the table besides those of flows, and the one of the shell.
_TABLE_LINES = 3
# Lines about gaps and cuts of the logs of a store.
_INCOMPLETE_LINES = 20
# Of what does not fit in the width of a terminal, the first goes first.
_DROPPED_FIRST = ("retr_for", "cwnd", "cc", "pid", "received", "local")


def command(
    named: Annotated[
        str, typer.Argument(metavar="LOG_OR_DIR", help="Log of `parshall tcp`, directory of one, or store of logs")
    ],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on while the log is being written")] = False,
    sort: Annotated[str | None, typer.Option("--sort", metavar="|".join(_SORTS), help="Order of the flows")] = None,
    count: Annotated[
        int | None, count_option("-c", "--count", help="Show N flows [default: all, or what fits with --follow]")
    ] = None,
    interval: Annotated[
        float | None, time_option("--interval", help="With --follow, time between two tables [default: 1s]")
    ] = None,
    duration: options.Duration = None,
    since: options.Since = None,
    until: options.Until = None,
    hosts: options.OfHosts = None,
    cluster: options.Cluster = None,
    as_json: options.Json = False,
) -> int:
    """Show the flows of a log, or of one that is being written: who talks, how much, in what state."""
    if sort is not None and sort not in _SORTS:
        raise UsageError(f"--sort {sort}: expected one of {', '.join(_SORTS)}")
    if duration is not None and not follow:
        raise UsageError("--duration: is for --follow; a log that is not followed is shown once")
    if interval is not None and not follow:
        raise UsageError("--interval: is for --follow; a log that is not followed is shown once")
    fleet = opened_fleet("show", [named], since, until, cluster, hosts)
    if fleet is not None and follow:
        raise UsageError(f"--follow: {named} is a store, whose files are finished; follow a log on its host")
    if fleet is not None:
        chosen = (since is not None, until is not None)
        return _show_fleet(fleet, chosen, sort or "bytes", count, cluster, as_json)
    log = Path(named)
    if follow:
        return _follow(log, sort or "rate", count, interval or _INTERVAL_S, duration, as_json)
    from parshall.host.rotation import gap_sentence
    from parshall.host.rows import plain_rows
    from parshall.instruments.tcp_log import read

    opened = read(log)
    with exiting_on_signals(), progress_line("show", f"reading {log}") as progress:
        states = opened.flow_states(lambda records: progress(f"reading {log}: {records:,} records"))
    table = _ordered(_with_rates(states.table(), None, 0.0), sort or "bytes")
    if as_json:
        whole = {"truncation": opened.truncation, "gaps": plain_rows(opened.gaps)}
        print(json.dumps(_as_json(log, table, states, opened.complete) | whole))
        return 0
    title = f"{log}: {many(table.height, 'flow')}, {many(states.records, 'record')}"
    title += "" if opened.complete else f"; incomplete{f': {opened.truncation}' if opened.truncation else ''}"
    notes = [gap_sentence(gap) for gap in plain_rows(opened.gaps)]
    full = refusing_lines(plain_rows(opened.listeners))
    account = states.account()
    accounts = [*_account_lines(account)]
    if account is not None and opened.truncation:
        accounts.append("the account is as of its last full second; the table has what came later, too")
    show(title, *notes, *accounts, *full, *_table_lines(table, count, ended=opened.complete))
    return 0


def _show_fleet(
    fleet: "Fleet", chosen: tuple[bool, bool], sort: str, count: int | None, cluster: str | None, as_json: bool
) -> int:
    from parshall.fleet.reading import host_states_of

    with exiting_on_signals(), progress_line("show", f"reading {fleet}") as progress:
        read = fleet.map(
            host_states_of,
            cluster=cluster,
            progress=lambda done, every: progress(f"reading {fleet.url}: {done} of {every} logs"),
        )
    found = [each.states for each in read]
    every = fleet.with_hosts([_with_rates(states.table(), None, 0.0) for states in found])
    table = _ordered(every, sort)
    records = sum(states.records for states in found)
    if as_json:
        hosts = [
            {
                "host": each.host,
                "log": each.log,
                "complete": its.complete,
                "gaps": its.gaps,
                "records": its.states.records,
                "ledger": its.states.ledger or None,
            }
            for each, its in zip(fleet.logs, read, strict=True)
        ]
        print(json.dumps({"store": fleet.url, "hosts": hosts, "records": records, "flows": table.to_dicts()}))
        return 0
    accounts = [each for each in (states.account() for states in found) if each is not None]
    notes = [f"{many(len(found) - len(accounts), 'log')} without an account"] if len(accounts) < len(found) else []
    lacking = [_lacking(its, chosen, whole=each.is_whole) for each, its in zip(fleet.logs, read, strict=True)]
    lines = [f"{name}: {text}" for name, texts in zip(fleet.names, lacking, strict=True) for text in texts]
    notes += lines[:_INCOMPLETE_LINES]
    if len(lines) > _INCOMPLETE_LINES:
        notes.append(f"{many(len(lines) - _INCOMPLETE_LINES, 'more line')} about gaps and cuts; --json shows all")
    title = f"{fleet}, {many(table.height, 'flow')}, {many(records, 'record')}"
    incomplete = sum(map(bool, lacking))
    title += f"; {many(incomplete, 'log')} incomplete" if incomplete else ""
    lines = [*notes, *(_account_lines(_joined(accounts)) if accounts else ())]
    show(title, *lines, *_table_lines(table, count, ended=True))
    return 0


def _lacking(log: "HostStates", chosen: tuple[bool, bool], *, whole: bool) -> list[str]:
    """Return sentences about what of a log is not there; `chosen`: --since and --until left out its other files."""
    from parshall.host.rotation import gap_sentence

    def is_left_out(gap: dict[str, Any]) -> bool:
        return not whole and any(
            is_given and gap[end] is None
            for is_given, end in zip(chosen, ("from_time_ns", "until_time_ns"), strict=True)
        )

    cut = [f"incomplete: {log.truncation}"] if log.truncation else []
    return cut + [gap_sentence(gap) for gap in log.gaps if not is_left_out(gap)]


def _joined(accounts: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the sums of accounts, and the greatest cost."""
    times_ns = [time_ns for each in accounts for time_ns in each["hooks_ns"] or ()]
    return {
        **{name: sum(each[name] for each in accounts) for name in ("seen", "filtered", "thinned", "logged")},
        "lost": {cause: sum(each["lost"].get(cause, 0) for each in accounts) for cause in accounts[0]["lost"]},
        "reader_cpu_share": max(each["reader_cpu_share"] for each in accounts),
        "hooks_ns": [min(times_ns), max(times_ns)] if times_ns else None,
    }


def _follow(log: Path, sort: str, count: int | None, interval_s: float, duration_s: float | None, as_json: bool) -> int:
    from parshall.instruments.flow_states import Follower

    follower = Follower(log)
    is_screen = sys.stdout.isatty() and not as_json
    began_s = time.monotonic()
    before, before_ns = None, 0
    with Stopping() as stopping, _screen(is_screen):
        while True:
            with progress_line("show", f"reading {log}", quiet=before is not None):
                while follower.read() and not stopping.is_requested():
                    pass
            states = follower.states
            table = states.table()
            # What is known advances when the writer flushes, about once a second.
            elapsed_s = (states.until_ns - before_ns) / 1e9
            if before is None or elapsed_s > 0:
                rated = _with_rates(table, before, elapsed_s)
                before, before_ns = (table, states.until_ns) if states.until_ns else (None, 0)
                shown = _ordered(rated, sort)
            has_ended = follower.has_ended
            is_over = duration_s is not None and time.monotonic() - began_s >= duration_s
            _draw(log, follower, shown, count, is_screen, as_json, has_ended)
            if has_ended or is_over or stopping.wait(interval_s):
                break
    if is_screen:
        # The screen of the table is gone; what was last on it stays.
        _draw(log, follower, shown, count, False, as_json, has_ended)
    return 0


def _draw(
    log: Path,
    follower: "Follower",
    table: "pl.DataFrame",
    count: int | None,
    is_screen: bool,
    as_json: bool,
    ended: bool,
) -> None:
    states = follower.states
    if as_json:
        print(json.dumps(_as_json(log, table, states, ended)), flush=True)
        return
    when = time.strftime("%H:%M:%S")
    title = f"{log}: {many(table.height, 'flow')}, {many(states.records, 'record')}, {'ended' if ended else when}"
    size = shutil.get_terminal_size()
    head = [title, *_account_lines(states.account()), *refusing_lines(follower.listeners.values())]
    room = max(size.lines - len(head) - _TABLE_LINES, 1)
    most = min(count or table.height, room) if sys.stdout.isatty() else count
    lines = [*head, *_table_lines(table, most, ended=ended)]
    if is_screen:
        width = size.columns
        text = "\r\n".join(f"{printable(line)[:width]}\x1b[K" for line in lines)
        print(f"\x1b[H{text}\x1b[J", end="", flush=True)
    else:
        show(*lines, "")


@contextlib.contextmanager
def _screen(is_on: bool) -> Iterator[None]:
    """While entered, use the other screen of a terminal, so that the shell's lines come back at the end."""
    if is_on:
        print("\x1b[?1049h\x1b[?25l\x1b[H\x1b[2J", end="", flush=True)
    try:
        yield
    finally:
        if is_on:
            print("\x1b[?25h\x1b[?1049l", end="", flush=True)


def _with_rates(table: "pl.DataFrame", before: "pl.DataFrame | None", elapsed_s: float) -> "pl.DataFrame":
    """Add ``rate_Mbps``: since the table before, or over the life of the flow."""
    import polars as pl

    moved = pl.col("acked_bytes") + pl.col("received_bytes")
    if table.is_empty():
        return table.with_columns(rate_Mbps=pl.lit(None, pl.Float64))
    if before is None:
        return table.with_columns(
            rate_Mbps=pl.when(pl.col("duration_s") > 0).then(moved * 8 / 1e6 / pl.col("duration_s"))
        )
    if before.is_empty():
        return table.with_columns(rate_Mbps=moved * 8 / 1e6 / elapsed_s)
    earlier = before.select("flow", before_bytes=moved)
    return (
        table.join(earlier, on="flow", how="left", maintain_order="left")
        .with_columns(rate_Mbps=(moved - pl.col("before_bytes").fill_null(0)) * 8 / 1e6 / elapsed_s)
        .drop("before_bytes")
    )


def _ordered(table: "pl.DataFrame", sort: str) -> "pl.DataFrame":
    import polars as pl

    if table.is_empty():
        return table
    keys = {
        "rate": pl.col("rate_Mbps"),
        "bytes": pl.col("acked_bytes") + pl.col("received_bytes"),
        "acked": pl.col("acked_bytes"),
        "received": pl.col("received_bytes"),
        "retransmitted": pl.col("retransmitted"),
        "rtt": pl.col("srtt_ms"),
        "cwnd": pl.col("cwnd_segments"),
        "flow": -pl.col("flow").cast(pl.Int64),
    }
    return table.sort(keys[sort], descending=True, nulls_last=True, maintain_order=True)


def _table_lines(table: "pl.DataFrame", count: int | None, *, ended: bool) -> Iterator[str]:
    """Return the lines of the table; of a terminal, no wider than it is. Of a log that has `ended` no flow may come."""
    rows = [_cells(row) for row in table.head(table.height if count is None else count).iter_rows(named=True)]
    if not rows:
        yield "no flows" if ended else "no flows yet"
        return
    names = list(rows[0])
    widths = {name: max(len(name), *(len(row[name]) for row in rows)) for name in names}
    if sys.stdout.isatty():
        room = shutil.get_terminal_size().columns
        for name in _DROPPED_FIRST:
            if sum(widths[each] + 2 for each in names) - 2 > room:
                names.remove(name)
    left = {"host", "process", "local", "peer", "state", "cc", "retr_for"}
    for row in ({name: name for name in names}, *rows):
        cells = (row[name].ljust(widths[name]) if name in left else row[name].rjust(widths[name]) for name in names)
        yield "  ".join(cells).rstrip()
    if table.height > len(rows):
        yield f"{many(table.height - len(rows), 'more flow')}; --count or --sort shows others"


def _cells(row: dict[str, Any]) -> dict[str, str]:
    def number(value: float | None, shape: str = ",") -> str:
        return "-" if value is None else format(value, shape)

    def at_least(may_lack: bool | None) -> str:
        return ">=" if may_lack else ""

    host = {"host": row["host"]} if "host" in row else {}
    return {
        **host,
        "flow": str(row["flow"]),
        "process": printable(row["command"] or "-"),
        "pid": number(row["pid"], "d"),
        "local": _end(row["local_address"], row["local_port"]),
        "peer": _end(row["remote_address"], row["remote_port"]),
        "acked": at_least(row["acked_may_lack"]) + _amount(row["acked_bytes"]),
        "received": at_least(row["received_may_lack"]) + _amount(row["received_bytes"]),
        "Mbit/s": at_least(row["acked_may_lack"] or row["received_may_lack"]) + number(row["rate_Mbps"], ",.2f"),
        "rtt_ms": number(row["srtt_ms"], ".2f"),
        "cwnd": number(row["cwnd_segments"]),
        "retr": number(row["retransmitted"]),
        "cc": row["congestion_control"] or "-",
        "state": _state(row),
        # Last, since it has spaces.
        "retr_for": row["retransmitted_for"] or "-",
    }


def _state(row: dict[str, Any]) -> str:
    """Return how the connection ended, or its state."""
    ending = row["ending"]
    return ending if ending not in (None, "open") else "ended" if row["ended"] else (row["state"] or "-")


def _end(address: str | None, port: int | None) -> str:
    if address is None:
        return "-"
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def _amount(amount_bytes: int | None) -> str:
    """Return bytes in five letters or fewer, in powers of 1,000."""
    if amount_bytes is None:
        return "-"
    if amount_bytes < 1000:
        return str(amount_bytes)
    amount = float(amount_bytes)
    for unit in "kMGT":
        amount /= 1000
        if amount < 999.5:
            return f"{amount:.3g}{unit}"
    return f"{amount:,.0f}T"


def _account_lines(account: dict[str, Any] | None) -> Iterator[str]:
    if account is None:
        yield "no account yet"
        return
    lost = account["lost"]
    causes = ", ".join(f"{number:,} {cause}" for cause, number in lost.items() if number)
    parts = [f"{name} {account[name]:,}" for name in ("filtered", "thinned", "logged")]
    parts.append(f"lost {sum(lost.values()):,}{f' ({causes})' if causes else ''}")
    # While a log is written, hooks have counted what the reader has not read.
    rest = account["seen"] - sum(account[name] for name in ("filtered", "thinned", "logged")) - sum(lost.values())
    if rest:
        parts.append(f"under way {rest:,}")
    hooks_ns = account["hooks_ns"]
    # One program may have run alone.
    times = " to ".join(dict.fromkeys(f"{each:,.0f}" for each in hooks_ns or ()))
    hooks = f", hooks {times} ns" if times else ""
    cost = f"cost: reader {account['reader_cpu_share']:.1%} of a CPU{hooks}"
    yield f"seen {account['seen']:,} = {' + '.join(parts)}; {cost}"
    if account["thinned"]:
        yield (
            "packets are thinned: acked and received are those of each flow's account, or reach to its last logged "
            "packet while it has none; >=: 2 GiB or more may lie between two of these, of which they have the rest "
            "only; states and times are those of logged packets"
        )


def _as_json(log: Path, table: "pl.DataFrame", states: "FlowStates", complete: bool) -> dict[str, Any]:
    return {
        "log": str(log),
        "complete": complete,
        "until_time_ns": states.until_ns,
        "records": states.records,
        "flows": table.to_dicts(),
        "ledger": states.ledger,
    }
