"""Write a report: HTML that needs nothing else, and every figure as PNG and SVG beside it."""

import json
import os
import shlex
from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Protocol

import jinja2
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import vl_convert
from markupsafe import Markup

from parshall.errors import ParshallError
from parshall.figures import Figure, Legend, figures_of, legends
from parshall.figures.bins import span_ns
from parshall.figures.frame import POINTER_LAYER
from parshall.figures.states import states
from parshall.report import summary
from parshall.report.account import Account, findings, flow_accounts, hook_accounts, total
from parshall.report.links import links
from parshall.report.measures import measures
from parshall.whole_file import write_whole

FIGURE_DIRECTORY = "figures"
_PNG_SCALE = 2.0
# The page's own sections.
_SECTIONS = ("", "summary", "ledger", "cost", "environment", "repeat")
# More rows of a table nobody reads, and a page with very many cannot be opened.
_FLOW_ROWS_MAX = 1000
# Above so many characters of data, marks are painted, not put into the page one by one.
_SVG_CHARS_MAX = 200_000


class ReadableLog(Protocol):
    """What a report needs of a log; `parshall.log.Log` has it."""

    @property
    def records(self) -> pa.Table:
        """The records."""

    @property
    def flows(self) -> pa.Table:
        """The flow table."""

    @property
    def ledger(self) -> dict[str, Any]:
        """The account."""

    @property
    def environment(self) -> dict[str, Any]:
        """The host as it was."""

    @property
    def complete(self) -> bool:
        """Whether the log ended as it should."""


def write_report(
    logs: Mapping[str, ReadableLog],
    directory: str | os.PathLike[str],
    title: str,
    *,
    testbed: Mapping[str, Any] | None = None,
    images: bool = True,
) -> Path:
    """Write ``report.html``, and the figures as PNG (2x) and SVG into ``figures/``.

    Of a log with more than 1000 flows the page lists those that moved most, and ``NAME-flows.csv`` has all.

    Parameters
    ----------
    logs : mapping of str to Log
        The logs, by the names that the report gives them.
    directory : path-like
        Where the report goes; made when it is not there.
    title : str
        Heading of the report.
    testbed : mapping, optional
        What `Testbed.describe` returns, with ``statistics`` of the links when there are some.
    images : bool
        Write the figures as files, too.

    Returns
    -------
    pathlib.Path
        The HTML file.

    Raises
    ------
    ParshallError
        There is no log, or a file cannot be written.
    """
    if not logs:
        raise ParshallError("report: there is no log; name at least one")
    directory = Path(directory)
    names = legends([log.flows for log in logs.values()])
    axis_ns = shared_axis_ns([log.records for log in logs.values()])
    parts = [
        _part(name, identity, log, legend, axis_ns)
        for (name, log), identity, legend in zip(logs.items(), _identities(logs), names, strict=True)
    ]
    page = _render(title, parts, testbed)
    path = directory / "report.html"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for part in parts:
            if part["flows_file"]:
                write_whole(directory / part["flows_file"], part["flow_table"].write_csv())
        if images:
            _write_images(directory / FIGURE_DIRECTORY, parts)
        # Last, since it speaks of the others.
        write_whole(path, page)
    except OSError as error:
        raise ParshallError(f"report: {error.filename or path}: {error.strerror}") from None
    return path


def shared_axis_ns(tables: list[pa.Table]) -> tuple[int, int] | None:
    """Return the time from the first to the last record of all logs; None when they do not overlap."""
    spans = [_span_ns(table) for table in tables if table.num_rows]
    if not spans or max(begin for begin, _ in spans) > min(end for _, end in spans):
        return None
    return min(begin for begin, _ in spans), max(end for _, end in spans)


def _span_ns(records: pa.Table) -> tuple[int, int]:
    times = pl.select(pl.Series("time_ns", records["time_ns"]).dt.epoch("ns"))
    return span_ns(times)


def _identities(names: Iterable[str]) -> list[str]:
    """Names as they can stand in links and names of files, each once."""
    found: list[str] = []
    for name in names:
        plain = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in name)
        wanted = f"log-{plain}" if plain in _SECTIONS else plain
        found.append(wanted if wanted not in found else f"{wanted}-{len(found) + 1}")
    return found


def _part(
    name: str, identity: str, log: ReadableLog, legend: Legend, axis_ns: tuple[int, int] | None
) -> dict[str, Any]:
    """Everything that the page says of one log."""
    older = log.flows.filter(log.flows["began_before"])["flow"].to_pylist()
    measured = measures(states(log.records), older)
    if not measured.is_empty():
        legend = legend.covering(measured["flow"])
    numbers = {row["flow"]: row for row in measured.iter_rows(named=True)}
    flow_table = _with_measures(log.flows, measured)
    shown = sorted(flow_table["flow"].head(_FLOW_ROWS_MAX))
    packets, events = (_accounts_of(log.flows, kind, shown) for kind in ("packets", "events"))
    flows = [
        row
        | {
            "label": legend.labels[row["flow"]],
            "colour": None if legend.is_crowded else legend.colours[row["flow"]],
            "measured": numbers.get(row["flow"], {}),
        }
        for row in log.flows.filter(pc.is_in(log.flows["flow"], pa.array(shown, log.flows["flow"].type))).to_pylist()
    ]
    ledger = log.ledger
    hooks = hook_accounts(ledger)
    # The accounts of a log that was cut were taken while the hooks ran, and need not agree.
    wrong = findings(ledger, log.flows, log.records.num_rows) if log.complete else []
    return {
        "name": name,
        "id": identity,
        "sentences": summary.of_log(
            name,
            measured,
            ledger,
            records=log.records.num_rows,
            flows=log.flows.num_rows,
            complete=log.complete,
            findings=wrong,
        ),
        "of_flows": summary.of_flows(measured, legend.labels),
        "figures": [(figure, figure.chart.to_dict()) for figure in figures_of(log.records, legend, axis_ns=axis_ns)],
        "flows": flows,
        "flow_table": flow_table,
        "flows_file": f"{identity}-flows.csv" if flow_table.height > len(flows) else None,
        "packets": packets,
        "events": events,
        "hooks": [*hooks, total(hooks)] if hooks else [],
        "causes": list(hooks[0].lost) if hooks else [],
        "unowned": {hook["hook"]: hook.get("unowned", 0) for hook in ledger.get("hooks", [])},
        "findings": wrong,
        "complete": log.complete,
        "cost": ledger.get("cost") or {},
        "records": log.records.num_rows,
        "began": _began(log.records),
        "environment": log.environment,
        "command_line": _command_line(log.environment),
    }


def _with_measures(flows: pa.Table, measured: pl.DataFrame) -> pl.DataFrame:
    """Return the flow table with what was measured of each flow; those that moved most come first."""
    table = pl.DataFrame(pl.from_arrow(flows))
    if measured.is_empty():
        return table
    joined = table.join(measured, on="flow", how="left", maintain_order="left")
    return joined.sort("bytes", descending=True, nulls_last=True, maintain_order=True)


def _accounts_of(flows: pa.Table, kind: str, shown: Collection[int]) -> list[Account]:
    """Return the accounts of these flows, and the sum of all others."""
    accounts, listed = flow_accounts(flows, kind), set(shown)
    others = [account for flow, account in accounts.items() if flow not in listed]
    return [*(accounts[flow] for flow in shown), *([total(others, f"{len(others):,} others")] if others else [])]


def _began(records: pa.Table) -> str | None:
    if not records.num_rows:
        return None
    first_ns, _ = _span_ns(records)
    return f"{datetime.fromtimestamp(first_ns / 1e9, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _command_line(environment: Mapping[str, Any]) -> str | None:
    words = environment.get("command_line")
    if not words:
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
    templates.filters |= {"count": "{:,}".format, "as_data": as_data, "pretty": _pretty}
    page = resources.files("parshall.report") / "page"
    return templates.get_template("report.html.j2").render(
        title=title,
        parts=parts,
        testbed=testbed,
        links=links(testbed) if testbed else [],
        written=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        style=Markup((page / "report.css").read_text(encoding="utf-8")),
        script=Markup((page / "report.js").read_text(encoding="utf-8")),
        vega=Markup(_vega()) if any(part["figures"] for part in parts) else "",
        renderer=lambda specification: "svg" if len(json.dumps(specification)) < _SVG_CHARS_MAX else "canvas",
    )


def as_data(specification: Mapping[str, Any]) -> Markup:
    """Return JSON that may stand inside a ``script`` element: no ``<`` can end it."""
    # The page has its own headings and captions; the title is for the figure that stands alone.
    bare = {key: value for key, value in specification.items() if key != "title"}
    return Markup(json.dumps(bare, ensure_ascii=True).replace("<", "\\u003c"))


def _pretty(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


@cache
def _vega() -> str:
    bundle = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    # Nothing in a script may look like its end.
    return bundle.replace("</script", "<\\/script")


def _still(specification: Mapping[str, Any]) -> dict[str, Any]:
    """Return the specification without the layer of unseen marks that only catches the pointer."""
    layers = [layer for layer in specification["layer"] if layer.get("name") != POINTER_LAYER]
    return {**specification, "layer": layers}


def _write_images(directory: Path, parts: list[dict[str, Any]]) -> None:
    directory.mkdir(exist_ok=True)
    figure: Figure
    for part in parts:
        for figure, specification in part["figures"]:
            stem = directory / f"{part['id']}-{figure.name}"
            drawing = vl_convert.vegalite_to_svg(_still(specification))
            write_whole(stem.with_suffix(".svg"), drawing)
            write_whole(stem.with_suffix(".png"), vl_convert.svg_to_png(drawing, scale=_PNG_SCALE))
