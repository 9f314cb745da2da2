"""Routers: a testbed, what becomes of each packet that is offered to it, and how many it can forward.

The command ``parshall router`` is a thin layer over this package.
"""

from parshall.router.capacity import Capacity, Overload, overload, zero_loss
from parshall.router.edges import Edge, Edges, Passage
from parshall.router.gateway import Gateway, new_secret
from parshall.router.measurement import Measurement, measure
from parshall.router.offer import Offered, offer
from parshall.router.prediction import Prediction, compare, predict, single_queue
from parshall.router.setup import Setup
from parshall.router.testbed import RouterTestbed
from parshall.router.traffic import Traffic

__all__ = [
    "Capacity",
    "Edge",
    "Edges",
    "Gateway",
    "Measurement",
    "Offered",
    "Overload",
    "Passage",
    "Prediction",
    "RouterTestbed",
    "Setup",
    "Traffic",
    "compare",
    "measure",
    "new_secret",
    "offer",
    "overload",
    "predict",
    "single_queue",
    "zero_loss",
]
