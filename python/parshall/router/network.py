"""The network of a calibrated router: link, wake-up, polls of the backlog and of the way to the sink, stalls."""

import math
from typing import Any

import numpy as np
import pyarrow

from parshall.errors import ParshallError
from parshall.model.builtin.bsd import FORWARDED
from parshall.model.builtin.hardware import NOISE, RESIDUE
from parshall.model.network import Model
from parshall.model.simulation import run
from parshall.router.calibration import Calibration, scaled
from parshall.router.estimation import factors
from parshall.router.prediction import Prediction
from parshall.router.sender import with_sender

PACKETS = "packets"
# Stalls end after as many as fit into the measurement, with a margin: they come in groups.
_STALL_MARGIN = 3.0
# A clock for which the times were measured: only its ratio to another one counts.
_CLOCK_MHZ = 1000.0
# Gaps for which the mean wake-up is taken.
_GAPS = 1000


def network(
    calibration: Calibration,
    *,
    gap_ns: Any = None,
    pps: float | None = None,
    stalls: int | None = None,
    stall_gap_ns: Any = None,
    speed: float = 1.0,
) -> Model:
    """Return the network of a calibration.

    Parameters
    ----------
    calibration : Calibration
        Its parameters.
    gap_ns : amount, optional
        Gaps between packets. Default: Poisson arrivals.
    pps : float, optional
        Their rate. Default: half of the rate under overload.
    stalls : int, optional
        Number of stalls after which their source ends.
    stall_gap_ns : amount, optional
        Gaps between the begins of stalls. Default: those of the calibration.
    speed : float
        Speed of the CPU over that of the calibration. Services take less time; wake-ups, the link and stalls do not.
    """
    rate = pps or calibration.overload_pps / 2
    model = Model("router").station("wire", kind="delay")
    polling = {
        "priority": 1,
        "policy": "polling",
        "batch": calibration.poll_packets,
        # After a poll of the backlog the CPU polls its other device, which takes as many packets to the sink.
        "visit_ns": calibration.poll_packets * calibration.send_ns / speed,
        "wake_ns": scaled(calibration.wake, _wake_factor(calibration, rate)).amount(),
    }
    model.station("cpu", kind="preemptive-resume", clock_mhz=_CLOCK_MHZ * speed, policies=[polling])
    if gap_ns is None:
        # The link is the generator's: a plan is for packets that arrive at the router at any rate.
        transfer_ns = 0.0
        model.source(PACKETS, f"poisson:mean={1e9 / rate!r}ns", "held")
    else:
        transfer_ns = calibration.transfer_ns
        model.source(PACKETS, gap_ns, "link")
        model.station("link").queue("link", "link", transfer_ns, "held")
    # Packets that wait behind a held one then come together: they are already on the link.
    model.station("held").queue("held", "held", _held(calibration), "wire")
    model.queue("wire", "wire", calibration.link_ns - transfer_ns, "backlog")
    service = [{"time_ns": calibration.service.amount(), "measured_at_mhz": _CLOCK_MHZ}]
    model.queue("backlog", "cpu", service, FORWARDED, priority=1, capacity_packets=calibration.queue_packets)
    noise = calibration.noise
    if noise.times is not None and noise.gaps is not None:
        model.source(NOISE, noise.gaps.amount() if stall_gap_ns is None else stall_gap_ns, NOISE, packets=stalls)
        model.queue(NOISE, "cpu", noise.times.amount(), RESIDUE, priority=0)
    return model


def _wake_factor(calibration: Calibration, pps: float) -> float:
    """Return the mean factor of the wake-ups of Poisson arrivals, before which the router is idle for their gaps."""
    gaps_ns = -np.log1p(-(np.arange(_GAPS) + 0.5) / _GAPS) * 1e9 / pps
    return float(factors(calibration.wake_factors, gaps_ns).mean())


def _held(calibration: Calibration) -> Any:
    """Return how long the sender's CPU holds a packet: nearly always not at all."""
    held = calibration.held
    if held is None or calibration.held_share <= 0:
        return 0.0
    rest = [bound for bound in held.bounds_ns if bound > 1]
    # Of all lengths above a nanosecond, which stands for none.
    counts = held.counts[len(held.counts) - len(rest) + 1 :]
    weight = calibration.held_share / (1 - calibration.held_share) / max(1, sum(counts))
    return {"bounds": [0.0, 1.0, *rest], "counts": [1.0, 0.0, *(weight * count for count in counts)]}


def calibrated(calibration: Calibration, seed: int = 1) -> Prediction:
    """Return the model of a calibrated router.

    With the times at which packets were due (``due_ns``), and a calibration that has `Calibration.waking`, it is
    `with_sender`. Otherwise it is the network, fed with the measured arrivals.

    Parameters
    ----------
    calibration : Calibration
        Its parameters.
    seed : int
        Seed of what the network draws.
    """

    def departures(arrivals: pyarrow.Table) -> pyarrow.Array | pyarrow.Table:
        if calibration.waking is not None and "due_ns" in arrivals.column_names:
            return with_sender(calibration, seed)(arrivals)
        arrival_ns = arrivals.column("arrival_ns").to_numpy()
        # The generator stamps packets in the order in which it sends them.
        gaps = np.diff(arrival_ns, prepend=arrival_ns[:1])
        if len(gaps) == 0 or gaps.min() < 0:
            raise ParshallError("prediction: expected arrivals in their order, at least one")
        span_s = 1e-9 * float(arrival_ns[-1] - arrival_ns[0]) + 0.1
        stalls = math.ceil(_STALL_MARGIN * span_s * calibration.noise.per_s) + 10
        pps = len(gaps) / max(1e-9, span_s - 0.1)
        return departures_of(
            network(calibration, gap_ns={"trace": "gaps_ns"}, pps=pps, stalls=stalls), arrival_ns, seed
        )

    return departures


def departures_of(model: Model, arrival_ns: np.ndarray, seed: int) -> pyarrow.Array:
    """Return when each packet leaves a model.

    Parameters
    ----------
    model : Model
        Its source `PACKETS` has the gaps of the trace ``gaps_ns``.
    arrival_ns : numpy.ndarray
        When packets arrive, int64, in their order.
    seed : int
        Seed of what the model draws.

    Returns
    -------
    pyarrow.Array
        int64, ns; null for a packet that is lost.
    """
    gaps = np.diff(arrival_ns, prepend=arrival_ns[:1])
    results = run(
        model,
        warm_up_s=0,
        replications=1,
        seed=seed,
        trace=True,
        allow_unstable=True,
        traces={"gaps_ns": gaps.astype(float).tolist()},
    )
    assert results.packets is not None
    # Numbers of packets count stalls, too: only their order is used.
    left = results.packets.filter(results.packets["class"] == PACKETS).sort("packet")
    if len(left) != len(arrival_ns):
        raise ParshallError(f"prediction: {len(left)} of {len(arrival_ns)} packets left the network")
    since_ns = np.ceil(left["left_ps"].to_numpy() / 1e3).astype(np.int64)
    return pyarrow.array(arrival_ns[0] + since_ns, mask=left["lost"].to_numpy())
