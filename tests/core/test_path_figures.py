"""Figures and reports of path logs: what they compute, and that they draw."""

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from browser import opened
from written_path_log import BEGIN_NS, SCHEMA, ledger_of, write_path_log

from parshall.errors import ParshallError, UsageError
from parshall.figures.path import correlation, drops, figures_of, reduce, reduction, times, trace, waits
from parshall.figures.path.reduction import LONGEST_MAX, SAMPLE_MAX
from parshall.instruments.path import PathLog
from parshall.report.path import write_report

if TYPE_CHECKING:
    from playwright.sync_api import Browser


def packet(path, time_ns=0, reason=None, **offsets_ns):
    """Return a row of a packet; `offsets_ns` by stage, in their order."""
    passed = list(offsets_ns)
    return {
        "time": BEGIN_NS + time_ns,
        "event": "packet",
        "path": path,
        "first_stage": passed[0],
        "last_stage": passed[-1],
        "drop_reason": reason,
        **{f"{stage}_ns": offset_ns for stage, offset_ns in offsets_ns.items()},
    }


def forwarded(time_ns, receive_ns, forward_ns, start_ns):
    """Return a forwarded packet, by the times until its stages."""
    return packet(
        "forwarded",
        time_ns,
        gro=0,
        receive=receive_ns,
        forward=receive_ns + forward_ns,
        start_xmit=receive_ns + forward_ns + start_ns,
    )


@pytest.fixture(scope="module")
def reduced(tmp_path_factory):
    """Return a log whose receive and forward times grow together, with drops."""
    rng = np.random.default_rng(3)
    common = rng.lognormal(6, 0.5, 5000)
    rows = [forwarded(n * 1000, int(c), int(2 * c), int(rng.lognormal(5, 0.3))) for n, c in enumerate(common)]
    rows += [packet("dropped", 10, 3, gro=0, receive=100, local_in=300, drop=500)] * 7
    rows += [packet("dropped", 10, 77, gro=0, receive=100, drop=300)] * 2
    rows += [packet("unknown", 20, gro=0, receive=100)] * 3
    return reduce(PathLog(write_path_log(tmp_path_factory.mktemp("log") / "path.arrow", rows)))


def test_times_are_those_since_the_stage_before(tmp_path):
    rows = [forwarded(0, 100, 1000, 10_000)] * 5
    found = reduce(PathLog(write_path_log(tmp_path / "x", rows))).times
    assert found["stage"].to_list() == ["receive", "forward", "start_xmit", "whole"]
    assert found["mean_ns"].to_list() == [100, 1000, 10_000, 11_100]
    assert found["share"].to_list() == pytest.approx([100 / 11_100, 1000 / 11_100, 10_000 / 11_100, 1])
    for column in ("median_ns", "p99_ns"):
        assert found[column].to_list() == pytest.approx(found["mean_ns"].to_list(), rel=0.023)


def test_a_log_of_many_rows_is_reduced_in_parts(tmp_path, monkeypatch):
    log = PathLog(write_path_log(tmp_path / "x", [forwarded(n, 100 + n, 1000, 10_000) for n in range(100)]))
    whole = reduce(log)
    batches = log.records.to_batches(max_chunksize=7)
    assert len(batches) > 14
    monkeypatch.setattr(reduction, "_BATCH_ROWS", 1)
    monkeypatch.setattr(PathLog, "batches", lambda self: iter(batches))
    parts = reduce(log)
    assert parts.times.equals(whole.times)
    assert parts.histograms.equals(whole.histograms)


def test_quantiles_are_those_of_numpy_up_to_a_bucket(tmp_path):
    values = np.random.default_rng(1).lognormal(8, 1, 20_000).astype(int)
    log = write_path_log(
        tmp_path / "x", [packet("sent", n, local_out=0, start_xmit=int(v)) for n, v in enumerate(values)]
    )
    (row,) = reduce(PathLog(log)).times.filter(stage="start_xmit").to_dicts()
    for name, fraction in (("median_ns", 0.5), ("p90_ns", 0.9), ("p99_ns", 0.99)):
        assert row[name] == pytest.approx(np.quantile(values, fraction), rel=0.03)
    assert row["max_ns"] == values.max()


def test_every_packet_is_in_a_code_path(reduced):
    assert dict(reduced.paths.iter_rows()) == {"forwarded": 5000, "dropped": 9, "unknown": 3}
    assert reduced.rows == 5012


def test_a_time_that_would_be_negative_is_counted_and_left_out(tmp_path):
    rows = [forwarded(0, 100, 100, 100), packet("forwarded", 0, gro=0, receive=500, start_xmit=200)]
    found = reduce(PathLog(write_path_log(tmp_path / "x", rows)))
    assert found.backwards == 1
    assert found.times.filter(stage="start_xmit")["packets"].to_list() == [1]


def test_the_parts_of_a_percentile_add_up(reduced):
    parts = waits.reduce(reduced, "forwarded")
    assert parts["percentile"].n_unique() == 4
    assert parts.group_by("percentile").agg(pl.col("percent").sum())["percent"].to_list() == pytest.approx([100] * 4)
    wholes = reduced.waits.filter(path="forwarded", stage="whole", percentile="p90")
    assert wholes["mean_ns"].item() == pytest.approx(reduced.times.filter(stage="whole")["p90_ns"][0], rel=0.05)
    # So few packets have no 99th percentile.
    assert reduced.waits.filter(path="dropped")["percentile"].unique().to_list() == ["p50"]


def test_correlation_finds_what_grows_together(reduced):
    pairs = {
        (row["first"], row["second"]): row["correlation"] for row in correlation.reduce(reduced, "forwarded").to_dicts()
    }
    assert pairs["receive", "forward"] > 0.99
    assert abs(pairs["receive", "start_xmit"]) < 0.1
    assert correlation.reduce(reduced, "dropped").is_empty()


def test_histograms_have_all_packets(reduced):
    rows = times.reduce(reduced, "forwarded")
    assert rows.group_by("stage").agg(pl.col("percent").sum())["percent"].to_list() == pytest.approx([100] * 4)
    assert (rows["until_ns"] / rows["from_ns"]).to_list() == pytest.approx([2 ** (1 / 8)] * rows.height)


def test_the_longest_times_are_kept_whatever_the_sample_is(tmp_path):
    rows = [packet("sent", n, local_out=0, start_xmit=100) for n in range(3 * SAMPLE_MAX)]
    rows[12_345] = packet("sent", 12_345, local_out=0, start_xmit=1_000_000)
    found = reduce(PathLog(write_path_log(tmp_path / "x", rows)))
    assert SAMPLE_MAX / 2 <= found.sample.height <= SAMPLE_MAX
    longest = found.longest.filter(stage="start_xmit")
    assert longest.height == LONGEST_MAX
    assert longest["time_ns"].max() == 1_000_000
    assert trace.reduce(found, "sent")["packets"].sum() == found.sample.height


def test_drops_have_reason_and_place(reduced):
    rows = drops.reduce(reduced).select("reason", "place", "packets").rows()
    assert rows == [("NO_SOCKET", "local_in", 7), ("reason 77", "receive", 2)]


def test_reasons_of_subsystems_have_their_names_or_that_of_the_subsystem(tmp_path):
    numbers = {
        3 << 16 | 1: "OVS_DROP_LAST_ACTION",
        3 << 16 | 60: "OPENVSWITCH reason 60",
        9 << 16 | 4: "subsystem 9 reason 4",
    }
    rows = [packet("dropped", n, reason, receive=0, drop=5) for n, reason in enumerate(numbers)]
    log = PathLog(write_path_log(tmp_path / "x", rows))
    assert log.packets["drop_reason"].to_pylist() == list(numbers.values())
    assert sorted(reduce(log).drops["reason"]) == sorted(numbers.values())


@pytest.mark.parametrize("packets", [0, 1, 2, 40])
def test_small_logs_draw(tmp_path, packets):
    rows = [forwarded(n, 100 + n, 200, 300) for n in range(packets)]
    found = figures_of(reduce(PathLog(write_path_log(tmp_path / "x", rows))))
    assert bool(found) == bool(packets)
    for figure in found:
        assert figure.chart.to_dict()


def test_all_figures_of_a_log(reduced):
    names = [figure.name for figure in figures_of(reduced)]
    assert names == [
        *("times-forwarded", "waits-forwarded", "correlation-forwarded", "trace-forwarded"),
        *("times-dropped", "waits-dropped", "drops"),
    ]


def test_the_report_draws_in_a_browser_without_errors(tmp_path, browser: "Browser"):
    rng = np.random.default_rng(5)
    rows = [forwarded(n * 1000, *map(int, rng.lognormal(6, 1, 3))) for n in range(2000)]
    rows += [packet("dropped", 10, 3, gro=0, receive=100, drop=500)] * 5
    log = PathLog(write_path_log(tmp_path / "x.arrow", rows))
    page = write_report({"<b>evil": log}, tmp_path / "report", "<i>Title")
    text = page.read_text()
    assert "<b>evil" not in text and "<i>Title" not in text
    assert "the ledger balances" in text
    assert len(list((tmp_path / "report/figures").glob("*.png"))) == 7
    with opened(browser, page) as shown:
        assert shown.locator("html").get_attribute("data-figures") == "7"


def test_a_stage_has_one_colour_in_all_figures(reduced):
    looks = {}
    for figure in figures_of(reduced):
        if not figure.name.startswith(("waits", "drops")):
            continue
        scale = figure.chart.to_dict()["layer"][0]["encoding"]["color"]["scale"]
        for stage, colour in zip(scale["domain"], scale["range"], strict=True):
            looks.setdefault(stage, set()).add(colour)
        assert len(set(scale["range"])) == len(scale["domain"])
    assert {"receive", "forward", "start_xmit", "drop"} <= set(looks)
    assert all(len(colours) == 1 for colours in looks.values())


def test_a_ledger_that_does_not_agree_with_the_file_is_reported(tmp_path):
    log = PathLog(write_path_log(tmp_path / "x.arrow", [forwarded(0, 1, 2, 3)] * 3, ledger_of(4)))
    text = write_report({"x": log}, tmp_path, "x", images=False).read_text()
    assert "4 rows were logged, but the file has 3" in text


def test_a_log_of_an_older_minor_version_lacks_a_column_and_says_the_same(tmp_path):
    rows = [forwarded(n * 1000, 100 + n, 200, 300) for n in range(50)]
    new = PathLog(write_path_log(tmp_path / "new.arrow", rows))
    with pa.ipc.open_stream(tmp_path / "new.arrow") as reader:
        schema = reader.schema.remove(reader.schema.get_field_index("xdp_ns"))
        with pa.ipc.new_stream(tmp_path / "old.arrow", schema) as writer:
            for batch, metadata in reader.iter_batches_with_custom_metadata():
                writer.write_batch(batch.drop_columns(["xdp_ns"]), custom_metadata=metadata)
    old = PathLog(tmp_path / "old.arrow")
    assert old.complete
    assert old.packets["xdp_ns"].null_count == len(rows)
    assert reduce(old).times.equals(reduce(new).times)
    assert set(old.schema.names) == set(new.schema.names)


HEAD = {"parshall.format": "path", "parshall.format_version": "1.0"}


@pytest.mark.parametrize(
    ("schema", "metadata", "ledger", "message"),
    [
        (SCHEMA.remove(SCHEMA.get_field_index("queue_ns")), {}, "{}", "no column queue_ns of the type uint32"),
        (SCHEMA.set(0, SCHEMA.field(0).with_type(pa.int64())), {}, "{}", "no column time of the type timestamp"),
        (SCHEMA, {"parshall.drop_reasons": "[]"}, "{}", "its drop_reasons is no JSON object"),
        (SCHEMA, {"parshall.environment": "1"}, "{}", "its environment is no JSON object"),
        (SCHEMA, {}, "{", "its ledger is no JSON object"),
        (SCHEMA, {}, "[]", "its ledger is no JSON object"),
    ],
)
def test_a_log_that_others_made_wrongly_is_refused_in_one_line(tmp_path, schema, metadata, ledger, message):
    path = tmp_path / "x.arrow"
    schema = schema.with_metadata(HEAD | metadata)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, schema) as writer:
        writer.write_batch(pa.RecordBatch.from_pylist([], schema), custom_metadata={"parshall.ledger": ledger})
    with pytest.raises(ParshallError) as caught:
        write_report({"x": PathLog(path)}, tmp_path / "report", "x", images=False)
    assert str(caught.value).startswith(f"{path}: {message}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("more", [{}, {b"\xff": b"\xfe"}])
def test_metadata_that_is_no_text_or_no_number_is_refused_or_left_out(tmp_path, more):
    path = tmp_path / "x.arrow"
    schema = SCHEMA.with_metadata(HEAD | more | {"parshall.drop_reasons": '{"2": "NO_SOCKET", "x": "y"}'})
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, schema):
        pass
    if more:
        with pytest.raises(UsageError, match="not an Arrow stream"):
            PathLog(path)
    else:
        assert PathLog(path).drop_reasons == {2: "NO_SOCKET"}


def test_a_report_says_that_packets_outside_the_share_were_not_seen(tmp_path):
    rows = [forwarded(0, 100, 50, 10)]
    cases: list[tuple[dict[str, Any], bool]] = [({}, False), ({"share": 1.0}, False), ({"budget": None}, False)]
    # Such a measurement may end before its first window.
    cases += [({"share": 0.05}, True), ({"budget": 0.01}, True)]
    for options, is_said in cases:
        log = PathLog(write_path_log(tmp_path / "x.arrow", rows, options=options))
        text = write_report({"x": log}, tmp_path / "report", "x", images=False).read_text()
        said = "attached for 0.0 of 2.0 s, in 0 windows: packets at other times were not seen"
        assert (said in text) == is_said
