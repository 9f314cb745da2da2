"""`log.plot`: the report's own figures, whose data are those of `log.records`."""

import csv
import io
import itertools
import json
import subprocess
import sys
from collections import defaultdict
from typing import Any

import numpy as np
import pytest
from test_lab import study_of, write_bundle
from test_path_figures import forwarded
from test_path_histograms import summary_of
from written_log import COLUMNS, batch_of, flow_row, random_columns, write_log
from written_path_log import ledger_of, write_path_log

import parshall
from parshall.errors import UsageError
from parshall.figures import figures_of, legends, path, reduce, sequence
from parshall.host.environment import as_json
from parshall.instruments.path import PathLog
from parshall.instruments.path.histograms import PathHistograms, as_object
from parshall.instruments.tcp_log import Log
from parshall.lab.evaluation import evaluate
from parshall.lab.report import read_evaluation
from parshall.report.retransmissions import cause_rows

BEGIN_NS = 1_700_000_000_000_000_000
MS = 1_000_000
FIRST_BYTE = 2**32 - 3000
"""Sequence numbers wrap within the first segments."""


def rows_in(chart: Any) -> list[list[dict[str, str]]]:
    """Return the rows of the data of each layer."""
    found = []
    drawing = chart.to_dict()
    for layer in drawing["layer"]:
        data = layer.get("data") or drawing["data"]
        values = data["values"] if "values" in data else drawing["datasets"][data["name"]]
        found.append(list(csv.DictReader(io.StringIO(values))) if isinstance(values, str) else values)
    return found


def transfer(flows: int = 2, segments: int = 60, lost: int = 7) -> dict[str, list[Any]]:
    """Return columns of flows that each send segments of 1000 bytes, of which one is sent again, acknowledged later."""
    rows: list[dict[str, Any]] = []
    for flow in range(1, flows + 1):
        for number in range(segments):
            acked = max(0, number - 5)
            at_ns = number * MS + flow
            state = {
                "flow": flow,
                "state": "ESTABLISHED",
                "cwnd_segments": 10 + (number * flow) % 17,
                "srtt_us": 5000 + 10 * number + flow,
                "min_rtt_us": 5000,
                "snd_una": (FIRST_BYTE + 1000 * acked) % 2**32,
                "snd_nxt": (FIRST_BYTE + 1000 * number) % 2**32,
                "snd_wnd_bytes": 20_000,
                "rcv_nxt": 1,
                "total_retrans": int(number > lost),
                "ca_state": "Open",
            }
            packet = {"event": "packet", "direction": "out", "payload_bytes": 1000, "pkt_seq": state["snd_nxt"]}
            rows.append(state | packet | {"time_ns": at_ns})
            if number == lost:
                again = (FIRST_BYTE + 1000 * acked) % 2**32
                sent = state | {"snd_nxt": (FIRST_BYTE + 1000 * (number + 1)) % 2**32, "pkt_seq": again}
                event = {"event": "retransmit", "direction": "none", "payload_bytes": 1000, "total_retrans": 1}
                copy = sent | packet | {"time_ns": at_ns + 20, "pkt_seq": again}
                rows += [sent | event | {"time_ns": at_ns + 10}, copy]
    rows.sort(key=lambda row: row["time_ns"])
    others = {name: values[0] for name, values in random_columns(1, 1, seed=1).items()}
    others |= dict.fromkeys(("ssthresh_segments", "ending", "timer"))
    columns = {name: [row.get(name, others[name]) for row in rows] for name in COLUMNS}
    return columns | {"time_ns": [BEGIN_NS + row["time_ns"] for row in rows]}


def written(path_: Any, columns: dict[str, list[Any]], **changes: Any) -> Log:
    """Write a log with these columns, whose flows have these changes; return it."""
    flows = [flow_row(flow, **changes) for flow in sorted(set(columns["flow"]))]
    write_log(path_, [batch_of(columns)], flows)
    return parshall.read(path_)


@pytest.fixture
def log(tmp_path):
    return written(tmp_path / "two.arrow", transfer())


def binned(log: Log, name: str, width_ns: int) -> dict[tuple[int, int], list[int]]:
    """Return the values of a column of a log by flow and bin, computed from its records one by one."""
    found: dict[tuple[int, int], list[int]] = defaultdict(list)
    rows = log.records.select(["time_ns", "flow", name]).to_pydict()
    times = log.records["time_ns"].cast("int64").to_pylist()
    for time_ns, flow, value in zip(times, rows["flow"], rows[name], strict=True):
        found[flow, (time_ns - min(times)) // width_ns].append(value)
    return found


@pytest.mark.parametrize(("name", "column", "scale"), [("cwnd", "cwnd_segments", 1), ("rtt", "srtt_us", 1e-3)])
def test_windows_and_round_trips_are_those_of_the_records(log, name, column, scale):
    drawn = next(rows for rows in rows_in(getattr(log.plot, name)()) if rows and "mean" in rows[0])
    times_s = sorted({float(row["time_s"]) for row in drawn})
    width_ns = round(min(after - at for at, after in itertools.pairwise(times_s)) * 1e9)
    expected = binned(log, column, width_ns)
    assert len(drawn) == len(expected)
    labels = sorted({row["flow"] for row in drawn})
    for row in drawn:
        place = (labels.index(row["flow"]) + 1, int(float(row["time_s"]) * 1e9 // width_ns))
        values = [scale * value for value in expected[place]]
        assert float(row["min"]) == pytest.approx(min(values), rel=1e-6)
        assert float(row["max"]) == pytest.approx(max(values), rel=1e-6)
        assert float(row["mean"]) == pytest.approx(sum(values) / len(values), rel=1e-6)


def test_throughput_has_every_acknowledged_byte(log):
    drawn = next(rows for rows in rows_in(log.plot.throughput()) if rows and "bytes" in rows[0])
    moved: dict[str, int] = defaultdict(int)
    for row in drawn:
        moved[row["flow"]] += int(row["bytes"])
    for flow, label in zip((1, 2), sorted(moved), strict=True):
        acked = log.records_of(flow)["snd_una"].to_pylist()
        assert moved[label] == sum((after - at) % 2**32 for at, after in itertools.pairwise(acked))


def test_retransmissions_end_at_the_kernels_count(log):
    drawn = next(rows for rows in rows_in(log.plot.retransmissions()) if rows and "last" in rows[0])
    last = {row["flow"]: int(row["last"]) for row in drawn}
    counts = [max(log.records_of(flow)["total_retrans"].to_pylist()) for flow in (1, 2)]
    assert sorted(last.values()) == counts == [1, 1]


def test_figures_are_those_of_the_report(log):
    reduction = reduce(log)
    report = {figure.name: figure.chart.to_dict() for figure in figures_of(reduction, legends([reduction])[0])}
    for method, name in (("cwnd", "cwnd"), ("rtt", "rtt"), ("throughput", "throughput"), ("retransmissions", "loss")):
        assert getattr(log.plot, method)().to_dict() == report[name]


def test_some_flows_are_drawn_as_if_the_log_had_no_others(tmp_path, log):
    columns = transfer()
    kept = [number for number, flow in enumerate(columns["flow"]) if flow == 2]
    alone = written(tmp_path / "one.arrow", {name: [values[at] for at in kept] for name, values in columns.items()})
    for method in ("cwnd", "rtt", "throughput", "retransmissions"):
        assert getattr(log.plot, method)(2).to_dict() == getattr(alone.plot, method)().to_dict()
        assert getattr(log.plot, method)([2]).to_dict() == getattr(log.plot, method)(flows=2).to_dict()


def test_sequence_numbers_are_those_of_the_packets(log):
    window, acknowledged, data, again = rows_in(log.plot.sequence(2))
    rows = log.records_of(2).to_pylist()
    begin_ns = min(time.value for time in log.records["time_ns"])

    def since(number: int) -> int:
        return (number - FIRST_BYTE) % 2**32

    packets = [row for row in rows if row["event"] == "packet"]
    new = [row for row in packets if row["pkt_seq"] == row["snd_nxt"]]
    assert len(packets) == len(new) + 1, "one packet is the retransmission"
    assert [(int(row["low"]), int(row["high"])) for row in data] == [
        (since(row["pkt_seq"]), since(row["pkt_seq"]) + row["payload_bytes"]) for row in new
    ]
    assert [float(row["time_s"]) for row in data] == pytest.approx(
        [(row["time_ns"].value - begin_ns) / 1e9 for row in new]
    )
    assert max(int(row["high"]) for row in data) > 2**32 - FIRST_BYTE, "they wrapped"
    [sent_again] = [row for row in rows if row["event"] == "retransmit"]
    assert [(int(row["low"]), int(row["bytes"])) for row in again] == [(since(sent_again["pkt_seq"]), 1000)]
    # A line has the moments at which the value changes, and the last record.
    steps = [since(value) for value, _ in itertools.groupby(row["snd_una"] for row in rows)]
    assert [int(row["bytes"]) for row in acknowledged][: len(steps)] == steps
    assert int(window[-1]["bytes"]) == since(rows[-1]["snd_una"]) + rows[-1]["snd_wnd_bytes"]


def test_retransmissions_of_a_sequence_have_the_logs_causes(log):
    causes = log.retransmissions.to_pylist()
    assert len(causes) == 2
    again = rows_in(log.plot.sequence(1))[-1]
    wanted = next(row for row in causes if row["flow"] == 1)
    assert [row["cause"] for row in again] == [wanted["cause"] or ""]


def test_retransmissions_of_a_sequence_are_counted_in_segments_as_reports_do(tmp_path):
    columns = transfer(flows=1)
    is_event = [event == "retransmit" for event in columns["event"]]
    columns["gso_segs"] = [3 if event else was for event, was in zip(is_event, columns["gso_segs"], strict=True)]
    log = written(tmp_path / "three.arrow", columns)
    [row] = cause_rows(log.retransmissions, [1])
    assert row["segments"] == 3
    reduced = sequence.reduce(log, 1)
    assert reduced is not None
    assert reduced.retransmitted["segments"].to_list() == [3]
    assert "Marks: 3 retransmitted segments (3 " in sequence.draw(reduced, "a flow").caption


def test_many_packets_are_reduced_without_losing_bytes(log):
    whole, reduced = (sequence.reduce(log, 1, rows_max=rows) for rows in (1000, 10))
    assert whole is not None and reduced is not None
    assert (whole.data.height, whole.packets, reduced.packets) == (60, 60, 60)
    assert reduced.data.height <= 10
    assert reduced.data["low"].min() == whole.data["low"].min() == 0
    assert reduced.data["high"].max() == whole.data["high"].max() == 60_000
    assert reduced.retransmitted.equals(whole.retransmitted)
    assert reduced.acknowledged["bytes"][-1] == whole.acknowledged["bytes"][-1]


def test_a_part_of_the_time_has_the_same_sequence_numbers(log):
    whole, part = sequence.reduce(log, 1), sequence.reduce(log, 1, between_s=(0.010, 0.0205))
    assert whole is not None and part is not None
    inside = whole.data.filter(whole.data["time_s"].is_between(0.010, 0.0205))
    assert inside.height == 11
    assert part.data.equals(inside)
    assert (part.bins.begin_s, part.bins.end_s) == pytest.approx((0.010, 0.020), abs=1e-6)
    assert log.plot.sequence(1, between_s=(0.010, 0.0205)).to_dict() != log.plot.sequence(1).to_dict()
    with pytest.raises(UsageError, match=r"flow 1: has no packet with data in the time 7 to 8 s"):
        log.plot.sequence(1, between_s=(7, 8))


def test_a_receiver_shows_what_came(tmp_path):
    columns = transfer(flows=1, lost=1000)
    count = len(columns["flow"])
    came = {
        "direction": ["in"] * count,
        "rcv_nxt": columns["snd_nxt"],
        "snd_una": [1] * count,
        "snd_nxt": [1] * count,
        "rcv_wnd_bytes": [5000] * count,
    }
    log = written(tmp_path / "in.arrow", columns | came)
    found = sequence.reduce(log, 1)
    assert found is not None and not found.is_sender
    assert found.data["high"].to_list() == [1000 * number for number in range(1, count + 1)]
    assert found.acknowledged["bytes"].to_list() == [1000 * number for number in range(count)]
    assert found.window["bytes"][-1] == found.acknowledged["bytes"][-1] + 5000
    with pytest.raises(UsageError, match="no flow sent data"):
        log.plot.sequence()


@pytest.mark.parametrize("name", ["cwnd", "rtt", "throughput", "retransmissions", "sequence"])
def test_a_flow_that_is_not_there_is_named(log, name):
    with pytest.raises(UsageError, match=r"flow 9: not in the log; Log.flows lists its 2 flows"):
        getattr(log.plot, name)(9)


def test_a_log_without_data_of_a_figure_says_so(tmp_path):
    columns = transfer(flows=1)
    idle = {"snd_nxt": [1] * len(columns["flow"]), "snd_una": [1] * len(columns["flow"])}
    log = written(tmp_path / "idle.arrow", columns | idle | {"payload_bytes": [0] * len(columns["flow"])})
    with pytest.raises(UsageError, match="no data for the figure cwnd"):
        log.plot.cwnd()
    with pytest.raises(UsageError, match="flow 1: has no packet with data"):
        log.plot.sequence(1)


def test_the_log_is_read_once_for_several_figures(log, monkeypatch):
    reads = []
    batches = Log.batches
    monkeypatch.setattr(Log, "batches", lambda self, *some: (reads.append(some), batches(self, *some))[1])
    log.plot.cwnd()
    log.plot.rtt()
    log.plot.throughput()
    assert len(reads) == 1


def path_log(directory: Any) -> PathLog:
    packets = [forwarded(number * MS, 1000 + number, 5000, 9000) for number in range(100)]
    return PathLog(write_path_log(directory / "path.arrow", packets, ledger_of(100)))


def test_stages_of_a_path_log_are_those_of_the_report(tmp_path):
    log = path_log(tmp_path)
    report = {figure.name: figure.chart.to_dict() for figure in path.figures_of(path.reduce(log))}
    assert log.plot.stages().to_dict() == report["times-forwarded"] == log.plot.stages("forwarded").to_dict()
    assert log.plot.waits().to_dict() == report["waits-forwarded"]
    with pytest.raises(UsageError, match="path sent: no packets with times of it; there are forwarded"):
        log.plot.stages("sent")
    with pytest.raises(UsageError, match="no packet was dropped"):
        log.plot.drops()


def test_histograms_of_paths_have_the_same_figures(tmp_path):
    values = np.random.default_rng(1).lognormal(8, 0.5, (5000, 3)).astype(np.int64)
    text = as_json(as_object(summary_of(values), {}))
    (tmp_path / "paths.json").write_text(text)
    measured = PathHistograms(tmp_path / "paths.json")
    figures = {figure.name: figure.chart for figure in path.figures_of(path.reduce_histograms(measured.summary))}
    assert measured.plot.stages().to_dict() == figures["times-forwarded"].to_dict()
    assert measured.summary.plot.stages().to_dict() == figures["times-forwarded"].to_dict()
    damaged = json.loads(text)
    damaged["times"] = [{"path": "forwarded", "group": None}]
    (tmp_path / "paths.json").write_text(json.dumps(damaged))
    with pytest.raises(UsageError, match="is damaged"):
        PathHistograms(tmp_path / "paths.json").plot.stages()


def test_the_figure_of_a_study_is_that_of_its_report(tmp_path):
    study = study_of()
    bundle = write_bundle(tmp_path / "bundle", study, {1: [1.0, 2.0], 2: [2.0, 3.0], 3: [9.0, 8.0]})
    with pytest.raises(UsageError, match="has not ended"):
        bundle.plot()
    evaluate(bundle, study)
    chart = bundle.plot().to_dict()
    assert chart == bundle.plot("time").to_dict()
    inline = {row["y"] for rows in rows_in(bundle.plot()) for row in rows}
    assert inline >= {1.0, 2.0, 3.0, 9.0, 8.0}
    assert {point["y"] for point in read_evaluation(bundle.directory)["figures"][0]["points"]} <= inline
    with pytest.raises(UsageError, match=r"figure other: no such figure with values in .*; there are time"):
        bundle.plot("other")


def loaded_after(code: str) -> set[str]:
    """Return the libraries that a program has imported at its end."""
    script = f"import sys, parshall\n{code}\nprint('loaded:', *{{name.split('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.rpartition("loaded:")[2].split())


def test_drawing_is_imported_when_a_figure_is_asked_for(log):
    read = f"log = parshall.read({str(log.path)!r}); repr(log); log._repr_html_(); log.ledger"
    assert not {"altair", "polars", "pandas", "scipy"} & loaded_after(read)
    assert {"altair", "polars"} <= loaded_after(f"{read}; log.plot.cwnd()")


def test_importing_the_package_takes_less_than_50_ms():
    code = "import time; began = time.process_time(); import parshall; print(time.process_time() - began)"
    times_s = [
        float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
        for _ in range(5)
    ]
    # The fastest: other programs take the caches of a busy machine.
    assert np.min(times_s) < 0.05
