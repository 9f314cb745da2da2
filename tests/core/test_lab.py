"""The laboratory without a kernel: plans, statistics, bundles, reports, wrong studies."""

import inspect
import itertools
import json
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from parshall.cli.lab import published, run_study
from parshall.errors import ParshallError, UsageError
from parshall.lab import Figure, Host, Measure, Program, Setting, Statement, Study, Table, grid, load
from parshall.lab.bundle import ABOUT, Bundle
from parshall.lab.comparison import ALONE, DIFFERENT, SAME
from parshall.lab.drawing import draw, share_range
from parshall.lab.evaluation import EVALUATION, evaluate
from parshall.lab.laboratory import plan
from parshall.lab.report import runs_sentence, write_report
from parshall.lab.run import RECORD, balances
from parshall.lab.study import CONTROLS, Finding, check
from parshall.lab.table import interval_text
from parshall.studies import NAMES, path_of
from parshall.testbed import Testbed
from parshall.testbed.shaping import LINK_OPTIONS, Shaping


def setting(_level: dict[str, Any], duration_s: float) -> Setting:
    return Setting([Host("here")], [], [Program("sleep", "here", ["sleep", "0"], "workload")], duration_s)


def study_of(**changes: Any) -> Study:
    made = Study(
        name="made",
        title="A study of <made> values",
        question="What is measured?",
        setting=setting,
        levels=grid(load=[1, 2, 3]),
        measures=[Measure("time", "ms", lambda run: run.record["time"], "time")],
        figures=[Figure("time", "Time against load", "load", ["time"])],
    )
    return replace(made, **changes)


def write_bundle(
    directory: Path, study: Study, times: Mapping[Any, Sequence[float]], text: str = "study = None\n"
) -> Bundle:
    """Write a bundle whose runs have these times, by load, in the order of the repeats."""
    repeats = max(map(len, times.values()))
    runs = plan(study, is_quick=False, repeats=repeats, seed=1)
    about = {
        "study": study.name,
        "title": study.title,
        "is_quick": False,
        "repeats": repeats,
        "seed": 1,
        "began": "2026-01-01T00:00:00+00:00",
        "environment": {"kernel": "6.18", "cpus": 2},
        "site": {"kind": "testbed"},
        "plan": runs,
    }
    bundle = Bundle.create(directory, about, text)
    for number, planned in enumerate(runs):
        with bundle.new_run(number) as (_, record):
            record.update(
                run=number, status="done", failure=None, earlier_failures=[], programs={}, ledgers={}, **planned
            )
            record.update(
                workload_s=1.0, hosts={"here": {"counters": {}, "cpu": {"cpu": [0.0] * 3 + [50.0] + [0.0] * 4}}}
            )
            record["time"] = times[planned["level"]["load"]][planned["repeat"]]
    return bundle


def table_of(values: dict[int, list[float]]) -> Table:
    """Return a table of a study with these values, by load."""
    rows = [
        {"run": number, "repeat": repeat, "control": "", "status": "done", "failure": None, "load": load, "time": value}
        for number, (load, listed) in enumerate(values.items())
        for repeat, value in enumerate(listed)
    ]
    return Table(study_of(), pl.DataFrame(rows), [])


# --- plans ---------------------------------------------------------------------------------------------------


def test_every_repeat_has_each_level_and_control_once_in_an_order_of_its_own() -> None:
    study = study_of(levels=grid(load=list(range(10))))
    runs = plan(study, is_quick=False, repeats=4, seed=1)
    blocks = [[run for run in runs if run["repeat"] == repeat] for repeat in range(4)]
    assert [run["repeat"] for run in runs] == sorted(run["repeat"] for run in runs)
    for block in blocks:
        assert sorted(run["level"]["load"] for run in block if not run["control"]) == list(range(10))
        assert sorted(run["control"] for run in block if run["control"]) == sorted(CONTROLS)
    orders = [[(run["level"]["load"], run["control"]) for run in block] for block in blocks]
    assert len({tuple(order) for order in orders}) == 4


def test_a_seed_gives_one_order_and_another_seed_another() -> None:
    study = study_of(levels=grid(load=list(range(10))))
    first, again, other = (plan(study, is_quick=False, repeats=2, seed=seed) for seed in (1, 1, 2))
    assert first == again != other


def test_a_grid_has_every_combination_and_the_last_factor_changes_fastest() -> None:
    assert grid(a=[1, 2], b="xy") == [{"a": a, "b": b} for a, b in itertools.product([1, 2], "xy")]


def test_a_part_of_a_study_has_the_levels_with_the_values_that_were_named() -> None:
    study = study_of(
        levels=grid(work=["plain", "2 copies"], load=[1, 2, 3]), quick_levels=grid(work=["plain"], load=[1])
    )
    part = study.narrowed({"work": ["2 copies"], "load": ["1", "3"]}, is_quick=False)
    assert part.levels == grid(work=["2 copies"], load=[1, 3])
    assert study.narrowed({}, is_quick=False).levels == study.levels
    for at, message in (
        ({"colour": ["red"]}, "--at colour=red: made has no such factor; name one of work, load"),
        ({"load": ["4"]}, "--at load=4: no such value; name one of 1, 2, 3"),
    ):
        with pytest.raises(UsageError, match=re.escape(message)):
            study.narrowed(at, is_quick=False)
    with pytest.raises(UsageError, match="no such value; name one of plain"):
        study.narrowed({"work": ["2 copies"]}, is_quick=True)


@pytest.mark.parametrize("name", NAMES)
def test_built_in_studies_are_valid_and_their_text_stands_alone(name: str, tmp_path: Path) -> None:
    study = load(path_of(name))
    assert study.name == name
    check(study, name)
    copy = tmp_path / "study.py"
    copy.write_text(path_of(name).read_text())
    assert load(copy).levels == study.levels
    # Each figure and statement stands for a place in its document.
    assert study.document and study.figures and study.statements


ROMAN = ["I", "II", "III", "IV", "V"]
# Figures and tables of the documents that studies repeat.
DOCUMENTS = {
    "siftr": {*(f"Figure {number}" for number in range(1, 13)), *(f"Table {number}" for number in ROMAN)},
    "ffpf": {"Figure 11", "Figure 12"},
    # Both are of the thesis.
    "capture generator": {
        f"Figure {chapter}.{number}"
        for chapter, count in (("2", 5), ("3", 2), ("4", 5), ("5", 1), ("6", 16), ("A", 1), ("B", 3))
        for number in range(1, count + 1)
    },
    "ttprobe": set(),
    "model router": {
        *(f"Figure 3.{number}" for number in range(1, 22)),
        *(f"Table 3-{number}" for number in ROMAN[:3]),
    },
}
# What they say elsewhere with a number, or conclude; their slides have no numbers.
CONCLUSIONS = {
    "siftr": ["Figure 5, text", "section V-B", "section VI"],
    "ffpf": [f"Figure {what}" for what in ("11, text", "11, packet size", "12, filters", "12, slots", "12, switches")],
    "capture generator": ["section 2.2.1", "section 4.1", "section 6.3.5, whole packets", "section 7.1"],
    "ttprobe": ["'Challenges of using Web10g'", "'Sampling'", "'CWND of the first 30 ms'", "'CPU usage'", "'Summary'"],
    "model router": ["section 3.6.3", "section 3.7.3", "section 3.8.2", "section 3.9"],
}


def places(source: str) -> set[str]:
    """Return the figures and tables that a source names: "Figures 2.1-2.3, 3.1"."""
    kind, _, listed = source.partition(" ")
    found: set[str] = set()
    if kind.rstrip("s") not in ("Figure", "Table"):
        return found
    for part in re.findall(r"(?:[IVAB]+|\d+)(?:\.\d+)?(?:-[\w.]+)?", listed):
        first, _, last = part.partition("-")
        if last in ROMAN and first not in ROMAN:
            names = [part]
        elif last and first in ROMAN:
            names = ROMAN[ROMAN.index(first) : ROMAN.index(last) + 1]
        elif last:
            chapter, dot, number = first.rpartition(".")
            end = last.rpartition(".")[2]
            names = [f"{chapter}{dot}{each}" for each in range(int(number), int(end) + 1)]
        else:
            names = [first]
        found |= {f"{kind.rstrip('s')} {name}" for name in names}
    return found


@pytest.mark.parametrize("names", DOCUMENTS)
def test_every_figure_and_table_of_a_document_is_measured_or_omitted_with_a_reason(names: str) -> None:
    studies = [load(path_of(name)) for name in names.split()]
    measured = {place for study in studies for each in study.statements for place in places(each.source)}
    omitted = {place for study in studies for source in study.omitted for place in places(source)}
    assert measured | omitted == DOCUMENTS[names]
    assert not measured & omitted
    named = [each.source for study in studies for each in study.statements]
    named += [source for study in studies for source in study.omitted]
    for conclusion in CONCLUSIONS[names]:
        assert any(conclusion in source for source in named), conclusion
    reasons = [reason for study in studies for reason in study.omitted.values()]
    assert all(reasons)


@pytest.mark.parametrize("name", ["capture", "generate", "hostile_member", "path", "relay", "tcp_log"])
def test_benchmarks_that_are_studies_are_valid(name: str) -> None:
    study = load(Path(__file__).parents[2] / f"benches/{name}.py")
    # Loading checks the setting of each level.
    assert study.name == name and study.levels_of(is_quick=True)


# --- bundles --------------------------------------------------------------------------------------------------


def test_a_bundle_gives_a_table_with_a_row_for_each_run(tmp_path: Path) -> None:
    study = study_of()
    bundle = write_bundle(tmp_path / "b", study, {1: [1, 2], 2: [3, 4], 3: [5, 6]})
    evaluate(bundle, study)
    frame = pl.read_parquet(tmp_path / "b/results.parquet")
    assert frame.columns == [
        "run",
        "repeat",
        "cycle",
        "session",
        "side",
        "control",
        "status",
        "failure",
        "load",
        "time",
    ]
    assert frame.filter(control="").sort("load", "repeat")["time"].to_list() == [1, 2, 3, 4, 5, 6]
    assert frame.filter(control="no traffic")["time"].null_count() == 2
    whole = runs_sentence(bundle, {"failures": []})
    assert whole.startswith("10 runs: every level 2 times, in blocks")
    shutil.rmtree(tmp_path / "b/runs/00009")
    assert runs_sentence(bundle, {"failures": [1]}).startswith(
        "9 of 10 planned runs, of which 1 failed; the plan has every level 2 times, in blocks"
    )


def test_a_part_that_one_of_all_studies_lacks_is_refused_before_the_first_runs(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--at flows=1: ttprobe has no such factor"):
        run_study("all", output=tmp_path / "all", at=["flows=1"])
    assert not (tmp_path / "all").exists()


def test_what_a_part_of_a_study_did_not_measure_is_said_and_a_whole_study_may_not_fail(tmp_path: Path) -> None:
    def falls(table: Table) -> Finding:
        return Finding(f"{table.values('time', load=3)[0]:.0f} ms", True)

    def mean(table: Table) -> Finding:
        return Finding(f"{table.mean('time', load=3):.0f} ms", None)

    statements = [Statement("Figure 1", "it falls", falls), Statement("Figure 2", "it is low", mean)]
    study = study_of(statements=statements, figures=[Figure("time", "Time", "load", ["time"], finding=falls)])
    part = write_bundle(tmp_path / "part", replace(study, levels=grid(load=[1, 2])), {1: [1.0], 2: [2.0]})
    part.about["at"] = {"load": ["1", "2"]}
    found = evaluate(part, study)
    assert [each["measured"] for each in found["statements"]] == ["not measured"] * 2
    assert (found["figures"][0]["finding"], len(found["figures"][0]["points"])) == ("", 2)
    part.write_about()
    page = write_report([part.directory]).read_text()
    assert "parshall lab run study.py --repeats 1 --at load=1,2 --seed 1" in page

    whole = write_bundle(tmp_path / "whole", study, {1: [1.0], 2: [2.0], 3: [3.0]})
    found = evaluate(whole, study)
    assert [each["measured"] for each in found["statements"]] == ["3 ms", "3 ms"]
    assert found["figures"][0]["finding"] == "3 ms."
    wrong = replace(study, statements=[Statement("Figure 1", "", lambda table: table.values("time", load=3)[9])])
    with pytest.raises(ParshallError, match="statement Figure 1: IndexError"):
        evaluate(whole, wrong)


def test_a_failed_run_stays_in_the_table_and_out_of_the_numbers(tmp_path: Path) -> None:
    study = study_of(has_controls=False)
    bundle = write_bundle(tmp_path / "b", study, {1: [1, 100], 2: [3, 4], 3: [5, 6]})
    number = next(n for n, run in enumerate(bundle.about["plan"]) if run["level"]["load"] == 1 and run["repeat"] == 1)
    path = tmp_path / f"b/runs/{number:05}" / RECORD
    path.write_text(json.dumps(json.loads(path.read_text()) | {"status": "failed", "failure": "log: it broke"}))
    evaluation = evaluate(bundle, study)
    row = pl.read_parquet(tmp_path / "b/results.parquet").filter(run=number).to_dicts()[0]
    assert (row["status"], row["failure"], row["time"]) == ("failed", "log: it broke", None)
    assert evaluation["summaries"][0]["values"] == [1]
    assert "log: it broke" in write_report([tmp_path / "b"]).read_text()


def test_a_run_whose_link_lost_packets_itself_is_marked_with_the_bound_that_was_hit(tmp_path: Path) -> None:
    study = study_of(has_controls=False)
    bundle = write_bundle(tmp_path / "b", study, {1: [1, 2], 2: [3, 4], 3: [5, 6]})
    relay = {way: {"own_lost": {"socket": 0, "memory": lost}} for way, lost in (("a_to_b", 47_000), ("b_to_a", 0))}
    path = tmp_path / "b/runs/00001" / RECORD
    path.write_text(json.dumps(json.loads(path.read_text()) | {"testbed": {"statistics": [{"relay": relay}]}}))
    (lost,) = evaluate(bundle, study)["links"]["runs"]
    assert (lost["run"], lost["packets"]) == (1, 47_000)
    page = write_report([tmp_path / "b"]).read_text()
    assert (
        "the relay lost 47,000 packets itself: more than 64 MiB were on their way; lower the rate or the delay." in page
    )


def test_only_ledgers_whose_every_account_balances_do() -> None:
    account = {"seen": 10, "filtered": 1, "thinned": 2, "logged": 3, "lost": {"overwritten": 4}}
    assert balances({"hooks": [account]})
    assert not balances({"hooks": [account, account | {"seen": 11}]})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "bundle.json: is damaged"),
        (b'{"format": 99}', "format 99"),
        (b"[]", "bundle.json: is damaged"),
        (b"\xff", "bundle.json: is damaged"),
        (json.dumps("\x1b" * 9000).encode(), "it has no number of its format"),
        (json.dumps({"format": "\x1b" * 9000}).encode(), "it has no number of its format"),
        (b'{"format": ' + b"9" * 4000 + b"}", "this version reads 1"),
    ],
)
def test_a_damaged_bundle_is_an_error_with_its_file(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "bundle.json").write_bytes(content)
    with pytest.raises(UsageError, match=re.escape(message)) as caught:
        write_report([tmp_path])
    assert str(caught.value).isprintable() and len(str(caught.value)) < 600


@pytest.mark.parametrize(
    ("file", "place", "value"),
    [
        (EVALUATION, ["figures"], None),
        (EVALUATION, ["figures", 0, "points", 0, "line"], ["x"]),
        (EVALUATION, ["summaries", 0, "mean"], "x"),
        (EVALUATION, ["statements"], 1.5),
        (EVALUATION, ["links"], {}),
        ("bundle.json", ["plan"], -1),
        ("bundle.json", ["began"], {}),
    ],
)
def test_a_bundle_whose_content_cannot_be_used_is_an_error_with_its_directory(
    tmp_path: Path, file: str, place: list[Any], value: Any
) -> None:
    study = study_of()
    evaluate(write_bundle(tmp_path / "b", study, {1: [1.0, 2.0], 2: [2.0, 3.0], 3: [5.0, 6.0]}), study)
    found = json.loads((tmp_path / "b" / file).read_text())
    *above, last = place
    part = found
    for key in above:
        part = part[key]
    part[last] = value
    (tmp_path / "b" / file).write_text(json.dumps(found))
    with pytest.raises(UsageError) as caught:
        write_report([tmp_path / "b"])
    assert str(caught.value).startswith(f"{tmp_path / 'b'}: is damaged (")
    assert "\n" not in str(caught.value)


def test_statements_of_a_damaged_evaluation_are_an_error_with_its_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = study_of(statements=[Statement("page 1", "it rises", lambda _: Finding("it rises", True))])
    evaluate(write_bundle(tmp_path / "b", study, {1: [1.0], 2: [2.0], 3: [5.0]}), study)
    published([tmp_path / "b"], as_json=True)
    (row,) = json.loads(capsys.readouterr().out)
    assert row == {
        "study": "made",
        "source": "page 1",
        "published": "it rises",
        "measured": "it rises",
        "is_same": True,
        "reason": "",
    }
    for text in ("[]", "{}", '{"study": "made", "statements": [1], "omitted": {}}'):
        (tmp_path / "b" / EVALUATION).write_text(text)
        with pytest.raises(UsageError, match=f"{tmp_path / 'b'}: is damaged"):
            published([tmp_path / "b"])


@pytest.mark.parametrize(("is_built_in", "named"), [(None, "study.py"), (False, "study.py"), (True, "siftr")])
def test_a_report_says_how_to_run_its_study_again(tmp_path: Path, is_built_in: bool | None, named: str) -> None:
    """A study of one's own may have the name of a built-in one."""
    study = study_of(name="siftr")
    bundle = write_bundle(tmp_path, study, {1: [1], 2: [2], 3: [3]})
    about = json.loads((tmp_path / ABOUT).read_text()) | ({} if is_built_in is None else {"is_built_in": is_built_in})
    (tmp_path / ABOUT).write_text(json.dumps(about))
    evaluate(bundle, study)
    assert f"<pre>parshall lab run {named} --repeats 1 --seed 1</pre>" in write_report([tmp_path]).read_text()


def test_an_evaluation_of_the_first_version_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = study_of()
    bundle = write_bundle(tmp_path, study, {1: [1], 2: [2], 3: [3]})
    evaluation = evaluate(bundle, study)
    del evaluation["omitted"]
    (bundle.directory / EVALUATION).write_text(json.dumps(evaluation))
    assert "Not measured" not in write_report([tmp_path]).read_text()
    published([tmp_path], as_json=True)
    assert json.loads(capsys.readouterr().out) == []


def test_a_directory_with_files_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("precious")
    with pytest.raises(UsageError, match="is not empty"):
        Bundle.create(tmp_path, {}, "")
    assert (tmp_path / "precious").read_text() == "precious"


def test_a_second_process_cannot_add_runs(tmp_path: Path) -> None:
    bundle = write_bundle(tmp_path / "b", study_of(), {1: [1], 2: [2], 3: [3]})
    with bundle.locked(), pytest.raises(UsageError, match="another process"):
        with Bundle.open(tmp_path / "b").locked():
            pass


def test_a_measure_that_fails_names_itself_and_its_run(tmp_path: Path) -> None:
    study = study_of(measures=[Measure("time", "ms", lambda run: run.record["absent"])])
    bundle = write_bundle(tmp_path / "b", study, {1: [1], 2: [2], 3: [3]})
    with pytest.raises(ParshallError, match=r"measure time of run \d+: KeyError: 'absent'"):
        evaluate(bundle, study)


# --- reports --------------------------------------------------------------------------------------------------


def test_a_report_says_what_the_data_say(tmp_path: Path) -> None:
    def finding(table: Table) -> str:
        return f"From {table.mean('time', load=1):g} to {table.mean('time', load=3):g} ms."

    study = study_of(
        figures=[Figure("time-1.5", "Time against load", "load", ["time"], finding=finding)],
        statements=[Statement("Figure 1", "time grows", lambda table: Finding(finding(table)[:-1], True))],
    )
    bundle = write_bundle(tmp_path / "b", study, {1: [1, 3], 2: [3, 5], 3: [5, 8]})
    evaluation = evaluate(bundle, study)
    (drawn,) = evaluation["figures"]
    assert [(row["x"], row["y"], row["y_low"], row["y_high"]) for row in drawn["means"]] == [
        (1, 2, 1, 3),
        (2, 4, 3, 5),
        (3, 6.5, 5, 8),
    ]
    page = write_report([tmp_path / "b"]).read_text()
    # In the table of statements and at the figure.
    assert page.count("From 2 to 6.5 ms") == 2
    assert (tmp_path / "b/figures/time-1.5.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize("is_log_x", [False, True])
def test_lines_with_equal_values_stand_beside_each_other_and_hidden_values_are_counted(
    tmp_path: Path, is_log_x: bool
) -> None:
    times = {0: [1, 2], 1: [1, 2]}
    two = [Measure(name, "ms", lambda run: run.record["time"]) for name in ("a", "b")]
    figure = Figure("both", "Both", "load", ["a", "b"], is_log_x=is_log_x)
    study = study_of(levels=grid(load=[0, 1]), measures=two, figures=[figure], has_controls=False)
    evaluation = evaluate(write_bundle(tmp_path / "b", study, times), study)
    offsets = {layer["mark"].get("xOffset") for layer in draw(evaluation["figures"][0]).to_dict()["layer"]}
    assert len(offsets) == 2 and None not in offsets
    text = "4 values at 0 are not drawn: the axis is logarithmic."
    assert (text in write_report([tmp_path / "b"]).read_text()) == is_log_x


def test_words_on_an_axis_stay_in_the_order_of_the_levels(tmp_path: Path) -> None:
    study = study_of(levels=grid(load=["small", "medium", "large"]))
    bundle = write_bundle(tmp_path / "b", study, {load: [1, 2] for load in ("small", "medium", "large")})
    (figure,) = evaluate(bundle, study)["figures"]
    assert [row["x"] for row in figure["means"]] == ["small", "medium", "large"]
    assert draw(figure).to_dict()["layer"][0]["encoding"]["x"]["sort"] == ["small", "medium", "large"]
    # Also when the first line lacks the first value.
    means = [{**figure["means"][2], "line": "a"}, *({**row, "line": "b"} for row in figure["means"])]
    x = draw({**figure, "means": means}).to_dict()["layer"][0]["encoding"]["x"]
    assert x["sort"] == ["small", "medium", "large"]


def test_a_line_looks_the_same_in_all_figures_of_a_page(tmp_path: Path) -> None:
    study = study_of()
    (figure,) = evaluate(write_bundle(tmp_path / "b", study, {1: [1], 2: [2], 3: [3]}), study)["figures"]

    def of(*lines: str) -> dict[str, Any]:
        points = [{**figure["points"][0], "line": line, "x": x, "y": x} for line in lines for x in (1, 2)]
        return {**figure, "is_raw": True, "points": points}

    def looks(drawn: dict[str, Any], others: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
        encoding = draw(drawn, others).to_dict()["layer"][-1]["encoding"]
        scales = [encoding[channel]["scale"] for channel in ("color", "shape") if channel in encoding]
        return dict(zip(scales[0]["domain"], zip(*(scale["range"] for scale in scales), strict=True), strict=True))

    few, all_three, alone = of("measured", "queue"), of("measured", "network", "queue"), of("other")
    page = [few, all_three, alone]
    assert looks(few, page) == {line: look for line, look in looks(all_three, page).items() if line != "network"}
    assert looks(alone, page) == looks(alone, [])
    # More lines than there are colours, or than there are shapes, look different by both.
    many = of("queue", *(f"line {number}" for number in range(20)))
    assert len(set(looks(many, [few, many]).values())) == 21
    assert looks(many, [few, many])["queue"] == looks(few, [few, many])["queue"]


def test_a_page_has_no_section_without_data_and_no_picture_of_one_mark(tmp_path: Path) -> None:
    finding = "Half of it is said once."
    study = study_of(
        levels=grid(load=[1, 2, 3], size=["small", "large"]),
        measures=[
            Measure("time", "ms", lambda run: run.record["time"], "time"),
            Measure("captured", "%", lambda run: 100.0, "captured"),
            Measure("near", "%", lambda run: 99 + run.record["time"] / 10, "nearly all"),
            Measure("nothing", "ms", lambda run: None, "nothing"),
        ],
        figures=[
            Figure("all", "What is captured", "load", ["captured"]),
            Figure("near", "Nearly all", "load", ["near"]),
            Figure("none", "Never measured", "load", ["nothing"], finding=lambda _: finding),
            Figure("one", "At one load", "load", ["time"], panel="size", where={"load": 2}, finding=lambda _: finding),
            Figure("panels", "Time by size", "load", ["time"], panel="size", finding=lambda _: finding),
        ],
    )
    bundle = write_bundle(tmp_path / "b", study, {1: [1, 3], 2: [3, 5], 3: [5, 8]})
    evaluation = evaluate(bundle, study)
    # Of the large ones, one load has run.
    panels = next(each for each in evaluation["figures"] if each["name"] == "panels")
    for name in ("points", "means"):
        panels[name] = [row for row in panels[name] if row["panel"] == "size small" or row["x"] == 2]
    (tmp_path / "b" / EVALUATION).write_text(json.dumps(evaluation))
    page = write_report([tmp_path / "b"]).read_text()
    assert sorted(re.findall(r'id="data-(\w+)"', page)) == ["near", "panels"]
    assert "captured (%): 100 in every run." in page
    assert page.count("Never measured") == 1 and 'href="#none"' not in page
    assert "No run has data for: Never measured." in page
    assert page.count("size large, load 2: time (ms)") == 2
    assert "size small, load 2: time (ms)" in page
    # In the summary, and at one figure.
    assert page.count(finding) == 2
    assert "The axis begins at 99 %." in page
    (drawn,) = re.findall(r'id="data-near">(.*?)</script>', page)
    assert json.loads(drawn)["layer"][0]["encoding"]["y"]["scale"]["domain"] == [99, 100]


@pytest.mark.parametrize(
    ("values", "ends"),
    [([], [0, 100]), ([0, 0.4], [0, 1]), ([3, 9], [0, 10]), ([5, 60], [0, 100]), ([92, 99], [90, 100])],
)
def test_axes_of_percentages_show_the_values(values: list[float], ends: list[int]) -> None:
    assert share_range(values) == ends


def test_a_report_runs_no_code_of_a_bundle_and_escapes_its_texts(tmp_path: Path) -> None:
    study = study_of()
    text = "import pathlib\npathlib.Path('ran').write_text('')\n"
    bundle = write_bundle(tmp_path / "b", study, {1: [1, 2], 2: [3, 4], 3: [5, 6]}, text)
    evaluation = evaluate(bundle, study)
    evaluation["title"] = evaluation["question"] = "<script>alert(1)</script>"
    evaluation["figures"][0]["title"] = "</script><script>alert(1)</script>"
    evaluation["figures"][0]["name"] = "../../escaped"
    (tmp_path / "b" / EVALUATION).write_text(json.dumps(evaluation))
    page = write_report([tmp_path / "b"]).read_text()
    assert "<script>alert(1)" not in page
    assert not Path("ran").exists()
    assert not list(tmp_path.glob("escaped*")) and not list(tmp_path.parent.glob("escaped*"))


def test_two_sessions_cannot_tell_a_change_from_the_machine(tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    study = study_of()
    for name, mean in (("before", 300.0), ("after", 400.0)):
        times = {load: random.normal(mean, 1, 7).tolist() for load in (1, 2, 3)}
        evaluate(write_bundle(tmp_path / name, study, times), study)
    page = write_report([tmp_path / "before", tmp_path / "after"], tmp_path / "out").read_text()
    assert page.count(f'data-label="verdict">{ALONE}') == 3
    assert "run both in turns, in one bundle" in page


def test_bundles_of_several_sessions_are_compared_by_session(tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    study = study_of(has_controls=False)
    for name, of_load_3 in (("before", 300.0), ("after", 400.0)):
        # Sessions differ by 5 %, runs of a session by less than 1 %.
        common = np.repeat(np.exp(random.normal(0, 0.05, 4)), 3)
        times = {
            load: (common * random.normal(mean, 1, 12)).tolist() for load, mean in ((1, 100), (2, 200), (3, of_load_3))
        }
        bundle = write_bundle(tmp_path / name, study, times)
        for number, planned in enumerate(bundle.about["plan"]):
            path = tmp_path / name / f"runs/{number:05}" / RECORD
            path.write_text(json.dumps(json.loads(path.read_text()) | {"session": planned["repeat"] // 3}))
        evaluate(bundle, study)
    page = write_report([tmp_path / "before", tmp_path / "after"], tmp_path / "out").read_text()
    assert page.count(f'data-label="verdict">{DIFFERENT}') == 1
    assert page.count(f'data-label="verdict">{SAME}') == 2
    assert "Of 3 comparisons 1 are different" in page


def test_a_machine_that_changed_is_named_in_a_comparison(tmp_path: Path) -> None:
    study = study_of()
    steady = np.random.default_rng(3).normal(100, 1, (3, 9))
    for name, values in (("before", steady), ("after", steady + 10 * np.arange(9))):
        times = {load: each.tolist() for load, each in zip((1, 2, 3), values, strict=True)}
        evaluate(write_bundle(tmp_path / name, study, times), study)
    page = write_report([tmp_path / "before", tmp_path / "after"], tmp_path / "out").read_text()
    assert "The machine changed while one of them was measured: time." in page


def test_bundles_of_several_systems_are_in_one_figure(tmp_path: Path) -> None:
    study = study_of()
    for number, name in enumerate(("one", "two <3>", "three"), 1):
        times = {load: [number * load, number * load + 1] for load in (1, 2, 3)}
        evaluate(write_bundle(tmp_path / name, study, times), study)
    directories = [tmp_path / name for name in ("one", "two <3>", "three")]
    page = write_report(directories, tmp_path / "out").read_text()
    specifications = re.findall(r'<script type="application/json" id="data-time">(.*?)</script>', page, re.DOTALL)
    assert len(specifications) == 1
    drawn: dict[str, set[tuple[float, float]]] = {}
    for rows in json.loads(specifications[0])["datasets"].values():
        for row in rows:
            if "repeat" in row:
                drawn.setdefault(row["line"], set()).add((row["x"], row["y"]))
    for number, name in enumerate(("one", "two <3>", "three"), 1):
        assert drawn[name] == {(load, number * load + more) for load in (1, 2, 3) for more in (0, 1)}
    assert "two &lt;3&gt;" in page and "two <3>" not in page.replace(specifications[0], "")
    with pytest.raises(UsageError, match="named twice"):
        write_report([*directories, directories[0]], tmp_path / "twice")
    # Three have no before and after.
    assert 'id="together"' in page and 'id="comparison"' not in page
    assert 'id="together"' not in write_report(directories[:1], tmp_path / "single").read_text()


def test_bundles_of_two_studies_are_not_compared(tmp_path: Path) -> None:
    for name in ("one", "other"):
        study = study_of(name=name)
        evaluate(write_bundle(tmp_path / name, study, {1: [1], 2: [2], 3: [3]}), study)
    with pytest.raises(UsageError, match="compare bundles of one study"):
        write_report([tmp_path / "one", tmp_path / "other"])


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [(1.0, 2.5, "1 to 2.5"), (0.99996, 0.99999, "0.99996 to 0.99999"), (12345.6, 23456.7, "1.235e+04 to 2.346e+04")],
)
def test_a_narrow_interval_is_shown_as_one(low: float, high: float, text: str) -> None:
    assert interval_text(low, high) == text


def test_a_link_of_a_study_takes_what_a_testbed_takes() -> None:
    parameters = inspect.signature(Testbed.link).parameters
    known = {*(each.name for each in fields(Shaping)), *LINK_OPTIONS}
    assert known == {*parameters} - {"self", "a", "b"}
