"""Routers: a testbed, and what becomes of each packet that is offered to it."""

from parshall.router.edges import Edge, Edges, Passage
from parshall.router.measurement import Measurement, measure
from parshall.router.setup import Setup
from parshall.router.testbed import RouterTestbed
from parshall.router.traffic import Traffic

__all__ = ["Edge", "Edges", "Measurement", "Passage", "RouterTestbed", "Setup", "Traffic", "measure"]
