"""Parameters of the built-in model ``linux-napi`` from a calibration."""

from parshall.router.calibration import Calibration

# A link that never holds a packet: veth has no rate.
_LINK_MBPS = 1e9


def napi_settings(calibration: Calibration) -> dict[str, str | float]:
    """Return the parameters of ``linux-napi`` that a calibration determines; the others keep their defaults.

    Distributions become their means or medians, because the built-in model has constant services and wake-ups. The link
    to the router has no counterpart: add `Calibration.link_ns` to latencies. Of a calibration with a distribution of
    sizes, packets have 64 bytes here: give loads in packets/s.
    """
    noise, sizes = calibration.noise, calibration.traffic["sizes"]
    stall_us = noise.times.mean_ns / 1e3 if noise.times else 0.0
    return {
        "packet_us": calibration.service.mean_ns / 1e3,
        "wake_us": calibration.wake.median_ns / 1e3,
        "poll_us": calibration.poll_packets * calibration.send_ns / 1e3,
        "dev_weight": calibration.poll_packets,
        "rings": 1,
        "rx_ring": calibration.queue_packets,
        "stalls_per_s": noise.per_s if stall_us else 0.0,
        **({"stall_us": stall_us} if stall_us else {}),
        # Stalls have the timer's interrupts.
        "interrupt_period_ms": 0.0,
        "link_mbps": _LINK_MBPS,
        "packet_bytes": sizes if sizes.isdecimal() else "64",
    }
