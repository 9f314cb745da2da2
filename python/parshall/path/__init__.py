"""The path instrument: where packets spend their time in the kernel, and why.

`profile` measures, `log` and `histograms` read what it wrote, `timeline` joins it with TCP's state and packets; the
command ``parshall path`` is a thin layer over them.
"""

from parshall.path.histograms import PathHistograms
from parshall.path.log import PathLog
from parshall.path.profile import PathProfile, PathSummary
from parshall.path.stages import LIGHT_STAGES, STAGES
from parshall.path.timeline import join
from parshall.path.trace import Trace

__all__ = ["LIGHT_STAGES", "STAGES", "PathHistograms", "PathLog", "PathProfile", "PathSummary", "Trace", "join"]
