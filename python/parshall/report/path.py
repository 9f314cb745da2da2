"""The report of path logs and of histograms of paths: one self-contained HTML page, figures as PNG and SVG."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from parshall.errors import UsageError, naming_damage
from parshall.figures.path import PathReduction, figures_of, reduce, reduce_histograms
from parshall.figures.path.axes import time_text
from parshall.host.ledger_text import budget_text
from parshall.host.quantities import bytes_text, many
from parshall.instruments.path.histograms import PathHistograms
from parshall.instruments.path.stages import WHOLE
from parshall.instruments.path.text import estimate_text
from parshall.report.account import Account, hook_accounts, total
from parshall.report.document import check_destination, identities, part_of, render, specified, write_document
from parshall.report.images import Images

if TYPE_CHECKING:
    from parshall.instruments.path.log import PathLog

    Measured = PathLog | PathHistograms

MEANINGS = {
    "forwarded": "came in and left by an interface",
    "delivered": "was given to a socket",
    "sent": "began in this host and left",
    "dropped": "freed with a reason",
    "consumed": "used up by the kernel, such as ARP and packets that a tunnel unpacks",
    "merged": "GRO or the reassembly of fragments put it into another packet",
    "segmented": "GSO cut it into pieces, which are packets of their own",
    "unknown": "its sk_buff was used again, and no end was seen",
    "displaced": "another packet took its place in the table; --packets-max makes it larger",
    "open": "under way when measuring ended",
}
"""Code path -> how its packets end."""
_MAKE_AGAIN = "make it again with: parshall path"
# Between two windows without a gap the clock is asked once; attaching takes milliseconds.
_CONTIGUOUS_NS = 1_000_000
_BEGIN_AND_END_S = 0.5


def write_report(
    logs: "Mapping[str, Measured]",
    directory: str | os.PathLike[str],
    title: str,
    *,
    images: bool = True,
    progress: Callable[[str], None] = lambda _: None,
) -> Path:
    """Write ``report.html`` of path logs or histograms, and the figures as PNG (2x) and SVG into ``figures/``.

    Each log is read twice, in memory that does not grow with its rows.

    Parameters
    ----------
    logs : mapping of str to PathLog or PathHistograms
        What was measured, by its names in the report.
    directory, title, images, progress
        As for `parshall.report.write_report`, and so are the result and the errors.

    Raises
    ------
    UsageError
        Histograms are damaged.
    """
    if not logs:
        raise UsageError("no log: name at least one")
    directory = Path(directory)
    check_destination(directory)
    with Images(is_wanted=images) as drawn:
        parts = [
            _part(name, identity, log, drawn, progress)
            for (name, log), identity in zip(logs.items(), identities(logs), strict=True)
        ]
        progress("drawing")
        with naming_damage([log.path for log in logs.values()], _MAKE_AGAIN):
            page = _render(title, parts)
        return write_document(directory, page, drawn, progress=progress)


def _part(name: str, identity: str, log: "Measured", images: Images, progress: Callable[[str], None]) -> dict[str, Any]:
    """Return the data of the page for one log, or for histograms."""
    with naming_damage([log.path], _MAKE_AGAIN):
        return _described(name, identity, log, images, progress)


def _described(
    name: str, identity: str, log: "Measured", images: Images, progress: Callable[[str], None]
) -> dict[str, Any]:
    if isinstance(log, PathHistograms):
        reduced = reduce_histograms(log.summary)
    else:
        reduced = reduce(log, lambda rows: progress(f"reading {name}: {rows:,} rows of two passes"))
    hooks = hook_accounts(log.ledger)
    wrong = findings(hooks, reduced, complete=log.complete)
    texts = sentences(reduced, hooks, log.ledger, complete=log.complete, is_balanced=not wrong)
    return part_of(name, identity, log, reduced.begin_ns) | {
        "sentences": [*texts, *_unseen(log)],
        "figures": specified(identity, figures_of(reduced), images),
        "times": reduced.times.to_dicts(),
        "paths": reduced.paths.to_dicts(),
        "findings": wrong,
        "has_packets": not isinstance(log, PathHistograms),
        "records": reduced.rows,
    }


def _unseen(log: "Measured") -> list[str]:
    """Return what is known of a measurement whose programs were attached in windows only."""
    wall_s = (log.ledger.get("cost") or {}).get("wall_s") or 0.0
    if isinstance(log, PathHistograms):
        summary = log.summary
        attached_s, windows = summary.attached_s, summary.windows
        is_partial = summary.is_partial
    else:
        table = log.windows
        lasted_ns = pc.subtract(table["until_time"].cast("int64"), table["from_time"].cast("int64"))
        attached_s, windows = (pc.sum(lasted_ns).as_py() or 0) / 1e9, _apart(table)
        has_windows = log.options.get("budget") is not None or (log.options.get("share") or 1) != 1
        # Windows of a budget may be all of the time, but for the beginning and the end.
        is_partial = (windows > 0 or has_windows) and wall_s - attached_s > _BEGIN_AND_END_S
    texts = []
    if is_partial:
        texts.append(
            f"The programs were attached for {attached_s:.1f} of {wall_s:.1f} s, in {many(windows, 'window')}: "
            "packets at other times were not seen."
        )
    if isinstance(log, PathHistograms):
        if log.summary.budget:
            texts.append(f"B{budget_text(log.summary.budget)[1:]}.")
        estimates = "; ".join(map(estimate_text, log.summary.estimates))
        texts += [f"Estimates for all {wall_s:.1f} s, with 95 % intervals: {estimates}."] if estimates else []
    return texts


def _apart(windows: pa.Table) -> int:
    """Return how many windows there are, when those that follow each other without a gap are one."""
    begins: list[int] = windows["from_time"].cast("int64").to_pylist()
    ends: list[int] = windows["until_time"].cast("int64").to_pylist()
    gaps = [later - before for before, later in zip(ends[:-1], begins[1:], strict=True)]
    return bool(begins) + sum(gap > _CONTIGUOUS_NS for gap in gaps)


def findings(hooks: list[Account], reduced: PathReduction, *, complete: bool) -> list[str]:
    """Compare the account with the file; return a sentence for each contradiction.

    Returns
    -------
    list of str
        Empty when everything balances. The account of a truncated log, taken while the hooks ran, is not compared.
    """
    found = []
    if reduced.backwards:
        found.append(
            f"{many(reduced.backwards, 'time')} of stages would be negative and are left out: a stage was attributed "
            "to another packet"
        )
    if not complete or not hooks:
        return found
    found += [
        f"{account.name}: {account.difference:+,} of {account.seen:,} seen are unaccounted"
        for account in hooks
        if account.difference
    ]
    logged = sum(account.logged for account in hooks)
    if logged != reduced.rows:
        found.append(f"{logged:,} rows were logged, but the file has {reduced.rows:,}")
    return found


def sentences(
    reduced: PathReduction, hooks: list[Account], ledger: Mapping[str, Any], *, complete: bool, is_balanced: bool
) -> list[str]:
    """Return the sentences of the summary."""
    packets = int(reduced.paths["packets"].sum())
    kinds = ", ".join(f"{row['packets']:,} {row['path']}" for row in reduced.paths.iter_rows(named=True))
    texts = [f"{many(packets, 'packet')}{f': {kinds}' if kinds else ''}; {many(reduced.reads, 'read')} from sockets."]
    for row in reduced.times.filter(stage=WHOLE).iter_rows(named=True):
        most = reduced.times.filter(path=row["path"]).filter(reduced.times.filter(path=row["path"])["stage"] != WHOLE)
        if most.is_empty():
            continue
        top = most.sort("share", descending=True).row(0, named=True)
        texts.append(
            f"{row['path'].capitalize()} packets took {time_text(row['median_ns'])} in the median and "
            f"{time_text(row['p99_ns'])} at the 99th percentile; {top['share']:.0%} of their total time passed "
            f"between {top['stage']} and the stage before."
        )
    if not complete:
        texts.append("The log is truncated: this report covers the part that could be read.")
    if not hooks:
        return [*texts, "It has no ledger: it ended within its first second."]
    account = total(hooks)
    causes = ", ".join(f"{count:,} {cause}" for cause, count in account.lost.items() if count)
    lost = f"{account.lost_total:,} were lost ({causes})" if account.lost_total else "none was lost"
    verdict = "the ledger balances" if is_balanced else "see the findings below"
    if not complete:
        verdict = "the ledger was taken while the hooks ran, so it need not balance"
    texts.append(
        f"Of {account.seen:,} packets and reads that were seen, {account.logged:,} were logged, {account.filtered:,} "
        f"filtered, {account.thinned:,} thinned out, {lost}; {verdict}."
    )
    cost = ledger.get("cost") or {}
    if cost.get("wall_s"):
        texts.append(
            f"The reader took {cost['reader_cpu_s']:.2f} CPU seconds in {cost['wall_s']:.1f} s and wrote "
            f"{bytes_text(cost['log_bytes'])}."
        )
    return texts


def _render(title: str, parts: list[dict[str, Any]]) -> str:
    return render(
        "path.html.j2",
        "lab.js",
        has_figures=any(part["figures"] for part in parts),
        filters={"time_text": time_text},
        title=title,
        parts=parts,
        meanings=MEANINGS,
    )
