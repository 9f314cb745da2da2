"""A model's prediction beside a measurement: the same arrivals, and when each packet would leave."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow
import pyarrow.compute

QUANTILES = (0.5, 0.9, 0.99)

# Takes a measurement's table, without its departures, and returns when each packet leaves: int64, ns, one for each row;
# null for a packet that is lost. A model of the sender, too, returns a table of ``arrival_ns`` and ``departure_ns``.
Prediction = Callable[[pyarrow.Table], pyarrow.Array | pyarrow.Table]


def predict(prediction: Prediction, measured: pyarrow.Table) -> pyarrow.Table:
    """Return a measurement's table with a model's departures in place of the measured ones.

    A model of the sender also replaces the arrivals.

    Parameters
    ----------
    prediction : callable
        The model.
    measured : pyarrow.Table
        ``Measurement.table``.

    Raises
    ------
    ValueError
        The model returns another number of packets, or a packet that leaves before it arrives.
    """
    arrivals = measured.drop_columns(["departure_ns"])
    departures = prediction(arrivals)
    if isinstance(departures, pyarrow.Table):
        sent, departures = (departures.column(name) for name in ("arrival_ns", "departure_ns"))
        arrivals = arrivals.set_column(arrivals.column_names.index("arrival_ns"), "arrival_ns", sent)
        departures = departures.combine_chunks()
    if len(departures) != len(measured):
        raise ValueError(f"prediction: {len(departures)} departures of {len(measured)} packets")
    early = pyarrow.compute.less(departures, arrivals.column("arrival_ns").combine_chunks())
    if pyarrow.compute.any(early).as_py():
        raise ValueError("prediction: a packet leaves before it arrives")
    return arrivals.append_column("departure_ns", departures)


def single_queue(service_ns: float) -> Prediction:
    """Return the simplest model: one queue without bound, constant service (Lindley's recursion).

    Parameters
    ----------
    service_ns : float
        Service time of a packet, ns; the inverse of the rate under overload.
    """

    def departures(arrivals: pyarrow.Table) -> pyarrow.Array:
        arrival_ns = arrivals.column("arrival_ns").to_numpy()
        served = service_ns * np.arange(1, len(arrival_ns) + 1)
        # A packet leaves when all since the last idle moment were served.
        return pyarrow.array(np.ceil(np.maximum.accumulate(arrival_ns - served + service_ns) + served).astype(np.int64))

    return departures


def latencies_ns(table: pyarrow.Table) -> np.ndarray:
    """Return departure less arrival of the packets that left, int64, in the order of sending."""
    left = table.filter(pyarrow.compute.is_valid(table.column("departure_ns")))
    departures: np.ndarray = left.column("departure_ns").to_numpy()
    latencies: np.ndarray = departures - left.column("arrival_ns").to_numpy()
    return latencies


def ccdf(latencies: np.ndarray, points: int = 200) -> tuple[np.ndarray, np.ndarray]:
    """Return the complementary distribution function of latencies, at evenly spaced logarithms of its probability.

    Returns
    -------
    latency_us, share : numpy.ndarray
        The share of the packets with a latency above each value.
    """
    ordered = np.sort(latencies) / 1e3
    share = np.unique(np.geomspace(1, 1 / max(1, len(ordered)), points))[::-1]
    places = np.clip(np.ceil(len(ordered) * (1 - share)).astype(int), 0, len(ordered) - 1)
    return ordered[places], share


def compare(measured: pyarrow.Table, predicted: pyarrow.Table) -> dict[str, Any]:
    """Return quantiles and losses of a measurement and of a prediction, with the relative errors.

    Returns
    -------
    dict
        For each quantile (``p50``, ``p90``, ``p99``): ``measured_us``, ``predicted_us`` and ``error``, predicted over
        measured less 1; ``lost_share`` with ``measured`` and ``predicted``.
    """
    found: dict[str, Any] = {}
    sides = latencies_ns(measured), latencies_ns(predicted)
    for quantile in QUANTILES:
        real, model = (float(np.quantile(side, quantile)) / 1e3 for side in sides)
        found[f"p{100 * quantile:g}"] = {"measured_us": real, "predicted_us": model, "error": model / real - 1}
    found["lost_share"] = {
        name: 1 - len(side) / table.num_rows
        for name, side, table in zip(("measured", "predicted"), sides, (measured, predicted), strict=True)
    }
    return found
