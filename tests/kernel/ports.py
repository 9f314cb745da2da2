"""Ports for tests.

A log sees the connections of all namespaces, so tests that run at once must not share a port.
"""

import os
from itertools import count

_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
# From here on, below the ports that the kernel gives to sockets by default.
_FIRST, _PORTS_OF_A_WORKER = 20000, 1500

PORTS = count(_FIRST + _WORKER * _PORTS_OF_A_WORKER)
"""Ports that no other test has."""
CLIENT_PORTS = f"10000 {_FIRST - 1}"
"""For `net.ipv4.ip_local_port_range`, where a test needs many clients: none of the ports of `PORTS`."""
