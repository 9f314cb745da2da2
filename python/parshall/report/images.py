"""The figures of a report as PNG and SVG, drawn while the rest of the report is made."""

import contextlib
import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import vl_convert

from parshall.errors import ParshallError
from parshall.host.input_file import brief
from parshall.host.whole_file import write_whole

FIGURE_DIRECTORY = "figures"
_PNG_SCALE = 2.0
# No figure of ours is nearly as large.
_LONGEST_PX = 20_000
# An escape of JSON: of characters that XML has (one more by a pair of surrogates), or of another.
_ESCAPE = re.compile(
    r"""(?P<good>\\(?: [^ubf]
                     | ud[89ab]..\\ud[c-f]..
                     | u(?!00[01]|d[89a-f]|fff[ef])....))
        | \\(?: u.... | [bf])""",
    re.VERBOSE,
)
_MARK = re.compile(r'<path [^>]* opacity="[^>]*>')


def start_drawing() -> None:
    """Start what draws images, which takes half a second, while libraries are loaded and logs are read."""
    threading.Thread(target=vl_convert.vegalite_to_svg, args=({"mark": "point"},), daemon=True).start()


class Images:
    """The images of figures: each is drawn beside what its process does next, and `write` waits for all.

    Leaving the context ends what is not drawn yet.

    Parameters
    ----------
    is_wanted : bool
        Otherwise none is drawn.
    """

    def __init__(self, *, is_wanted: bool = True) -> None:
        self._is_wanted = is_wanted
        if is_wanted:
            start_drawing()
        # Pixels are made while the next figure is drawn.
        self._drawers, self._painters = ThreadPoolExecutor(1), ThreadPoolExecutor(1)
        self._begun: dict[str, tuple[Future[str], Future[bytes]]] = {}

    def add(self, name: str, specification: Mapping[str, Any]) -> None:
        """Begin to draw one more: its file name without suffix, and its Vega-Lite specification."""
        if self._is_wanted:
            drawing = self._drawers.submit(_drawn, specification)
            self._begun[name] = drawing, self._painters.submit(lambda: _pixels(drawing.result()))

    def write(self, directory: Path, progress: Callable[[str], None]) -> dict[str, str | bytes]:
        """Write each figure as SVG and PNG below a directory; return both by their names there.

        Raises
        ------
        ParshallError
            A figure cannot be drawn.
        OSError
            A file cannot be written.
        """
        written: dict[str, str | bytes] = {}
        for number, (name, futures) in enumerate(self._begun.items(), 1):
            progress(f"drawing figure {number} of {len(self._begun)}")
            for suffix, future in zip(("svg", "png"), futures, strict=True):
                with _naming(name):
                    content = future.result()
                written[f"{FIGURE_DIRECTORY}/{name}.{suffix}"] = content
                write_whole(Path(f"{FIGURE_DIRECTORY}/{name}.{suffix}"), content, below=directory)
        return written

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for pool in (self._drawers, self._painters):
            pool.shutdown(wait=False, cancel_futures=True)


def image_of(specification: Mapping[str, Any], suffix: str) -> str | bytes:
    """Return a figure as SVG, or as PNG with two pixels for each of the figure's: sharp in print and on screens."""
    drawing = _drawn(specification)
    return drawing if suffix == ".svg" else _pixels(drawing)


def stacked(specification: Mapping[str, Any]) -> dict[str, Any]:
    """Return the specification with its legends below each other: beside each other, they leave a narrow page.

    Vega has this setting; Vega-Lite's schema does not know it.
    """
    config = specification.get("config", {})
    legend = {**config.get("legend", {}), "layout": {"top": {"direction": "vertical", "anchor": "start"}}}
    return {**specification, "config": {**config, "legend": legend}}


@contextlib.contextmanager
def _naming(name: str) -> Iterator[None]:
    """Name the figure that cannot be drawn."""
    try:
        yield
    except (ValueError, RuntimeError) as error:
        # Titles of others are parts of expressions of the library.
        reason = brief(str(error).partition("\n")[0])
        raise ParshallError(f"figure {name}: cannot be drawn ({reason}); the file that it shows is damaged") from None


def _drawn(specification: Mapping[str, Any]) -> str:
    drawing: str = vl_convert.vegalite_to_svg(_drawable(_still(specification)))
    return drawing


def _pixels(drawing: str) -> bytes:
    size = re.match(r'<svg[^>]* width="([\d.]+)" height="([\d.]+)"', drawing)
    if size and max(map(float, size.groups())) > _LONGEST_PX:
        raise ValueError(f"it would have {size[1]} x {size[2]} pixels")
    return vl_convert.svg_to_png(_MARK.sub(_flat, drawing), scale=_PNG_SCALE)


def _flat(mark: re.Match[str]) -> str:
    """Return a mark that has only a fill or only a stroke with the opacity of that.

    It looks the same. Of a mark with an opacity of its own, an image of its own would be made, and laid over the rest.
    """
    text = mark[0]
    paints = [name for name in ("fill", "stroke") if f' {name}="' in text and f' {name}="none"' not in text]
    return text.replace(' opacity="', f' {paints[0]}-opacity="') if len(paints) == 1 else text


def _drawable(specification: Mapping[str, Any]) -> str:
    """Return a specification as JSON, without characters that SVG cannot have: one of them ends the process.

    Texts of others are in it: names of processes and files, addresses of a log.
    """
    return _ESCAPE.sub(_shown_escape, json.dumps(specification))


def _shown_escape(escape: re.Match[str]) -> str:
    """Return an escape of JSON, or, of a character that XML does not have, the letters that show it."""
    return escape[0] if escape["good"] else "\\" + escape[0]


def _still(specification: Mapping[str, Any]) -> dict[str, Any]:
    """Return the specification without what only a page needs: the invisible layer for the pointer, and the zoom.

    With a zoom, each line is clipped by itself, and an image of 200 lines takes eight seconds in place of one.
    """
    # Late: what draws starts before the libraries of figures are loaded.
    from parshall.figures.frame import POINTER_LAYER

    still = stacked(specification)
    if "params" in still:
        still["params"] = [each for each in still["params"] if each.get("bind") != "scales"]
    if "layer" in still:
        still["layer"] = [layer for layer in still["layer"] if layer.get("name") != POINTER_LAYER]
    return still
