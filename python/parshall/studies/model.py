"""The router model: the figures and numbers of the software-router chapter, computed by the queueing models."""

import polars as pl

from parshall.lab import Figure, Finding, Host, Measure, Program, Setting, Statement, Study, Table
from parshall.lab.programs import PARSHALL
from parshall.lab.run import Run
from parshall.lab.study import WORKLOAD, Level
from parshall.model.figures import FIGURES

PUBLISHED = "published numbers"
# Seconds that the longest of them takes on a slow machine.
_END_S = 900.0


def setting(level: Level, duration_s: float) -> Setting:
    """Return one computation, without links."""
    quick = ["--quick"] if duration_s < 5 else []
    words = (
        ["published", "-o", "{directory}/published.csv", "--json"]
        if level["part"] == PUBLISHED
        else ["figure", level["part"].removeprefix("Figure "), "-o", "{directory}", *quick]
    )
    program = Program("model", "here", [*PARSHALL, "model", *words], WORKLOAD, is_json=False, end_s=_END_S)
    return Setting([Host("here")], [], [program], duration_s)


def rows_of(name: str, number: int):
    """Return the function for the rows of one panel of a figure."""
    panel = FIGURES[name].panels[number]

    def rows(table: Table) -> pl.DataFrame:
        runs = table.runs_where(part=f"Figure {name}")
        if not runs:
            return pl.DataFrame()
        frame = panel.rows(pl.read_csv(runs[0].directory / f"figure-{name}.csv", infer_schema_length=None))
        return frame.select(
            x=pl.col(panel.x).cast(pl.Float64),
            y=pl.col(panel.y).cast(pl.Float64),
            line=pl.col(panel.colour).cast(pl.String),
        )

    return rows


def figures() -> list[Figure]:
    """Return one figure for each panel of the chapter's figures."""
    return [
        Figure(
            f"figure-{name}-{number + 1}",
            f"{figure.title}: {panel.title} (Figure {name})",
            rows=rows_of(name, number),
            x_title=panel.x_title,
            y_title=panel.y_title,
            is_log_x=panel.x_logarithmic,
            is_log_y=panel.logarithmic,
            is_stepped=panel.mark == "steps-before",
            is_scatter=panel.mark == "point",
            finding=lambda _, note=figure.note: note,
        )
        for name, figure in FIGURES.items()
        for number, panel in enumerate(figure.panels)
    ]


def computed(table: Table) -> pl.DataFrame:
    """Return the published numbers beside the computed ones."""
    (run, *_) = table.runs_where(part=PUBLISHED)
    return pl.read_csv(run.directory / "published.csv", infer_schema_length=None)


def error(run: Run) -> float | None:
    """Return the largest relative error of the numbers that the models must reproduce, percent."""
    if run.level["part"] != PUBLISHED:
        return None
    frame = pl.read_csv(run.directory / "published.csv", infer_schema_length=None)
    checked = frame.filter((pl.col("kind") == "predicted") & (pl.col("unit") != "%"))
    return float(100 * checked["error_A"].abs().max()) if checked.height else None


def section(name: str):
    """Return the check of a section of the chapter."""

    def check(table: Table) -> Finding:
        if not table.runs_where(part=PUBLISHED):
            return Finding("not computed", None)
        rows = computed(table).filter(pl.col("section") == name)
        near = rows.filter(pl.col("error_A").abs() <= pl.when(pl.col("unit") == "%").then(10).otherwise(0.1))
        return Finding(
            f"{near.height} of {rows.height} numbers within 10 %, e.g. {rows['quantity'][0]}: published "
            f"{rows['published'][0]:g} {rows['unit'][0]}, computed {rows['A'][0]:.4g}",
            near.height >= 0.8 * rows.height,
            "" if near.height == rows.height else "the differences and their reasons: docs/published-models.md",
        )

    return check


study = Study(
    name="model",
    title="What do the queueing models of a software router predict?",
    question=(
        "The figures and numbers of the chapter on software routers, computed by the queueing models: no traffic, no "
        "kernel."
    ),
    document="O. I. Lepe-Aldama: Modeling TCP/IP software implementation performance, UPC 2002, chapter 3",
    setting=setting,
    levels=[{"part": part} for part in (PUBLISHED, *(f"Figure {name}" for name in FIGURES))],
    measures=[
        Measure("seconds", "s", lambda run: run.wall_s, "time to compute"),
        Measure("error", "%", error, "largest error of a predicted number"),
    ],
    figures=figures(),
    statements=[
        Statement(f"section {name}", "the chapter's numbers of this section", section(name))
        for name in ("3.7.5", "3.8.1", "3.8.2")
    ],
    has_controls=False,
    duration_s=30,
    quick_duration_s=4,
    repeats=1,
    quick_repeats=1,
)
