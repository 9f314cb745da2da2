"""A figure as a file that opens without a network."""

import io
from pathlib import Path

import altair as alt

from parshall.whole_file import write_whole

# Two device pixels for one of the figure: sharp in a paper and on a screen.
PNG_SCALE = 2
SUFFIXES = (".html", ".png", ".svg")


def save(chart: alt.TopLevelMixin, path: Path) -> None:
    """Write a chart as HTML with all it needs inside, as PNG or as SVG, by the name's suffix."""
    if path.suffix == ".png":
        pixels = io.BytesIO()
        chart.save(pixels, format="png", scale_factor=PNG_SCALE)
        write_whole(path, pixels.getvalue())
        return
    text = io.StringIO()
    if path.suffix == ".html":
        chart.save(text, format="html", inline=True)
    else:
        chart.save(text, format="svg")
    write_whole(path, text.getvalue())
