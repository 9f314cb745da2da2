"""Studies that go on, block by block, until their statements are decided."""

import math
from dataclasses import dataclass
from typing import Any

from parshall.lab.bundle import Bundle
from parshall.lab.evaluation import statement, table_of
from parshall.lab.study import Level, Study
from parshall.lab.table import matches
from parshall.statistics import LOOKS


@dataclass(frozen=True)
class Look:
    """What is known after some blocks.

    Attributes
    ----------
    blocks : int
        Blocks that are measured.
    statements : list of dict
        Each statement, as ``evaluation.json`` has it.
    levels : list of dict
        The levels that open statements still need.
    more_blocks : int
        About how many more blocks would decide all of them.
    """

    blocks: int
    statements: list[dict[str, Any]]
    levels: list[Level]
    more_blocks: int

    @property
    def open(self) -> list[dict[str, Any]]:
        """The statements that more runs may decide."""
        return [each for each in self.statements if each["is_open"]]

    @property
    def decided(self) -> list[dict[str, Any]]:
        """The statements that have a verdict; others are neither, such as those at the end of their scale."""
        return [each for each in self.statements if each["is_same"] is not None]


def look(bundle: Bundle, study: Study, levels: list[Level]) -> Look:
    """Look at the statements of a study; what is decided now stays decided.

    Parameters
    ----------
    bundle : Bundle
        The runs so far. The decisions are noted in it.
    study : Study
        Its study.
    levels : list of dict
        The levels of the study that run.
    """
    blocks = blocks_of(bundle)
    table = table_of(bundle, study)
    decisions = bundle.about["decisions"]
    rows, needed, more = [], [], 0
    for number, each in enumerate(study.statements):
        if str(number) in decisions:
            rows.append(decisions[str(number)])
            continue
        table.decisive.clear()
        row = statement(each, table, is_partial=True)
        rows.append(row)
        if row["is_open"]:
            more = max(more, _more_blocks(row, blocks))
            needed += _matching(table.decisive, levels) or levels
        elif row["is_same"] is not None and row["low"] is not None:
            decisions[str(number)] = row | {"blocks": blocks}
    bundle.write_about()
    return Look(blocks, rows, [level for level in levels if level in needed], more)


def blocks_of(bundle: Bundle) -> int:
    """Return how many blocks of the plan are measured, whole."""
    waiting = [run["repeat"] for number, run in enumerate(bundle.about["plan"]) if not bundle.has_run(number)]
    return min(waiting, default=1 + max((run["repeat"] for run in bundle.about["plan"]), default=-1))


def is_look(blocks: int) -> bool:
    """Whether a study looks at its statements after so many blocks."""
    return blocks in LOOKS


def _matching(conditions: list[Any], levels: list[Level]) -> list[Level]:
    import polars as pl

    frame = pl.DataFrame(levels, infer_schema_length=None).with_row_index("number")
    numbers = {n for each in conditions for n in frame.filter(matches(each))["number"]}
    return [levels[n] for n in sorted(numbers)]


def _more_blocks(row: dict[str, Any], blocks: int) -> int:
    """Return about how many more blocks decide a statement."""
    # Nothing may be known: no interval, or one whose centre is where a verdict turns, or an older study's own finding.
    if row["needed"] is None:
        return LOOKS[-1] - blocks
    needed: float = min(blocks * row["needed"], 100 * LOOKS[-1])
    return max(1, math.ceil(needed) - blocks)
