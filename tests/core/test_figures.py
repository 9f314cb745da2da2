"""Figures: no reduction loses a peak or a byte, and every drawing is a specification that compiles."""

import re

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
import vl_convert
from hypothesis import given
from hypothesis import strategies as st
from made_log import BEGIN_NS, flow_row, log_of, many_flows, records

from parshall.figures import figures_of, frame, legends, throughput
from parshall.figures.bins import NS_PER_S, Bins, envelope, extremes
from parshall.figures.legend import NAMED_MAX
from parshall.figures.overview import BINS_OF_STATE, FLOWS_MAX
from parshall.figures.states import senders, states

SPAN_NS = 10 * NS_PER_S
ROWS = st.lists(
    st.tuples(st.integers(1, 5), st.integers(0, SPAN_NS), st.integers(0, 2**32 - 1)), min_size=1, max_size=200
)


def frame_of(rows: list[tuple[int, int, int]]) -> pl.DataFrame:
    """Return states with a column ``value``, in the order of time."""
    ordered = sorted(rows, key=lambda row: row[1])
    return pl.DataFrame(ordered, schema={"flow": pl.UInt32, "time_ns": pl.Int64, "value": pl.UInt32}, orient="row")


@given(ROWS, st.integers(1, 100))
def test_the_extremes_of_every_flow_survive(rows, count_max):
    frame = frame_of(rows)
    bins = Bins.over(0, SPAN_NS, count_max)
    reduced = extremes(frame, "value", bins)
    was = frame.group_by("flow").agg(pl.col("value").min().alias("min"), pl.col("value").max().alias("max"))
    now = reduced.group_by("flow").agg(pl.col("min").min(), pl.col("max").max())
    assert was.sort("flow").rows() == now.sort("flow").rows()
    assert reduced["records"].sum() == frame.height
    assert reduced.filter((pl.col("min") > pl.col("mean")) | (pl.col("mean") > pl.col("max"))).is_empty()
    around = envelope(reduced)
    assert (around["min"].min(), around["max"].max()) == (frame["value"].min(), frame["value"].max())


@given(ROWS)
def test_the_mean_of_all_bins_weighted_is_the_mean_of_all_records(rows):
    frame = frame_of(rows)
    reduced = extremes(frame, "value", Bins.over(0, SPAN_NS, 30))
    weighted = (reduced["mean"] * reduced["records"]).sum()
    assert weighted == pytest.approx(sum(value for _, _, value in rows))


@given(st.integers(0, 10**15), st.integers(1, 1000))
def test_bins_have_a_width_that_can_be_said_and_are_not_too_many(span_ns, count_max):
    bins = Bins.over(0, span_ns, count_max)
    assert str(bins.width_ns).rstrip("0") in ("1", "2", "5")
    assert span_ns // bins.width_ns < max(2, count_max)


def test_values_that_the_kernel_did_not_have_are_not_drawn():
    table = records(
        [1, 1, 1],
        [0, 1000, 2000],
        state=["NEW_SYN_RECV", "ESTABLISHED", "ESTABLISHED"],
        cwnd_segments=[0, 10, 11],
        srtt_us=[0, 0, 6000],
        ssthresh_segments=[0, None, 7],
    )
    found = states(table)
    bins = Bins.over(BEGIN_NS, BEGIN_NS + 2000, 10)
    assert extremes(found, "cwnd_segments", bins)["min"].min() == 10
    assert extremes(found, "srtt_us", bins)["records"].sum() == 1
    assert extremes(found, "ssthresh_segments", bins)["min"].to_list() == [7]


@given(
    st.lists(st.integers(0, 2**24), min_size=2, max_size=100),
    st.integers(0, 2**32 - 1),
    st.integers(1, 50),
)
def test_every_byte_is_booked_once_also_when_sequence_numbers_wrap(steps, first, count_max):
    positions = np.cumsum([0, *steps])
    time_ns = np.linspace(0, SPAN_NS, len(positions)).astype(np.int64)
    table = records(np.ones(len(positions)), time_ns, snd_una=[(first + int(at)) % 2**32 for at in positions])
    reduced = throughput.reduce(states(table), Bins.over(BEGIN_NS, BEGIN_NS + SPAN_NS, count_max))
    assert reduced["bytes"].sum() == sum(steps)
    assert set(reduced["measure"]) == {"acknowledged"}


def test_throughput_counts_what_was_received_and_shows_pauses_as_zero():
    # A pause of 8 s between two megabytes; the peer's first number is no advance from 0.
    table = records(
        [1, 1, 1, 1],
        [0, NS_PER_S, 2 * NS_PER_S, SPAN_NS],
        state=["SYN_SENT", "ESTABLISHED", "ESTABLISHED", "ESTABLISHED"],
        rcv_nxt=[0, 5_000_000, 6_000_000, 7_000_000],
    )
    bins = Bins.over(BEGIN_NS, BEGIN_NS + SPAN_NS, 12)
    assert bins.width_s == 1
    reduced = throughput.reduce(states(table), bins)
    assert set(reduced["measure"]) == {"received"}
    assert reduced["bytes"].to_list() == [0, 1_000_000, 0, 0, 0, 0, 0, 0, 0, 1_000_000]
    assert reduced["Mbps"].max() == pytest.approx(8)


def test_senders_are_those_that_sent_more_than_syn_and_fin():
    table = records([1, 1, 2, 2], [0, 1, 2, 3], snd_nxt=[7, 9, 7, 1455])
    assert senders(states(table)) == {2}


def test_both_ends_of_a_connection_have_one_colour_and_every_flow_a_name_of_its_own():
    near = [flow_row(1), flow_row(2, congestion_control="bbr", remote_port=5002)]
    far = [
        flow_row(
            1,
            local_address="10.77.1.2",
            local_port=5002,
            remote_address="10.77.1.1",
            remote_port=40002,
            passive=True,
        ),
        flow_row(
            2,
            local_address="10.77.1.2",
            local_port=5001,
            remote_address="10.77.1.1",
            remote_port=40001,
            passive=True,
        ),
    ]
    one, other = legends([pa.Table.from_pylist(near), pa.Table.from_pylist(far)])
    assert (one.colours[1], one.colours[2]) == (other.colours[2], other.colours[1])
    assert list(one.labels.values()) == ["cubic, port 5001", "bbr, port 5002"]
    (alike,) = legends([pa.Table.from_pylist([flow_row(1), flow_row(2)])])
    assert len(set(alike.labels.values())) == 2


@pytest.mark.parametrize("flows", [1, 3, NAMED_MAX, NAMED_MAX + 1, 40])
def test_every_figure_compiles_and_has_its_marks(flows):
    table = many_flows(flows, 200, np.random.default_rng(flows))
    log = log_of(table)
    (legend,) = legends([log.flows])
    found = figures_of(table, legend)
    assert [figure.name for figure in found] == ["throughput", "cwnd", "rtt", "loss"]
    for figure in found:
        drawing = vl_convert.vegalite_to_svg(figure.chart.to_dict())
        assert "mark-line" in drawing
        assert "NaN" not in drawing
        assert f"{flows:,} flow" in figure.caption


def test_one_record_is_a_point_and_no_record_no_figure():
    table = records([1], [0], snd_nxt=[5])
    (legend,) = legends([log_of(table).flows])
    (figure,) = figures_of(table, legend)
    assert vl_convert.vegalite_to_svg(figure.chart.to_dict())
    assert figures_of(table.slice(0, 0), legend) == []


def test_a_million_records_of_a_hundred_flows_become_few_rows():
    table = many_flows(100, 10_000, np.random.default_rng(7))
    (legend,) = legends([log_of(table).flows])
    for figure in figures_of(table, legend):
        assert len(figure.chart.to_json(indent=None)) < 1_500_000


def test_of_too_many_flows_those_with_most_records_are_drawn():
    flows = FLOWS_MAX + 10
    flow = np.concatenate([np.arange(1, flows + 1), np.arange(11, flows + 1)])
    table = records(flow, np.arange(len(flow)), snd_nxt=np.arange(len(flow)) * 10)
    (legend,) = legends([log_of(table).flows])
    caption = figures_of(table, legend)[0].caption
    assert f"{FLOWS_MAX:,} flows" in caption
    assert f"(of {flows:,}: those with the most records)" in caption


def test_a_common_time_axis_is_kept():
    table = many_flows(2, 100, np.random.default_rng(1), span_s=1)
    (legend,) = legends([log_of(table).flows])
    axis_ns = (BEGIN_NS - NS_PER_S, BEGIN_NS + 9 * NS_PER_S)
    specification = figures_of(table, legend, axis_ns=axis_ns)[1].chart.to_dict()
    assert specification["layer"][0]["encoding"]["x"]["scale"]["domain"] == [0, 10]
    assert BINS_OF_STATE[1] >= 500


def test_the_band_covers_bins_with_records_and_nothing_between():
    # Two moments of three records each, a second apart.
    times_ns = [0, 1, 2, NS_PER_S, NS_PER_S + 1, NS_PER_S + 2]
    table = records([1] * 6, times_ns, snd_nxt=range(1, 7), payload_bytes=[1] * 6, cwnd_segments=[10, 20, 30] * 2)
    (legend,) = legends([log_of(table).flows])
    (cwnd,) = [figure for figure in figures_of(table, legend) if figure.name == "cwnd"]
    drawing = vl_convert.vegalite_to_svg(cwnd.chart.to_dict())
    begin = drawing.index("mark-rect")
    boxes = re.findall(r'd="M[^h"]*h([\d.]+)v', drawing[begin : drawing.index("</g>", begin)])
    assert len(boxes) == 2
    assert sum(map(float, boxes)) < 0.02 * frame.WIDTH_PX


@pytest.mark.parametrize("lost", [0, 1, 3, 6, 7, 100])
def test_the_axis_of_what_was_sent_again_counts_whole_segments(lost):
    table = records([1] * 3, [0, 50 * NS_PER_S, 100 * NS_PER_S], snd_nxt=[0, 5, 10], total_retrans=[0, 0, lost])
    (legend,) = legends([log_of(table).flows])
    (loss,) = [figure for figure in figures_of(table, legend) if figure.name == "loss"]
    drawing = vl_convert.vegalite_to_svg(loss.chart.to_dict())
    labels = set(re.findall(r">(\d+(?:\.\d+)?)</text>", drawing))
    assert {"0", "100", *(str(mark) for mark in range(max(lost, 1) + 1) if lost <= 6)} <= labels
    assert not [label for label in labels if "." in label]


def test_how_much_of_the_last_bin_of_throughput_is_covered_is_said():
    table = records([1] * 3, [0, 5 * NS_PER_S, 10 * NS_PER_S + NS_PER_S // 40 - 1], snd_una=[0, 5, 10])
    (legend,) = legends([log_of(table).flows])
    (throughput_figure,) = figures_of(table, legend)
    assert "per bin of 100 ms" in throughput_figure.caption
    assert throughput_figure.caption.endswith("The time ends 25% into the last bin.")


def test_a_connection_that_never_came_about_is_drawn_with_nothing_moved():
    table = records([1] * 2, [0, NS_PER_S], state=["SYN_SENT"] * 2)
    (legend,) = legends([log_of(table).flows])
    (figure,) = figures_of(table, legend)
    assert figure.caption.startswith("Payload moved per bin")
    assert vl_convert.vegalite_to_svg(figure.chart.to_dict())
