"""Reports: the measured values, with losses and cost of the measurement, in one self-contained file."""

from parshall.report.write import LOGS_MAX, Digest, digest, digest_of_many, write_report

__all__ = ["LOGS_MAX", "Digest", "digest", "digest_of_many", "write_report"]
