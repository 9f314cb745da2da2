"""The generator: packets with distributions of sizes and gaps, the same for the same seed.

The command ``parshall gen`` is a thin layer over ``Generator``.
"""

from parshall.generate.generator import BACKENDS, Generator, Report
from parshall.generate.receiver import Receiver
from parshall.generate.reception import Reception, stamp_offset_bytes

__all__ = ["BACKENDS", "Generator", "Receiver", "Reception", "Report", "stamp_offset_bytes"]
