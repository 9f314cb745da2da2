"""Reports: what was measured, what the measuring lost and cost, in one file that opens anywhere."""

from parshall.report.write import write_report

__all__ = ["write_report"]
