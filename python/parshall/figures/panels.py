"""Several panels of one table side by side, for the figures of models. It draws, and computes nothing."""

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field

import altair as alt
import polars as pl

from parshall.errors import ParshallError
from parshall.figures.figure import styled
from parshall.figures.legend import COLOURS, numbered

WIDTH_PX = 380
HEIGHT_PX = 260
# Characters in a line of a note.
NOTE_WIDTH = 110
COLUMNS = 2
# Charts with more rows than this are slow in browsers.
ROWS_MAX = 20_000


@dataclass(frozen=True)
class Panel:
    """One pair of axes.

    Attributes
    ----------
    title : str
        Heading of the panel.
    x, x_title, y, y_title : str
        Columns, and titles of the axes with units.
    colour : str
        Column by which lines are coloured.
    where, without : mapping
        Columns, and the values that drawn rows must have or must not have.
    mark : str
        ``line``, ``point``, or ``steps-before``: a value applies since the previous one, as for P(X >= x).
    logarithmic, x_logarithmic : bool
        Whether the vertical and the horizontal axis are logarithmic.
    """

    title: str
    x: str
    x_title: str
    y: str
    y_title: str
    colour: str
    where: Mapping[str, str] = field(default_factory=dict)
    without: Mapping[str, str] = field(default_factory=dict)
    mark: str = "line"
    logarithmic: bool = False
    x_logarithmic: bool = False

    def rows(self, table: pl.DataFrame) -> pl.DataFrame:
        """Return the rows to draw; a logarithmic axis leaves out values of 0."""
        kept = [pl.col(column) == value for column, value in self.where.items()]
        kept += [pl.col(column) != value for column, value in self.without.items()]
        kept.append(pl.col(self.y).is_not_null() & (pl.col(self.y) > 0 if self.logarithmic else pl.lit(True)))
        rows = table.filter(*kept).select(self.x, self.y, self.colour)
        # Draw every n-th row of a long trace.
        return rows.gather_every(max(1, -(-rows.height // ROWS_MAX)))


def draw(table: pl.DataFrame, title: str, panels: tuple[Panel, ...], note: str = "") -> alt.ConcatChart:
    """Draw panels of a table, with a note below the title; raise `ParshallError` if the table is empty."""
    if table.is_empty():
        raise ParshallError(f"{title}: no rows to draw; run the model longer")
    rows = [panel.rows(table) for panel in panels]
    lines = [
        each[panel.colour].cast(pl.String).unique().sort().to_list() for each, panel in zip(rows, panels, strict=True)
    ]
    numbers = numbered(lines)
    scales = [
        alt.Scale(domain=names, range=[COLOURS[numbers[name] % len(COLOURS)] for name in names]) for names in lines
    ]
    whole = alt.concat(*map(_panel, rows, panels, scales), columns=COLUMNS).resolve_scale(color="independent")
    chart: alt.ConcatChart = styled(
        whole.properties(title=alt.TitleParams(title, subtitle=textwrap.wrap(note, NOTE_WIDTH)))
    )
    return chart


def _panel(rows: pl.DataFrame, panel: Panel, colours: alt.Scale) -> alt.Chart:
    data = alt.InlineData(
        values=rows.write_csv(float_precision=6),
        format=alt.CsvDataFormat(type="csv", parse={panel.x: "number", panel.y: "number"}),
    )
    base = alt.Chart(data, width=WIDTH_PX, height=HEIGHT_PX, title=panel.title)
    marks = {
        "line": lambda: base.mark_line(strokeWidth=1.6),
        "point": lambda: base.mark_point(size=6, opacity=0.5),
        "steps-before": lambda: base.mark_line(strokeWidth=1.6, interpolate="step-before"),
    }[panel.mark]()
    y_scale = alt.Scale(type="log") if panel.logarithmic else alt.Scale(zero=True)
    x_scale = alt.Scale(type="log", nice=False) if panel.x_logarithmic else alt.Scale()
    chart: alt.Chart = marks.encode(
        x=alt.X(f"{panel.x}:Q", title=panel.x_title, scale=x_scale),
        y=alt.Y(f"{panel.y}:Q", title=panel.y_title, scale=y_scale),
        color=alt.Color(
            f"{panel.colour}:N",
            title=None,
            scale=colours,
            legend=alt.Legend(orient="bottom", columns=2, labelLimit=300),
        ),
        tooltip=[alt.Tooltip(f"{panel.colour}:N"), alt.Tooltip(f"{panel.x}:Q"), alt.Tooltip(f"{panel.y}:Q")],
    )
    return chart
