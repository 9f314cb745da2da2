"""Testbeds: hosts in network namespaces, and links with rate, delay, jitter, loss and queue."""

from parshall.testbed.hosts import Host
from parshall.testbed.links import Link
from parshall.testbed.names import clean, stale
from parshall.testbed.shaping import Shaping
from parshall.testbed.testbed import Testbed

__all__ = ["Host", "Link", "Shaping", "Testbed", "clean", "stale"]
