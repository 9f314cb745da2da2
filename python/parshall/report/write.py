"""The report of TCP logs: one self-contained HTML page, figures as PNG and SVG."""

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow.compute as pc
from altair.utils.schemapi import debug_mode

from parshall.errors import UsageError
from parshall.figures import Legend, Reduction, figures_of, legends, reduction, together
from parshall.host.rows import plain_rows
from parshall.report import summary
from parshall.report.account import Account, findings, flow_accounts, flow_total
from parshall.report.document import (
    TOGETHER,
    check_destination,
    figures_in,
    identities,
    part_of,
    render,
    start_drawing,
    write_document,
)
from parshall.report.links import links
from parshall.report.retransmissions import cause_rows

if TYPE_CHECKING:
    from parshall.instruments.tcp_log import Log


def write_report(
    logs: Mapping[str, "Log"],
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
    logs : mapping of str to Log
        The logs, by their names in the report.
    directory : path-like
        Output directory; created if needed.
    title : str
        Heading of the report.
    testbed : mapping, optional
        The result of `Testbed.describe`, optionally with ``statistics`` of the links.
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
    if images:
        start_drawing()
    reductions = [_reduced(name, log, progress) for name, log in logs.items()]
    progress("drawing")
    names = legends(reductions)
    axis_ns = shared_axis_ns(reductions)
    # The tests hold figures against Vega-Lite's schema, which takes longer here than all else that draws them.
    with debug_mode(False):
        parts = [
            _part(name, identity, log, reduced, legend, axis_ns)
            for (name, log), identity, reduced, legend in zip(
                logs.items(), identities(logs), reductions, names, strict=True
            )
        ]
        both = together.figures_of(dict(zip(logs, reductions, strict=True))) if len(logs) > 1 else []
        overlaid = {"id": TOGETHER, "figures": [(each, each.chart.to_dict(validate=False)) for each in both]}
    page = _render(title, parts, overlaid, testbed)
    tables = {part["flows_file"]: part["flow_table"].write_csv() for part in parts if part["flows_file"]}
    return write_document(
        directory, page, figures_in([*parts, overlaid]) if images else (), others=tables, progress=progress
    )


def _reduced(name: str, log: "Log", progress: Callable[[str], None]) -> Reduction:
    flows = log.flows
    expected = sum(pc.sum(flows[f"{kind}_logged"]).as_py() or 0 for kind in ("packets", "events"))

    def count(records: int) -> None:
        share = f", {min(1, records / expected):.0%}" if expected else ""
        progress(f"reading {name}: {records:,} records{share}")

    progress(f"reading {name}")
    return reduction.reduce(log, count)


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
    log: "Log",
    reduced: Reduction,
    legend: Legend,
    axis_ns: tuple[int, int] | None,
) -> dict[str, Any]:
    """Return the data of the page for one log."""
    # Flows that are missing from the flow table have no account.
    table = reduced.table.filter(pl.col("local_address").is_not_null())
    shown = table.filter(pl.col("flow").is_in(reduced.listed))
    others = table.filter(~pl.col("flow").is_in(reduced.listed))
    ledger = log.ledger
    # The accounts of a truncated log were taken while the hooks ran, and need not agree.
    wrong = findings(ledger, table, reduced.records) if log.complete else []
    return part_of(name, identity, log, reduced.begin_ns) | {
        "sentences": summary.log_sentences(
            reduced,
            ledger,
            flows=table.height,
            complete=log.complete,
            findings=wrong,
            truncation=log.truncation,
            gaps=plain_rows(log.gaps),
            thinning=plain_rows(log.thinning),
        ),
        "flows_sentence": summary.flows_sentence(reduced, legend.labels),
        "figures": [
            (figure, figure.chart.to_dict(validate=False)) for figure in figures_of(reduced, legend, axis_ns=axis_ns)
        ],
        "flows": _rows(shown, legend),
        "flow_table": table.sort("bytes", descending=True, nulls_last=True, maintain_order=True),
        "full_listeners": _full_listeners(log),
        "causes_of_retransmissions": cause_rows(log.retransmissions, shown["flow"].to_list()),
        "has_pairs": not shown["is_counted"].all(),
        "has_senders": bool(reduced.senders),
        "flows_file": f"{identity}-flows.csv" if others.height else None,
        "packets": _accounts_of(shown, others, "packets"),
        "events": _accounts_of(shown, others, "events"),
        "unowned": {hook["hook"]: hook.get("unowned", 0) for hook in ledger.get("hooks", [])},
        "findings": wrong,
        "records": reduced.records,
    }


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
    title: str, parts: list[dict[str, Any]], overlaid: dict[str, Any], testbed: Mapping[str, Any] | None
) -> str:
    return render(
        "report.html.j2",
        "report.js",
        has_figures=any(part["figures"] for part in parts),
        title=title,
        parts=parts,
        overlaid=overlaid,
        testbed=testbed,
        links=links(testbed) if testbed else [],
    )
