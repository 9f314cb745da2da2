"""The model of a security gateway: its parameters from rates of one that a loop simulates, its departures by hand."""

from collections import deque

import pyarrow
import pytest

from parshall.router.gateway_network import Services, gateway, services

SOFTIRQ_NS, GATEWAY_NS = 900, 5_200
COUNT = 100_000


def forwarded_under_overload(gap_ns: int, places: int = 500) -> tuple[int, int]:
    """Simulate one CPU, nanosecond by packet; return what was forwarded, and what the queue of the gateway lost."""
    now_ns, lost, forwarded, left_ns = 0, 0, 0, 0
    waiting: deque[int] = deque()
    for number in range(COUNT):
        # Until the next packet comes, the gateway has the CPU; then the softirq takes it away.
        free_ns = max(number * gap_ns - now_ns, 0)
        now_ns += free_ns
        while free_ns and (left_ns or waiting):
            left_ns = left_ns or waiting.popleft()
            step_ns = min(left_ns, free_ns)
            left_ns, free_ns = left_ns - step_ns, free_ns - step_ns
            forwarded += left_ns == 0
        now_ns += SOFTIRQ_NS
        if len(waiting) < places:
            waiting.append(GATEWAY_NS)
        else:
            lost += 1
    return forwarded, lost


# The softirq takes from a sixth to all but a tenth of the CPU.
@pytest.mark.parametrize("gap_ns", [1_000, 1_700, 5_000])
@pytest.mark.parametrize("before", [0, 20_000])
def test_what_a_packet_takes_is_found_by_the_rates_without_loss_and_under_overload(gap_ns: int, before: int) -> None:
    forwarded, lost = forwarded_under_overload(gap_ns)
    elapsed_s = 1e-9 * COUNT * gap_ns
    overload = {
        "pps": forwarded / elapsed_s,
        # Packets that were lost before the softirq took time of the CPU.
        "sent_pps": (COUNT + before) / elapsed_s,
        "lost_share": (lost + before) / (COUNT + before),
        "lost": {"ring": before, "backlog": 0, "stack": 0, "egress": 0, "tun": lost, "gateway": 0, "unknown": 0},
    }
    found = services({"pps": 1e9 / (SOFTIRQ_NS + GATEWAY_NS)}, overload)
    assert found is not None
    # What waits at the end is neither forwarded nor lost.
    assert found.softirq_ns == pytest.approx(SOFTIRQ_NS, rel=0.06)
    assert found.gateway_ns == pytest.approx(GATEWAY_NS, rel=0.02)


@pytest.mark.parametrize(
    ("capacity_pps", "pps", "sent_pps"), [(0, 1e5, 3e5), (1e5, 1e5, 1.05e5), (1e5, 1.2e5, 3e5), (1e5, 1e4, 2e4)]
)
def test_rates_that_do_not_tell_both_apart_give_no_model(capacity_pps: float, pps: float, sent_pps: float) -> None:
    overload = {"pps": pps, "sent_pps": sent_pps, "lost_share": 1 - pps / sent_pps, "lost": {"ring": 0, "backlog": 0}}
    assert services({"pps": capacity_pps}, overload) is None


def test_the_softirq_takes_the_cpu_from_the_gateway() -> None:
    arrivals = pyarrow.table({"arrival_ns": [1_000_000, 1_003_000, 1_050_000]})
    left = gateway(Services(2_000, 8_000))(arrivals)
    # The second packet comes 3 us later, and interrupts the encryption of the first for 2 us. The third meets no other.
    assert left.to_pylist() == [1_012_000, 1_020_000, 1_060_000]
