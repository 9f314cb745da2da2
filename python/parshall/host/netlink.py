"""Route netlink sockets whose requests no signal breaks off."""

from collections.abc import Iterator
from contextlib import contextmanager

from pyroute2 import IPRoute

from parshall.host.stopping import uninterrupted


@contextmanager
def route_socket() -> Iterator[IPRoute]:
    """Open a route netlink socket in the network namespace of the calling thread.

    Signals wait until it is closed: pyroute2 runs its requests in an event loop, and an exception that a signal raises
    in there leaves a part of the request behind, about which Python complains on standard error.
    """
    with uninterrupted(), IPRoute() as route:
        yield route
