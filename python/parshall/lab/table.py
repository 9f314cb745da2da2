"""The runs of a bundle as a table, and the questions that findings ask of it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import polars as pl

from parshall.lab.run import Run
from parshall.lab.stretches import stretches_of
from parshall.lab.study import AFTER, Finding, Study
from parshall.statistics import CONFIDENCE, Comparison, Summary, compare_pairs, mean_interval, summarise

Condition = Mapping[str, Any]
NOT_OFTEN_ENOUGH = "not measured often enough"
# What a block of runs has in common: its runs follow each other, and each level is once among them.
BLOCK = ("session", "repeat")


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
    confidence : float
        Confidence of the intervals: more than 95 % where they are looked at several times.
    side : {"after", "before"}
        Which side of a comparison within the bundle the table is of.
    decisive : list of dict
        The levels that were compared, or held against a limit.
    planned : list of dict
        The levels of the study's plan, whether they have run or not.
    """

    def __init__(
        self,
        study: Study,
        frame: pl.DataFrame,
        runs: list[Run],
        confidence: float = CONFIDENCE,
        side: str = AFTER,
        planned: Sequence[Condition] = (),
    ) -> None:
        self.study = study
        # The first versions wrote neither.
        absent = {"session": 0, "cycle": 0, "side": ""}
        self.frame = frame.with_columns(
            pl.lit(value).alias(name) for name, value in absent.items() if name not in frame.columns
        )
        self.runs = runs
        self.confidence = confidence
        self.side = side
        self.decisive: list[Condition] = []
        self.planned = planned

    @property
    def interval(self) -> str:
        """What the intervals are called: a study that looks again and again has wider ones, for all looks together."""
        return "95 % interval" if self.confidence == CONFIDENCE else "95 % interval of all looks"

    def where(self, condition: Condition | None = None, *, control: str = "", **levels: Any) -> pl.DataFrame:
        """Return the runs that succeeded at some levels; a list matches each of its values."""
        return self._planned({**(condition or {}), **levels}, control).filter(status="done")

    def _planned(self, condition: Condition, control: str = "") -> pl.DataFrame:
        """Return the runs at some levels, those that failed among them."""
        sides = ["", self.side]
        return self.frame.filter(matches(condition), control=control).filter(pl.col("side").is_in(sides))

    def runs_where(self, *, control: str = "", **levels: Any) -> list[Run]:
        """Return the runs themselves, or their stretches, for findings that read outputs or files."""
        numbers = set(self.where(control=control, **levels)["run"])
        runs = [run for run in self.runs if run.record["run"] in numbers]
        parts = [part for run in runs for part in (stretches_of(run) if "stretches" in run.record else [run])]
        return [run for run in parts if all(run.level.get(name) in _values(value) for name, value in levels.items())]

    def values(self, measure: str, *, control: str = "", **levels: Any) -> list[float]:
        """Return the values of a measure at some levels, in the order of the repeats."""
        column: list[float] = self.of_runs(measure, control=control, **levels)[measure].to_list()
        return column

    def of_runs(self, measure: str, *, control: str = "", **levels: Any) -> pl.DataFrame:
        """Return a row a run with its value at some levels, of several cycles their mean: they are not independent."""
        frame = self.where(control=control, **levels).drop_nulls(measure).sort("repeat", "run")
        return frame.group_by("repeat", "run", maintain_order=True).agg(
            pl.col(measure).mean(), pl.col("session").first()
        )

    def summary(self, measure: str, *, control: str = "", **levels: Any) -> Summary | None:
        """Return the summary of a measure at some levels; None when no run has it."""
        return summarise(self.values(measure, control=control, **levels), self.study.measure(measure).ends or ())

    def mean(self, measure: str, *, control: str = "", **levels: Any) -> float:
        """Return the mean of a measure at some levels; NaN when no run has it."""
        found = self.summary(measure, control=control, **levels)
        return found.mean if found else float("nan")

    def blocks(self, measure: str, before: Condition, after: Condition) -> tuple[pl.DataFrame, int]:
        """Return both halves of the pairs of two levels, and how many pairs miss a half.

        Runs are paired within their block, and at the same values of each factor that does not differ between both
        conditions; the pairs of a block become one, by their mean. So a run that failed takes its pair with it. Levels
        that differ in switched factors only are paired within each cycle of a run.

        Returns
        -------
        frame : polars.DataFrame
            One row a block or a cycle of it: ``session``, ``repeat``, ``before``, ``after``; in their order.
        missing : int
            Pairs of which both halves ran and that are none: one failed, lacks the measure, or ran in another session.
        """
        switched = {name for name in {*before, *after} if _values(before.get(name)) != _values(after.get(name))}
        unit = [*BLOCK, "cycle"] if switched <= {*self.study.switched} else [*BLOCK]
        keys = [*unit, *(name for name in self.study.factors if name not in switched)]
        planned = [self._planned(condition).select(*keys, "status", value=measure) for condition in (before, after)]
        done = [half.filter(status="done").drop_nulls("value") for half in planned]
        is_positive = all((half["value"] > 0).all() for half in done)
        mean = pl.col("value").log().mean().exp() if is_positive else pl.col("value").mean()
        one, other = (half.group_by(keys).agg(mean) for half in done)
        pairs = one.join(other, on=keys, suffix="_after", nulls_equal=True)
        # Once a study looks at its statements, it runs only the levels that these need: such pairs lack no half.
        plan = [key for key in keys if key != "session"]
        count = planned[0].join(planned[1], on=plan, how="semi", nulls_equal=True).select(plan).unique().height
        of_units = pairs.group_by(unit).agg(
            before=mean,
            after=pl.col("value_after").log().mean().exp() if is_positive else pl.col("value_after").mean(),
        )
        return of_units.sort(unit).select(*BLOCK, "before", "after"), count - pairs.height

    def compare(self, measure: str, before: Condition, after: Condition) -> Comparison | None:
        """Compare a measure at two levels, pair by pair.

        None with fewer than three pairs, and of a level and itself: a part of a study may have one of the two only.
        """
        if dict(before) == dict(after):
            return None
        frame, missing = self.blocks(measure, before, after)
        self.decisive += [before, after]
        return self.compare_values(measure, frame["before"].to_list(), frame["after"].to_list(), missing)

    def beside(self, measure: str, before: Condition, after: Condition) -> Comparison | None:
        """Compare as `compare` does, for words beside a verdict, which need no more runs."""
        decisive = [*self.decisive]
        found = self.compare(measure, before, after)
        self.decisive = decisive
        return found

    def compare_values(
        self, measure: str, before: Sequence[float], after: Sequence[float], missing: int = 0
    ) -> Comparison | None:
        """Compare the halves of pairs, as values of a measure are compared."""
        what = self.study.measure(measure)
        return compare_pairs(
            before,
            after,
            is_ratio=what.is_ratio,
            resolution=what.resolution,
            ends=what.ends or (),
            missing=missing,
            confidence=self.confidence,
        )

    def change(self, measure: str, before: Condition, after: Condition, form: str = ",.0f") -> tuple[str, int]:
        """Return the change of a measure between two levels in words, and its sign.

        Returns
        -------
        text : str
            Such as "5,000 to 4,500 Mbit/s, -10.0 % (95 % interval -12.1 to -7.9 %)"; of percentages, in points.
        sign : int
            1 or -1 when the interval excludes 0, otherwise 0.
        """
        found = self.beside(measure, before, after)
        return (self.words(measure, found, form), found.sign) if found else (NOT_OFTEN_ENOUGH, 0)

    def words(self, measure: str, found: Comparison, form: str = ",.0f") -> str:
        """Return a comparison in words."""
        unit = self.study.measure(measure).unit
        scale, of = (100, "%") if found.is_ratio else (1, "points" if unit == "%" else unit)
        # A change that rounds to nothing has no sign.
        step, low, high = (f"{round(scale * each, 1) + 0:+,.1f}" for each in (found.change, found.low, found.high))
        missing = f"; {found.missing} pairs miss a half" if found.missing else ""
        return (
            f"{found.before:{form}} to {found.after:{form}} {unit}, {step} {of} "
            f"({self.interval} {low} to {high} {of}{missing})"
        )

    def judge(
        self,
        measure: str,
        before: Condition,
        after: Condition,
        wants: int,
        *,
        margin: float,
        form: str = ",.0f",
        reason: str = "",
        what: str = "",
        allows_fall: bool = False,
    ) -> Finding:
        """Return whether a measure changes between two levels as a document says.

        Parameters
        ----------
        wants : {1, -1, 0}
            What the document says: it rises, it falls, it does not change by as much as the margin.
        margin : float
            Smallest change that matters: a share of the value before; of percentages, points.
        form : str
            Format of both means.
        reason : str
            Why it may be otherwise here.
        what : str
            Words before the numbers.
        allows_fall : bool
            With `wants` 0: the document denies a rise alone.
        """
        found = self.compare(measure, before, after)
        if found is None:
            return self.not_often_enough(before, after)
        unit = self.study.measure(measure).unit
        points = "point" if margin == 1 else "points"
        limit = f"{100 * margin:g} %" if found.is_ratio else f"{margin:g} {points if unit == '%' else unit}".rstrip()
        text = f"{self._told(measure, found, form, what)}; {rule(limit, wants, allows_fall=allows_fall)}"
        return verdict(found, wants, margin=margin, text=text, reason=reason, allows_fall=allows_fall)

    def _told(self, measure: str, found: Comparison, form: str, what: str) -> str:
        return f"{what}{': ' if what else ''}{self.words(measure, found, form)}"

    def not_often_enough(self, *levels: Condition) -> Finding:
        """Return the finding of levels that were measured too rarely; it is open when all of them run."""
        absent = next((level for level in levels if not self._planned(level).height), None)
        if absent is not None:
            words = ", ".join(f"{name} {' or '.join(map(str, _values(value)))}" for name, value in absent.items())
            if any(all(level.get(name) in _values(value) for name, value in absent.items()) for level in self.planned):
                return Finding(
                    "not measured", None, f"{words} has not run yet; `parshall lab resume` goes on", is_open=True
                )
            return Finding("not measured", None, f"this form of the study leaves out {words}")
        return Finding(NOT_OFTEN_ENOUGH, None, "its levels ran fewer than three times", is_open=True)

    def judge_range(
        self,
        measure: str,
        before: Condition,
        after: Condition,
        low: float,
        high: float,
        *,
        form: str = ",.0f",
        reason: str = "",
        what: str = "",
    ) -> Finding:
        """Return whether a measure changes between two levels by as much as a document says.

        Parameters
        ----------
        low, high : float
            What the document says: a change as a share of the value before; of percentages, points.
        form, reason, what
            As for `judge`.
        """
        found = self.compare(measure, before, after)
        if found is None:
            return self.not_often_enough(before, after)
        scale, unit = (100, "%") if found.is_ratio else (1, "")
        text = self._told(measure, found, form, what)
        most = f"{scale * high:.3g} {unit or 'points'}"
        # Nothing falls by more than all of it.
        bounds = f"{most} or less" if found.is_ratio and low <= -1 else f"{scale * low:.3g} to {most}"
        text = f"{text}; the document, as it is read here: {bounds}"
        finding = Finding(text, None, low=scale * found.low, high=scale * found.high, unit=unit)
        if found.end is not None:
            return replace(finding, reason=_at_the_end(found))
        is_outside = found.high < low or found.low > high
        start, end, lower, upper = _evenly(found, found.low, found.high, low, high)
        centre = (start + end) / 2
        needed = times_as_many(start, end, min(abs(centre - lower), abs(centre - upper)))
        is_same = True if low <= found.low and found.high <= high else False if is_outside else None
        why = "it cannot be said yet whether it is as much" if is_same is None else "" if is_same else reason
        return replace(finding, is_same=is_same, reason=why, is_open=is_same is None, needed=needed)

    def judge_mean(
        self, measure: str, level: Condition, limit: float, wants: int, *, text: str, reason: str = ""
    ) -> Finding:
        """Return whether the mean of a measure is above a limit (`wants` 1) or below it (-1), as a document says."""
        self.decisive.append(level)
        frame = self.where(level).drop_nulls(measure).group_by(BLOCK).agg(pl.col(measure).mean())
        values = frame[measure].to_list()
        low, high = mean_interval(values, self.confidence)
        needed = times_as_many(low, high, abs((low + high) / 2 - limit))
        # The mean of what has ends has them, too, and that of what is never negative is not, either.
        if ends := self.study.measure(measure).ends:
            low, high = max(low, min(ends)), min(high, max(ends))
        elif values and min(values) >= 0:
            low = max(low, 0.0)
        sign = int(low > limit) - int(high < limit)
        unit = self.study.measure(measure).unit
        span = f"{interval_text(low, high)} {unit}".rstrip()
        # Runs that follow each other resemble each other: what another day brings is not in it.
        text = f"{text} ({self.interval} {span}, of these runs)" if frame.height > 1 else text
        unknown = f"it cannot be said yet on which side of {limit:g} {unit}".rstrip() + " it is"
        why = "" if sign == wants else reason if sign else unknown
        is_open = not sign and frame.height > 0
        finding = Finding(text, sign == wants if sign else None, why, is_open=is_open)
        if frame.height < 2:
            return finding
        return replace(finding, low=low, high=high, limit=limit, unit=unit, needed=needed)

    def levels(self, factor: str, **levels: Any) -> list[Any]:
        """Return the values of a factor that ran, sorted."""
        return sorted(self.where(**levels)[factor].drop_nulls().unique().to_list())


def rule(limit: str, wants: int, *, allows_fall: bool = False) -> str:
    """Return in words what `verdict` counts as a change, with the smallest one that matters."""
    if wants:
        return f"the direction counts, but a change that surely is less than {limit} is none"
    return f"counted as a {'rise' if allows_fall else 'change'} from {limit} on"


def times_as_many(low: float, high: float, distance: float) -> float:
    """Return how many times as many runs make an interval so narrow that its half is a distance.

    An interval narrows with the root of the number of runs, and its centre is taken to stay.
    """
    half = (high - low) / 2
    return (half / distance) ** 2 if distance > 0 and math.isfinite(half) else math.inf


def _evenly(found: Comparison, *changes: float) -> list[float]:
    """Return changes on the scale on which the interval of a comparison has its centre in the middle."""
    return [(math.log1p(each) if each > -1 else -math.inf) if found.is_ratio else each for each in changes]


def verdict(
    found: Comparison, wants: int, *, margin: float, text: str, reason: str = "", allows_fall: bool = False
) -> Finding:
    """Return the finding of a comparison; the parameters are those of `Table.judge`."""
    scale, unit = (100, "%") if found.is_ratio else (1, "")
    finding = Finding(text, None, low=scale * found.low, high=scale * found.high, limit=scale * margin, unit=unit)
    if found.end is not None:
        return replace(finding, reason=_at_the_end(found))
    low, high, fall, rise = _evenly(found, found.low, found.high, -margin, margin)
    centre = (low + high) / 2
    inside = min(rise - centre, centre - fall)
    if wants:
        # Without 0, or within the margin.
        distance = max(abs(centre), inside)
        # What is known to be small differs less than matters, whatever its sign.
        is_small = found.is_within(margin)
        is_same = False if is_small else True if found.sign == wants else False if found.sign else None
        if is_small and found.sign == wants:
            reason = f"less than {scale * margin:g} {unit} matters: it is hardly a difference"
        unknown = "no difference can be distinguished yet"
    elif allows_fall:
        distance = abs(centre - rise)
        is_same = True if found.high < margin else False if found.low > margin else None
        unknown = f"it may still rise by {scale * margin:g} {unit}".rstrip()
    else:
        distance = abs(inside)
        is_same = True if found.is_within(margin) else False if found.is_beyond(margin) else None
        unknown = f"it cannot be said yet whether they differ by {scale * margin:g} {unit}".rstrip()
    why = unknown if is_same is None else "" if is_same else reason
    needed = times_as_many(low, high, distance)
    return replace(finding, is_same=is_same, reason=why, is_open=is_same is None, needed=needed)


def _at_the_end(found: Comparison) -> str:
    return f"not measurable here: both are {found.end:g}, the end of the scale"


def matches(condition: Condition) -> pl.Expr:
    """Return the condition of rows for levels; a list matches each of its values, None a level without the factor."""
    found = pl.lit(value=True)
    for name, value in condition.items():
        wanted = _values(value)
        is_wanted = pl.col(name).is_in([each for each in wanted if each is not None])
        found &= is_wanted | pl.col(name).is_null() if None in wanted else is_wanted
    return found


def interval_text(low: float, high: float) -> str:
    """Return the ends of an interval with four digits, or as many as tell them apart: a narrow one is no point."""
    for digits in range(4, 10):
        ends = [f"{end:,.{digits}g}" for end in (low, high)]
        if ends[0] != ends[1]:
            break
    return " to ".join(ends)


def _values(value: Any) -> list[Any]:
    return [*value] if isinstance(value, list | tuple) else [value]
