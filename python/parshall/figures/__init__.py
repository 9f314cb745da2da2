"""Figures of TCP state against time: data in, an Altair chart out.

Each module has a reduction (statistics, no drawing) and a drawing (no statistics).
"""

from parshall.figures.frame import Figure
from parshall.figures.legend import Legend, legends
from parshall.figures.overview import figures_of

__all__ = ["Figure", "Legend", "figures_of", "legends"]
