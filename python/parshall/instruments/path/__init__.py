"""The path instrument: where packets spend their time in the kernel, and why.

`profile` measures, `log` and `histograms` read what it wrote, `timeline` joins it with TCP's state and packets; the
command ``parshall path`` is a thin layer over them.
"""

from typing import TYPE_CHECKING

from parshall.host.first_use import names_on_first_use
from parshall.instruments.path.profile import PathProfile, PathSummary
from parshall.instruments.path.stages import LIGHT_STAGES, STAGES

if TYPE_CHECKING:
    from parshall.instruments.path.histograms import PathHistograms
    from parshall.instruments.path.log import PathLog
    from parshall.instruments.path.timeline import join
    from parshall.instruments.path.trace import Trace

__all__ = ["LIGHT_STAGES", "STAGES", "PathHistograms", "PathLog", "PathProfile", "PathSummary", "Trace", "join"]

# What measures need not wait for libraries of columns.
__getattr__ = names_on_first_use(
    __name__,
    {
        "PathHistograms": f"{__name__}.histograms",
        "PathLog": f"{__name__}.log",
        "Trace": f"{__name__}.trace",
        "join": f"{__name__}.timeline",
    },
)
