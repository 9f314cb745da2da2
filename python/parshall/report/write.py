"""Write a report: self-contained HTML, and every figure as PNG and SVG."""

import json
import os
import shlex
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
import polars as pl
import pyarrow.compute as pc
import vl_convert
from markupsafe import Markup

from parshall.errors import UsageError, file_error
from parshall.figures import Legend, Reduction, figures_of, legends, reduction
from parshall.figures.frame import POINTER_LAYER
from parshall.report import summary
from parshall.report.account import Account, findings, flow_accounts, flow_total, hook_accounts, total
from parshall.report.links import links
from parshall.report.retransmissions import cause_rows
from parshall.whole_file import write_whole

if TYPE_CHECKING:
    from parshall.log import Log

PAGE = "report.html"
FIGURE_DIRECTORY = "figures"
_PNG_SCALE = 2.0
# The page's own sections.
_SECTIONS = ("", "summary", "ledger", "cost", "environment", "repeat")
# Figures with more characters of data than this are drawn on a canvas instead of as SVG elements.
_SVG_CHARS_MAX = 200_000


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
    reductions = [_reduced(name, log, progress) for name, log in logs.items()]
    progress("drawing")
    names = legends(reductions)
    axis_ns = shared_axis_ns(reductions)
    parts = [
        _part(name, identity, log, reduced, legend, axis_ns)
        for (name, log), identity, reduced, legend in zip(
            logs.items(), identities(logs), reductions, names, strict=True
        )
    ]
    page = _render(title, parts, testbed)
    path = directory / PAGE
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for part in parts:
            if part["flows_file"]:
                write_whole(directory / part["flows_file"], part["flow_table"].write_csv())
        if images:
            write_images(directory / FIGURE_DIRECTORY, parts, progress)
        # Last, since it refers to the others.
        write_whole(path, page)
    except OSError as error:
        raise file_error(
            error, f"{error.filename or path}: {error.strerror}; free some space, or name another directory"
        ) from None
    return path


def check_destination(directory: Path) -> None:
    """Raise `UsageError` if a report cannot be written to a directory, before any other work."""
    try:
        existing = next(path for path in (directory, *directory.absolute().parents) if path.exists())
        if not existing.is_dir():
            raise UsageError(f"{existing}: not a directory; name another with -o")
        if not os.access(existing, os.W_OK | os.X_OK):
            raise UsageError(f"{existing}: cannot be written; name another directory with -o")
        for name, is_wanted in ((PAGE, Path.is_file), (FIGURE_DIRECTORY, Path.is_dir)):
            if (directory / name).exists() and not is_wanted(directory / name):
                raise UsageError(
                    f"{directory / name}: in the way of the report; move it, or name another directory with -o"
                )
    except (OSError, ValueError) as error:
        raise UsageError(f"{directory}: {getattr(error, 'strerror', None) or error}; name another with -o") from None


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


def identities(names: Iterable[str]) -> list[str]:
    """Return unique names that are valid in links and file names."""
    found: list[str] = []
    for name in names:
        plain = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in name)
        wanted = f"log-{plain}" if plain in _SECTIONS else plain
        found.append(wanted if wanted not in found else f"{wanted}-{len(found) + 1}")
    return found


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
    hooks = hook_accounts(ledger)
    # The accounts of a truncated log were taken while the hooks ran, and need not agree.
    wrong = findings(ledger, table, reduced.records) if log.complete else []
    return {
        "name": name,
        "id": identity,
        "sentences": summary.log_sentences(reduced, ledger, flows=table.height, complete=log.complete, findings=wrong),
        "flows_sentence": summary.flows_sentence(reduced, legend.labels),
        "figures": [(figure, figure.chart.to_dict()) for figure in figures_of(reduced, legend, axis_ns=axis_ns)],
        "flows": _rows(shown, legend),
        "flow_table": table.sort("bytes", descending=True, nulls_last=True, maintain_order=True),
        "causes_of_retransmissions": cause_rows(log.retransmissions, shown["flow"].to_list()),
        "has_pairs": not shown["is_counted"].all(),
        "has_senders": bool(reduced.senders),
        "flows_file": f"{identity}-flows.csv" if others.height else None,
        "packets": _accounts_of(shown, others, "packets"),
        "events": _accounts_of(shown, others, "events"),
        "hooks": [*hooks, total(hooks)] if hooks else [],
        "causes": list(hooks[0].lost) if hooks else [],
        "unowned": {hook["hook"]: hook.get("unowned", 0) for hook in ledger.get("hooks", [])},
        "findings": wrong,
        "complete": log.complete,
        "cost": ledger.get("cost") or {},
        "records": reduced.records,
        "began": began(reduced.begin_ns),
        "environment": log.environment,
        "command_line": command_line(log.environment),
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
        }
        for row in ordered.iter_rows(named=True)
    ]


def _end(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


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


def began(begin_ns: int | None) -> str | None:
    """Return a moment as text."""
    return None if begin_ns is None else f"{datetime.fromtimestamp(begin_ns / 1e9, UTC):%Y-%m-%d %H:%M:%S} UTC"


def command_line(environment: Mapping[str, Any]) -> str | None:
    """Return the command line of a measurement."""
    words = environment.get("command_line")
    if not words or not isinstance(words, list):
        return None
    return shlex.join([Path(str(words[0])).name, *map(str, words[1:])])


def _render(title: str, parts: list[dict[str, Any]], testbed: Mapping[str, Any] | None) -> str:
    templates = jinja2.Environment(
        loader=jinja2.PackageLoader("parshall.report", "page"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters |= {"count": "{:,}".format, "as_data": as_data, "pretty": pretty}
    return templates.get_template("report.html.j2").render(
        title=title,
        parts=parts,
        testbed=testbed,
        links=links(testbed) if testbed else [],
        written=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        style=Markup(page_text("report.css")),
        script=Markup(page_text("report.js")),
        vega=Markup(vega()) if any(part["figures"] for part in parts) else "",
        renderer=lambda specification: "svg" if len(json.dumps(specification)) < _SVG_CHARS_MAX else "canvas",
    )


def as_data(specification: Mapping[str, Any]) -> Markup:
    """Return JSON for a ``script`` element, with ``<`` escaped."""
    # The page has its own headings and captions; only separate files show the title.
    bare = {key: value for key, value in specification.items() if key != "title"}
    return Markup(json.dumps(bare, ensure_ascii=True).replace("<", "\\u003c"))


def page_text(name: str) -> str:
    """Return a file of the page: its styles or a script."""
    return (resources.files("parshall.report") / "page" / name).read_text(encoding="utf-8")


def pretty(value: object) -> str:
    """Return a value as indented JSON."""
    return json.dumps(value, indent=2, ensure_ascii=False)


@cache
def vega() -> str:
    """Return the library that draws the figures in the page."""
    bundle = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    # A closing tag would end the script element.
    return bundle.replace("</script", "<\\/script")


def _without_pointer_layer(specification: Mapping[str, Any]) -> dict[str, Any]:
    """Return the specification without the invisible layer for the pointer."""
    if "layer" not in specification:
        return dict(specification)
    layers = [layer for layer in specification["layer"] if layer.get("name") != POINTER_LAYER]
    return {**specification, "layer": layers}


def write_images(directory: Path, parts: list[dict[str, Any]], progress: Callable[[str], None]) -> None:
    """Write the figures as SVG and PNG."""
    directory.mkdir(exist_ok=True)
    figures = [(part["id"], figure, specification) for part in parts for figure, specification in part["figures"]]
    for number, (identity, figure, specification) in enumerate(figures, 1):
        progress(f"drawing figure {number} of {len(figures)}")
        stem = directory / f"{identity}-{figure.name}"
        drawing = vl_convert.vegalite_to_svg(_without_pointer_layer(specification))
        write_whole(stem.with_suffix(".svg"), drawing)
        write_whole(stem.with_suffix(".png"), vl_convert.svg_to_png(drawing, scale=_PNG_SCALE))
