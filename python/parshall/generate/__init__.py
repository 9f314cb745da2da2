"""The generator: packets with distributions of sizes and gaps, the same for the same seed.

The command ``parshall gen`` is a thin layer over ``Generator``.
"""

from parshall.generate.generator import BACKENDS, Generator, Report
from parshall.generate.interface import Interface, interface_facts
from parshall.generate.preflight import reasons_not_to_send
from parshall.generate.receiver import Receiver
from parshall.generate.reception import Reception, stamp_offset_bytes
from parshall.generate.surroundings import reasons_to_confirm

__all__ = [
    "BACKENDS",
    "Generator",
    "Interface",
    "Receiver",
    "Reception",
    "Report",
    "interface_facts",
    "reasons_not_to_send",
    "reasons_to_confirm",
    "stamp_offset_bytes",
]
