"""Several logs in one figure: their sums over time, and the distributions of their round-trip times."""

import itertools
from typing import Any

import numpy as np
import polars as pl
import pytest
import vl_convert
from hypothesis import given, settings
from hypothesis import strategies as st
from made_log import log_of, many_flows, records

from parshall.errors import UsageError
from parshall.figures import reduce, together
from parshall.figures.plots import LogPlots
from parshall.report.images import image_of

SAMPLES = st.lists(st.tuples(st.integers(1, 5000), st.integers(1, 10**7)), min_size=2, max_size=60)


def share_by_hand(samples: list[tuple[int, int]], limit_us: float) -> float:
    """The percentage of the time in which a value of at most a limit held."""
    held = [(us, step) for (_, us), (step, _) in itertools.pairwise(samples)]
    return 100 * sum(ns for us, ns in held if us <= limit_us) / sum(ns for _, ns in held)


@settings(max_examples=40)
@given(SAMPLES)
def test_a_distribution_is_that_of_the_time(samples: list[tuple[int, int]]) -> None:
    times = list(itertools.accumulate(step for step, _ in samples))
    numbers = range(0, 3 * len(samples), 3)
    table = records([1] * len(samples), times, srtt_us=[us for _, us in samples], snd_nxt=list(numbers))
    reduced = reduce(log_of(table))
    rows = together.round_trips({"one": reduced.round_trips()})
    if not reduced.senders:
        assert rows.is_empty()
        return
    assert rows["share"].to_list() == sorted(rows["share"]) and rows["share"][-1] == pytest.approx(100)
    for _, rtt_ms, share in rows.iter_rows():
        low, high = (share_by_hand(samples, factor * 1e3 * rtt_ms) for factor in (0.98, 1.02))
        assert low - 1e-6 <= share <= high + 1e-6


def test_logs_overlap_in_their_own_times_and_have_their_sums() -> None:
    first = log_of(many_flows(3, 500, np.random.default_rng(1), span_s=10))
    later = log_of(many_flows(30, 100, np.random.default_rng(2), span_s=20))
    reductions = {"before": reduce(first), "after": reduce(later)}
    rows = together.moved({name: together.lines_of(each) for name, each in reductions.items()})
    for name, reduction in reductions.items():
        own = rows.filter(log=name)
        assert own["time_s"].min() < 1
        widths = own["time_s"].diff().drop_nulls().unique()
        assert widths.max() == pytest.approx(widths.min())
        moved_bytes = own["Mbps"].sum() * widths[0] * 1e6 / 8
        assert moved_bytes == pytest.approx(reduction.counted_bytes, rel=1e-6)
    found = together.figures_of({name: together.lines_of(each) for name, each in reductions.items()})
    assert [figure.name for figure in found] == ["throughput-of-logs", "round-trip-times"]
    for figure in found:
        drawing = vl_convert.vegalite_to_svg(figure.chart.to_dict())
        assert "NaN" not in drawing and "before" in drawing and "after" in drawing
        assert image_of(figure.chart.to_dict(), ".png")


def test_a_log_with_one_value_has_a_line_beside_the_others() -> None:
    rows = pl.DataFrame({"line": ["a", "b", "b"], "rtt_ms": [20.0, 1.0, 40.0], "share": [100.0, 50.0, 100.0]})
    ends = together._with_ends(rows)
    assert ends.filter(line="a").rows() == [("a", 20.0, 0.0), ("a", 20.0, 100.0), ("a", 40.0, 100.0)]
    assert ends.filter(line="b")["share"].to_list() == [0.0, 50.0, 100.0, 100.0]


def test_logs_without_data_have_no_figure_together() -> None:
    empty: Any = reduce(log_of(records([], [])))
    assert together.figures_of({"one": together.lines_of(empty), "other": together.lines_of(empty)}) == []
    drawn = reduce(log_of(many_flows(1, 50, np.random.default_rng(1))))
    assert together.figures_of({"one": together.lines_of(empty), "other": together.lines_of(drawn)}) == []


def test_a_plot_has_a_line_for_each_flow_and_one_for_a_crowd() -> None:
    plots = LogPlots(log_of(many_flows(2, 200, np.random.default_rng(1))))
    drawing = vl_convert.vegalite_to_svg(plots.round_trips().to_dict())
    assert drawing.count("mark-line role-mark") == 2 and "all flows" not in drawing
    assert "all flows" not in vl_convert.vegalite_to_svg(plots.round_trips(1).to_dict())
    crowd = LogPlots(log_of(many_flows(40, 50, np.random.default_rng(1))))
    assert "all flows" in vl_convert.vegalite_to_svg(crowd.round_trips().to_dict())
    silent = LogPlots(log_of(records([1, 1], [0, 1], snd_nxt=[7, 9])))
    with pytest.raises(UsageError, match="no flow that sent payload has a round-trip time"):
        silent.round_trips()
