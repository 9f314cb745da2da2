"""Figures of paths, as Altair charts.

`reduce` reads a log, `reduce_histograms` takes what was measured without one. Each figure is a module with a
reduction, which computes, and a drawing, which only draws.
"""

from parshall.figures.figure import Figure
from parshall.figures.path import correlation, drops, times, trace, waits
from parshall.figures.path.kernel_histograms import reduce_histograms
from parshall.figures.path.reduction import PATHS, PathReduction, reduce

__all__ = ["PATHS", "PathReduction", "figures_of", "reduce", "reduce_histograms"]

# With fewer packets, percentiles and correlations say nothing.
_PACKETS_MIN = 30


def figures_of(reduction: PathReduction) -> list[Figure]:
    """Return the figures of a log, in the order of a report: by code path, then drops.

    Parameters
    ----------
    reduction : PathReduction
        The log, as `reduce` returns it.

    Returns
    -------
    list of Figure
        Empty for a log without packets that were seen from first stage to end.
    """
    found = []
    for path in PATHS:
        if not reduction.stages_of(path):
            continue
        found.append(times.draw(times.reduce(reduction, path), reduction, path))
        parts = waits.reduce(reduction, path)
        if not parts.is_empty():
            found.append(waits.draw(parts, reduction, path))
        if reduction.sample.filter(path=path).height < _PACKETS_MIN:
            continue
        pairs = correlation.reduce(reduction, path)
        if not pairs.is_empty():
            found.append(correlation.draw(pairs, reduction, path))
        found.append(trace.draw(trace.reduce(reduction, path), reduction, path))
    if not reduction.drops.is_empty():
        found.append(drops.draw(drops.reduce(reduction), reduction))
    return found
