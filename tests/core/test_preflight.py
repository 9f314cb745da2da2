"""What the generator knows of an interface before it sends."""

from dataclasses import replace

import pytest

from parshall.errors import UsageError
from parshall.host.quantities import duration_text, parse_rate
from parshall.instruments.generate.interface import Interface
from parshall.instruments.generate.preflight import default_backend, reasons_not_to_send

VETH = Interface(
    name="v0",
    kind="veth",
    is_up=True,
    has_carrier=True,
    mtu_bytes=1500,
    mac="02:00:00:00:00:01",
    takes_xdp_frames=True,
)


def test_a_veth_of_a_testbed_may_send_at_once():
    assert reasons_not_to_send(VETH, 1500) == []


@pytest.mark.parametrize(
    ("change", "remedy"),
    [
        ({"is_up": False}, "ip link set v0 up"),
        ({"has_carrier": False}, "set the other end up"),
        ({"mtu_bytes": 1499}, "ip link set v0 mtu 1500"),
        ({"takes_xdp_frames": False}, "ethtool -K PEER gro on"),
        ({"takes_xdp_frames": False, "kind": None}, "--backend af-packet"),
        ({"takes_xdp_frames": None, "kind": "dummy"}, "--backend af-packet, a veth"),
    ],
)
def test_each_reason_names_its_remedy(change, remedy):
    (reason,) = reasons_not_to_send(replace(VETH, **change), 1500)
    assert "v0" in reason and remedy in reason


@pytest.mark.parametrize("backend", ["af-packet", "af-xdp"])
def test_packet_sockets_do_not_need_redirected_frames(backend):
    assert reasons_not_to_send(replace(VETH, takes_xdp_frames=False), 1500, backend) == []
    (reason,) = reasons_not_to_send(replace(VETH, takes_xdp_frames=False), 9000, backend)
    assert "MTU" in reason


@pytest.mark.parametrize(
    ("change", "is_replay", "fits_live_frames", "backend"),
    [
        ({}, True, True, "xdp"),
        ({}, True, False, "af-packet"),
        ({"takes_xdp_frames": False}, True, True, "af-packet"),
        ({"takes_xdp_frames": None, "kind": "dummy"}, True, True, "af-packet"),
        # A distribution can be changed; then it is better to say why it cannot be sent at full speed.
        ({}, False, False, "xdp"),
        ({"takes_xdp_frames": False}, False, True, "af-packet"),
        ({"takes_xdp_frames": None}, True, True, "af-packet"),
        ({"takes_xdp_frames": None}, False, True, "xdp"),
        ({"takes_xdp_frames": None, "kind": "dummy"}, False, True, "af-packet"),
    ],
)
def test_the_default_backend_is_one_whose_packets_arrive(change, is_replay, fits_live_frames, backend):
    interface = replace(VETH, **change)
    chosen, reason = default_backend(interface, is_replay=is_replay, fits_live_frames=fits_live_frames)
    assert chosen == backend
    assert (reason is None) == (backend == "xdp")
    # A backend that was not asked for refuses nothing.
    assert not reasons_not_to_send(interface, 1500, chosen)


def test_unreported_support_of_xdp_frames_is_no_obstacle():
    assert reasons_not_to_send(replace(VETH, takes_xdp_frames=None), 1500) == []


def test_quantities_have_prefixes():
    texts = ("900k", "1M", "2.5G", "1e6", "7 pps", "10kpps")
    assert [parse_rate("--pps", text, "packets") for text in texts] == [900e3, 1e6, 2.5e9, 1e6, 7.0, 10e3]
    for text in ("", "k", "-1", "1x", "1KiB", "nan", "10Gbit/s"):
        with pytest.raises(UsageError, match="--pps"):
            parse_rate("--pps", text, "packets")


def test_times_have_three_digits_and_no_exponent():
    times_ns = (None, 0.0, 12.345, 999.4, 999.6, 123_456.7, 999_600, -999_600, 999.7e6, 1.5e9, 1_234.5e9)
    assert [duration_text(time_ns) for time_ns in times_ns] == [
        "-",
        "0 ns",
        "12.3 ns",
        "999 ns",
        "1 us",
        "123 us",
        "1 ms",
        "-1 ms",
        "1 s",
        "1.5 s",
        "1,234 s",
    ]
