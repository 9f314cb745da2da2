"""The figures of a report as PNG and SVG, drawn by a process of their own while the rest of the report is made."""

import contextlib
import json
import re
import subprocess
import sys
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
_MARK = re.compile(r'<path [^>]* opacity="[^>]*>')
# An escape of JSON: of characters that XML has (one more by a pair of surrogates), or of another.
_ESCAPE = re.compile(
    r"""(?P<good>\\(?: [^ubf]
                     | ud[89ab]..\\ud[c-f]..
                     | u(?!00[01]|d[89a-f]|fff[ef])....))
        | \\(?: u.... | [bf])""",
    re.VERBOSE,
)
# What `start_drawing` started, until `Images` takes it.
_started: list[subprocess.Popen[bytes]] = []


def start_drawing() -> None:
    """Start what draws images, which takes half a second, before libraries are loaded and logs are read."""
    if not _started:
        # By itself: the library that draws holds Python's lock, and a character that SVG cannot have ends its process.
        command = [sys.executable, "-P", "-m", "parshall.report.drawer"]
        pipe = subprocess.PIPE
        # Ctrl-C is for this process, which ends the other one.
        _started.append(subprocess.Popen(command, stdin=pipe, stdout=pipe, start_new_session=True))


class _EndedError(Exception):
    """The process that draws ended."""


class Images:
    """The images of figures: each is drawn beside what this process does next, and `write` waits for all.

    Leaving the context ends what is not drawn yet.

    Parameters
    ----------
    is_wanted : bool
        Otherwise none is drawn.
    """

    def __init__(self, *, is_wanted: bool = True) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        if is_wanted:
            start_drawing()
            self._process = _started.pop()
        # It waits for answers.
        self._asking = ThreadPoolExecutor(1)
        self._begun: dict[str, Future[str]] = {}

    def add(self, name: str, specification: Mapping[str, Any]) -> None:
        """Begin to draw one more: its file name without suffix, and its Vega-Lite specification."""
        if self._process is not None:
            self._begun[name] = self._asking.submit(_drawn, self._process, _drawable(specification))

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
        for number, (name, future) in enumerate(self._begun.items(), 1):
            progress(f"drawing figure {number} of {len(self._begun)}")
            with _naming(name):
                drawing = future.result()
                # Pixels are made while the next figure is drawn.
                pixels = _pixels(drawing)
            for suffix, content in (("svg", drawing), ("png", pixels)):
                written[f"{FIGURE_DIRECTORY}/{name}.{suffix}"] = content
                write_whole(Path(f"{FIGURE_DIRECTORY}/{name}.{suffix}"), content, below=directory)
        return written

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._asking.shutdown(cancel_futures=True)
        if self._process is not None:
            for pipe in (self._process.stdin, self._process.stdout):
                # What was not written yet has no reader.
                with contextlib.suppress(OSError):
                    pipe.close()  # type: ignore[union-attr]


def image_of(specification: Mapping[str, Any], suffix: str) -> str | bytes:
    """Return one figure as SVG, or as PNG."""
    drawing: str = vl_convert.vegalite_to_svg(_drawable(specification))
    return drawing if suffix == ".svg" else _pixels(drawing)


def stacked(specification: Mapping[str, Any]) -> dict[str, Any]:
    """Return the specification with its legends below each other: beside each other, they leave a narrow page.

    Vega has this setting; Vega-Lite's schema does not know it.
    """
    config = specification.get("config", {})
    legend = {**config.get("legend", {}), "layout": {"top": {"direction": "vertical", "anchor": "start"}}}
    return {**specification, "config": {**config, "legend": legend}}


def _drawable(specification: Mapping[str, Any]) -> str:
    """Return a specification as a line of JSON, without what only a page needs, and what SVG cannot have.

    Texts of others are in it: names of processes and files, addresses of a log.
    """
    return _ESCAPE.sub(_shown_escape, json.dumps(_still(specification)))


def _drawn(process: "subprocess.Popen[bytes]", request: str) -> str:
    """Return the SVG that the process that draws makes of a figure."""
    assert process.stdin is not None and process.stdout is not None
    try:
        process.stdin.write(request.encode() + b"\n")
        process.stdin.flush()
        line = process.stdout.readline()
    except OSError:
        line = b""
    if not line:
        raise _EndedError(process.wait())
    answer = json.loads(line)
    if "error" in answer:
        raise ValueError(answer["error"])
    return process.stdout.read(answer["bytes"]).decode()


def _pixels(drawing: str) -> bytes:
    """Return a drawing with two pixels for each of the figure's: sharp in print and on screens."""
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


@contextlib.contextmanager
def _naming(name: str) -> Iterator[None]:
    """Name the figure that cannot be drawn."""
    try:
        yield
    except _EndedError as error:
        raise ParshallError(f"figure {name}: what draws it ended with status {error}; run the command again") from None
    except (ValueError, RuntimeError) as error:
        # Titles of others are parts of expressions of the library.
        reason = brief(str(error).partition("\n")[0])
        raise ParshallError(f"figure {name}: cannot be drawn ({reason}); the file that it shows is damaged") from None


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
