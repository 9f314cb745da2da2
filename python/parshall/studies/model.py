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


def numbers(section: str):
    """Return the check of the numbers of a section: whether those that the models predict are near the chapter's."""

    def check(table: Table) -> Finding:
        if not table.runs_where(part=PUBLISHED):
            return Finding("not computed", None)
        rows = computed(table).filter(pl.col("section") == section)
        is_a = pl.col("judged_by") == "A"
        rows = rows.with_columns(
            ours=pl.when(is_a).then("A").otherwise("B"),
            # Of 1, and of percentages in points of 100: both become percent.
            error=pl.when(is_a).then("error_A").otherwise("error_B")
            * pl.when(pl.col("unit") == "%").then(1.0).otherwise(100.0),
        )
        predicted = rows.filter(pl.col("kind") == "predicted")
        judged = predicted if predicted.height else rows
        farthest = judged.sort(pl.col("error").abs()).row(-1, named=True)
        unit = "points" if farthest["unit"] == "%" else "%"
        text = (
            f"of {judged.height} numbers the farthest is {farthest['quantity']}: published {farthest['published']:g} "
            f"{farthest['unit']}, computed {farthest['ours']:.4g} ({farthest['error']:+.1f} {unit})"
        )
        if not predicted.height:
            kinds = ", ".join(f"{count} {kind}" for kind, count in rows["kind"].value_counts(sort=True).iter_rows())
            return Finding(
                text,
                None,
                f"the chapter does not give what they depend on, or contradicts itself ({kinds}): parameters were "
                "chosen by them where one could be",
            )
        is_near = abs(farthest["error"]) <= NEAR
        text = (
            f"{text}; counted as near within {NEAR:g} %, of percentages {NEAR:g} points, half a step of their rounding"
        )
        return Finding(text, is_near, "" if is_near else SEE)

    return check


def shares_of_time(table: Table) -> Finding:
    """The shares of time at saturation."""
    found = numbers("3.8.2")(table)
    why = "both follow from the two rates, in proportion, by construction"
    return found if found.is_same is None else found.without_verdict(why)


def shapes(figure: str):
    """Return the check of what the chapter says of a figure."""

    def check(table: Table) -> Finding:
        runs = table.runs_where(part=PUBLISHED)
        if not runs:
            return Finding("not computed", None)
        rows = [row for row in runs[0].result("model")["statements"] if row["figure"] == figure]
        if not rows:
            return Finding("not computed", None)
        text = "; ".join(f"{row['statement']} (seen: {row['seen']})" for row in rows)
        broken = [f"{row['statement']} does not hold: {row['note'] or SEE}" for row in rows if not row["holds"]]
        return Finding(text, not broken, "; ".join(broken))

    return check


# Percent, and points of percentages: the chapter's numbers are read from charts, and many are "around".
NEAR = 5.0
SEE = "docs/published-models.md has the differences and their reasons"

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
        Measure("error", "%", error, "largest error of a predicted number", ends=()),
    ],
    figures=figures(),
    statements=[
        Statement("Table 3-II", "the bus becomes the bottleneck of faster processors", shapes("Table 3-II")),
        Statement("Figure 3.15", "capacities and 99th percentiles of routers and gateways", numbers("3.8.1")),
        Statement(
            "section 3.8.2",
            "at saturation the bus is used around 50 % at 1 GHz, the CPU around 70 % at 3 GHz",
            shares_of_time,
        ),
        Statement(
            "Figure 3.17",
            "1 GHz loses in the IP queue; 3 GHz, reception first, loses throughput, and packets in the transmit queue; "
            "with equal priorities its CPU never saturates",
            shapes("3.17"),
        ),
        Statement("Figure 3.19", "without live-lock it keeps its throughput, but no fair share", shapes("3.19")),
        Statement("Figure 3.21", "fair queueing is fair only where the CPU is the bottleneck", shapes("3.21")),
    ],
    omitted={
        "Figures 3.1-3.6, 3.16, 3.18, 3.20": "diagrams of models, routers, probes and of the testbed",
        "Figures 3.7, 3.8": (
            "counts of cycles and instructions of each function, which need the processor's counters; `parshall path` "
            "measures the time of each stage"
        ),
        "Figure 3.9": (
            "compares with a measured trace that is not published, and needs correlated service times; the models' are "
            "constants, so that they cannot decide it. The figure is drawn"
        ),
        "Figure 3.10": (
            "a measurement of two functions: `parshall path` has the rank correlation of each pair of stages, and no "
            "study judges it"
        ),
        "Figure 3.12": (
            "drawn with all grains proportional; the chapter's offsets of dmarx and eotx are measurements that need a "
            "processor whose clock can be set"
        ),
        "Figure 3.14": (
            "forwarding has no time per byte in the models, so that it holds by construction; the study router measures"
        ),
        "Figure 3.13": "the first packets after others used the cache: needs a count of cycles for each packet",
        "Table 3-III": "the three flows that Figures 3.17 to 3.21 are computed for",
        "section 3.9": "its conclusions are those of the other sections",
    },
    has_controls=False,
    duration_s=30,
    quick_duration_s=4,
    repeats=1,
    quick_repeats=1,
)
