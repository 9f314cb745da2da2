"""Figures of TCP state over time, as Altair charts.

`reduce` reads a log once. Each figure is a module with a reduction, which computes, and a drawing, which only draws.
"""

from parshall.figures.figure import Figure
from parshall.figures.legend import Legend, legends
from parshall.figures.overview import figures_of
from parshall.figures.reduction import Reduction, reduce

__all__ = ["Figure", "Legend", "Reduction", "figures_of", "legends", "reduce"]
