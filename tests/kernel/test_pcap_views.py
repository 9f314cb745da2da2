"""What programs of libpcap see of direction, interface and link type."""

import re
import signal
import socket
from collections.abc import Callable
from typing import Any

import pytest
from capturer import frame
from conversation import socket_at
from test_path_identity import tun
from test_pcap import KIND, Place, Program, both, open_directory, place, stamped

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("root")]
__all__ = ["open_directory", "place"]
INBOUND, OUTBOUND = 7, 4


def numbers(path: Any) -> list[int]:
    """The numbers that tell the frames apart."""
    return [int.from_bytes(packet[14:18], "big") for _, _, packet in stamped(path)]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("inbound", INBOUND),
        ("outbound", OUTBOUND),
        ("not inbound", OUTBOUND),
        ("ifindex {index}", INBOUND + OUTBOUND),
        ("ifindex {other}", 0),
        ("inbound and ifindex {index}", INBOUND),
    ],
)
def test_filters_know_direction_and_interface(
    place: Place, open_directory: Any, until: Callable[..., None], expression: str, expected: int
) -> None:
    """On a packet socket libpcap 1.10.3 rejects the first packets, which it filters itself, without these data."""
    with place.host.enter():
        index = socket.if_nametoindex(place.interface)
    filters = [f"({expression.format(index=index, other=index + 1)}) and {KIND}", KIND]
    files = [open_directory / f"{name}.pcap" for name in ("some", "all")]
    command = ["tcpdump", "-Z", "root", "-U", "-i", place.interface, "-w"]
    programs = [Program(place, True, *command, *words) for words in zip(files, filters, strict=True)]
    for program in programs:
        program.wait_for("listening on")
    place.sender.send([frame(number, 100) for number in range(INBOUND)])
    place.answerer.send([frame(100 + number, 100) for number in range(OUTBOUND)])
    wanted = [expected, INBOUND + OUTBOUND]
    until("both have all", lambda: [len(stamped(file)) for file in files] == wanted)
    for program in programs:
        assert "without the ring" not in program.end(signal.SIGINT).stderr
    directions = [number >= 100 for number in numbers(files[0])]
    assert len(directions) == expected
    if expected in (INBOUND, OUTBOUND):
        assert set(directions) == {expected == OUTBOUND}


def test_packets_of_a_tun_device_have_the_link_type_of_a_packet_socket(
    place: Place, open_directory: Any, until: Callable[..., None]
) -> None:
    host, count = place.host, 5
    with tun(host, "tun7") as file, socket_at(host, "10.9.8.1", socket.SOCK_DGRAM) as sender:
        place.interface = "tun7"
        command = ["tcpdump", "-Z", "root", "-n", "-U", "-i", "tun7", "-w", open_directory / "{}.pcap", "udp port 999"]
        programs = both(place, *command)
        lines = [program.wait_for("listening on") for program in programs]
        for _ in range(count):
            sender.sendto(b"x" * 40, ("10.9.8.2", 999))
            assert file.read(2000)
        files = [open_directory / f"{name}.pcap" for name in ("ring", "socket")]
        until("both have all", lambda: all(len(stamped(each)) == count for each in files))
        for program in programs:
            assert "without the ring" not in program.end(signal.SIGINT).stderr
    kinds = [re.search(r"link-type (\w+)", line) for line in lines]
    assert [kind and kind[1] for kind in kinds] == ["RAW", "RAW"]
    ring, own = ([(wire, data) for _, wire, data in stamped(each)] for each in files)
    assert ring == own
