"""The history of flows against a model that keeps every table whole."""

from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parshall.live.history import History
from parshall.live.tui import _cell
from parshall.live.view import View, lines

SECOND_NS = 1_000_000_000
CHANGING = ("acked_bytes", "received_bytes", "retransmitted", "cwnd_segments", "state", "ended", "retransmitted_for")


def table_of(flows: dict[int, dict[str, Any]]) -> pl.DataFrame:
    return pl.DataFrame(
        [{"flow": number, "srtt_ms": 1.5, **flow} for number, flow in sorted(flows.items())],
        schema={
            "flow": pl.UInt32,
            "records": pl.UInt64,
            "end_ns": pl.Int64,
            "acked_bytes": pl.Int64,
            "received_bytes": pl.Int64,
            "acked_may_lack": pl.Boolean,
            "received_may_lack": pl.Boolean,
            "retransmitted": pl.Int64,
            "cwnd_segments": pl.UInt32,
            "srtt_ms": pl.Float64,
            "state": pl.String,
            "ending": pl.Categorical,
            "ended": pl.Boolean,
            "retransmitted_for": pl.String,
        },
    )


# At each step: a flow, the bytes that it moved, whether it ends.
STEPS = st.lists(
    st.lists(st.tuples(st.integers(1, 6), st.integers(0, 5000), st.booleans()), max_size=4), min_size=1, max_size=30
)


@given(steps=STEPS, keep_s=st.sampled_from([0.5, 3.0, 100.0]))
@settings(deadline=None, max_examples=40)
def test_each_time_that_is_kept_is_as_it_was(steps: list[list[tuple[int, int, bool]]], keep_s: float) -> None:
    history = History(keep_s, 1 << 30)
    flows: dict[int, dict[str, Any]] = {}
    tables: dict[int, dict[int, dict[str, Any]]] = {}
    forgotten: set[int] = set()
    for number, step in enumerate(steps):
        time_ns = (number + 1) * SECOND_NS
        for flow, moved, ends in step:
            before = flows.get(flow)
            if (before and before["ended"]) or flow in forgotten:
                continue
            flows[flow] = {
                "records": (before["records"] if before else 0) + 1,
                "end_ns": time_ns,
                "acked_bytes": (before["acked_bytes"] if before else 0) + moved,
                "received_bytes": (before["received_bytes"] if before else 0) + 2 * moved,
                "retransmitted": (before["retransmitted"] if before else 0) + moved % 3,
                "retransmitted_for": f"{moved} fast" if moved % 3 else None,
                "cwnd_segments": 10 + moved,
                "state": "ESTABLISHED",
                "ending": "fin" if ends else "open",
                "ended": ends,
            }
        gone = history.add(time_ns, table_of(flows))
        # What ended ten seconds ago goes.
        old = {flow for flow, state in flows.items() if state["ended"] and state["end_ns"] < time_ns - 10 * SECOND_NS}
        assert set(gone) == old
        for flow in gone:
            del flows[flow]
        forgotten |= set(gone)
        tables[time_ns] = {flow: dict(state) for flow, state in flows.items()}
    assert history.end_ns == len(steps) * SECOND_NS
    assert set(flows) <= set(history.flows().to_list())
    assert history.begin_ns is not None
    assert history.end_ns - history.begin_ns <= keep_s * SECOND_NS
    for time_ns, expected in tables.items():
        if time_ns < history.begin_ns:
            continue
        at_ns, found = history.at(time_ns + SECOND_NS // 2)
        assert at_ns == time_ns
        rows = {row["flow"]: row for row in found.to_dicts()}
        assert set(rows) == set(expected)
        earlier = tables.get(time_ns - SECOND_NS)
        for flow, row in rows.items():
            assert {name: row[name] for name in CHANGING} == {name: expected[flow][name] for name in CHANGING}
            if earlier is not None:
                moved = row["acked_bytes"] - earlier.get(flow, {"acked_bytes": 0})["acked_bytes"]
                assert row["acked_Mbps"] == pytest.approx(moved * 8 / 1e6, rel=1e-6)
                assert row["received_Mbps"] == pytest.approx(2 * moved * 8 / 1e6, rel=1e-6)


def test_what_moved_before_the_first_time_has_no_rate() -> None:
    history = History(100, 1 << 30)
    flow = {"records": 1, "end_ns": 1, "acked_bytes": 10**9, "received_bytes": 0, "retransmitted": 5}
    flow |= {"cwnd_segments": 1, "state": "ESTABLISHED", "ending": "open", "ended": False}
    history.add(SECOND_NS, table_of({1: flow}))
    assert history.at()[1]["acked_Mbps"].to_list() == [0]
    assert history.totals().height == 0
    history.add(2 * SECOND_NS, table_of({1: flow | {"records": 2, "acked_bytes": 10**9 + 1000}}))
    assert history.curve(1)["acked_Mbps"].to_list() == pytest.approx([0.008])
    assert history.totals()["retransmitted_per_s"].to_list() == [0]


def test_bytes_that_may_lack_a_part_are_marked_also_in_groups() -> None:
    history = History(100, 1 << 30)
    flow = {"records": 1, "end_ns": 1, "acked_bytes": 10**9, "received_bytes": 7, "retransmitted": 0}
    flow |= {"cwnd_segments": 1, "state": "ESTABLISHED", "ending": "open", "ended": False}
    flow |= {"acked_may_lack": False, "received_may_lack": False}
    history.add(SECOND_NS, table_of({1: flow, 2: flow | {"acked_may_lack": True}}))
    facts = pl.DataFrame({"flow": [1, 2], "process": ["a", "a"]}, schema_overrides={"flow": pl.UInt32})
    _, found = lines(facts, history.at()[1], View(sort="flow", descending=False))
    assert (found["acked_may_lack"], found["received_may_lack"]) == ([False, True], [False, False])
    _, found = lines(facts.with_columns(pl.lit(1).alias("pid")), history.at()[1], View(group="process"))
    assert (found["acked"], found["acked_may_lack"], found["received_may_lack"]) == ([2 * 10**9], [True], [False])
    assert [_cell("acked", 10**9, may_lack=each).plain for each in (False, True)] == ["1G", "≥1G"]


def test_an_end_at_a_time_that_is_known_shows_each_flow_once() -> None:
    history = History(100, 1 << 30)
    flow = {"records": 1, "end_ns": 1, "acked_bytes": 0, "received_bytes": 0, "retransmitted": 0}
    flow |= {"cwnd_segments": 1, "state": "ESTABLISHED", "ending": "open", "ended": False}
    history.add(SECOND_NS, table_of({1: flow}))
    history.add(2 * SECOND_NS, table_of({1: flow | {"records": 2, "acked_bytes": 1000}}))
    history.add(
        2 * SECOND_NS, table_of({1: flow | {"records": 3, "end_ns": SECOND_NS, "acked_bytes": 2000, "ended": True}})
    )
    assert history.at()[1].select("flow", "acked_bytes", "acked_Mbps").rows() == [(1, 2000, 0.0)]
    assert history.totals()["acked_Mbps"].to_list() == pytest.approx([0.008])


def test_memory_is_bounded_and_the_newest_stays() -> None:
    history = History(1e6, 20_000)
    flows = {
        flow: {"end_ns": 1, "acked_bytes": 1, "received_bytes": 1, "retransmitted": 0, "cwnd_segments": 1}
        | {"state": "ESTABLISHED", "ending": "open", "ended": False}
        for flow in range(1, 51)
    }
    for number in range(1, 40):
        history.add(number * SECOND_NS, table_of({flow: state | {"records": number} for flow, state in flows.items()}))
    kept_s = (history.end_ns - history.begin_ns) / SECOND_NS
    # A flow takes some 70 bytes of a time.
    assert 2 <= kept_s <= 10
    assert history.end_ns == 39 * SECOND_NS
    assert history.at()[1].height == 50
    # Older than all: the oldest.
    assert history.at(SECOND_NS)[0] == history.begin_ns
