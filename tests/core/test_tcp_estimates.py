"""Estimates of thinned logs against the whole, on rows that the test makes."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from written_log import batch_of, flow_row, random_columns, write_log

import parshall
from parshall.errors import UsageError
from parshall.instruments.tcp_estimates import estimates
from parshall.report.summary import _thinned

SECOND_NS = 1_000_000_000
BEGIN_NS = 1_700_000_000 * SECOND_NS


@dataclass
class MadeLog:
    """As much of a log as estimates read."""

    rows: pa.Table
    changes: list[tuple[int, int]] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)
    gaps: pa.Table = field(default_factory=lambda: pa.table({}))
    path: str = "made.arrow"

    @property
    def last_file(self) -> "MadeLog":
        """Return this log: it has one file."""
        return self

    def batches(self, columns: tuple[str, ...]) -> pa.RecordBatchReader:
        """Return the rows."""
        return self.rows.select(columns).to_reader()

    @property
    def thinning(self) -> pa.Table:
        """Return the changes."""
        times, every = zip(*self.changes, strict=True) if self.changes else ((), ())
        return pa.table({"time_ns": pa.array(times, pa.int64()), "packets_per_log": pa.array(every, pa.uint32())})


def whole_log(seconds: int, flows: int, seed: int) -> MadeLog:
    """Packets at random times whose round-trip times wander, and now and then one that is sent again."""
    generator = np.random.default_rng(seed)
    tables = []
    for flow in range(1, flows + 1):
        count = int(generator.integers(2_000, 6_000))
        times_ns = BEGIN_NS + np.sort(generator.integers(0, seconds * SECOND_NS, count))
        # An autoregression, as smoothed times are.
        noise = generator.normal(0, 1, count)
        level = np.zeros(count)
        for at in range(1, count):
            level[at] = 0.98 * level[at - 1] + 0.2 * noise[at]
        srtt_us = np.round(5_000 * np.exp(0.3 * level)).astype(np.uint32)
        acked = np.cumsum(generator.integers(0, 3_000, count))
        tables.append(
            pl.DataFrame(
                {
                    "time_ns": times_ns,
                    "flow": np.full(count, flow, np.uint32),
                    "flow_seq": np.arange(1, count + 1, dtype=np.uint64),
                    "snd_una": ((acked + 4_294_900_000) % (1 << 32)).astype(np.uint32),
                    "srtt_us": srtt_us,
                    "event": np.where(generator.random(count) < 0.01, "retransmit", "packet"),
                }
            )
        )
    table = pl.concat(tables).sort("time_ns").with_columns(state=pl.lit("ESTABLISHED"), gso_segs=pl.lit(1, pl.UInt16))
    return MadeLog(table.to_arrow())


def thinned(log: MadeLog, changes: list[tuple[int, int]]) -> MadeLog:
    """Return what a log with these changes would have: times, and every how many packets (0: none)."""
    table = pl.DataFrame(log.rows)
    times, every = (np.array(column) for column in zip(*changes, strict=True))
    at = np.searchsorted(times, table["time_ns"].to_numpy(), side="right") - 1
    now = every[at]
    place = table["flow_seq"].to_numpy() + table["flow"].to_numpy().astype(np.uint64) * 2_654_435_769 % (1 << 32)
    is_due = (place % np.maximum(now, 1) == 0) | (table["flow_seq"].to_numpy() <= 4)
    kept = ((now > 0) & is_due) | (table["event"].to_numpy() == "retransmit")
    return MadeLog(table.filter(pl.Series(kept)).to_arrow(), changes)


def covered(whole: pl.DataFrame, part: pl.DataFrame, name: str) -> tuple[int, int]:
    """Return in how many spans an interval has the true value, and of how many."""
    rows = list(zip(whole[name], part[f"{name}_low"], part[name], part[f"{name}_high"], strict=True))
    known = [(true, low, high) for true, low, value, high in rows if true is not None and value is not None]
    inside = sum((low is None or low <= true) and (high is None or true <= high) for true, low, high in known)
    return inside, len(known)


def pauses(seed: int, observed_s: float) -> list[tuple[int, int]]:
    """Return changes of a log that observes for some time, and then pauses for a random time, twice as long."""
    generator = np.random.default_rng(seed)
    changes, at_ns = [(BEGIN_NS - 1, 2)], BEGIN_NS
    while at_ns < BEGIN_NS + 40 * SECOND_NS:
        changes.append((at_ns + int(1e9 * observed_s), 0))
        at_ns += int(1e9 * (observed_s + generator.exponential(2 * observed_s)))
        changes.append((at_ns, 2))
    return changes


@pytest.mark.parametrize(("every", "observed_s"), [(4, 0.0), (64, 0.0), (0, 0.1), (0, 0.4)])
def test_intervals_have_the_true_values(every: int, observed_s: float) -> None:
    """Of a log that is thinned out from its third second on, or (0) that pauses again and again."""
    counts = {name: np.zeros(2, int) for name in ("rtt_p50_us", "rtt_p99_us")}
    for seed in range(8):
        log = whole_log(40, 6, seed)
        changes = [(BEGIN_NS - 1, 1), (BEGIN_NS + 2 * SECOND_NS, every)] if every else pauses(seed, observed_s)
        part, whole = estimates(thinned(log, changes), 4.0, BEGIN_NS), estimates(log, 4.0, BEGIN_NS)
        # What a flow moves after its last row is in no span.
        spans = whole.height - 1
        assert covered(whole.head(spans), part.head(spans), "acked_bytes") == (spans, spans)
        assert (
            part["retransmitted"].to_list() == part["retransmitted_low"].to_list() == whole["retransmitted"].to_list()
        )
        if every:
            assert (part["observed_share"] == 1).all()
            assert part["retransmitted_high"].to_list() == whole["retransmitted"].to_list()
        else:
            assert (part["observed_share"] < 0.8).all() and part["retransmitted_high"].is_null().all()
        for name, count in counts.items():
            count += covered(whole, part, name)
    for name, (inside, known) in counts.items():
        assert known >= 70 and inside >= 0.9 * known, (name, inside, known)


def test_a_whole_log_is_counted_and_has_no_width() -> None:
    log = whole_log(10, 3, 1)
    (row,) = estimates(log, 3600).to_dicts()
    table = pl.DataFrame(log.rows)
    acked = table.sort("flow", "flow_seq").with_columns(
        step=(pl.col("snd_una").cast(pl.Int64).diff().over("flow").fill_null(0)) % (1 << 32)
    )
    assert row["acked_bytes_low"] == row["acked_bytes"] == row["acked_bytes_high"] == acked["step"].sum()
    packets = table.filter(event="packet")["srtt_us"].sort()
    assert row["rtt_p50_us_low"] == row["rtt_p50_us"] == row["rtt_p50_us_high"]
    assert row["rtt_p50_us"] == packets[int(np.ceil(packets.len() / 2)) - 1]
    assert row["retransmitted"] == table.filter(event="retransmit").height


def test_spans_that_cannot_be_are_refused_and_an_empty_log_has_none() -> None:
    log = whole_log(1, 1, 1)
    with pytest.raises(UsageError, match="window_s 0: expected seconds above 0"):
        estimates(log, 0)
    with pytest.raises(UsageError, match="give longer ones"):
        estimates(log, 1e-7)
    with pytest.raises(UsageError, match=r"^made.arrow: packets were logged when their flow changed \(--on-change\)"):
        estimates(MadeLog(log.rows, options={"on_change": True}))
    empty = MadeLog(log.rows.slice(0, 0))
    assert estimates(empty).height == 0 and "rtt_p99_us_high" in estimates(empty).columns


def test_a_gap_between_files_was_not_observed() -> None:
    log = whole_log(10, 3, 1)
    times = {
        "from_time_ns": [BEGIN_NS + 2 * SECOND_NS],
        "until_time_ns": [BEGIN_NS + 3 * SECOND_NS],
        "cause": ["killed"],
    }
    rows = pl.DataFrame(log.rows)
    is_known = (rows["time_ns"] < times["from_time_ns"][0]) | (rows["time_ns"] > times["until_time_ns"][0])
    part = estimates(MadeLog(rows.filter(is_known).to_arrow(), gaps=pa.table(times)), 5.0, BEGIN_NS)
    assert part["observed_share"].to_list() == [pytest.approx(0.8), 1]
    assert part["retransmitted_high"][0] is None and part["retransmitted_high"][1] is not None
    # A pause at the same time counts once.
    changes = [(BEGIN_NS + SECOND_NS, 0), (BEGIN_NS + int(2.5e9), 1)]
    both = estimates(MadeLog(rows.filter(is_known).to_arrow(), changes, gaps=pa.table(times)), 5.0, BEGIN_NS)
    assert both["observed_share"][0] == pytest.approx(0.6)


def test_a_report_says_what_a_budget_left_out() -> None:
    rows = [{"time_ns": at * SECOND_NS, "packets_per_log": every} for at, every in ((0, 1), (6, 64), (8, 0), (10, 2))]
    assert _thinned([]) == _thinned(rows[:1]) == []
    (sentence,) = _thinned(rows)
    assert (
        "it logged every packet to every 64th packet of each flow, none for 20% of the time until the last" in sentence
    )
    # 2^31 bytes in two seconds.
    assert "In its longest pause of 2.0 s, flows of 8,590 Mbit/s or more moved 2 GiB" in sentence
    assert "pause" not in _thinned(rows[:2])[0]


@pytest.mark.parametrize(
    ("every", "expected"),
    [
        ((64, 1024), "every 64th packet to every 1,024th packet of each flow: "),
        ((1, 0, 1), "every packet of each flow, none for 50% of the time until the last change: "),
        ((32, 0), "every 32nd packet of each flow, none after the last change: "),
        (
            (2, 0, 512, 0),
            "every 2nd packet to every 512th packet of each flow, none for 33% of the time until the last",
        ),
    ],
)
def test_a_report_names_both_ends_of_the_thinning_and_its_pauses(every, expected) -> None:
    rows = [{"time_ns": at * SECOND_NS, "packets_per_log": each} for at, each in enumerate(every)]
    (sentence,) = _thinned(rows)
    assert f"it logged {expected}" in sentence
    assert ("none after the last change" in sentence) == (every[-1] == 0)


@pytest.mark.parametrize("other", [{"packets_per_log": 1}, {"packets_per_log": 4, "on_change": True}])
def test_a_series_of_runs_that_logged_other_packets_is_refused(tmp_path: Path, other: dict[str, Any]) -> None:
    """The options of the first file would be taken for all rows."""
    for number, options in enumerate(({"packets_per_log": 4}, other), 1):
        batches = [batch_of(random_columns(100, 1, seed=number, begin_ns=BEGIN_NS + number * SECOND_NS))]
        part = {"run": f"run {number}", "number": 1, "began_ns": BEGIN_NS + number * SECOND_NS}
        write_log(tmp_path / f"log.00000{number}.arrow", batches, [flow_row(1)], part=part, options=options)
    log = parshall.read(tmp_path / "log.arrow")
    text = r"first file was logged with .*, log\.000002\.arrow with .*; read files of one run, as parshall\.read\("
    with pytest.raises(UsageError, match=text):
        log.estimates()
    assert not parshall.read(tmp_path / "log.000001.arrow").estimates().is_empty()


@pytest.mark.parametrize(("gigabits", "pause_s", "is_bound"), [(1, 0.5, True), (1, 5.0, True), (50, 0.5, False)])
def test_bytes_of_a_pause_in_which_numbers_may_wrap_have_no_upper_bound(
    gigabits: float, pause_s: float, is_bound: bool
) -> None:
    bytes_each, every_ns = 60_000, round(60_000 * 8 / gigabits)
    pause_ns = round(pause_s * SECOND_NS)
    times = [at * every_ns for at in range(SECOND_NS // 10 // every_ns)]
    times += [times[-1] + pause_ns + time for time in times]
    sent = [time // every_ns * bytes_each for time in times]
    rows = pa.table(
        {
            "time_ns": pa.array([BEGIN_NS + time for time in times], pa.int64()),
            "flow": pa.array([1] * len(times), pa.uint32()),
            "event": ["packet"] * len(times),
            "state": ["ESTABLISHED"] * len(times),
            "flow_seq": pa.array(range(1, len(times) + 1), pa.uint64()),
            "snd_una": pa.array([number % (1 << 32) for number in sent], pa.uint32()),
            "srtt_us": pa.array([100] * len(times), pa.uint32()),
            "gso_segs": pa.array([1] * len(times), pa.uint16()),
        }
    )
    middle_ns = BEGIN_NS + times[len(times) // 2 - 1]
    log = MadeLog(rows, [(middle_ns + 1, 0), (middle_ns + pause_ns - 1, 1)])
    (span,) = estimates(log, window_s=3600).to_dicts()  # type: ignore[arg-type]
    truth = sent[-1]
    assert 0 < span["acked_bytes_low"] <= truth
    if is_bound:
        assert span["acked_bytes"] == span["acked_bytes_high"] == truth
    else:
        assert span["acked_bytes_high"] is None and span["acked_bytes"] < truth


def test_a_series_whose_newest_file_has_no_head_is_estimated(tmp_path: Path) -> None:
    """It has just been made, or its writer was killed before it wrote anything."""
    batches = [batch_of(random_columns(100, 1, seed=1, begin_ns=BEGIN_NS))]
    part = {"run": "a", "number": 1, "began_ns": BEGIN_NS}
    write_log(tmp_path / "log.000001.arrow", batches, [flow_row(1)], part=part, options={"packets_per_log": 4})
    (tmp_path / "log.000002.arrow").touch()
    log = parshall.read(tmp_path / "log.arrow")
    assert log.last_file.path.name == "log.000001.arrow"
    assert not log.estimates().is_empty()
