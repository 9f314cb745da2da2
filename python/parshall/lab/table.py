"""The runs of a bundle as a table, and the questions that findings ask of it."""

from collections.abc import Mapping
from typing import Any

import polars as pl

from parshall.lab.run import Run
from parshall.lab.study import Study
from parshall.statistics import Difference, Summary, paired_difference, summarise


class Table:
    """The runs of a bundle.

    Attributes
    ----------
    study : Study
        The study.
    frame : polars.DataFrame
        One row a run; see `parshall.lab.bundle.Bundle.table`.
    runs : list of Run
        The runs, with their outputs and files.
    """

    def __init__(self, study: Study, frame: pl.DataFrame, runs: list[Run]) -> None:
        self.study = study
        self.frame = frame
        self.runs = runs

    def where(self, condition: Mapping[str, Any] | None = None, *, control: str = "", **levels: Any) -> pl.DataFrame:
        """Return the runs that succeeded at some levels; a list matches each of its values."""
        frame = self.frame.filter((pl.col("status") == "done") & (pl.col("control") == control))
        for name, value in {**(condition or {}), **levels}.items():
            wanted = value if isinstance(value, list | tuple) else [value]
            # None is the value of a level without this factor.
            is_wanted = pl.col(name).is_in([each for each in wanted if each is not None])
            frame = frame.filter(is_wanted | pl.col(name).is_null() if None in wanted else is_wanted)
        return frame

    def runs_where(self, *, control: str = "", **levels: Any) -> list[Run]:
        """Return the runs themselves, for findings that read outputs or files."""
        numbers = set(self.where(control=control, **levels)["run"])
        return [run for run in self.runs if run.record["run"] in numbers]

    def values(self, measure: str, *, control: str = "", **levels: Any) -> list[float]:
        """Return the values of a measure at some levels, in the order of the repeats."""
        column: list[float] = (
            self.where(control=control, **levels).sort("repeat", "run")[measure].drop_nulls().to_list()
        )
        return column

    def summary(self, measure: str, *, control: str = "", **levels: Any) -> Summary | None:
        """Return the summary of a measure at some levels; None when no run has it."""
        return summarise(self.values(measure, control=control, **levels))

    def mean(self, measure: str, *, control: str = "", **levels: Any) -> float:
        """Return the mean of a measure at some levels; NaN when no run has it."""
        found = self.summary(measure, control=control, **levels)
        return found.mean if found else float("nan")

    def difference(self, measure: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> Difference | None:
        """Return the difference of a measure between two levels, paired by repeat.

        None with fewer than two pairs, and of a level and itself: a part of a study may have one of the two only.
        """
        if dict(before) == dict(after):
            return None
        sides = [
            self.where(level).drop_nulls(measure).group_by("repeat").agg(pl.col(measure).mean())
            for level in (before, after)
        ]
        pairs = sides[0].join(sides[1], on="repeat", suffix="_after").sort("repeat")
        return paired_difference(pairs[measure].to_list(), pairs[f"{measure}_after"].to_list())

    def change(
        self, measure: str, before: Mapping[str, Any], after: Mapping[str, Any], form: str = ",.0f"
    ) -> tuple[str, int]:
        """Return the difference of a measure between two levels in words, and its sign.

        Returns
        -------
        text : str
            Such as "5,000 to 4,500 Mbit/s, -10.0 % (95 % interval -12.1 to -7.9 %)"; of percentages, in points.
        sign : int
            1 or -1 when the interval excludes 0, otherwise 0.
        """
        found = self.difference(measure, before, after)
        unit = self.study.measure(measure).unit
        if found is None or (unit != "%" and not found.before):
            return "not measured often enough", 0
        # Of percentages, the difference itself.
        scale, of = (1.0, "points") if unit == "%" else (100 / found.before, "%")
        step, low, high = (scale * each for each in (found.after - found.before, found.low, found.high))
        text = (
            f"{found.before:{form}} to {found.after:{form}} {unit}, {step:+.1f} {of} "
            f"(95 % interval {low:+.1f} to {high:+.1f} {of})"
        )
        return text, (found.low > 0) - (found.high < 0)

    def levels(self, factor: str, **levels: Any) -> list[Any]:
        """Return the values of a factor that ran, sorted."""
        return sorted(self.where(**levels)[factor].drop_nulls().unique().to_list())
