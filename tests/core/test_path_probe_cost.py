"""Times of stages less the cost of the probes."""

import dataclasses
from typing import Any

import pytest

from parshall.instruments.path import PathSummary
from parshall.instruments.path.probe_cost import less_probes
from parshall.instruments.path.text import stage_lines, summary_lines


def row(stage: str, packets: int, time_ns: float, path: str = "forwarded") -> dict[str, Any]:
    """Return the times of a stage that are all alike."""
    times = {"median_ns": time_ns, "p90_ns": time_ns, "p99_ns": 3 * time_ns, "max_ns": 4 * time_ns}
    return {
        "path": path,
        "group": None,
        "stage": stage,
        "packets": packets,
        "sum_ns": packets * time_ns,
        "share": 1.0,
    } | times


def cost(ns_per_probe: float, interval_ns: float) -> dict[str, Any]:
    """Return the cost of probes."""
    return {
        "path": "forwarded",
        "probes": 2,
        "windows": 20,
        "ns_per_probe": ns_per_probe,
        "interval_ns": interval_ns,
        "is_distinguishable": ns_per_probe > interval_ns,
    }


ROWS = [row("receive", 100, 500), row("forward", 50, 60), row("whole", 100, 530), row("whole", 7, 100, "dropped")]


def summary(*costs: dict[str, Any]) -> PathSummary:
    """Return the summary of a measurement with these costs."""
    return PathSummary(
        ledger={"cost": {"wall_s": 8.1}},
        failure=None,
        stages=["gro", "receive", "forward"],
        unavailable=[],
        paths={"forwarded": 100, "dropped": 7},
        times=less_probes(ROWS, costs),
        waits=[],
        ungrouped=0,
        drops=[],
        noise=[],
        reads=[],
        missed=[],
        probe_cost=list(costs),
        attached_s=8.0,
        windows=1,
    )


def test_a_stage_has_one_probe_and_the_whole_one_for_each_stage_that_its_packets_passed():
    receive, forward, whole, dropped = less_probes(ROWS, [cost(80, 10)])
    assert (receive["median_less_probes_ns"], receive["p99_less_probes_ns"]) == (420, 1420)
    # No time gets below zero.
    assert (forward["mean_less_probes_ns"], forward["p99_less_probes_ns"]) == (0, 100)
    # Half of the packets passed one stage, the others two.
    assert whole["probe_cost_ns"] == pytest.approx(1.5 * 80)
    assert whole["probe_cost_interval_ns"] == pytest.approx(1.5 * 10)
    assert whole["median_less_probes_ns"] == pytest.approx(530 - 120)
    # The cost of another code path was not measured.
    assert dropped == ROWS[-1]


def test_a_cost_below_zero_adds_nothing():
    receive = less_probes(ROWS, [cost(-30, 40)])[0]
    assert receive["median_less_probes_ns"] == receive["median_ns"]
    assert receive["probe_cost_interval_ns"] == 40


def test_the_table_has_the_times_as_measured_and_less_the_probes():
    lines = stage_lines(summary(cost(80, 10)), with_groups=False)
    assert lines[1].split()[-4:] == ["less", "probes:", "median", "p99"]
    assert " ".join(lines[2].split()) == "receive 100 100.0% 500 ns 1.5 us 2 us 420 ns +- 10 ns 1.42 us"
    assert {len(line) for line in lines[1:5]} == {len(lines[1])}
    # The table of a code path whose cost is not known has no such columns.
    assert "probes" not in lines[6]
    table = summary(cost(80, 10)).table()
    assert table["median_less_probes_ns"].to_pylist() == [420, 0, 410, None]
    assert "probe_cost_ns" not in summary().table().column_names


@pytest.mark.parametrize(("measured", "said"), [(cost(80, 10), False), (cost(8, 10), True), (cost(-8, 5), True)])
def test_a_cost_whose_interval_has_zero_is_said_so(measured: dict[str, Any], said: bool):
    (line,) = (line for line in summary_lines(summary(measured)) if line.startswith("probe cost, forwarded: "))
    assert line.endswith("; not distinguishable from zero") == said


def test_a_measurement_without_a_window_says_so():
    assert not [line for line in summary_lines(summary()) if line.startswith("attached")]
    none = dataclasses.replace(summary(), windows=0, attached_s=0.0, paused_s=8.0)
    one = dataclasses.replace(summary(), attached_s=0.5, paused_s=7.5)
    assert summary_lines(none)[-1] == "attached for 0.0 of 8.1 s, in 0 windows"
    assert summary_lines(one)[-2:] == [
        "attached for 0.5 of 8.1 s, in 1 window",
        "no estimates for all 8.1 s: fewer than ten pauses between windows; measure longer",
    ]


def test_runs_that_the_kernel_skipped_are_said():
    assert not [line for line in summary_lines(summary()) if "skipped" in line]
    skipped = dataclasses.replace(summary(), missed=[["path_drop", 3], ["path_queue", 1]])
    assert summary_lines(skipped)[-1] == (
        "skipped by the kernel, as the program was running already: 4 runs; so many packets may be missing"
    )


def test_drops_without_a_count_of_their_own_are_said():
    assert not [line for line in summary_lines(summary()) if "other reasons" in line]
    full = dataclasses.replace(summary(), uncounted_drops=1234)
    (line,) = (line for line in summary_lines(full) if "other reasons" in line)
    assert line.startswith("drops of this host for other reasons: 1,234;")


def test_no_packets_are_said_to_be_none():
    nothing = dataclasses.replace(summary(), paths=dict.fromkeys(("forwarded", "dropped"), 0), times=[])
    assert summary_lines(nothing)[0] == "packets: none"


def test_polls_alone_are_no_noise():
    polls = {"kind": "poll_packets", "cpu": 0, "events": 310, "gap_mean_ns": 6.5e6}
    polls |= {"median_ns": 1, "p99_ns": 9, "max_ns": 20}
    interrupts = polls | {"kind": "irq", "events": 24}
    assert not [line for line in summary_lines(dataclasses.replace(summary(), noise=[polls])) if "poll" in line]
    lines = summary_lines(dataclasses.replace(summary(), noise=[polls, interrupts]))
    assert [line.split()[0] for line in lines if " CPU 0 " in line] == ["poll_packets", "irq"]


@pytest.mark.parametrize(("interval_ns", "said"), [(10, False), (90, True)])
def test_a_table_says_when_its_cost_may_be_none(interval_ns: float, said: bool):
    measured = summary(cost(80, interval_ns))
    forwarded, *others = [line for line in stage_lines(measured, with_groups=False) if "times since" in line]
    assert ("not distinguishable from zero" in forwarded) == said
    assert not any("distinguishable" in line for line in others)


def test_windows_that_are_for_the_cost_are_no_sample_to_lengthen():
    windows = dataclasses.replace(summary(), windows=41, paused_s=0.4)
    assert any("measure longer" in line for line in summary_lines(windows))
    asked = dataclasses.replace(windows, measures_probe_cost=True)
    assert not any("measure longer" in line for line in summary_lines(asked))
