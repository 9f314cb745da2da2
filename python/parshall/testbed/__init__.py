"""Testbeds: hosts in network namespaces, and links with rate, delay, jitter, loss and queue."""

from typing import TYPE_CHECKING

from parshall.host.first_use import names_on_first_use

if TYPE_CHECKING:
    from parshall.host.names import clean, stale
    from parshall.testbed.hosts import Host
    from parshall.testbed.links import Link
    from parshall.testbed.shaping import Shaping
    from parshall.testbed.testbed import Testbed

__all__ = ["Host", "Link", "Shaping", "Testbed", "clean", "stale"]

# Commands that make no testbed need not wait for the netlink library.
__getattr__ = names_on_first_use(
    __name__,
    {
        "Host": f"{__name__}.hosts",
        "Link": f"{__name__}.links",
        "Shaping": f"{__name__}.shaping",
        "Testbed": f"{__name__}.testbed",
        "clean": "parshall.host.names",
        "stale": "parshall.host.names",
    },
)
