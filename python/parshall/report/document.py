"""What all reports share: a self-contained HTML page, and every figure beside it as PNG and SVG."""

import contextlib
import itertools
import json
import os
import re
import shlex
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
import vl_convert
from markupsafe import Markup

from parshall.errors import ParshallError, UsageError, file_error, printable
from parshall.figures.figure import DARK
from parshall.figures.frame import POINTER_LAYER
from parshall.host.input_file import brief
from parshall.host.whole_file import write_whole
from parshall.report.account import hook_accounts, total
from parshall.report.former import files_of, list_line, remove_files

PAGE = "report.html"
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
_VEGA = Path(__file__).with_name("page") / "vega.js"
# The page's own sections.
TOGETHER = "together"
"""Name of the section that has several logs in one figure."""
_SECTIONS = ("", "summary", TOGETHER, "ledger", "cost", "environment", "repeat")
# Figures with more characters of data than this are drawn on a canvas instead of as SVG elements.
_SVG_CHARS_MAX = 200_000


def check_destination(directory: Path) -> None:
    """Raise `UsageError` if a report cannot be written to a directory, before any other work."""
    try:
        existing = next(path for path in (directory, *directory.absolute().parents) if path.exists())
        if not existing.is_dir():
            raise UsageError(f"{existing}: not a directory; name another with -o")
        if not os.access(existing, os.W_OK | os.X_OK):
            raise UsageError(f"{existing}: cannot be written; name another directory with -o")
        for name, is_wanted in ((PAGE, Path.is_file), (FIGURE_DIRECTORY, Path.is_dir)):
            path = directory / name
            if path.is_symlink() or (path.exists() and not is_wanted(path)):
                raise UsageError(
                    f"{directory / name}: in the way of the report; move it, or name another directory with -o"
                )
    except (OSError, ValueError) as error:
        raise UsageError(f"{directory}: {getattr(error, 'strerror', None) or error}; name another with -o") from None


def write_document(
    directory: Path,
    page: str,
    figures: Iterable[tuple[str, Mapping[str, Any]]],
    *,
    others: Mapping[str, str] | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Path:
    """Write a page, its figures into `FIGURE_DIRECTORY`, and other files beside it; return the page's path.

    Files of a former report in this directory that this one lacks are removed, unless they were changed.

    Parameters
    ----------
    directory : pathlib.Path
        Where to; created if needed.
    page : str
        The HTML.
    figures : iterable of tuple
        File name without suffix, and Vega-Lite specification.
    others : mapping, optional
        Texts by their file names.
    progress : callable
        Called with the current step, a few words.

    Raises
    ------
    ParshallError
        A file cannot be written.
    """
    path = directory / PAGE
    try:
        directory.mkdir(parents=True, exist_ok=True)
        former = files_of(path)
        files: dict[str, str | bytes] = dict(others or {})
        for name, text in files.items():
            write_whole(Path(name), text, below=directory)
        files |= _write_images(directory, list(figures), progress)
        # Last, since it refers to the others.
        write_whole(Path(PAGE), f"{page.rstrip()}\n{list_line(files)}", below=directory)
        remove_files(directory, former, files)
    except OSError as error:
        raise file_error(
            error, f"{error.filename or path}: {error.strerror}; free some space, or name another directory"
        ) from None
    return path


def _write_images(
    directory: Path, figures: list[tuple[str, Mapping[str, Any]]], progress: Callable[[str], None]
) -> dict[str, str | bytes]:
    """Write each figure as SVG and PNG; return both by their names below the directory."""
    # Pixels are made while the next figure is drawn.
    pool = ThreadPoolExecutor(1)
    written: dict[str, str | bytes] = {}
    try:
        pixels = {}
        for number, (name, specification) in enumerate(figures, 1):
            progress(f"drawing figure {number} of {len(figures)}")
            with _naming(name):
                drawing = vl_convert.vegalite_to_svg(_drawable(_still(specification)))
            written[f"{FIGURE_DIRECTORY}/{name}.svg"] = drawing
            write_whole(Path(f"{FIGURE_DIRECTORY}/{name}.svg"), drawing, below=directory)
            pixels[name] = pool.submit(_pixels, drawing)
        for name, made in pixels.items():
            with _naming(name):
                content = made.result()
            written[f"{FIGURE_DIRECTORY}/{name}.png"] = content
            write_whole(Path(f"{FIGURE_DIRECTORY}/{name}.png"), content, below=directory)
        return written
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


@contextlib.contextmanager
def _naming(name: str) -> Iterator[None]:
    """Name the figure that cannot be drawn."""
    try:
        yield
    except (ValueError, RuntimeError) as error:
        # Titles of others are parts of expressions of the library.
        reason = brief(str(error).partition("\n")[0])
        raise ParshallError(f"figure {name}: cannot be drawn ({reason}); the file that it shows is damaged") from None


def start_drawing() -> None:
    """Start what draws images, which takes a second, while logs are read."""
    threading.Thread(target=vl_convert.vegalite_to_svg, args=({"mark": "point"},), daemon=True).start()


def image_of(specification: Mapping[str, Any], suffix: str) -> str | bytes:
    """Return a figure as SVG, or as PNG with two pixels for each of the figure's: sharp in print and on screens."""
    drawing = vl_convert.vegalite_to_svg(_drawable(_still(specification)))
    return drawing if suffix == ".svg" else _pixels(drawing)


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
    still = _stacked(specification)
    if "params" in still:
        still["params"] = [each for each in still["params"] if each.get("bind") != "scales"]
    if "layer" in still:
        still["layer"] = [layer for layer in still["layer"] if layer.get("name") != POINTER_LAYER]
    return still


def _stacked(specification: Mapping[str, Any]) -> dict[str, Any]:
    """Return the specification with its legends below each other: beside each other, they leave a narrow page.

    Vega has this setting; Vega-Lite's schema does not know it.
    """
    config = specification.get("config", {})
    legend = {**config.get("legend", {}), "layout": {"top": {"direction": "vertical", "anchor": "start"}}}
    return {**specification, "config": {**config, "legend": legend}}


def figures_in(parts: Iterable[Mapping[str, Any]]) -> list[tuple[str, Mapping[str, Any]]]:
    """Return names and specifications of the figures of a page's parts, each of which has ``id`` and ``figures``."""
    return [
        (f"{part['id']}-{figure.name}", specification) for part in parts for figure, specification in part["figures"]
    ]


def _shown(value: Any) -> Any:
    """Return what a template writes: in texts of others, what controls something is shown with escapes."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    return "\n".join(map(printable, value.split("\n")))


def render(
    template: str,
    script: str,
    *,
    has_figures: bool = True,
    filters: Mapping[str, Callable[..., Any]] | None = None,
    **values: Any,
) -> str:
    """Return a page.

    Parameters
    ----------
    template, script : str
        Files of the page.
    has_figures : bool
        Whether the page draws; otherwise it has no library for that.
    filters : mapping, optional
        Filters of the template, beside ``count``, ``as_data`` and ``pretty``.
    **values
        Names of the template.
    """
    templates = jinja2.Environment(
        loader=jinja2.PackageLoader("parshall.report", "page"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
    )
    templates.filters |= {"count": "{:,}".format, "as_data": as_data, "pretty": _pretty, **(filters or {})}
    return templates.get_template(template).render(
        written=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        style=Markup(_page_text("report.css")),
        script=Markup(f"const DARK = {json.dumps(DARK)};\n{_page_text('figures.js')}\n{_page_text(script)}"),
        vega=Markup(_vega()) if has_figures else "",
        renderer=lambda specification: "svg" if len(json.dumps(specification)) < _SVG_CHARS_MAX else "canvas",
        **values,
    )


def as_data(specification: Mapping[str, Any]) -> Markup:
    """Return JSON for a ``script`` element, with ``<`` escaped."""
    # The page has its own headings and captions; only separate files show the title.
    bare = {key: value for key, value in _stacked(specification).items() if key != "title"}
    return Markup(json.dumps(bare, ensure_ascii=True).replace("<", "\\u003c"))


def _page_text(name: str) -> str:
    """Return a file of the page: its styles or a script."""
    return (resources.files("parshall.report") / "page" / name).read_text(encoding="utf-8")


def _pretty(value: object) -> str:
    """Return a value as indented JSON."""
    return json.dumps(value, indent=2, ensure_ascii=False)


@cache
def _vega() -> str:
    """Return the library that draws the figures in the page."""
    try:
        made = _VEGA.read_text(encoding="utf-8")
    except OSError:
        made = ""
    return made if made.startswith(_vega_head()) else _bundle()


def make_vega() -> None:
    """Write the library once, with the installation: making it takes two seconds of each report otherwise."""
    if not _VEGA.exists() or not _VEGA.read_text(encoding="utf-8").startswith(_vega_head()):
        # Without the compiled module, which need not be there yet.
        new = _VEGA.with_suffix(f".{os.getpid()}")
        new.write_text(_bundle(), encoding="utf-8")
        new.replace(_VEGA)


def _vega_head() -> str:
    # Its types do not know the attribute.
    return f"// Vega of vl-convert {getattr(vl_convert, '__version__')}\n"  # noqa: B009


def _bundle() -> str:
    bundle: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    # A closing tag would end the script element.
    return _vega_head() + bundle.replace("</script", "<\\/script")


def identities(names: Iterable[str]) -> list[str]:
    """Return unique names that are valid in links and file names."""
    found: list[str] = []
    for name in names:
        plain = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in name)
        wanted = f"log-{plain}" if plain in _SECTIONS else plain
        others = (f"{wanted}-{number}" for number in itertools.count(len(found) + 1))
        found.append(next(each for each in itertools.chain([wanted], others) if each not in found))
    return found


def part_of(name: str, identity: str, log: Any, begin_ns: int | None) -> dict[str, Any]:
    """Return the data of a page that a log of any kind has."""
    hooks = hook_accounts(log.ledger)
    return {
        "name": name,
        "id": identity,
        "hooks": [*hooks, total(hooks)] if hooks else [],
        "causes": list(hooks[0].lost) if hooks else [],
        "complete": log.complete,
        "cost": log.ledger.get("cost") or {},
        "began": None if begin_ns is None else f"{datetime.fromtimestamp(begin_ns / 1e9, UTC):%Y-%m-%d %H:%M:%S} UTC",
        "environment": log.environment,
        "command_line": _command_line(log.environment),
    }


def _command_line(environment: Mapping[str, Any]) -> str | None:
    words = environment.get("command_line")
    if not words or not isinstance(words, list):
        return None
    name = Path(str(words[0])).name
    # Of `python -m parshall`, which the laboratory runs.
    return shlex.join(["parshall" if name == "__main__.py" else name, *map(str, words[1:])])
