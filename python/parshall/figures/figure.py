"""What every figure has: texts, one style, data as CSV. It draws, and computes nothing."""

import textwrap
from dataclasses import dataclass
from typing import Any

import altair as alt
import polars as pl

WIDTH_PX = 760
"""Width of a figure without a time axis."""
# Characters in a line of the caption, for each 100 pixels of width.
_CAPTION_LETTERS = 17
PAPER = "white"
"""Background of figures, and outline of what lies on lines."""
ON_FILL, ON_PALE_FILL = "#ffffff", "#101010"
"""Letters on a fill, the same on dark pages."""
DARK = {
    PAPER: "#14181d",
    "#111": "#f0f3f6",
    "#222": "#e6edf3",
    "#333": "#d0d7de",
    "#555": "#aab4be",
    "#6b7280": "#9aa4b2",
    "#999": "#6e7681",
    "#e8e8e8": "#2b3138",
    "#eceef1": "#262c33",
    "#000000": "#f0f3f6",
    "#332288": "#9a8cf0",
    "#882255": "#ff6b6b",
    "#0072B2": "#3b9be0",
}
"""Colour of figures -> colour on dark pages; all others can be seen on both."""
_STYLE: dict[str, dict[str, Any]] = {
    "view": {"stroke": None},
    "axis": {
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
        "labelColor": "#333",
        "titleColor": "#333",
        "gridColor": "#e8e8e8",
        "domainColor": "#999",
        "tickColor": "#999",
    },
    "legend": {
        "labelFontSize": 12,
        "labelColor": "#222",
        "labelLimit": 400,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
        "titleColor": "#333",
    },
    "header": {"labelFontSize": 12, "labelColor": "#333"},
    "title": {"fontSize": 15, "anchor": "start", "color": "#111", "subtitleColor": "#555", "subtitleFontSize": 12},
}


@dataclass(frozen=True)
class Figure:
    """A figure with its texts.

    Attributes
    ----------
    name : str
        File name without suffix.
    title : str
        The quantity, with its unit.
    caption : str
        How the data were reduced, and what the marks mean.
    chart : altair.TopLevelMixin
        The drawing.
    """

    name: str
    title: str
    caption: str
    chart: Any


def finished(
    name: str,
    title: str,
    caption: str,
    chart: Any,
    *,
    width_px: int = WIDTH_PX,
    description: str | None = None,
    **changes: Any,
) -> Figure:
    """Give a chart its texts and its style, and return it as a figure.

    Parameters
    ----------
    name, title, caption : str
        See `Figure`.
    chart : altair chart
        The drawing, without texts.
    width_px : int
        Its width, with the axes.
    description : str, optional
        For those who cannot see it. Default: title and caption.
    **changes
        Settings beside those of `styled`.
    """
    heading = alt.TitleParams(title, subtitle=textwrap.wrap(caption, _CAPTION_LETTERS * width_px // 100))
    chart.title, chart.description = heading, description or f"{title}. {caption}"
    return Figure(name, title, caption, styled(chart, **changes))


def styled(chart: Any, **changes: Any) -> Any:
    """Give a chart the style of all figures, and return it; `changes` add to parts, as ``legend={"columns": 4}``."""
    # In place: each copy of layers compares all of them with each other.
    parts = {name: _STYLE.get(name, {}) | changes.get(name, {}) for name in {**_STYLE, **changes}}
    chart.config = alt.Config(font="Helvetica, Arial, sans-serif", background=PAPER, **parts)
    return chart


def rows_of(rows: pl.DataFrame) -> alt.InlineData:
    """Return rows as data of a chart: as CSV, which has a third of the size of JSON."""
    text = rows.with_columns(pl.selectors.float().round_sig_figs(7)).write_csv()
    numbers: dict[str, Any] = {name: "number" for name, kind in rows.schema.items() if kind.is_numeric()}
    return alt.InlineData(values=text, format=alt.CsvDataFormat(type="csv", parse=numbers))
