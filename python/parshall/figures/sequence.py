"""Data sequence numbers of one flow over time, in the manner of the time-sequence graphs of tcptrace and Wireshark."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import altair as alt
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from parshall.figures.bins import NS_PER_S, Bins
from parshall.figures.figure import Figure, finished, rows_of
from parshall.figures.frame import HEIGHT_PX, WIDTH_PX, time_axis
from parshall.figures.states import of_full_sockets
from parshall.host.quantities import many

if TYPE_CHECKING:
    from parshall.instruments.tcp_log import Log

TITLE = "Data sequence number (bytes)"
# Rows of each layer: more than a screen can show.
ROWS_MAX = 8_000
_COLUMNS = (
    *("time_ns", "flow", "direction", "event", "state", "pkt_seq", "payload_bytes"),
    *("snd_una", "snd_nxt", "snd_wnd_bytes", "rcv_nxt", "rcv_wnd_bytes"),
)
# Room above the data, as a share of their range.
_ABOVE = 0.2
_SEQUENCE_NUMBERS = 1 << 32
# Lines and marks, by their names in the legend.
_SENT, _AGAIN, _ACKNOWLEDGED, _WINDOW = "data", "retransmitted", "acknowledged", "end of the window"
_COLOURS = {_SENT: "#0072B2", _AGAIN: "#D55E00", _ACKNOWLEDGED: "#009E73", _WINDOW: "#E69F00"}


@dataclass(frozen=True)
class SequenceNumbers:
    """The sequence numbers of one flow, counted from its first record, without wrapping.

    Attributes
    ----------
    flow : int
        Its number.
    is_sender : bool
        Whether the data are those that this end sent; otherwise those that came.
    bins : Bins
        The time axis; data and lines have one row a bin where there would be too many.
    packets : int
        Packets with data of the log, of which `data` is made.
    data : polars.DataFrame
        ``time_s``, ``low`` and ``high``: first byte of a packet, or of the packets of a bin, and the byte behind them.
        Without retransmissions.
    retransmitted : polars.DataFrame
        ``time_s``, ``low``, ``high``, ``bytes``, ``segments``, ``cause`` and ``spurious`` (null: unknown) of each.
    acknowledged, window : polars.DataFrame
        ``time_s`` and ``bytes``: the first byte that is not acknowledged, and the first that the receiver has no room
        for, from each moment on.
    """

    flow: int
    is_sender: bool
    bins: Bins
    packets: int
    data: pl.DataFrame
    retransmitted: pl.DataFrame
    acknowledged: pl.DataFrame
    window: pl.DataFrame


def reduce(
    log: "Log", flow: int, *, between_s: tuple[float, float] | None = None, rows_max: int = ROWS_MAX
) -> SequenceNumbers | None:
    """Read the sequence numbers of one flow; the log is read once, and once more for causes of retransmissions.

    Parameters
    ----------
    log : Log
        What `parshall.read` returns.
    flow : int
        Number of the flow.
    between_s : tuple of float, optional
        Begin and end of the time axis, seconds after the first record of the log. Default: the flow's.
    rows_max : int
        Maximum number of rows of data, of acknowledgements and of windows.

    Returns
    -------
    SequenceNumbers or None
        None for a flow without data in this time.
    """
    found, origin_ns = _read(log, flow)
    records = _unwrapped(found)
    is_sender = _moved(records, "snd_una") >= _moved(records, "rcv_nxt")
    base, direction = ("snd_una", "out") if is_sender else ("rcv_nxt", "in")
    placed = records.with_columns(
        low=pl.col(base) + _signed(pl.col("pkt_seq").cast(pl.Int64) - pl.col(f"{base}_was")),
        next=pl.col("snd_una") + _signed(pl.col("snd_nxt").cast(pl.Int64) - pl.col("snd_una_was")),
        bytes=pl.col(base),
        window=pl.col(base) + pl.col("snd_wnd_bytes" if is_sender else "rcv_wnd_bytes").cast(pl.Int64),
    ).with_columns(high=pl.col("low") + pl.col("payload_bytes").cast(pl.Int64))
    if between_s is not None:
        begin_ns, end_ns = (origin_ns + round(each * NS_PER_S) for each in between_s)
        placed = placed.filter(pl.col("time_ns").is_between(begin_ns, end_ns))
    has_data = (pl.col("event") == "packet") & (pl.col("direction") == direction) & (pl.col("payload_bytes") > 0)
    # A packet's row is the state without it, so what was not sent before begins at snd_nxt or behind.
    packets = placed.filter(has_data, (pl.col("low") >= pl.col("next")) if is_sender else pl.lit(True))
    if packets.is_empty():
        return None
    low_ns, high_ns = (int(placed["time_ns"][end]) for end in (0, -1))
    bins = Bins(origin_ns, low_ns, high_ns, Bins.over(low_ns, high_ns, rows_max).width_ns)
    again = placed.filter(event="retransmit")
    return SequenceNumbers(
        flow=flow,
        is_sender=is_sender,
        bins=bins,
        packets=packets.height,
        data=_binned(packets, bins, rows_max, pl.col("low").min(), pl.col("high").max()),
        retransmitted=_with_causes(log, flow, again).select(
            _time_s(bins), "low", "high", "cause", "spurious", "segments", bytes="payload_bytes"
        ),
        acknowledged=_line(placed, "bytes", bins, rows_max),
        window=_line(placed, "window", bins, rows_max),
    )


def _read(log: "Log", flow: int) -> tuple[pl.DataFrame, int]:
    """Return the records of full sockets of a flow in the order of time, and the time of the log's first record."""
    number = pa.scalar(flow, pa.uint32())
    parts, origins_ns = [], []
    for batch in log.batches(_COLUMNS):
        if batch.num_rows:
            origins_ns.append(pc.min(batch["time_ns"]).value)
            parts.append(pa.Table.from_batches([batch]).filter(pc.equal(batch["flow"], number)))
    if not parts:
        return pl.DataFrame(), 0
    frame = pl.DataFrame(pl.from_arrow(pa.concat_tables(parts).unify_dictionaries()))
    known = of_full_sockets(frame).filter(pl.col("state") != "SYN_SENT")
    return known.with_columns(pl.col("time_ns").dt.epoch("ns")).sort("time_ns", maintain_order=True), min(origins_ns)


def _signed(step: pl.Expr) -> pl.Expr:
    """Return a difference of sequence numbers, which wrap, as a step of less than 2 GiB."""
    half = _SEQUENCE_NUMBERS // 2
    return (step + half) % _SEQUENCE_NUMBERS - half


def _unwrapped(records: pl.DataFrame) -> pl.DataFrame:
    """Return records whose ``snd_una`` and ``rcv_nxt`` count from 0 without wrapping; ``_was`` has the numbers."""
    if records.is_empty():
        return records
    names = ("snd_una", "rcv_nxt")
    was = [pl.col(name).cast(pl.Int64).alias(f"{name}_was") for name in names]
    steps = [_signed(pl.col(name).cast(pl.Int64).diff()).fill_null(0).cum_sum().alias(name) for name in names]
    return records.with_columns(*was, *steps)


def _moved(records: pl.DataFrame, name: str) -> int:
    return int(records[name][-1]) if records.height else 0


def _time_s(bins: Bins) -> pl.Expr:
    return ((pl.col("time_ns") - bins.origin_ns) / NS_PER_S).round(9).alias("time_s")


def _binned(rows: pl.DataFrame, bins: Bins, rows_max: int, low: pl.Expr, high: pl.Expr) -> pl.DataFrame:
    """Return ``time_s``, ``low`` and ``high`` of each row; of each bin where there are too many rows."""
    if rows.height <= rows_max:
        return rows.select(_time_s(bins), "low", "high")
    number = (pl.col("time_ns") - bins.origin_ns) // bins.width_ns
    parts = rows.group_by(bin=number, maintain_order=True).agg(low=low, high=high)
    return parts.select(bins.middle_s(pl.col("bin")).alias("time_s"), "low", "high")


def _line(rows: pl.DataFrame, name: str, bins: Bins, rows_max: int) -> pl.DataFrame:
    """Return the moments at which a value changes, and the last; the last change of each bin if there are many."""
    is_kept = (pl.col(name) != pl.col(name).shift()).fill_null(True) | (pl.int_range(pl.len()) == pl.len() - 1)
    changed = rows.filter(is_kept)
    if changed.height > rows_max:
        number = (pl.col("time_ns") - bins.origin_ns) // bins.width_ns
        changed = changed.group_by(bin=number, maintain_order=True).last()
    return changed.select(_time_s(bins), bytes=name)


def _with_causes(log: "Log", flow: int, again: pl.DataFrame) -> pl.DataFrame:
    """Return retransmissions with what the log knows of their cause and need."""
    known = pl.DataFrame(pl.from_arrow(log.retransmissions)).filter(flow=flow)
    causes = known.select(
        pl.col("time_ns").dt.epoch("ns"), "pkt_seq", pl.col("cause").cast(pl.String), "spurious", "segments"
    ).unique(["time_ns", "pkt_seq"], keep="first")
    return again.join(causes, on=["time_ns", "pkt_seq"], how="left", maintain_order="left")


def draw(reduced: SequenceNumbers, name: str) -> Figure:
    """Draw data as vertical lines, retransmissions as marks, and what is acknowledged and allowed as steps.

    `name` is that of the flow.
    """
    # A window that is never used must not make the data flat: its line leaves the picture at the top.
    low, high = reduced.data.select(pl.col("low").min(), pl.col("high").max()).row(0)
    scale = alt.Scale(domain=[low, high + _ABOVE * (high - low)], nice=False)
    parts = [
        _steps(reduced.window, _WINDOW, reduced.bins, scale, dash=[4, 3]),
        _steps(reduced.acknowledged, _ACKNOWLEDGED, reduced.bins, scale),
        _bars(reduced, scale),
    ]
    shown = [_SENT, _ACKNOWLEDGED, _WINDOW]
    if reduced.retransmitted.height:
        parts.append(_marks(reduced, scale))
        shown.insert(1, _AGAIN)
    colour = alt.Color(
        "kind:N",
        scale=alt.Scale(domain=shown, range=[_COLOURS[kind] for kind in shown]),
        legend=alt.Legend(title=None, orient="top"),
    )
    first, *others = [part.encode(color=colour) for part in parts]
    # Both axes: of a narrow time the sequence numbers are narrow, too.
    zoom = alt.selection_interval(name="zoom", bind="scales", zoom="wheel![event.shiftKey]")
    chart = alt.layer(first.add_params(zoom), *others).properties(width=WIDTH_PX, height=2 * HEIGHT_PX)
    return finished("sequence", TITLE, _caption(reduced, name), chart, width_px=WIDTH_PX)


def _caption(reduced: SequenceNumbers, name: str) -> str:
    verb = "sent" if reduced.is_sender else "received"
    is_binned = reduced.data.height < reduced.packets
    bars = f"the data {verb} in {reduced.bins.width_text}" if is_binned else f"the data of a packet that was {verb}"
    # A mark may stand for several segments: those are what reports count.
    causes = (
        reduced.retransmitted.group_by(pl.col("cause").fill_null("of unknown cause"))
        .agg(pl.col("segments").fill_null(1).cast(pl.UInt64).sum())
        .sort("cause")
    )
    listed = ", ".join(f"{count:,} {cause}" for cause, count in causes.iter_rows())
    again = f" Marks: {many(int(causes['segments'].sum()), 'retransmitted segment')} ({listed})." if listed else ""
    return (
        f"{name}: {many(reduced.packets, 'packet')} with data. Vertical line: {bars}.{again} Sequence numbers count "
        "from the first record of the flow."
    )


def _axis(field: str, scale: alt.Scale) -> alt.Y:
    return alt.Y(f"{field}:Q", title="bytes", axis=alt.Axis(format="~s"), scale=scale)


def _bars(reduced: SequenceNumbers, scale: alt.Scale) -> alt.Chart:
    # Square ends: a packet's data are less than a pixel of a long transfer.
    bars: alt.Chart = (
        alt.Chart(rows_of(reduced.data.with_columns(kind=pl.lit(_SENT))))
        .mark_rule(strokeWidth=2, strokeCap="square", clip=True)
        .encode(x=time_axis(reduced.bins), y=_axis("low", scale), y2=alt.Y2("high:Q"), tooltip=_tooltip("low", "high"))
    )
    return bars


def _steps(line: pl.DataFrame, kind: str, bins: Bins, scale: alt.Scale, dash: Sequence[int] = (1, 0)) -> alt.Chart:
    steps: alt.Chart = (
        alt.Chart(rows_of(line.with_columns(kind=pl.lit(kind))))
        .mark_line(interpolate="step-after", strokeWidth=1.2, strokeDash=list(dash), clip=True)
        .encode(x=time_axis(bins), y=_axis("bytes", scale))
    )
    return steps


def _marks(reduced: SequenceNumbers, scale: alt.Scale) -> alt.Chart:
    marks: alt.Chart = (
        alt.Chart(rows_of(reduced.retransmitted.with_columns(kind=pl.lit(_AGAIN))))
        .mark_point(shape="triangle-up", size=60, filled=True, opacity=1)
        .encode(
            x=time_axis(reduced.bins),
            y=_axis("low", scale),
            tooltip=_tooltip("low", "bytes", "segments", "cause:N", "spurious:N"),
        )
    )
    return marks


def _tooltip(*fields: str) -> list[Any]:
    titles = {"low": "first byte", "high": "byte behind", "bytes": "bytes"}
    rest = [
        alt.Tooltip(field if ":" in field else f"{field}:Q", title=titles.get(field, field.partition(":")[0]))
        for field in fields
    ]
    return [alt.Tooltip("time_s:Q", title="time (s)", format=".6f"), *rest]
