"""Edges: what their files hold is what their accounts say, also when they end amid traffic."""

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from parshall.host.namespaces import NETNS_DIRECTORY
from parshall.router import Edge, Edges

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("root")]
PORT = 9
CAPACITY = 1 << 18
ROUNDS = 30
# A process of its own, so that it sends while this one ends the edges.
SENDER = """
import socket, struct, sys
address, port, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
while True:
    for number in range(count):
        try:
            sender.sendto(struct.pack("!Q", number), (address, port))
        except ConnectionRefusedError:
            pass
"""


@pytest.mark.parametrize("hook", ["out", "in", "xdp"])
def test_the_file_has_as_many_times_as_the_account_when_packets_do_not_stop(
    xdp_link: Any, until: Callable[..., None], hook: str
) -> None:
    left, right, link = xdp_link
    place = left if hook == "out" else right
    edge = Edge(
        interface=link.interface(place),
        netns=NETNS_DIRECTORY / place.namespace,
        hook=hook,
        capacity=CAPACITY,
        port=PORT,
    )
    sender = left.popen([sys.executable, "-c", SENDER, link.address(right), str(PORT), str(CAPACITY)])
    try:
        for _ in range(ROUNDS):
            edges = Edges([edge])
            until("packets pass", lambda edges=edges: edges.packets()[0] > 1_000)
            (passage,) = edges.stop()
            account = passage.account
            assert np.count_nonzero(passage.times_ns) == account["recorded"] > 1_000
            parts = ("recorded", "duplicates", "beyond", "other")
            assert account["packets"] == sum(account[part] for part in parts)
        assert sender.poll() is None
    finally:
        sender.kill()
        sender.wait()
