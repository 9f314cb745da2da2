"""The report of TCP logs: one self-contained HTML page, figures as PNG and SVG."""

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow.compute as pc

from parshall.errors import UsageError
from parshall.figures import Legend, Reduction, figures_of, legends, reduction, together
from parshall.host.rows import plain_rows
from parshall.report import summary
from parshall.report.account import Account, findings, flow_accounts, flow_total, unchecked_reason, without_last_account
from parshall.report.document import (
    TOGETHER,
    check_destination,
    command_line,
    identities,
    part_of,
    render,
    specified,
    write_document,
)
from parshall.report.images import Images
from parshall.report.links import links
from parshall.report.retransmissions import cause_rows, of_listed, without_row

if TYPE_CHECKING:
    from parshall.instruments.tcp_log import Log

# A browser cannot open the figures of some hundred logs. Of more than so many, those that moved most bytes are in the
# figures of all logs together, none has its own, and the page lists so many flows in all.
LOGS_MAX = 12
_FLOWS_OF_MANY, _FLOWS_OF_A_LOG_MIN = 1000, 10


@dataclass(frozen=True)
class Digest:
    """What a report has of one log: small whatever the number of its records, so that another process may make it.

    Attributes
    ----------
    reduction : Reduction
        The data of figures and tables.
    lines : Lines
        What figures of several logs have of it.
    ledger, environment, complete, truncation : object
        Those of the log.
    gaps, thinning : list of dict
        Rows of these tables of the log.
    full_listeners, causes : list of dict
        Rows of the tables of listeners that refused something, and of retransmissions by cause.
    """

    reduction: Reduction
    lines: together.Lines
    ledger: Mapping[str, Any]
    environment: Mapping[str, Any]
    complete: bool
    truncation: str | None
    gaps: list[dict[str, Any]]
    thinning: list[dict[str, Any]]
    full_listeners: list[dict[str, Any]]
    causes: list[dict[str, Any]]


def digest(log: "Log", progress: Callable[[str], None] = lambda _: None) -> Digest:
    """Read a log once for the figures and once for the retransmissions, in memory that does not grow with its records.

    Parameters
    ----------
    log : Log
        What `parshall.read` returns.
    progress : callable
        Called with the number of records so far, and which share that is, many times a second.

    Raises
    ------
    ParshallError
        The log is damaged.
    """
    flows = log.flows
    expected = sum(pc.sum(flows[f"{kind}_logged"]).as_py() or 0 for kind in ("packets", "events"))

    def count(records: int) -> None:
        share = f", {min(1, records / expected):.0%}" if expected else ""
        progress(f"{records:,} records{share}")

    reduced = reduction.reduce(log, count)
    return Digest(
        reduction=reduced,
        lines=together.lines_of(reduced),
        ledger=dict(log.ledger),
        environment=log.environment,
        complete=log.complete,
        truncation=log.truncation,
        gaps=plain_rows(log.gaps),
        thinning=plain_rows(log.thinning),
        full_listeners=_full_listeners(log),
        causes=cause_rows(log.retransmissions, _listed(reduced)["flow"].to_list()),
    )


def digest_of_many(log: "Log") -> Digest:
    """Return what a report of more than `LOGS_MAX` logs has of one: `digest` without the data of its own figures."""
    whole = digest(log)
    return replace(whole, reduction=whole.reduction.totals)


def _listed(reduced: Reduction) -> pl.DataFrame:
    """Return the rows of the flows that the page lists; flows that are missing from the flow table have no account."""
    return reduced.table.filter(pl.col("local_address").is_not_null() & pl.col("flow").is_in(reduced.listed))


def write_report(
    logs: Mapping[str, "Log | Digest"],
    directory: str | os.PathLike[str],
    title: str,
    *,
    testbed: Mapping[str, Any] | None = None,
    images: bool = True,
    progress: Callable[[str], None] = lambda _: None,
) -> Path:
    """Write ``report.html``, and the figures as PNG (2x) and SVG into ``figures/``.

    Each log is read once for the figures and once for the retransmissions, in memory that does not grow with its
    other records. If a log has more than 1000 flows, the page
    lists those that moved most bytes, and ``NAME-flows.csv`` has all.

    Parameters
    ----------
    logs : mapping of str to Log or Digest
        The logs, by their names in the report, or what `digest` made of them elsewhere.
    directory : path-like
        Output directory; created if needed.
    title : str
        Heading of the report.
    testbed : mapping, optional
        The result of `Testbed.describe`, optionally with ``statistics`` of the links, and the ``command_line`` that
        made both testbed and logs.
    images : bool
        Whether to write the figures as files, too.
    progress : callable
        Called with the current step, a few words, many times a second.

    Returns
    -------
    pathlib.Path
        The HTML file.

    Raises
    ------
    UsageError
        There is no log, or `directory` cannot be written; raised before any log is read.
    ParshallError
        A log is damaged, or a file cannot be written.
    """
    if not logs:
        raise UsageError("no log: name at least one")
    directory = Path(directory)
    check_destination(directory)
    with Images(is_wanted=images) as drawn:
        return _written(logs, directory, title, testbed, drawn, progress)


def _written(
    logs: Mapping[str, "Log | Digest"],
    directory: Path,
    title: str,
    testbed: Mapping[str, Any] | None,
    images: Images,
    progress: Callable[[str], None],
) -> Path:
    digests = [
        log if isinstance(log, Digest) else digest(log, _named(f"reading {name}", progress))
        for name, log in logs.items()
    ]
    reductions = [each.reduction for each in digests]
    progress("drawing")
    names = legends(reductions)
    axis_ns = shared_axis_ns(reductions)
    are_many = len(digests) > LOGS_MAX
    drawn = set(sorted(range(len(digests)), key=lambda at: -reductions[at].counted_bytes)[:LOGS_MAX])
    parts = [
        _part(name, identity, each, legend, axis_ns, images, of_many=len(digests) if are_many else None)
        for name, each, identity, legend in zip(logs, digests, identities(logs), names, strict=True)
    ]
    named = list(zip(logs, digests, strict=True))
    chosen = {name: each.lines for number, (name, each) in enumerate(named) if number in drawn}
    both = together.figures_of(chosen, omitted=len(logs) - len(chosen)) if len(logs) > 1 else []
    overlaid = {"id": TOGETHER, "figures": specified(TOGETHER, both, images)}
    overview = _overview(parts, digests) if len(parts) > 2 else []
    page = _render(title, parts, overlaid, overview, testbed)
    tables = {part["flows_file"]: part["flow_table"].write_csv() for part in parts if part["flows_file"]}
    return write_document(directory, page, images, others=tables, progress=progress)


def _named(what: str, progress: Callable[[str], None]) -> Callable[[str], None]:
    """Return a `progress` whose text begins with what is done; says that at once."""
    progress(what)
    return lambda text: progress(f"{what}: {text}")


def shared_axis_ns(reductions: Iterable[Reduction]) -> tuple[int, int] | None:
    """Return the time from the first to the last record of all logs; None when they do not overlap."""
    spans = [
        (each.begin_ns, each.end_ns) for each in reductions if each.begin_ns is not None and each.end_ns is not None
    ]
    if not spans or max(begin for begin, _ in spans) > min(end for _, end in spans):
        return None
    return min(begin for begin, _ in spans), max(end for _, end in spans)


def _part(
    name: str,
    identity: str,
    log: Digest,
    legend: Legend,
    axis_ns: tuple[int, int] | None,
    images: Images,
    *,
    of_many: int | None,
) -> dict[str, Any]:
    """Return the data of the page for one log, which has less of it where it is one of many."""
    reduced = log.reduction
    # Flows that are missing from the flow table have no account.
    table = reduced.table.filter(pl.col("local_address").is_not_null())
    shown = _listed(reduced)
    if of_many is not None:
        most = max(_FLOWS_OF_MANY // of_many, _FLOWS_OF_A_LOG_MIN)
        shown = shown.sort("bytes", descending=True, nulls_last=True, maintain_order=True).head(most).sort("flow")
    others = table.filter(~pl.col("flow").is_in(shown["flow"].to_list()))
    ledger = log.ledger
    unchecked = unchecked_reason(ledger, log.truncation, log.gaps)
    open_flows = without_last_account(table, log.gaps)
    checked = table.filter(~pl.col("flow").is_in(open_flows.implode()))
    wrong = [] if unchecked else findings(ledger, checked, reduced.records)
    return part_of(name, identity, log, reduced.begin_ns) | {
        "sentences": summary.log_sentences(
            reduced,
            ledger,
            flows=table.height,
            findings=wrong,
            unchecked=unchecked,
            unchecked_flows=open_flows.len(),
            truncation=log.truncation,
            gaps=log.gaps,
            thinning=log.thinning,
        ),
        "flows_sentence": summary.flows_sentence(reduced, legend.labels),
        "is_drawn": of_many is None,
        "figures": specified(identity, figures_of(reduced, legend, axis_ns=axis_ns) if of_many is None else (), images),
        "flows": _rows(shown, legend),
        "flow_table": table.sort("bytes", descending=True, nulls_last=True, maintain_order=True),
        "full_listeners": log.full_listeners,
        "causes_of_retransmissions": of_listed(log.causes, shown["flow"].to_list()),
        "retransmissions_without_row": without_row(table),
        "has_pairs": not shown["is_counted"].all(),
        "has_senders": bool(reduced.senders),
        "flows_file": f"{identity}-flows.csv" if others.height else None,
        "packets": _accounts_of(shown, others, "packets"),
        "events": _accounts_of(shown, others, "events"),
        "unowned": {hook["hook"]: hook.get("unowned", 0) for hook in ledger.get("hooks", [])},
        "findings": wrong,
        "unchecked": unchecked,
        "unchecked_flows": open_flows.len(),
        "records": reduced.records,
    }


def _overview(parts: list[dict[str, Any]], digests: Iterable[Digest]) -> list[dict[str, Any]]:
    """Return the rows of the table of all logs: those that moved most bytes first."""
    rows = []
    for part, log in zip(parts, digests, strict=True):
        counted = log.reduction.table.filter("is_counted")
        cost, account = part["cost"], part["hooks"][-1] if part["hooks"] else None
        begin_ns, end_ns = log.reduction.begin_ns, log.reduction.end_ns
        rows.append(
            {
                "name": part["name"],
                "id": part["id"],
                "began": part["began"],
                "duration_s": None if begin_ns is None or end_ns is None else (end_ns - begin_ns) / 1e9,
                "records": log.reduction.records,
                "connections": counted.height,
                "bytes": log.reduction.counted_bytes,
                "retransmitted": int(counted["retransmitted"].sum() or 0),
                "lost": None if account is None else account.lost_total,
                "reader_share": cost["reader_cpu_s"] / cost["wall_s"] if cost.get("wall_s") else None,
                "state": "complete" if log.complete else "with gaps" if log.gaps else "cut",
                "findings": len(part["findings"]),
            }
        )
    return sorted(rows, key=lambda row: -row["bytes"])


def _rows(shown: pl.DataFrame, legend: Legend) -> list[dict[str, Any]]:
    """Return the rows of the table of flows; of a connection, the counted end first, then the other."""
    first = pl.when("is_counted").then("flow").otherwise("other_end")
    ordered = shown.sort(first, "is_counted", descending=[False, True])
    return [
        row
        | {
            "label": legend.labels[row["flow"]],
            "colour": legend.colours.get(row["flow"]),
            "here": _end(row["local_address"], row["local_port"]),
            "there": _end(row["remote_address"], row["remote_port"]),
            "owner": _owner(row),
            "connection": _mptcp_connection(row),
            "end": _ending(row),
        }
        for row in ordered.iter_rows(named=True)
    ]


def _full_listeners(log: "Log") -> list[dict[str, Any]]:
    """Return the listeners that refused something, those that refused most first."""
    refusing = [row for row in plain_rows(log.listeners) if row["syns_refused"] or row["acks_refused"]]
    refusing.sort(key=lambda row: row["syns_refused"] + row["acks_refused"], reverse=True)
    return [row | {"here": _end(row["local_address"], row["local_port"]), "owner": _owner(row)} for row in refusing]


def _end(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def _mptcp_connection(row: Mapping[str, Any]) -> str | None:
    """Return the MPTCP connection that a flow is a subflow of, by its token as ss writes it."""
    token = row.get("mptcp_token")
    return f"MPTCP {token:08x}" if token else None


_ENDINGS = {
    "open": "still open",
    "fin": "FIN from both",
    "fin_sent": "FIN from here",
    "reset_received": "reset by the peer",
    "aborted": "aborted here",
    "timeout": "timeout",
    "unreachable": "ICMP error",
}


def _ending(row: Mapping[str, Any]) -> str | None:
    """Return how a flow ended, and which FINs were sent of one that has not; None: unknown."""
    text = _ENDINGS.get(row.get("ending") or "")
    # What came for a listener and became no connection has no socket, and moved nothing.
    moved = any(row.get(name) for name in ("bytes_acked", "bytes_received", "fin_sent", "fin_received"))
    if row.get("ending") == "open" and row.get("passive") and row.get("socket_cookie") == 0 and not moved:
        return "handshake not completed"
    fins = [end for end, has in (("here", row.get("fin_sent")), ("the peer", row.get("fin_received"))) if has]
    return f"{text}, FIN from {' and '.join(fins)}" if row.get("ending") == "open" and fins else text


def _owner(row: Mapping[str, Any]) -> str | None:
    """Return the process of a flow, or its control group if the process is unknown."""
    command, pid = row.get("command"), row.get("pid")
    if command or pid:
        return f"{command or '?'} ({pid or '?'})"
    return row.get("cgroup")


def _accounts_of(shown: pl.DataFrame, others: pl.DataFrame, kind: str) -> list[Account]:
    """Return the accounts of the listed flows, and the sum of all others."""
    rest = [flow_total(others, kind, f"{others.height:,} others")] if others.height else []
    return [*flow_accounts(shown, kind).values(), *rest]


def _render(
    title: str,
    parts: list[dict[str, Any]],
    overlaid: dict[str, Any],
    overview: list[dict[str, Any]],
    testbed: Mapping[str, Any] | None,
) -> str:
    return render(
        "report.html.j2",
        "report.js",
        has_figures=any(part["figures"] for part in parts),
        title=title,
        parts=parts,
        overlaid=overlaid,
        overview=overview,
        testbed=testbed,
        repeat=command_line(testbed or {}),
        links=links(testbed) if testbed else [],
    )
