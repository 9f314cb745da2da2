"""What the figures of a path log share: axes of times, colours of stages. It draws, and computes nothing."""

import math
from collections.abc import Sequence
from typing import Any

import altair as alt

from parshall.figures.legend import COLOURS
from parshall.quantities import duration_text

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
    return alt.Axis(
        values=[float(step * 10**power) for power in powers for step in steps], labelExpr=TIME_LABEL, **settings
    )


def stage_colours(stages: Sequence[str]) -> alt.Scale:
    """Return colours for the stages of a code path, in their order."""
    return alt.Scale(domain=list(stages), range=[_colour(number) for number in range(len(stages))])


def dark_stages(stages: Sequence[str]) -> list[str]:
    """Return the stages on whose colours white letters are read best."""
    return [stage for number, stage in enumerate(stages) if _colour(number) in _DARK]


def _colour(number: int) -> str:
    return _STAGE_COLOURS[number % len(_STAGE_COLOURS)]


def time_text(time_ns: float) -> str:
    """Return a time with three digits and its unit."""
    return duration_text(time_ns).replace("us", "µs")
