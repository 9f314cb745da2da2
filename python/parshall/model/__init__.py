"""Networks of queues: build, run and sweep them, and compare them with measurements.

Examples
--------
>>> from parshall.model import Model, run
>>> model = Model("router").station("cpu").source("flow", "poisson:mean=12us", "queue")
>>> results = run(model.queue("queue", "cpu", 10_000, "out", capacity_packets=50), duration_s=1)
"""

from parshall.model.builtin import MODELS, parameters
from parshall.model.network import Model, from_dict, load
from parshall.model.simulation import Results, run

__all__ = ["MODELS", "Model", "Results", "from_dict", "load", "parameters", "run"]
