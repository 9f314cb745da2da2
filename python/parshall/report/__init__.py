"""Reports: the measured values, with losses and cost of the measurement, in one self-contained file."""

from parshall.report.write import Digest, digest, write_report

__all__ = ["Digest", "digest", "write_report"]
