"""Figures: no reduction loses a peak or a byte, and every drawing is a specification that compiles."""

import itertools
import re
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import vl_convert
from hypothesis import given, settings
from hypothesis import strategies as st
from made_log import BEGIN_NS, MadeLog, flow_row, log_of, many_flows, records

from parshall.figures import Figure, figures_of, frame, legends, reduce, reduction, throughput
from parshall.figures.bins import NS_PER_S, Bins, envelope
from parshall.figures.figure import DARK, PAPER
from parshall.figures.legend import COLOURS, NAMED_MAX, numbered
from parshall.figures.overview import STATE_BINS
from parshall.figures.reduction import FLOWS_MAX
from parshall.report.images import image_of
from suites import long_except

SPAN_NS = 10 * NS_PER_S
GENERATOR = np.random.default_rng(12)
ROWS = st.lists(
    st.tuples(st.integers(1, 5), st.integers(0, SPAN_NS), st.integers(0, 2**32 - 1)), min_size=1, max_size=200
)


def log_with(rows: list[tuple[int, int, int]], batch_rows: int | None = None) -> MadeLog:
    """Return a log of senders with these flows, times and congestion windows, in the order of time."""
    flow, time_ns, value = zip(*sorted(rows, key=lambda row: row[1]), strict=True)
    sent = [place * 1000 for place in range(len(rows))]
    return log_of(records(flow, time_ns, cwnd_segments=value, snd_nxt=sent), batch_rows=batch_rows)


def rows_of(log: MadeLog, count_max: int) -> pl.DataFrame:
    """Return the congestion windows of flows in bins, those included that sent one segment only."""
    reduction = reduce(log)
    bins = reduction.bins(count_max, 10**9, (BEGIN_NS, BEGIN_NS + SPAN_NS))
    return reduction.cells(bins)


@settings(max_examples=40)
@given(ROWS, st.integers(1, 100), st.sampled_from([1, 7, None]))
def test_the_extremes_of_every_flow_survive(rows, count_max, batch_rows):
    reduced = rows_of(log_with(rows, batch_rows), count_max)
    was = pl.DataFrame(rows, schema={"flow": pl.UInt32, "time_ns": pl.Int64, "value": pl.UInt32}, orient="row")
    extremes = was.group_by("flow").agg(pl.col("value").min().alias("min"), pl.col("value").max().alias("max"))
    now = reduced.group_by("flow").agg(pl.col("cwnd_min").min(), pl.col("cwnd_max").max())
    assert extremes.sort("flow").rows() == now.sort("flow").rows()
    assert reduced["records"].sum() == len(rows)
    assert reduced["cwnd_sum"].sum() == pytest.approx(sum(value for _, _, value in rows))
    states = reduced.select(time_s=pl.col("bin").cast(pl.Float64), min="cwnd_min", max="cwnd_max", mean="cwnd_min")
    around = envelope(states, Bins(0, 0, SPAN_NS, 3 * NS_PER_S))
    assert (around["min"].min(), around["max"].max()) == (was["value"].min(), was["value"].max())


def by_hand(rows: list[tuple[int, int | None]]) -> list[float | None]:
    """Return mean, median and 99th percentile over time of (ns, us) of a flow, in ms."""
    held = [(us, after - at) for (at, us), (after, _) in itertools.pairwise(rows) if us is not None and after > at]
    total = sum(ns for _, ns in held)
    if not total:
        return [None] * 3
    found: list[float | None] = [sum(us * ns for us, ns in held) / total / 1e3]
    for part in (0.5, 0.99):
        until = itertools.accumulate(ns for _, ns in sorted(held))
        found.append(next(us for (us, _), ns in zip(sorted(held), until, strict=True) if ns >= part * total) / 1e3)
    return found


SAMPLES = st.tuples(st.integers(1, 2), st.integers(0, 5000), st.one_of(st.none(), st.integers(1, 10**7)))


@settings(max_examples=40)
@given(st.lists(SAMPLES, min_size=1, max_size=60), st.sampled_from([1, 7, None]))
def test_round_trip_times_are_over_time(samples, batch_rows):
    times = list(itertools.accumulate(step for _, step, _ in samples))
    flows = [flow for flow, _, _ in samples]
    # 0 is what the kernel has before the first sample. All send: quantiles are of senders.
    srtt_us = [us or 0 for _, _, us in samples]
    table = records(flows, times, srtt_us=srtt_us, snd_nxt=list(range(0, 3 * len(samples), 3)))
    reduced = reduce(log_of(table, batch_rows=batch_rows)).table
    for row in reduced.iter_rows(named=True):
        own = [(at, us) for flow, at, (_, _, us) in zip(flows, times, samples, strict=True) if flow == row["flow"]]
        expected = by_hand(own) if row["sent_payload"] else [None] * 3
        for name, value, rel in zip(("mean", "p50", "p99"), expected, (1e-9, 0.02, 0.02), strict=True):
            assert row[f"srtt_{name}_ms"] == (value if value is None else pytest.approx(value, rel=rel))


def test_round_trip_times_of_an_empty_path_do_not_outvote_a_full_one():
    # 1000 records of 1 ms within 1 s; then 9 s of 100 ms with a record a second.
    times = [number * 10**6 for number in range(1000)] + [number * 10**9 for number in range(1, 11)]
    table = records([1] * 1010, times, srtt_us=[1000] * 1000 + [100_000] * 10, snd_nxt=range(1010))
    row = reduce(log_of(table)).table.row(0, named=True)
    assert row["srtt_mean_ms"] == pytest.approx(90.1)
    assert (row["srtt_p50_ms"], row["srtt_p99_ms"]) == pytest.approx((100, 100))


@settings(max_examples=20)
@given(ROWS, st.integers(10, 50))
def test_batches_make_no_difference(rows, batch_rows):
    with pytest.MonkeyPatch.context() as patch:
        # One batch at a time, bins that are widened during the pass, results that are merged at once.
        patch.setattr(reduction, "_BATCH_ROWS", 1)
        patch.setattr(reduction, "_BINS_MAX", 40)
        patch.setattr(reduction, "_PENDING_MIN", 1)
        patch.setattr(reduction, "_CELLS_MAX", 20)
        parts = reduce(log_with(rows, batch_rows))
    whole = reduce(log_with(rows))
    assert parts.table.equals(whole.table)
    bins = parts.bins(10, 10**9)
    assert whole.cells(bins).equals(parts.cells(bins))


@given(st.integers(0, 10**15), st.integers(1, 1000))
def test_bins_have_round_widths_and_a_limited_number(span_ns, count_max):
    bins = Bins.over(0, span_ns, count_max)
    assert str(bins.width_ns).rstrip("0") in ("1", "2", "5")
    assert span_ns // bins.width_ns < max(2, count_max)


def test_missing_values_are_not_drawn():
    table = records(
        [1, 1, 1],
        [0, 1000, 2000],
        state=["NEW_SYN_RECV", "ESTABLISHED", "ESTABLISHED"],
        cwnd_segments=[0, 10, 11],
        srtt_us=[0, 0, 6000],
        ssthresh_segments=[0, None, 7],
    )
    reduced = reduce(log_of(table))
    cells = reduced.cells(reduced.bins(10, 100))
    assert (reduced.records, cells["records"].sum()) == (3, 2)
    assert cells["cwnd_min"].min() == 10
    assert cells["srtt_records"].sum() == 1
    assert cells["ssthresh_last"].drop_nulls().to_list() == [7]


@settings(max_examples=40)
@given(
    st.lists(st.integers(0, 2**24), min_size=2, max_size=100),
    st.integers(0, 2**32 - 1),
    st.integers(1, 50),
)
def test_every_byte_counts_once_even_when_sequence_numbers_wrap(steps, first, count_max):
    positions = np.cumsum([0, *steps])
    time_ns = np.linspace(0, SPAN_NS, len(positions)).astype(np.int64)
    table = records(np.ones(len(positions)), time_ns, snd_una=[(first + int(at)) % 2**32 for at in positions])
    found = reduce(log_of(table, batch_rows=count_max))
    reduced = throughput.reduce(found, found.bins(count_max, 10**9))
    assert reduced["bytes"].sum() == sum(steps) == found.counted_bytes
    assert set(reduced["measure"]) == {"acknowledged"}


def test_throughput_counts_what_was_received_and_shows_pauses_as_zero():
    # A pause of 8 s between two megabytes; the peer's first number is no advance from 0.
    table = records(
        [1, 1, 1, 1],
        [0, NS_PER_S, 2 * NS_PER_S, SPAN_NS],
        state=["SYN_SENT", "ESTABLISHED", "ESTABLISHED", "ESTABLISHED"],
        rcv_nxt=[0, 5_000_000, 6_000_000, 7_000_000],
    )
    found = reduce(log_of(table))
    bins = found.bins(12, 10**9)
    assert bins.width_s == 1
    reduced = throughput.reduce(found, bins)
    assert set(reduced["measure"]) == {"received"}
    assert reduced["bytes"].to_list() == [0, 0, 1_000_000, 0, 0, 0, 0, 0, 0, 0, 1_000_000]
    assert reduced["Mbps"].max() == pytest.approx(8)


def test_senders_are_those_that_sent_more_than_syn_and_fin():
    table = records([1, 1, 2, 2], [0, 1, 2, 3], snd_nxt=[7, 9, 7, 1455])
    assert reduce(log_of(table)).senders == [2]


def drawn(rows: list[dict]) -> reduction.Reduction:
    """Return the reduction of a log with this flow table."""
    return reduce(log_of(records([1, 2], [0, 1]), flows=pa.Table.from_pylist(rows)))


def figures(table: pa.Table, **options: object) -> list[Figure]:
    """Return the figures of a log with these records."""
    reduced = reduce(log_of(table))
    (legend,) = legends([reduced])
    return list(figures_of(reduced, legend, **options))


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
    one, other = legends([drawn(near), drawn(far)])
    assert (one.colours[1], one.colours[2]) == (other.colours[2], other.colours[1])
    assert list(one.labels.values()) == ["cubic, port 5001", "bbr, port 5002"]
    (alike,) = legends([drawn([flow_row(1), flow_row(2)])])
    assert len(set(alike.labels.values())) == 2


@pytest.mark.parametrize("flows", long_except([1, NAMED_MAX + 1], [1, 3, NAMED_MAX, NAMED_MAX + 1, 40]))
def test_every_figure_compiles_and_has_its_marks(flows):
    table = many_flows(flows, 200, np.random.default_rng(flows))
    found = figures(table)
    assert [figure.name for figure in found] == ["throughput", "cwnd", "rtt", "loss"]
    for figure in found:
        drawing = vl_convert.vegalite_to_svg(figure.chart.to_dict())
        assert "mark-line" in drawing
        assert "NaN" not in drawing
        assert f"{flows:,} flow" in figure.caption


def test_a_limit_beyond_the_axis_leaves_the_picture_and_makes_it_no_larger():
    """A threshold may be left from a time before the log, when the window was large."""
    sizes = set()
    table = many_flows(2, 200, np.random.default_rng(1))
    for threshold in (40, 4_000, 2**32 - 2):
        column = pa.array([40] * 200 + [threshold] * 200, pa.uint32())
        place = table.schema.get_field_index("ssthresh_segments")
        (cwnd,) = (
            each for each in figures(table.set_column(place, "ssthresh_segments", column)) if each.name == "cwnd"
        )
        drawing = image_of(cwnd.chart.to_dict(), ".svg")
        sizes.add(re.match(r'<svg[^>]* width="(\d+)" height="(\d+)"', drawing).groups())
    assert len(sizes) == 1, sizes
    # The last is the farthest.
    assert image_of(cwnd.chart.to_dict(), ".png")


def test_one_record_is_a_point_and_no_record_no_figure():
    table = records([1], [0], snd_nxt=[5])
    (figure,) = figures(table)
    assert vl_convert.vegalite_to_svg(figure.chart.to_dict())
    assert figures(table.slice(0, 0)) == []


def test_many_records_of_a_hundred_flows_become_few_rows():
    table = many_flows(100, 4000, np.random.default_rng(7))
    for figure in figures(table):
        # More than 13 MB without a limit, but for throughput.
        assert len(figure.chart.to_json(indent=None)) < 1_500_000


def test_the_flows_with_most_records_are_drawn():
    flows = FLOWS_MAX + 10
    flow = np.concatenate([np.arange(1, flows + 1), np.arange(11, flows + 1)])
    table = records(flow, np.arange(len(flow)), snd_nxt=np.arange(len(flow)) * 10)
    caption = figures(table)[0].caption
    assert f"{FLOWS_MAX:,} flows" in caption
    assert f"(of {flows:,}: those with the most records)" in caption


def test_a_common_time_axis_is_kept():
    table = many_flows(2, 100, np.random.default_rng(1), span_s=1)
    axis_ns = (BEGIN_NS - NS_PER_S, BEGIN_NS + 9 * NS_PER_S)
    specification = figures(table, axis_ns=axis_ns)[1].chart.to_dict()
    assert specification["layer"][0]["encoding"]["x"]["scale"]["domain"] == [0, 10]
    assert STATE_BINS >= 500


def test_bytes_are_those_of_the_account_where_rows_have_fewer() -> None:
    """Flow 1 moved 4 GiB in a pause; the rows of flow 2 lack what came after its last one."""
    table = records([1, 1, 2, 2], [0, 10**9, 0, 10**9], snd_una=[0, 10**6] * 2, snd_nxt=[0, 10**6] * 2)
    accounts = {1: 2**32 + 10**6, 2: 2 * 10**6}
    flows = pa.Table.from_pylist(
        [flow_row(flow, 2, bytes_acked=count, bytes_received=0) for flow, count in accounts.items()]
    )
    reduced = reduce(log_of(table, flows=flows)).table
    assert reduced["bytes"].to_list() == [2**32 + 10**6, 2 * 10**6]
    assert reduced["Mbps"][0] == pytest.approx(8e-6 * (2**32 + 10**6))


@pytest.mark.parametrize("is_part", [False, True])
def test_a_flow_lasts_from_its_first_packet_but_in_a_part_of_a_log_from_its_first_row(is_part: bool) -> None:
    """Of one file of a log that rotated, what it moved there is over the time there."""
    table = records([1, 1], [4 * NS_PER_S, 6 * NS_PER_S], snd_una=[0, 10**6], snd_nxt=[0, 10**6])
    time = pa.timestamp("ns", "UTC")
    row = flow_row(1, 2, bytes_acked=None, bytes_received=None)
    flows = pa.Table.from_pylist([row])
    first = flows.schema.get_field_index("first_time_ns")
    flows = flows.set_column(first, "first_time_ns", pa.array([BEGIN_NS], time))
    gap = {"from_time_ns": pa.array([None], time), "until_time_ns": pa.array([BEGIN_NS + 3 * NS_PER_S], time)}
    gaps = pa.table(gap | {"cause": ["file_missing"]}) if is_part else pa.table({})
    (found,) = reduce(log_of(table, flows=flows, gaps=gaps)).table.to_dicts()
    assert found["duration_s"] == pytest.approx(2.0 if is_part else 6.0)
    assert found["Mbps"] == pytest.approx(8 / (2.0 if is_part else 6.0))


def test_the_band_covers_bins_with_records_and_nothing_between():
    # Two moments of three records each, a second apart.
    times_ns = [0, 1, 2, NS_PER_S, NS_PER_S + 1, NS_PER_S + 2]
    table = records([1] * 6, times_ns, snd_nxt=range(1, 7), payload_bytes=[1] * 6, cwnd_segments=[10, 20, 30] * 2)
    (cwnd,) = [figure for figure in figures(table) if figure.name == "cwnd"]
    drawing = vl_convert.vegalite_to_svg(cwnd.chart.to_dict())
    begin = drawing.index("mark-rect")
    boxes = re.findall(r'd="M[^h"]*h([\d.]+)v', drawing[begin : drawing.index("</g>", begin)])
    assert len(boxes) == 2
    assert sum(map(float, boxes)) < 0.02 * frame.WIDTH_PX


@pytest.mark.parametrize("lost", long_except([0, 1, 6, 7], [0, 1, 3, 6, 7, 100]))
def test_the_axis_of_retransmissions_has_whole_numbers(lost):
    table = records([1] * 3, [0, 50 * NS_PER_S, 100 * NS_PER_S], snd_nxt=[0, 5, 10], total_retrans=[0, 0, lost])
    (loss,) = [figure for figure in figures(table) if figure.name == "loss"]
    drawing = vl_convert.vegalite_to_svg(loss.chart.to_dict())
    labels = set(re.findall(r">(\d+(?:\.\d+)?)</text>", drawing))
    assert {"0", "100", *(str(mark) for mark in range(max(lost, 1) + 1) if lost <= 6)} <= labels
    assert not [label for label in labels if "." in label]


def test_the_caption_has_the_covered_part_of_the_last_bin():
    table = records([1] * 3, [0, 5 * NS_PER_S, 10 * NS_PER_S + NS_PER_S // 40 - 1], snd_una=[0, 5, 10])
    (throughput_figure,) = figures(table)
    assert "per bin of 100 ms" in throughput_figure.caption
    assert throughput_figure.caption.endswith("The log ends 25% into the last bin, so that its rate is too low.")


def test_a_log_that_ends_before_the_shared_axis_says_where_it_ends_itself():
    table = records([1] * 3, [0, 5 * NS_PER_S, 10 * NS_PER_S + NS_PER_S // 40 - 1], snd_una=[0, 5, 10])
    reduction = reduce(log_of(table))
    for longer_ns, text in ((0, "25%"), (40_000_000, "25%"), (10 * NS_PER_S, "12%")):
        axis_ns = (BEGIN_NS, BEGIN_NS + 10 * NS_PER_S + NS_PER_S // 40 - 1 + longer_ns)
        (figure,) = figures_of(reduction, legends([reduction])[0], axis_ns=axis_ns)
        assert figure.caption.endswith(f"The log ends {text} into the last bin, so that its rate is too low.")


@pytest.mark.parametrize("missing_ns", [1, 300_000])
def test_a_last_bin_that_is_whole_has_no_remark(missing_ns):
    table = records([1] * 3, [0, 5 * NS_PER_S, 10 * NS_PER_S + NS_PER_S // 10 - missing_ns], snd_una=[0, 5, 10])
    (figure,) = figures(table)
    assert "per bin of 100 ms" in figure.caption and "ends" not in figure.caption


def test_the_sum_counts_connections_where_both_ends_are_flows():
    parts, rows = [], []
    for number in range(20):
        client, server = 2 * number + 1, 2 * number + 2
        sent, received = [1, 500, 1000 * (number + 2)], [1, 1, 1]
        times = [number, NS_PER_S + number, 10 * NS_PER_S + number]
        parts.append(records([client] * 3, times, snd_una=sent, snd_nxt=sent, rcv_nxt=received))
        parts.append(records([server] * 3, times, snd_una=received, snd_nxt=received, rcv_nxt=sent))
        port = {"local_port": 40_000 + number}, {"remote_port": 40_000 + number}
        rows += [flow_row(client, 3, **CLIENT | port[0]), flow_row(server, 3, **SERVER | port[1])]
    log = log_of(pa.concat_tables(parts).sort_by("time_ns"), flows=pa.Table.from_pylist(rows))
    reduction = reduce(log)
    found = {figure.name: figure for figure in figures_of(reduction, legends([reduction])[0])}
    assert "of 20 connections, 40 flows" in found["throughput"].caption
    drawing = vl_convert.vegalite_to_svg(found["throughput"].chart.to_dict())
    assert ">all 20 connections<" in drawing
    named = len({*re.findall(r"cubic, \d+ to 127", drawing)})
    assert re.search(r">the other \d+ connections<", drawing) and named
    assert "40 flows<" not in drawing


def test_a_failed_connection_is_drawn_with_zero_throughput():
    table = records([1] * 2, [0, NS_PER_S], state=["SYN_SENT"] * 2)
    (figure,) = figures(table)
    assert figure.caption.startswith("Payload moved per bin")
    assert vl_convert.vegalite_to_svg(figure.chart.to_dict())


def ends_of(*flows: dict[str, Any]) -> dict[int, tuple[int | None, bool]]:
    """Return the other end of each flow, and whether it is counted.

    Each flow has two records: its first, and its last after it sent and received some bytes.
    """
    rows, table = [], []
    for number, flow in enumerate(flows, 1):
        given = {"begin_ns": 0, "end_ns": NS_PER_S, "sent": (1, 1), "received": (1, 1)} | flow
        for at in (0, 1):
            table.append(
                (number, given["begin_ns"] if at == 0 else given["end_ns"], given["sent"][at], given["received"][at])
            )
        known = ("local_address", "local_port", "remote_address", "remote_port", "passive", "began_before")
        rows.append(flow_row(number, 2, **{name: given[name] for name in known if name in given}))
    table.sort(key=lambda row: row[1])
    flow, time_ns, sent, received = zip(*table, strict=True)
    found = records(flow, time_ns, snd_una=sent, snd_nxt=sent, rcv_nxt=received)
    reduced = reduce(log_of(found, flows=pa.Table.from_pylist(rows)))
    return {row["flow"]: (row["other_end"], row["is_counted"]) for row in reduced.table.iter_rows(named=True)}


CLIENT = {"local_address": "127.0.0.1", "local_port": 40000, "remote_address": "127.0.0.1", "remote_port": 80}
SERVER = {"local_address": "127.0.0.1", "local_port": 80, "remote_address": "127.0.0.1", "remote_port": 40000}
ALONE = (None, True)


def test_of_two_ends_of_a_connection_the_sender_counts():
    sent = {"sent": (1000, 900_000), "received": (77, 77)}
    received = {"sent": (77, 77), "received": (1000, 900_000)}
    assert ends_of(CLIENT | sent, SERVER | received) == {1: (2, True), 2: (1, False)}
    assert ends_of(CLIENT | received, SERVER | sent) == {1: (2, False), 2: (1, True)}


def test_ends_are_found_when_their_first_records_are_missing_and_numbers_wrap():
    near = {"sent": (2**32 - 5000, 90_000), "received": (500, 500)}
    far = {"sent": (500, 500), "received": (2**32 - 1000, 80_000)}
    assert ends_of(CLIENT | near, SERVER | far) == {1: (2, True), 2: (1, False)}


def test_ends_with_translated_addresses_are_found_by_their_sequence_numbers():
    near = CLIENT | {"remote_address": "192.168.1.1", "sent": (1000, 9000), "received": (77, 99)}
    far = SERVER | {"local_address": "172.17.0.2", "local_port": 8080, "sent": (77, 99), "received": (1000, 9000)}
    assert ends_of(near, far) == {1: (2, True), 2: (1, False)}


def test_equal_addresses_alone_do_not_match_two_ends():
    # Two testbeds whose namespaces have the same addresses, both older than the log.
    this = [{"sent": (10**9, 2 * 10**9), "received": (5, 6)}, {"sent": (5, 6), "received": (10**9 + 7, 2 * 10**9)}]
    that = [{"sent": (3 * 10**9, 4 * 10**9), "received": (7 * 10**8, 7 * 10**8)}]
    that.append({"sent": (7 * 10**8, 7 * 10**8), "received": (3 * 10**9 + 7, 4 * 10**9)})
    found = ends_of(CLIENT | this[0], CLIENT | that[0], SERVER | that[1], SERVER | this[1])
    assert {flow: other for flow, (other, _) in found.items()} == {1: 4, 4: 1, 2: 3, 3: 2}
    assert ends_of(CLIENT | this[0], SERVER | that[1]) == {1: ALONE, 2: ALONE}
    # The same ports again, ten seconds later.
    later = {"begin_ns": 10 * NS_PER_S, "end_ns": 11 * NS_PER_S}
    assert ends_of(CLIENT | this[0], SERVER | this[1] | later) == {1: ALONE, 2: ALONE}
    # Of two streams in one direction, neither is the other end.
    assert ends_of(CLIENT | this[0], CLIENT | this[0]) == {1: ALONE, 2: ALONE}


def short_and_long() -> pa.Table:
    """Return two long flows among 150 that have three records each."""
    generator = np.random.default_rng(8)
    long, short = many_flows(2, 3000, generator), many_flows(150, 3, generator)
    flow = pc.add(short["flow"], pa.scalar(2, pa.uint32()))
    short = short.set_column(short.schema.get_field_index("flow"), "flow", flow)
    return pa.concat_tables([long, short]).sort_by("time_ns")


def test_many_short_flows_do_not_displace_long_ones():
    found = {figure.name: figure for figure in figures(short_and_long())}
    drawing = vl_convert.vegalite_to_svg(found["cwnd"].chart.to_dict())
    # The legend names the flows that moved most; the others are grey.
    assert "cubic, 40001 to 10.77.1.2:5001" in drawing and "cubic, 40002 to 10.77.1.2:5001" in drawing
    assert "The other 140 flows show under the pointer" in found["cwnd"].caption
    # Two long lines of some 300 bins at least, and no point on them.
    assert "Bins of 200 ms" in found["cwnd"].caption
    lines = re.findall(r'<path [^>]*?d="([^"]*)"', drawing)
    assert sum(250 < line.count("L") < 400 for line in lines) == 2
    assert drawing.count('aria-roledescription="circle"') <= 150 * 3


def test_the_legend_has_no_entry_for_marks_that_are_not_drawn():
    # One flow entered Recovery, but is one of the grey ones; another has no sample of its round-trip time.
    table = short_and_long()
    event = ["packet"] * table.num_rows
    grey = table["flow"].to_pylist().index(152)
    event[grey] = "congestion_state"
    state = ["Open"] * table.num_rows
    state[grey] = "Recovery"
    for name, values in (("event", event), ("ca_state", state)):
        table = table.set_column(table.schema.get_field_index(name), name, pa.array(values).dictionary_encode())
    (loss,) = [figure for figure in figures(table) if figure.name == "loss"]
    assert "Recovery 1" in loss.caption
    assert "entered Recovery</text>" not in vl_convert.vegalite_to_svg(loss.chart.to_dict())
    quiet = records(
        [1, 1, 2, 2],
        [0, 10**9, 0, 10**9],
        snd_nxt=[0, 5000, 0, 5000],
        srtt_us=[6000, 6000, 0, 0],
        min_rtt_us=[5900, 5900, None, None],
    )
    found = {figure.name: figure for figure in figures(quiet)}
    of_windows, of_times = (vl_convert.vegalite_to_svg(found[name].chart.to_dict()) for name in ("cwnd", "rtt"))
    assert "40002" in of_windows and "40002" not in of_times
    assert "Dashed" not in found["cwnd"].caption


def rows_in(layer: dict[str, Any], whole: dict[str, Any]) -> pl.DataFrame:
    """Return the data of a layer."""
    data = layer["data"]
    return pl.read_csv((whole["datasets"][data["name"]] if "name" in data else data["values"]).encode())


def test_axes_have_room_for_six_digits_and_no_title_at_a_fixed_place():
    table = records([1] * 3, [0, 1000, 2000], snd_una=[0, 50_000_000, 100_000_000], snd_nxt=[1, 2, 3])
    axis = figures(table)[0].chart.to_dict()["config"]["axisY"]
    assert axis["minExtent"] >= 54 and "titleX" not in axis


def test_a_line_breaks_where_a_flow_was_silent_and_not_where_it_is_slow():
    # Flow 1 has a record each 10 ms, but none from 3 s to 7 s; flow 2 has one a second; flow 3 one in a pause.
    rows = [(1, at) for at in [*range(0, 3000, 10), *range(7000, 10_001, 10)]]
    rows += [(2, at) for at in range(0, 10_001, 1000)]
    rows += [(3, at) for at in [*range(0, 1000, 10), 5000, *range(9000, 10_000, 10)]]
    flow, time_ms = zip(*sorted(rows, key=lambda row: row[1]), strict=True)
    table = records(flow, np.array(time_ms) * 1_000_000, snd_nxt=np.arange(len(flow)) * 1000)
    (figure,) = [figure for figure in figures(table) if figure.name == "cwnd"]
    whole = figure.chart.to_dict()
    (line,) = [layer for layer in whole["layer"] if layer["mark"]["type"] == "line"]
    assert {"field": "part", "type": "nominal"} in line["encoding"]["detail"]
    parts = rows_in(line, whole).group_by("flow").agg(pl.col("part").n_unique()).sort("flow")
    assert parts["part"].to_list() == [2, 1, 3]
    # A record by itself is no line, but a point.
    (points,) = [layer for layer in whole["layer"] if layer["mark"]["type"] == "circle"]
    lone = rows_in(points, whole).filter(pl.col("flow").str.contains("40003"))
    assert lone["time_s"].to_list() == pytest.approx([5], abs=0.1)
    assert "A line breaks where a flow had no record for more than 10 bins." in figure.caption


@pytest.mark.parametrize("flows", long_except([FLOWS_MAX + 30], [40, FLOWS_MAX + 30]))
def test_a_crowd_has_its_sum_and_the_largest_flows_by_name(flows, monkeypatch):
    monkeypatch.setattr(reduction, "_BATCH_ROWS", 500)
    table = many_flows(flows, 20, np.random.default_rng(4), span_s=10)
    # Flow 7 moves most.
    times = pc.if_else(pc.equal(table["flow"], pa.scalar(7, pa.uint32())), pa.scalar(9, pa.uint32()), 1)
    sent = pc.multiply(table["snd_una"], times).cast(pa.uint32())
    table = table.set_column(table.schema.get_field_index("snd_una"), "snd_una", sent)
    log = log_of(table)
    log.flows = log.flows.append_column("command", pa.array(["curl"] * flows))
    reduced = reduce(log)
    (legend,) = legends([reduced])
    assert len(legend.colours) == NAMED_MAX
    assert legend.named[0] == "cubic, 40007 to 10.77.1.2:5001 (curl)"
    for figure in figures_of(reduced, legend):
        whole = figure.chart.to_dict()
        lines = [layer for layer in whole["layer"] if layer["mark"]["type"] in ("line", "area")]
        # At rest, no line is drawn for a flow without a name.
        for layer in lines:
            assert re.search("indexof|pick|sum", str(layer.get("transform"))), layer["mark"]
        if figure.name not in ("throughput", "loss"):
            continue
        area, line, *_ = lines
        count = flows if figure.name == "throughput" else min(flows, FLOWS_MAX)
        assert line["encoding"]["stroke"]["scale"]["domain"] == [f"all {count} flows"]
        assert area["encoding"]["fill"]["scale"]["domain"] == [f"the other {count - NAMED_MAX} flows"]
        rows = rows_in(line, whole)
        if figure.name == "loss":
            drawn_flows = reduced.table.filter(pl.col("flow").is_in(reduced.drawn))
            assert rows["all"].is_sorted()
            assert rows["all"].max() == drawn_flows["retransmitted"].sum()
            continue
        # The sums have all bytes, also those of flows that are not drawn.
        bytes_each = rows["time_s"].diff().min() * 1e6 / 8
        unnamed = reduced.table.filter(~pl.col("flow").is_in(list(legend.colours)))["bytes"].sum()
        assert rows["all"].sum() * bytes_each == pytest.approx(reduced.counted_bytes, rel=1e-5)
        assert rows["others"].sum() * bytes_each == pytest.approx(unnamed, rel=1e-5)


def colours_in(value: Any) -> set[str]:
    """Return the colours of a specification."""
    if isinstance(value, dict):
        return set().union(*(colours_in(each) for key, each in value.items() if key not in ("data", "datasets")))
    if isinstance(value, list):
        return set().union(*map(colours_in, value))
    return {value} if isinstance(value, str) and re.fullmatch("#[0-9a-fA-F]{3,6}|white", value) else set()


def luminance(colour: str) -> float:
    """Return the relative luminance of WCAG 2."""
    digits = "ffffff" if colour == "white" else colour[1:]
    digits = digits if len(digits) == 6 else "".join(2 * digit for digit in digits)
    parts = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_what_is_drawn_can_be_seen_on_dark_pages():
    found = set().union(*(colours_in(figure.chart.to_dict()) for figure in figures(many_flows(40, 50, GENERATOR))))
    assert set(COLOURS) <= found and PAPER in found
    # The grid and the shading around all flows are faint.
    faint = {"#e8e8e8", "#eceef1"}
    for colour in found - {PAPER}:
        contrast = (luminance(DARK.get(colour, colour)) + 0.05) / (luminance(DARK[PAPER]) + 0.05)
        assert contrast < 2 if colour in faint else contrast > 3, colour


def test_what_is_shown_together_looks_different_and_the_same_everywhere():
    found = numbered([["a", "b"], ["b", "c"], ["d", "c", "a"], ["e"]])
    assert found == {"a": 0, "b": 1, "c": 2, "d": 1, "e": 0}
