"""The calibration of a router whose parameters are known."""

import numpy as np

from parshall.router import calibrate as calibrating
from parshall.router.calibration import LATENCY_PARTS, Calibration, machine

LINK_NS, SERVICE_NS, SEND_NS, WAKE_NS, STALLS_PER_S, STALL_NS = 1_300, 700, 270, 9_000, 900, 26_000
BALANCE_NS = {f"{part}_ns": 100.0 for part in LATENCY_PARTS} | {"latency_ns": 700.0}


def stalls(per_s, times_ns):
    """Stalls that begin at random."""
    gaps = np.random.default_rng(6).exponential(1e9 / per_s, 5_000)
    return calibrating.Noise(per_s, 0.0, 2 * per_s, 0.0, calibrating.times([times_ns]), calibrating.times([gaps]))


def stretches(count=12, *, service=0.04, wake=0.05, stalls=0.0, seed=8):
    """States of a machine that varies, by standard deviations of logarithms; stalls also vary by chance."""
    random = np.random.default_rng(seed)
    rates = STALLS_PER_S * np.exp(random.normal(0, stalls, count))
    return [
        {
            "at_s": float(at),
            "overload_pps": 1.0e6,
            "service_ns": SERVICE_NS * float(np.exp(random.normal(0, service))),
            "wake_ns": WAKE_NS * float(np.exp(random.normal(0, wake))),
            "link_ns": float(LINK_NS),
            "stalls": int(random.poisson(rates[at] * 0.05)),
            "span_s": 0.05,
        }
        for at in range(count)
    ]


def known(**changes) -> Calibration:
    """The calibration of a router whose parameters are known."""
    random = np.random.default_rng(5)
    parts = {
        "service": calibrating.times([random.normal(SERVICE_NS, 60, 20_000)]),
        "wake": calibrating.times([random.normal(WAKE_NS, 900, 20_000)]),
        "noise": stalls(STALLS_PER_S, random.exponential(STALL_NS, 5_000)),
    }
    fields = {
        "created": "2026-11-24T20:00:00+00:00",
        "machine": machine(),
        "setup": {"receive": "rps", "gro": True, "routes": 4, "destinations": 1, "rules": 0, "cpu": 1, "sender_cpu": 0},
        "traffic": {"sizes": "64", "flows": 1, "repeats": 1, "packets": 1000, "first_seed": 1_000_001},
        "overload_pps": 1.0e6,
        "low_overload_pps": 1.0e6,
        "high_overload_pps": 1.2e6,
        "queue_packets": 1000,
        "poll_packets": 64,
        "link_ns": float(LINK_NS),
        "low_link_ns": 1200.0,
        "high_link_ns": 1400.0,
        "transfer_ns": 900.0,
        "look_ns": 0.0,
        "after_idle": [],
        "held_share": 0.0,
        "held": None,
        "waking": None,
        "sender_batch": 2,
        "send_ns": float(SEND_NS),
        "low_send_ns": 260.0,
        "high_send_ns": 280.0,
        "stretches": stretches(),
        "trials": [],
        "balance": [{"workload": "half", "packets": 9, "lost": 0, "idle_ns": 5.0} | BALANCE_NS],
        "interrupts": [{"kind": "timer_irq", "per_s": 250.0, "mean_ns": 5000.0}],
        "stages": [{"stage": "receive", "share": 0.7}, {"stage": "queue", "share": 0.3}],
        "correlations": [{"stages": ["receive", "queue"], "lag_0": 0.02, "lag_1": 0.0, "is_merged": False}],
    }
    fields |= parts | changes
    # Of made workloads, only the rest of a state is estimated.
    fields["stretches"] = [
        {"at_s": float(at), "overload_pps": fields["overload_pps"]} | row for at, row in enumerate(fields["stretches"])
    ]
    return Calibration(**fields)
