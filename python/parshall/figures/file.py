"""Save a figure to a self-contained file."""

import io
from pathlib import Path

import altair as alt

from parshall.whole_file import write_whole

# Two device pixels for each pixel of the figure: sharp in print and on screens.
PNG_SCALE = 2
SUFFIXES = (".html", ".png", ".svg")


def save(chart: alt.TopLevelMixin, path: Path, *, below: Path | None = None) -> None:
    """Write a chart as self-contained HTML, as PNG or as SVG, by the suffix of the path.

    `below` is as for `parshall.whole_file.new_file`.
    """
    if path.suffix == ".png":
        pixels = io.BytesIO()
        chart.save(pixels, format="png", scale_factor=PNG_SCALE)
        write_whole(path, pixels.getvalue(), below=below)
        return
    text = io.StringIO()
    if path.suffix == ".html":
        chart.save(text, format="html", inline=True)
    else:
        chart.save(text, format="svg")
    write_whole(path, text.getvalue(), below=below)
