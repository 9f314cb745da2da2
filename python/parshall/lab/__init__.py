"""The laboratory: experiments as data, the measurement cycle, result bundles and their reports.

The command ``parshall lab`` is a thin layer over this package; ``docs/studies.md`` teaches writing a study.
"""

from parshall.lab.bundle import Bundle
from parshall.lab.evaluation import evaluate
from parshall.lab.laboratory import resume, run
from parshall.lab.programs import capture, generate, iperf3, open_flows, parshall, round_trips, tcp_log, tcpdump
from parshall.lab.run import Run
from parshall.lab.splitter import splitter
from parshall.lab.study import (
    Figure,
    Finding,
    Host,
    Link,
    Measure,
    Program,
    Published,
    Setting,
    Statement,
    Study,
    grid,
    load,
)
from parshall.lab.table import Table

__all__ = [
    "Bundle",
    "Figure",
    "Finding",
    "Host",
    "Link",
    "Measure",
    "Program",
    "Published",
    "Run",
    "Setting",
    "Statement",
    "Study",
    "Table",
    "capture",
    "evaluate",
    "generate",
    "grid",
    "iperf3",
    "load",
    "open_flows",
    "parshall",
    "resume",
    "round_trips",
    "run",
    "splitter",
    "tcp_log",
    "tcpdump",
]
