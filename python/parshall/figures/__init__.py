"""Figures of TCP state against time: a log in, Altair charts out.

`reduce` reads a log once. Each figure is a module: a reduction (statistics, no drawing), a drawing (no statistics).
"""

from parshall.figures.frame import Figure
from parshall.figures.legend import Legend, legends
from parshall.figures.overview import figures_of
from parshall.figures.reduction import Reduction, reduce

__all__ = ["Figure", "Legend", "Reduction", "figures_of", "legends", "reduce"]
