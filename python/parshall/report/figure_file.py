"""Save a figure to a self-contained file."""

from pathlib import Path
from typing import Any

import altair as alt
from altair.utils.schemapi import debug_mode

from parshall.host.whole_file import write_whole
from parshall.report.document import render
from parshall.report.images import image_of

SUFFIXES = (".html", ".png", ".svg")


def save(chart: alt.TopLevelMixin, path: Path, *, below: Path | None = None, is_fixed: bool = False) -> None:
    """Write a chart as self-contained HTML, as PNG or as SVG, by the suffix of the path.

    `below` is as for `parshall.host.whole_file.new_file`. A page fits the chart to its width, unless `is_fixed`: what
    then has no room can be scrolled.
    """
    # The tests hold figures against Vega-Lite's schema, which takes longer here than all else that draws them.
    with debug_mode(False):
        specification: dict[str, Any] = chart.to_dict(validate=False)
    if path.suffix != ".html":
        write_whole(path, image_of(specification, path.suffix), below=below)
        return
    heading = specification.get("title", path.stem)
    texts = heading if isinstance(heading, dict) else {"text": heading}
    note = " ".join(texts.get("subtitle", ()))
    values = {"title": texts["text"], "note": note, "specification": specification, "is_fixed": is_fixed}
    write_whole(path, render("figure.html.j2", "lab.js", **values), below=below)
