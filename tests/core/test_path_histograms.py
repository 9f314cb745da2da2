"""Figures of histograms that the kernel filled, from summaries that tests make."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from written_path_log import ledger_of

from parshall.errors import UsageError
from parshall.figures.path import figures_of, reduce_histograms, times, waits
from parshall.figures.path.kernel_histograms import bucket_edges_ns
from parshall.instruments.path import PathHistograms, PathSummary
from parshall.instruments.path.histograms import as_object, is_path_histograms
from parshall.report.path import write_report

STAGES = ("receive", "queue", "start_xmit")


def bucket_of(time_ns: int) -> int:
    """Return the bucket of a time, by the definition in ``bpf/abi.h``."""
    if time_ns < 8:
        return time_ns
    log2 = time_ns.bit_length() - 1
    return (log2 - 2) * 8 + (time_ns >> (log2 - 3) & 7)


def times_of(path: str, stage: str, values: np.ndarray, whole_ns: int) -> dict[str, Any]:
    """Return a row of times."""
    buckets, counts = np.unique([bucket_of(int(value)) for value in values], return_counts=True)
    quantiles = dict(
        zip(("median_ns", "p90_ns", "p99_ns"), map(float, np.quantile(values, (0.5, 0.9, 0.99))), strict=True)
    )
    return {
        "path": path,
        "group": None,
        "stage": stage,
        "packets": len(values),
        "sum_ns": int(values.sum()),
        "share": float(values.sum() / whole_ns),
        **quantiles,
        "max_ns": int(values.max()),
        "buckets": [[int(bucket), int(count)] for bucket, count in zip(buckets, counts, strict=True)],
    }


def summary_of(values: np.ndarray, path: str = "forwarded", **changes: Any) -> PathSummary:
    """Return the summary of a measurement of packets whose stages took `values`, shape (packets, stages)."""
    wholes = values.sum(axis=1)
    whole_ns = max(int(wholes.sum()), 1)
    rows = [times_of(path, stage, values[:, n], whole_ns) for n, stage in enumerate(STAGES)] if len(values) else []
    rows += [times_of(path, "whole", wholes, whole_ns)] if len(values) else []
    found: dict[int, dict[str, Any]] = {}
    for row, whole in zip(values, wholes, strict=True):
        bucket = bucket_of(int(whole))
        wait = found.setdefault(bucket, {"path": path, "bucket": bucket, "packets": 0, "sum_ns": {}})
        wait["packets"] += 1
        for stage, time_ns in zip((*STAGES, "whole"), (*row, whole), strict=True):
            wait["sum_ns"][stage] = wait["sum_ns"].get(stage, 0) + int(time_ns)
    account: dict[str, Any] = {
        "ledger": ledger_of(len(values)),
        "failure": None,
        "stages": ["gro", *STAGES],
        "unavailable": [],
        "paths": {path: len(values), "open": 0},
        "times": rows,
        "waits": list(found.values()),
        "ungrouped": 0,
        "drops": [],
        "noise": [],
        "reads": [],
        "missed": [],
        "probe_cost": [],
        "attached_s": 1.95,
        "windows": 1,
    }
    return PathSummary(**account | changes)


@pytest.fixture(scope="module")
def values() -> np.ndarray:
    """Return times of packets: half of the slow ones wait in the queue, the others before receive."""
    rng = np.random.default_rng(8)
    found = rng.lognormal(6, 0.4, (4000, 3)).astype(int)
    found[:40, 1] += 100_000
    return found


def test_buckets_are_those_of_the_kernel() -> None:
    times_ns = np.unique(np.geomspace(1, 4e9, 5000).astype(np.int64))
    numbers = [bucket_of(int(time_ns)) for time_ns in times_ns]
    edges = pl.DataFrame({"bucket": numbers}).select(
        low=bucket_edges_ns(pl.col("bucket")), high=bucket_edges_ns(pl.col("bucket") + 1)
    )
    assert (edges["low"].to_numpy() <= times_ns).all()
    assert (times_ns < edges["high"].to_numpy()).all()


def test_heights_do_not_depend_on_the_widths_of_buckets() -> None:
    """What is spread evenly on a logarithmic axis has bars of one height."""
    spread = np.geomspace(1024, 65535, 60_000).astype(int)
    reduced = reduce_histograms(summary_of(np.stack([spread] * 3, axis=1)))
    heights = times.reduce(reduced, "forwarded").filter(stage="receive")["height"]
    assert float(heights.max() / heights.min()) < 1.05  # type: ignore[operator]
    assert times.reduce(reduced, "forwarded").filter(stage="receive")["percent"].sum() == pytest.approx(100)


def test_where_the_slow_packets_waited(values: np.ndarray) -> None:
    parts = waits.reduce(reduce_histograms(summary_of(values)), "forwarded")
    slow = parts.filter(pl.col("percentile").str.starts_with("p99:"))
    wholes = values.sum(axis=1)
    around = values[(wholes >= np.quantile(wholes, 0.985)) & (wholes <= np.quantile(wholes, 0.995))]
    expected = 100 * around.mean(axis=0) / around.mean(axis=0).sum()
    assert slow["percent"].to_list() == pytest.approx(expected.tolist(), abs=3)
    middle = parts.filter(pl.col("percentile").str.starts_with("p50:"))
    assert middle["percent"].max() < 40  # type: ignore[operator]


def test_figures_without_packets_are_those_of_histograms(values: np.ndarray) -> None:
    drop = {"reason": 3, "name": "NO_SOCKET", "all": 9, "followed": 7, "places": {"receive": 5, "local_in": 2}}
    figures = figures_of(reduce_histograms(summary_of(values, drops=[drop])))
    assert [figure.name for figure in figures] == ["times-forwarded", "waits-forwarded", "drops"]
    for figure in figures:
        assert figure.chart.to_dict()


@pytest.mark.parametrize("packets", [0, 1, 7, 40])
def test_few_packets_draw(packets: int) -> None:
    figures = figures_of(reduce_histograms(summary_of(np.full((packets, 3), 2))))
    assert bool(figures) == bool(packets)
    for figure in figures:
        assert figure.chart.to_dict()


def test_a_file_of_histograms_makes_a_report(values: np.ndarray, tmp_path: Path) -> None:
    path = tmp_path / "path.json"
    path.write_text(json.dumps(as_object(summary_of(values), {"kernel": "6.18"})))
    assert is_path_histograms(path)
    text = write_report({"x": PathHistograms(path)}, tmp_path / "report", "x").read_text()
    assert "the histograms have as many packets" in text
    assert "traces and correlations need a log" in text
    # A time is that of a stage, and not the time that had passed until then.
    assert '<th scope="col">stage, since the stage before</th>' in text
    # On a phone, a path is a heading above the rows of its stages, and their length is bounded.
    table = text[text.index('<div class="wide tall" tabindex="0">\n  <table class="stages">') :].partition("</table>")[
        0
    ]
    assert re.findall(r'class="group"><th scope="rowgroup" colspan="8">(.*?)</th>', table) == ["forwarded"]
    assert re.findall(r'<th scope="row">(.*?)</th>', table) == ["receive", "queue", "start_xmit", "whole"]
    assert "until stage" not in (tmp_path / "report/figures/x-waits-forwarded.svg").read_text()
    assert len(list((tmp_path / "report/figures").glob("*.png"))) == 2


def test_an_older_file_has_no_drops_without_a_count(values: np.ndarray, tmp_path: Path) -> None:
    path = tmp_path / "path.json"
    older = as_object(summary_of(values), {})
    del older["uncounted_drops"]
    path.write_text(json.dumps(older))
    assert PathHistograms(path).summary.uncounted_drops == 0


def test_a_report_says_that_packets_between_windows_were_not_seen(values: np.ndarray, tmp_path: Path) -> None:
    path = tmp_path / "path.json"
    cases = (
        (1, 1.95, 0.0, None),
        # A busy machine takes long to attach and detach.
        (1, 1.2, 0.0, None),
        (20, 0.5, 1.4, "0.5 of 2.0 s, in 20 windows"),
        (1, 0.5, 1.4, "0.5 of 2.0 s, in 1 window"),
        (0, 0, 1.9, "0"),
    )
    for windows, attached_s, paused_s, said in cases:
        # Without packets nothing is drawn.
        summary = summary_of(values[:0], windows=windows, attached_s=attached_s, paused_s=paused_s)
        path.write_text(json.dumps(as_object(summary, {})))
        text = write_report({"x": PathHistograms(path)}, tmp_path / "report", "x", images=False).read_text()
        assert ("packets at other times were not seen" in text) == (said is not None)
        assert f"attached for {said or ''}" in text or said is None


def test_a_report_has_what_a_budget_came_to_and_what_windows_stand_for(values: np.ndarray, tmp_path: Path) -> None:
    path = tmp_path / "path.json"
    budget = {"share": 0.01, "cost_share": 0.0082, "cost_share_max": 0.0101}
    estimate = {"path": "delivered", "packets": 1804730.4, "low_packets": 1799530.0, "high_packets": 1809931.0}
    estimate |= {"median_ns": [690.0, 640.0, 704.0], "p99_ns": None}
    summary = summary_of(values[:60], windows=20, attached_s=0.5, budget=budget, estimates=[estimate])
    path.write_text(json.dumps(as_object(summary, {})))
    text = write_report({"x": PathHistograms(path)}, tmp_path / "report", "x", images=False).read_text()
    assert "Budget: 0.82% of a CPU, 1.01% in the most expensive ten seconds, of 1.00%." in text
    assert "delivered: 1,804,730 packets (1,799,530 to 1,809,931), median 690 ns (640 ns to 704 ns)." in text
    assert "p99" not in text.partition("Estimates for all")[2].partition("</")[0]


def places_of(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the place of each value in JSON."""
    if at:
        yield at
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in items:
        yield from places_of(part, (*at, key))


def check_a_file_with_another_value(values: np.ndarray, tmp_path: Path, data: Any) -> None:
    """Make a report of a file with one value replaced; raise unless it is made, or refused in one line."""
    found = json.loads(json.dumps(as_object(summary_of(values[:60]), {"kernel": "6.18"})))
    *above, last = data.draw(st.sampled_from(list(places_of(found))))
    place = found
    for key in above:
        place = place[key]
    place[last] = data.draw(st.sampled_from([None, -1, 10**30, 1.5, float("nan"), "x", "<b>", [], {}, [[1]], {"x": 1}]))
    path = tmp_path / "path.json"
    path.write_text(json.dumps(found))
    try:
        write_report({"x": PathHistograms(path)}, tmp_path / "report", "x", images=False)
    except UsageError as error:
        assert str(error).startswith(str(path))
        assert "\n" not in str(error)


# A report takes half a second to draw.
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whatever_a_file_says_makes_a_report_or_is_refused(values: np.ndarray, tmp_path: Path, data: Any) -> None:
    check_a_file_with_another_value(values, tmp_path, data)


@pytest.mark.long
@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whatever_many_files_say_makes_a_report_or_is_refused(values: np.ndarray, tmp_path: Path, data: Any) -> None:
    check_a_file_with_another_value(values, tmp_path, data)


def test_of_several_files_the_damaged_one_is_named(values: np.ndarray, tmp_path: Path) -> None:
    found = json.loads(json.dumps(as_object(summary_of(values[:60]), {"kernel": "6.18"})))
    files = {name: tmp_path / f"{name}.json" for name in ("good", "damaged")}
    files["good"].write_text(json.dumps(found))
    del found["times"][0]["packets"]
    files["damaged"].write_text(json.dumps(found))
    with pytest.raises(UsageError) as caught:
        write_report({name: PathHistograms(path) for name, path in files.items()}, tmp_path / "report", "x")
    assert str(caught.value).startswith(f"{files['damaged']}: is damaged (KeyError: 'packets')")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no histograms of paths; make them with: parshall path --json > FILE"),
        ("[]", "no histograms of paths"),
        ('{"format": "other"}', "no histograms of paths"),
        ('{"format": "path-histograms", "format_ver', "is cut or damaged; make it again"),
        ('{"format": "path-histograms", "format_version": "2.0"}', "version 2.0, this Parshall reads 1.x"),
        (f'{{"format": "path-histograms", "format_version": {"9" * 4000}}}', "version 99999"),
        ('{"format": "path-histograms", "format_version": "1.0"}', "it has no ledger; the file is damaged"),
    ],
)
def test_other_files_are_refused_in_one_line(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text(text)
    assert is_path_histograms(path) == ('"path-histograms"' in text)
    with pytest.raises(UsageError, match=said.replace(".", r"\.")) as caught:
        PathHistograms(path)
    assert len(str(caught.value)) < 600
