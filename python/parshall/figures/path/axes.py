"""What the figures of a path log share: axes of times, colours of stages. It draws, and computes nothing."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from parshall.figures.legend import COLOURS, numbered
from parshall.figures.path.reduction import PATHS, PathReduction
from parshall.host.quantities import duration_text
from parshall.instruments.path.stages import STAGES

INK, BAR = "#222", "#0072B2"
# Those of flows without black, on which no name can be read.
_STAGE_COLOURS = tuple(colour for colour in COLOURS if colour != "#000000")
_DARK = ("#0072B2", "#D55E00", "#009E73", "#332288", "#882255")
# In a wider range, the labels of ticks between powers of ten would touch.
_DECADES_WITH_STEPS = 3.2
# One unit for each range of three decimal digits.
TIME_LABEL = (
    "datum.value < 1e3 ? format(datum.value, '~r') + ' ns'"
    " : datum.value < 1e6 ? format(datum.value / 1e3, '~r') + ' µs'"
    " : datum.value < 1e9 ? format(datum.value / 1e6, '~r') + ' ms' : format(datum.value / 1e9, '~r') + ' s'"
)


def time_scale(low_ns: float, high_ns: float) -> alt.Scale:
    """Return a logarithmic scale of times."""
    return alt.Scale(type="log", domain=[max(low_ns, 1) * 0.9, max(high_ns, 2) * 1.1], nice=False)


def time_ticks(low_ns: float, high_ns: float, **settings: Any) -> alt.Axis:
    """Return an axis whose ticks are powers of ten; of a short range also 2 and 5 times these."""
    low, high = math.log10(max(low_ns, 1)), math.log10(max(high_ns, 2))
    powers = range(math.floor(low), math.ceil(high) + 1)
    steps = (1,) if high - low > _DECADES_WITH_STEPS else (1, 2, 5)
    values = [float(step * 10**power) for power in powers for step in steps]
    return alt.Axis(values=values, labelExpr=TIME_LABEL, labelOverlap="greedy", **settings)


def stage_colours(reduction: PathReduction, stages: Sequence[str]) -> dict[str, str]:
    """Return the colour of each of some stages, the same in all figures of a log."""
    drops = reduction.drops["place"].unique()
    numbers = numbered([*map(reduction.stages_of, PATHS), [stage for stage in STAGES if stage in drops]])
    return {stage: _STAGE_COLOURS[numbers[stage] % len(_STAGE_COLOURS)] for stage in stages}


def stage_scale(colours: Mapping[str, str]) -> alt.Scale:
    """Return the scale of `stage_colours`."""
    return alt.Scale(domain=list(colours), range=list(colours.values()))


def dark_stages(colours: Mapping[str, str]) -> list[str]:
    """Return the stages on whose colours white letters are read best."""
    return [stage for stage, colour in colours.items() if colour in _DARK]


def time_text(time_ns: float) -> str:
    """Return a time with three digits and its unit."""
    return duration_text(time_ns).replace("us", "µs")
