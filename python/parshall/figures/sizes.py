"""Packet sizes: share of each size, the most frequent sizes, and a distribution beside the counts.

After Figures 4.1, 4.2 and 4.4 of the thesis that `parshall.instruments.sizes` names.
"""

from typing import Any

import altair as alt
import polars as pl

from parshall.figures.figure import styled
from parshall.figures.legend import COLOURS

TOP = 20
_WIDTH_PX, _HEIGHT_PX = 900, 260
_COUNTED, _GENERATED = "counted", "generated"


def reduce(counted: list[tuple[int, int]], generated: list[tuple[int, int]] | None = None) -> pl.DataFrame:
    """Return one row for each size and origin.

    Parameters
    ----------
    counted, generated : list of (int, int)
        Sizes in bytes, each with its number of packets.

    Returns
    -------
    polars.DataFrame
        ``origin`` ("counted" or "generated"), ``size_bytes``, ``share`` (percent of the packets of its origin),
        ``rank`` (1: the most frequent), ``cumulative`` (percent of the packets up to this rank); each origin is sorted
        by rank.
    """
    frames = []
    for origin, pairs in ((_COUNTED, counted), (_GENERATED, generated or [])):
        if pairs:
            sizes, packets = zip(*pairs, strict=True)
            frame = pl.DataFrame({"size_bytes": sizes, "packets": packets})
            frame = frame.with_columns(origin=pl.lit(origin), share=100 * pl.col("packets") / pl.col("packets").sum())
            frame = frame.sort("packets", "size_bytes", descending=[True, False])
            frames.append(frame.with_columns(rank=pl.int_range(1, pl.len() + 1), cumulative=pl.col("share").cum_sum()))
    return pl.concat(frames).select("origin", "size_bytes", "share", "rank", "cumulative")


def draw(reduced: pl.DataFrame, title: str) -> alt.VConcatChart:
    """Draw shares against sizes, the most frequent sizes with their sum, and shares against ranks."""
    data = alt.InlineData(
        values=reduced.with_columns(pl.selectors.float().round_sig_figs(7)).write_csv(),
        format=alt.CsvDataFormat(
            type="csv", parse={"size_bytes": "number", "share": "number", "rank": "number", "cumulative": "number"}
        ),
    )
    both = reduced["origin"].n_unique() > 1
    colour = alt.Color(
        "origin:N",
        title=None,
        scale=alt.Scale(domain=[_COUNTED, _GENERATED], range=list(COLOURS[:2])),
        # Above the plot, since inside it would cover points.
        legend=alt.Legend(orient="top") if both else None,
    )
    share = alt.Y(
        "share:Q",
        title="packets (%)",
        scale=alt.Scale(type="log", nice=False, padding=6),
        axis=alt.Axis(values=_ticks(reduced), format="~g"),
    )
    tooltip = ["origin:N", "size_bytes:Q", "share:Q", "rank:Q"]

    def part(mark: Any, heading: str) -> Any:
        return mark.properties(width=_WIDTH_PX, height=_HEIGHT_PX, title=heading)

    def scatter(x: alt.X, heading: str) -> Any:
        # Generated and counted points should coincide: small dots in open circles show both.
        layers = [
            alt.Chart(data)
            .transform_filter(f"datum.origin == '{origin}'")
            .mark_point(opacity=0.8, size=size, filled=is_filled)
            .encode(x=x, y=share, color=colour, tooltip=tooltip)
            for origin, size, is_filled in ((_COUNTED, 34, False), (_GENERATED, 7, True))
            if origin in set(reduced["origin"])
        ]
        return part(alt.layer(*layers), heading)

    size_axis = alt.X("size_bytes:Q", title="packet size (bytes)", scale=alt.Scale(nice=False, padding=6))
    rank_axis = alt.X(
        "rank:Q",
        title="rank of the size, the most frequent first",
        scale=alt.Scale(type="log", nice=False, padding=6),
        axis=alt.Axis(values=[1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 50_000]),
    )
    most = reduced.filter(pl.col("rank") <= TOP, origin=_COUNTED).sort("rank")["size_bytes"].to_list()
    order = alt.X("size_bytes:O", title="packet size (bytes)", sort=most)
    top = alt.Chart(data).transform_filter(f"datum.rank <= {TOP} && datum.origin == '{_COUNTED}'")
    bars = top.mark_bar(color=COLOURS[2]).encode(x=order, y=alt.Y("share:Q", title="packets (%)"), tooltip=tooltip)
    sum_line = top.mark_line(color="#555", point=alt.OverlayMarkDef(color="#555")).encode(
        x=order, y=alt.Y("cumulative:Q")
    )
    frequent = part(alt.layer(bars, sum_line), f"The {TOP} most frequent sizes (bars) and their sum (line)")
    parts = (scatter(size_axis, f"Sizes of {title}"), frequent, scatter(rank_axis, "Shares by rank"))
    chart: alt.VConcatChart = styled(alt.vconcat(*parts))
    return chart


def _ticks(reduced: pl.DataFrame) -> list[float]:
    """Return the marks of the axis of shares: powers of ten, and more where there would be few."""
    shares = reduced["share"].to_numpy()
    low, high = float(shares.min()), float(shares.max())
    for steps in ((1,), (1, 2, 5), range(1, 10)):
        marks = [step * 10.0**power for power in range(2, -7, -1) for step in steps]
        if sum(low <= mark <= high for mark in marks) >= 2:
            return marks
    return sorted({low, high})
