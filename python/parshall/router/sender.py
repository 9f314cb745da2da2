"""The calibrated router with its sender, which waits while it wakes the router.

Sender and router are CPUs of one machine. A packet for a router that sleeps needs an interrupt to the router's CPU; on
a virtual machine it takes the sender several microseconds, in which it sends nothing. So arrivals depend on the router,
and a model that gets the measured ones wakes its router at other packets. This one gets the times at which packets were
due, and predicts when each is sent and when it leaves.
"""

import math
from dataclasses import dataclass

import numpy as np
import pyarrow

from parshall import _native
from parshall.errors import ParshallError
from parshall.router.calibration import Calibration
from parshall.router.prediction import Prediction

# A packet that is sent so long after it was due waited for the sender.
_BEHIND_NS = 100
# Longer times than this quantile are stalls of the sender.
_PLAIN_QUANTILE = 0.95
_GAPS_BEFORE = 100


@dataclass(frozen=True)
class Sending:
    """What the sender takes, from one run.

    Attributes
    ----------
    waking_ns : numpy.ndarray
        Times from a batch of packets that woke the router to the next batch, while the sender was behind.
    batch : int
        Largest number of packets that were sent at once.
    """

    waking_ns: np.ndarray
    batch: int


def sending(table: pyarrow.Table, link_ns: float) -> Sending:
    """Return what the sender took.

    Parameters
    ----------
    table : pyarrow.Table
        ``Measurement.table`` of a run.
    link_ns : float
        Time from the sender's stamp to the router's queue.
    """
    due_ns, sent_ns = (table.column(name).to_numpy() for name in ("due_ns", "arrival_ns"))
    # A packet that was lost kept the server from nothing.
    left_ns = table.column("departure_ns").fill_null(0).to_numpy()
    if len(sent_ns) < 2:
        return Sending(np.empty(0), 1)
    # Packets of a batch have one stamp.
    first = np.flatnonzero(np.diff(sent_ns, prepend=sent_ns[0] - 1))
    sizes = np.diff(first, append=len(sent_ns))
    free_ns = np.maximum.accumulate(left_ns)[first[1:-1] - 1]
    woke = sent_ns[first[1:-1]] + link_ns > free_ns
    is_behind = sent_ns[first[2:]] > due_ns[first[2:]] + _BEHIND_NS
    times = np.diff(sent_ns[first])[1:][woke & is_behind]
    plain = times[times <= np.quantile(times, _PLAIN_QUANTILE)] if len(times) else times
    return Sending(plain, int(sizes.max()))


def with_sender(calibration: Calibration, seed: int = 1) -> Prediction:
    """Return the model of a calibrated router and its sender; it needs the column ``due_ns``.

    Parameters
    ----------
    calibration : Calibration
        Its parameters; `Calibration.waking` among them.
    seed : int
        Seed of what it draws.
    """
    waking = calibration.waking
    if waking is None:
        raise ParshallError("prediction: the calibration has no [waking]; calibrate again")

    def passages(arrivals: pyarrow.Table) -> pyarrow.Table:
        due_ns = arrivals.column("due_ns").to_numpy()
        if len(due_ns) == 0 or np.diff(due_ns).min(initial=0) < 0:
            raise ParshallError("prediction: expected planned times in their order, at least one")
        random, count = np.random.default_rng(seed), len(due_ns)
        drawn = (calibration.service, calibration.wake, waking)
        service, wake, pause = (times.draw(random, count).tolist() for times in drawn)
        stalls = drawn_stalls(random, calibration, int(due_ns[0]), int(due_ns[-1]))
        base = int(due_ns[0])
        # Times since the first packet are exact in floating point.
        since = (due_ns - base).astype(float).tolist()
        found = _native.router_passages(
            _same(calibration), since, service, wake, pause, stalls, calibration.wake_factors
        )
        sent_ns, left_ns = (np.array(each) for each in found)
        lost = np.isnan(left_ns)
        return pyarrow.table(
            {
                "arrival_ns": base + np.floor(sent_ns).astype(np.int64),
                "departure_ns": pyarrow.array(base + np.ceil(np.nan_to_num(left_ns)).astype(np.int64), mask=lost),
            }
        )

    return passages


def _same(calibration: Calibration) -> dict[str, float]:
    """Return what is the same for all packets."""
    return {
        **{name: getattr(calibration, name) for name in ("link_ns", "transfer_ns", "sender_batch", "look_ns")},
        **{name: getattr(calibration, name) for name in ("poll_packets", "queue_packets")},
        "visit_ns": calibration.poll_packets * calibration.send_ns,
        # Each packet leaves when it is served.
        "list_packets": 1,
        "between_ns": 0.0,
    }


def drawn_stalls(
    random: np.random.Generator, calibration: Calibration, first_ns: int, last_ns: int
) -> list[tuple[float, float]]:
    """Draw when stalls begin, since the first packet, and how long they last: those of any time, not of a beginning."""
    noise, span_ns = calibration.noise, last_ns - first_ns
    if noise.times is None or noise.gaps is None:
        return []
    # The first packet comes at any time of a group or between two.
    before_ns = _GAPS_BEFORE * 1e9 / noise.per_s
    begins = np.empty(0)
    while begins.max(initial=0) < span_ns + before_ns:
        more = math.ceil(1e-9 * (span_ns + before_ns) * noise.per_s) + 1
        begins = np.concatenate([begins, begins.max(initial=0) + np.cumsum(noise.gaps.draw(random, more))])
    begins -= random.uniform(0, before_ns)
    begins = begins[(begins >= 0) & (begins < span_ns)]
    return list(zip(begins.tolist(), noise.times.draw(random, len(begins)).tolist(), strict=True))
