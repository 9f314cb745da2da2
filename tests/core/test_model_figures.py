"""The figures of the software-router study: their rows, and that they can be drawn."""

from pathlib import Path

import polars as pl
import pytest

from parshall.figures.panels import Panel, draw
from parshall.model.figures import FIGURES, write


@pytest.mark.parametrize("name", ["3.9", "3.11", "3.12", "3.14", "3.17"])
def test_a_figure_has_rows_for_every_panel_and_is_written(name: str, tmp_path: Path) -> None:
    figure = FIGURES[name]
    paths = write(name, tmp_path, quick=True)
    assert [path.suffix for path in paths] == [".csv", ".html", ".png", ".svg"]
    # The page is self-contained.
    page = paths[1].read_text()
    assert 'src="http' not in page and len(page) > 500_000
    assert all(path.stat().st_size > 1000 for path in paths[1:])
    assert figure.title in paths[3].read_text()
    # The picture names its simplifications.
    assert figure.note[:40] in paths[3].read_text()


@pytest.mark.parametrize(
    ("name", "words"),
    [("3.9", "not published"), ("3.11", "Simplified"), ("3.12", "Simplified"), ("3.19", "Contradicts the text")],
)
def test_notes_of_figures_describe_differences(name: str, words: str) -> None:
    assert words in FIGURES[name].note


def test_overload_separates_the_routers() -> None:
    basic, polled = (FIGURES[name].rows(True).filter(flow="all", clock="1 GHz") for name in ("3.17", "3.19"))
    last = basic["throughput_mbps"].tail(1).item(), polled["throughput_mbps"].tail(1).item()
    assert last[0] < 5 < 200 < last[1]


def test_every_panel_of_capacity_has_points() -> None:
    rows = FIGURES["3.15"].rows(True)
    for panel in FIGURES["3.15"].panels:
        assert panel.rows(rows)["system"].n_unique() == 5


def test_a_line_has_one_colour_in_all_panels() -> None:
    rows = pl.DataFrame({"x": [1, 2, 1, 1, 2], "y": [1.0, 2, 3, 4, 5], "model": ["b", "b", "a", "c", "c"]})
    panels = [Panel(each, "x", "x", "y", "y", "model", without={"model": each}) for each in "ab"]
    scales = [each["encoding"]["color"]["scale"] for each in draw(rows, "t", tuple(panels)).to_dict()["concat"]]
    looks = [dict(zip(scale["domain"], scale["range"], strict=True)) for scale in scales]
    assert [set(look) for look in looks] == [{"b", "c"}, {"a", "c"}]
    assert looks[0]["c"] == looks[1]["c"] and all(len(set(look.values())) == 2 for look in looks)


def test_both_systems_of_the_latency_figure_forward_the_same_packets() -> None:
    rows = FIGURES["3.11"].rows(True)
    counts = rows.filter(panel="packets").group_by("traffic", "model").len()
    assert not counts.is_empty()
    for _, own in counts.group_by("traffic"):
        assert own["len"].n_unique() == 1 and own.height == 2
    # Constant latencies are one point; on a logarithmic axis it must have a height.
    logarithmic = [panel for panel in FIGURES["3.11"].panels if panel.logarithmic]
    assert logarithmic
    for panel in logarithmic:
        assert panel.rows(rows)["model"].n_unique() == 2, panel.title
