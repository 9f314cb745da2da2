"""Reports: the measured values, with losses and cost of the measurement, in one self-contained file."""

from typing import TYPE_CHECKING

from parshall.host.first_use import names_on_first_use

if TYPE_CHECKING:
    from parshall.report.write import LOGS_MAX as LOGS_MAX
    from parshall.report.write import Digest as Digest
    from parshall.report.write import digest as digest
    from parshall.report.write import digest_of_many as digest_of_many
    from parshall.report.write import write_report as write_report

__all__ = ["LOGS_MAX", "Digest", "digest", "digest_of_many", "write_report"]

__getattr__ = names_on_first_use(__name__, dict.fromkeys(__all__, "parshall.report.write"))
