"""The generator: packets with distributions of sizes and gaps, the same for the same seed.

The command ``parshall gen`` is a thin layer over ``Generator``.
"""

from typing import TYPE_CHECKING

from parshall.host.first_use import names_on_first_use
from parshall.instruments.generate.generator import BACKENDS, Generator, Report

if TYPE_CHECKING:
    from parshall.instruments.generate.receiver import Receiver
    from parshall.instruments.generate.reception import Reception, stamp_offset_bytes

__all__ = ["BACKENDS", "Generator", "Receiver", "Reception", "Report", "stamp_offset_bytes"]

# What sends need not wait for libraries of columns.
__getattr__ = names_on_first_use(
    __name__,
    {
        "Receiver": f"{__name__}.receiver",
        "Reception": f"{__name__}.reception",
        "stamp_offset_bytes": f"{__name__}.reception",
    },
)
