"""Testbeds work where an event loop runs, as in the cells of a notebook."""

import asyncio
import contextlib
import socket

import pytest

from parshall.errors import ParshallError
from parshall.host.netlink import route_socket
from parshall.router.receiving import use_thread
from parshall.testbed import Testbed

pytestmark = pytest.mark.kernel


async def in_a_cell():
    """Do what cells of notebooks do."""
    with Testbed() as bed:
        here, there = bed.host("here"), bed.host("there")
        link = bed.link(here, there, rate_bps=10e6)
        with here.enter(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sending:
            sending.sendto(b"a packet", (link.address(there), 9))
        sent = link.statistics()["ends"]["here"]["tx_packets"]
        with here.enter(), route_socket() as route:
            inside = {one.get("ifname") for one in route.get_links()}
            index = route.link_lookup(ifname="eth0")[0]
            with pytest.raises(Exception, match="No such device"):
                route.link("set", index=index + 1000, state="up")
        with route_socket() as route:
            outside = {one.get("ifname") for one in route.get_links()}
        # Kernels before 6.7 do not name the thread.
        with contextlib.suppress(ParshallError):
            assert use_thread(there, "eth0", 0) > 0
        return sent, inside, outside


def test_a_testbed_works_while_an_event_loop_runs():
    sent, inside, outside = asyncio.run(in_a_cell())
    assert sent >= 1
    assert inside == {"lo", "eth0"}
    assert outside != inside and "lo" in outside
