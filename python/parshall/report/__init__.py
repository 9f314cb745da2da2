"""Reports: the measured values, with losses and cost of the measurement, in one self-contained file."""

from parshall.report.write import write_report

__all__ = ["write_report"]
