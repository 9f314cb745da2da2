"""A figure as a file that opens without a network."""

from pathlib import Path

import altair as alt

# Two device pixels for one of the figure: sharp in a paper and on a screen.
PNG_SCALE = 2
SUFFIXES = (".html", ".png", ".svg")


def save(chart: alt.TopLevelMixin, path: Path) -> None:
    """Write a chart as HTML with all it needs inside, as PNG or as SVG, by the name's suffix."""
    if path.suffix == ".html":
        chart.save(str(path), inline=True)
    elif path.suffix == ".png":
        chart.save(str(path), scale_factor=PNG_SCALE)
    else:
        chart.save(str(path))
