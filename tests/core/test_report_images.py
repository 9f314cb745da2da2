"""The images of a report, which a process of their own draws."""

from pathlib import Path

import pytest

from parshall.errors import ParshallError
from parshall.report.images import Images, image_of, start_drawing

MARK = {"data": {"values": [{"x": 1}]}, "mark": "point", "encoding": {"x": {"field": "x", "type": "quantitative"}}}
WRONG = MARK | {"data": {"url": "nothing://here"}, "transform": [{"calculate": "(", "as": "y"}]}


def nothing(_: str) -> None:
    """Show no progress."""


def test_images_are_those_of_the_library_in_the_order_in_which_they_were_added(tmp_path: Path) -> None:
    start_drawing()
    said: list[str] = []
    with Images() as images:
        for name in ("b", "a"):
            images.add(name, MARK)
        files = images.write(tmp_path, said.append)
    assert list(files) == ["figures/b.svg", "figures/b.png", "figures/a.svg", "figures/a.png"]
    assert files["figures/a.svg"] == image_of(MARK, ".svg") and files["figures/a.png"] == image_of(MARK, ".png")
    assert (tmp_path / "figures/a.png").read_bytes() == files["figures/a.png"]
    assert said == ["drawing figure 1 of 2", "drawing figure 2 of 2"]


def test_a_figure_that_cannot_be_drawn_is_named(tmp_path: Path) -> None:
    with Images() as images:
        images.add("good", MARK)
        images.add("bad", WRONG)
        with pytest.raises(
            ParshallError, match=r"^figure bad: cannot be drawn \(.+\); the file that it shows is damaged$"
        ):
            images.write(tmp_path, nothing)


def test_a_process_that_ends_is_said(tmp_path: Path) -> None:
    with Images() as images:
        assert images._process is not None
        images._process.kill()
        images._process.wait()
        images.add("one", MARK)
        with pytest.raises(
            ParshallError, match=r"^figure one: what draws it ended with status -9; run the command again$"
        ):
            images.write(tmp_path, nothing)


def test_leaving_ends_the_process_whatever_it_does() -> None:
    with Images() as images:
        for number in range(20):
            images.add(str(number), MARK)
    assert images._process is not None and images._process.returncode is not None
    with Images(is_wanted=False) as none:
        none.add("x", MARK)
        assert none.write(Path(), nothing) == {} and none._process is None
