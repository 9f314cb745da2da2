"""What all reports share: a self-contained HTML page, and every figure beside it as PNG and SVG."""

import itertools
import json
import os
import shlex
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
import vl_convert
from altair.utils.schemapi import debug_mode
from markupsafe import Markup

from parshall.errors import UsageError, file_error, printable
from parshall.figures.figure import DARK, Figure
from parshall.host.whole_file import write_whole
from parshall.report.account import hook_accounts, total
from parshall.report.former import files_of, list_line, remove_files
from parshall.report.images import FIGURE_DIRECTORY, Images, stacked

PAGE = "report.html"
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
    images: Images,
    *,
    others: Mapping[str, str] | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Path:
    """Write a page, its figures' images into `FIGURE_DIRECTORY`, and other files beside it; return the page's path.

    Files of a former report in this directory that this one lacks are removed, unless they were changed.

    Parameters
    ----------
    directory : pathlib.Path
        Where to; created if needed.
    page : str
        The HTML.
    images : Images
        Those of the page's figures.
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
        files |= images.write(directory, progress)
        # Last, since it refers to the others.
        write_whole(Path(PAGE), f"{page.rstrip()}\n{list_line(files)}", below=directory)
        remove_files(directory, former, files)
    except OSError as error:
        raise file_error(
            error, f"{error.filename or path}: {error.strerror}; free some space, or name another directory"
        ) from None
    return path


def specified(identity: str, figures: Iterable[Figure], images: Images) -> list[tuple[Figure, dict[str, Any]]]:
    """Return the figures of a part of the page with their specifications; begin to draw each when it is made."""
    found = []
    # The tests hold figures against Vega-Lite's schema, which takes longer here than all else that draws them.
    with debug_mode(False):
        for figure in figures:
            specification = figure.chart.to_dict(validate=False)
            images.add(f"{identity}-{figure.name}", specification)
            found.append((figure, specification))
    return found


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
    bare = {key: value for key, value in stacked(specification).items() if key != "title"}
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
        "command_line": command_line(log.environment),
    }


def command_line(environment: Mapping[str, Any]) -> str | None:
    """Return the command of a measurement as a shell takes it; None where it is not known."""
    words = environment.get("command_line")
    if not words or not isinstance(words, list):
        return None
    name = Path(str(words[0])).name
    # Of `python -m parshall`, which the laboratory runs.
    return shlex.join(["parshall" if name == "__main__.py" else name, *map(str, words[1:])])
