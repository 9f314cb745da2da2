"""The result bundle: a directory with everything that a study measured; ``docs/formats/bundle.md`` has the keys."""

import contextlib
import fcntl
import io
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from parshall.errors import ParshallError, UsageError, naming_damage, printable
from parshall.host.input_file import brief, read_json
from parshall.host.shown import html_lines, html_table, text_table
from parshall.host.whole_file import write_whole
from parshall.lab.run import RECORD, AbsentError, Run
from parshall.lab.stretches import beside_neighbours, stretches_of
from parshall.lab.study import COLUMNS, NO_TRAFFIC, Study, line_of

if TYPE_CHECKING:
    import altair as alt

FORMAT_VERSION = 1
ABOUT, RESULTS, STUDY, RUNS, LOCK = "bundle.json", "results.parquet", "study.py", "runs", ".lock"
_PART = ".part"
# What a bundle shows of each statement of its study.
_STATED = ("source", "published", "measured")
_STATEMENT_COLUMNS = (*_STATED, "verdict")
_VERDICTS = {True: "same", False: "different", None: "open"}


def check_new(directory: Path) -> None:
    """Raise `UsageError` when a directory has something in it: a bundle begins in one that has not."""
    try:
        if directory.exists() and any(directory.iterdir()):
            raise UsageError(
                f"{directory}: is not empty; continue its study (parshall lab resume {directory}), or name "
                "another directory with -o"
            )
    except OSError as error:
        raise UsageError(f"{directory}: {error.strerror}; name another directory with -o") from None


class Bundle:
    """A result bundle.

    Attributes
    ----------
    directory : pathlib.Path
        Its directory.
    about : dict
        What is in ``bundle.json``: the study, the plan of the runs, the environment.
    """

    def __init__(self, directory: Path, about: dict[str, Any]) -> None:
        self.directory = directory
        self.about = about

    def __repr__(self) -> str:
        head, rows = self._shown()
        return "\n".join([head, *(text_table(_STATEMENT_COLUMNS, rows) if rows else [])])

    def _repr_html_(self) -> str:
        head, rows = self._shown()
        return html_lines([head]) + (html_table(_STATEMENT_COLUMNS, rows) if rows else "")

    def _shown(self) -> tuple[str, list[tuple[str, ...]]]:
        """Return a line about the study, and its statements as rows of `_STATEMENT_COLUMNS` when it has ended."""
        from parshall.lab.report import read_evaluation

        planned = self.about.get("plan") or ()
        done = sum(self.has_run(number) for number in range(len(planned)))
        head = printable(f"{self.directory}: {self.about.get('title')}; {done} of {len(planned)} runs")
        try:
            with naming_damage([self.directory], "resume its study"):
                stated = read_evaluation(self.directory)["statements"]
                return head, [(*(each[name] for name in _STATED), _VERDICTS[each["is_same"]]) for each in stated]
        except UsageError:
            return head, []

    @staticmethod
    def create(directory: Path, about: dict[str, Any], study_text: str) -> "Bundle":
        """Create the bundle of a new study.

        Raises
        ------
        UsageError
            The directory has something in it, or cannot be created.
        """
        check_new(directory)
        try:
            directory.mkdir(parents=True, exist_ok=True)
            (directory / RUNS).mkdir()
        except OSError as error:
            raise UsageError(f"{directory}: {error.strerror}; name another directory with -o") from None
        bundle = Bundle(directory, {"format": FORMAT_VERSION, **about})
        write_whole(Path(STUDY), study_text, below=directory)
        bundle.write_about()
        return bundle

    @staticmethod
    def open(directory: str | os.PathLike[str]) -> "Bundle":
        """Open a bundle.

        Raises
        ------
        UsageError
            It is none, or a newer version of Parshall wrote it.
        """
        directory = Path(directory)
        path = directory / ABOUT
        try:
            about = read_json(path)
        except OSError as error:
            raise UsageError(f"{path}: {error.strerror}; name the directory of a study") from None
        except ValueError as error:
            raise UsageError(f"{path}: is damaged: {error}; run the study again") from None
        version = about.get("format") if isinstance(about, dict) else None
        if not isinstance(version, int):
            raise UsageError(f"{path}: is damaged: it has no number of its format; run the study again")
        if version != FORMAT_VERSION:
            raise UsageError(
                f"{path}: format {brief(str(version))}: this version reads {FORMAT_VERSION}; use a newer Parshall"
            )
        return Bundle(directory, about)

    def write_about(self) -> None:
        """Write ``bundle.json``."""
        write_whole(Path(ABOUT), json.dumps(self.about, indent=1) + "\n", below=self.directory)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the bundle while runs are added.

        Raises
        ------
        UsageError
            Another process adds runs.
        """
        flags = os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            descriptor = os.open(self.directory / LOCK, flags, 0o600)
        except OSError as error:
            raise UsageError(f"{self.directory / LOCK}: {error.strerror}; remove it, and resume the study") from None
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UsageError(f"{self.directory}: another process runs this study; wait for it") from None
            yield
        finally:
            os.close(descriptor)

    @contextlib.contextmanager
    def new_run(self, number: int) -> Iterator[tuple[Path, dict[str, Any]]]:
        """Yield the directory and the record of a run; it becomes part of the bundle at the end of the block."""
        final = self._run_directory(number)
        if final.parent.is_symlink():
            raise UsageError(f"{final.parent}: is a symbolic link; replace it by a directory, and resume the study")
        part = final.with_name(final.name + _PART)
        shutil.rmtree(part, ignore_errors=True)
        try:
            with self.naming_full_disks():
                part.mkdir()
                record: dict[str, Any] = {}
                yield part, record
                write_whole(Path(RECORD), json.dumps(record, indent=1) + "\n", below=part)
                # An earlier run that failed gives way.
                shutil.rmtree(final, ignore_errors=True)
                part.rename(final)
        except BaseException:
            shutil.rmtree(part, ignore_errors=True)
            raise

    def _run_directory(self, number: int) -> Path:
        return self.directory / RUNS / f"{number:05}"

    def has_run(self, number: int) -> bool:
        """Whether a run is finished."""
        return self._run_directory(number).is_dir()

    def last_end_s(self) -> float:
        """Return when the last run was written, seconds since 1970; 0 without runs."""
        return max((path.stat().st_mtime for path in (self.directory / RUNS).glob(f"*/{RECORD}")), default=0.0)

    def has_failed(self, number: int) -> bool:
        """Whether a run is finished, and failed."""
        return self.has_run(number) and bool(self._record(number)["failure"])

    def failures(self, number: int) -> list[str]:
        """Return why a run failed, each time that it did."""
        if not self.has_run(number):
            return []
        record = self._record(number)
        return [*record["earlier_failures"], *filter(None, [record["failure"]])]

    def _record(self, number: int) -> dict[str, Any]:
        path = self._run_directory(number) / RECORD
        try:
            record = read_json(path)
        except OSError as error:
            raise UsageError(f"{path}: {error.strerror}; remove {path.parent} and resume the study") from None
        except ValueError as error:
            raise UsageError(f"{path}: is damaged: {error}; remove {path.parent} and resume the study") from None
        if not isinstance(record, dict):
            raise UsageError(f"{path}: is damaged: not an object; remove {path.parent} and resume the study")
        return record

    def runs(self) -> list[Run]:
        """Return the finished runs, in their order.

        Raises
        ------
        UsageError
            A record is damaged.
        """
        numbers = [number for number in range(len(self.about["plan"])) if self.has_run(number)]
        return [Run(self._run_directory(number), self._record(number)) for number in numbers]

    def table(self, study: Study) -> pl.DataFrame:
        """Return one row a run: the columns of `COLUMNS`, factors, measures.

        Measures of runs that failed or had no traffic are null. Raises `ParshallError` when a measure fails.
        """
        rows = [row for run in self.runs() for row in _rows(study, run)]
        schema = {
            "run": pl.Int64,
            "repeat": pl.Int64,
            "cycle": pl.Int64,
            "session": pl.Int64,
            "side": pl.String,
            "control": pl.String,
            "status": pl.String,
            "failure": pl.String,
        } | {measure.name: pl.Float64 for measure in study.measures}
        columns = [*COLUMNS, *study.factors, *(measure.name for measure in study.measures)]
        return pl.DataFrame(rows, schema_overrides=schema, infer_schema_length=None).select(
            [pl.col(name) if rows and name in rows[0] else pl.lit(None).alias(name) for name in columns]
        )

    def plot(self, figure: str | None = None) -> "alt.TopLevelMixin":
        """Return a figure of the report as an Altair chart; the study must have ended.

        Parameters
        ----------
        figure : str, optional
            Its name in the study. Default: the first that has values.

        Raises
        ------
        UsageError
            The study has not ended, or has no such figure, or no values for it.
        """
        from parshall.lab.drawing import draw
        from parshall.lab.report import read_evaluation

        with naming_damage([self.directory], f"write its evaluation again: parshall lab resume {self.directory}"):
            figures = read_evaluation(self.directory)["figures"]
            drawn = {each["name"]: each for each in figures if each["points"]}
            if figure is None and drawn:
                figure = next(iter(drawn))
            if figure not in drawn:
                names = ", ".join(drawn) or "none"
                raise UsageError(f"figure {figure}: no such figure with values in {self.directory}; there are {names}")
            return draw(drawn[figure], list(drawn.values()))

    def write_results(self, study: Study) -> Path:
        """Write the tidy table as Parquet; return its path."""
        path = self.directory / RESULTS
        content = io.BytesIO()
        self.table(study).write_parquet(content)
        with self.naming_full_disks():
            write_whole(Path(RESULTS), content.getvalue(), below=self.directory)
        return path

    @contextlib.contextmanager
    def naming_full_disks(self) -> Iterator[None]:
        """Turn the `OSError` of a file of this bundle into a `ParshallError` with the remedy."""
        try:
            yield
        except OSError as error:
            raise ParshallError(
                f"{error.filename or self.directory}: {error.strerror}; make room, then parshall lab resume "
                f"{self.directory}"
            ) from None


def check_measures(study: Study, run: Run) -> None:
    """Raise `ParshallError` when a measure of a study fails for a run."""
    _rows(study, run)


def _rows(study: Study, run: Run) -> list[dict[str, Any]]:
    """Return the row of a run; of a run of stretches, one for each level and cycle."""
    if "stretches" not in run.record:
        # A run that failed has none: it is a failure at each of its states.
        states = run.record.get("states", [run.level])
        return [_row(study, run) | {name: level.get(name) for name in study.factors} for level in states]
    stretches = stretches_of(run)
    measured = [_row(study, each) for each in stretches]
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for measure in study.measures:
        values = [
            (each.level, each.record["cycle"], row[measure.name]) for each, row in zip(stretches, measured, strict=True)
        ]
        for level, turn, value in beside_neighbours(values, is_ratio=bool(measure.is_ratio)):
            of_measures = dict.fromkeys((each.name for each in study.measures), None)
            of_factors = {name: level.get(name) for name in study.factors}
            row = found.setdefault((repr(level), turn), measured[0] | of_factors | of_measures | {"cycle": turn})
            row[measure.name] = value
    return list(found.values())


def _row(study: Study, run: Run) -> dict[str, Any]:
    record = run.record
    row = {
        "run": record["run"],
        "repeat": record["repeat"],
        "cycle": 0,
        # The first versions wrote neither.
        "session": record.get("session", 0),
        "side": record.get("side", ""),
        "control": record["control"],
        "status": record["status"],
        "failure": record["failure"],
        **{name: record["level"].get(name) for name in study.factors},
    }
    for measure in study.measures:
        row[measure.name] = None
        if record["status"] != "done" or run.control == NO_TRAFFIC:
            continue
        try:
            value = measure.of(run)
        except AbsentError:
            continue
        except Exception as error:
            where = line_of(study, error)
            raise ParshallError(
                f"{where}measure {measure.name} of run {record['run']}: {type(error).__name__}: {error}; "
                f"its outputs are in {run.directory}"
            ) from error
        row[measure.name] = None if value is None else float(value)
    return row


def study_text(path: Path) -> str:
    """Return the text of a study's file, which the bundle keeps."""
    return path.read_text()
