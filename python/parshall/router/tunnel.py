"""A tunnel from a testbed's router to its sink: the router encrypts, the sink decrypts or only counts."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from parshall.errors import ParshallError
from parshall.router.gateway import OVERHEAD_BYTES, PORT, Gateway, new_secret
from parshall.testbed import Host
from parshall.testbed.cables import has_ipv6

if TYPE_CHECKING:
    from parshall.router.testbed import RouterTestbed

TUN = "tun0"
# More specific than the destination's route by the link.
_DESTINATION = "198.18.1.0/25"
_DELIVERED_S = 2.0


@dataclass(frozen=True)
class Tunnel:
    """The gateways of a tunnel.

    Attributes
    ----------
    near : Gateway
        The router's.
    far : Gateway or None
        The sink's; None when the sink only counts datagrams.
    """

    near: Gateway
    far: Gateway | None


@contextmanager
def tunnel(
    bed: "RouterTestbed",
    *,
    cipher: str,
    has_far_end: bool = False,
    stamp_log: Path | None = None,
    stamp_capacity: int = 0,
) -> Iterator[Tunnel]:
    """Send what goes to the test's destination through gateways, until the end of the block.

    Parameters
    ----------
    bed : RouterTestbed
        The testbed.
    cipher : {"aes-gcm", "chacha20"}
        The cipher.
    has_far_end : bool
        Whether the sink runs the peer.
    stamp_log, stamp_capacity
        See `Gateway`.
    """
    near, far = (f"{bed.outside.address(host)}:{PORT}" for host in (bed.router, bed.sink))
    secret = new_secret()
    with ExitStack() as gateways:
        other = None
        if has_far_end:
            other = gateways.enter_context(
                Gateway(TUN, far, near, secret, is_first=False, cipher=cipher, netns=bed.sink.path)
            )
            _set_up(bed.sink, bed.outside.mtu)
        own = gateways.enter_context(
            Gateway(
                TUN,
                near,
                far,
                secret,
                is_first=True,
                cipher=cipher,
                netns=bed.router.path,
                cpu=bed.setup.router_cpu,
                stamp_log=stamp_log,
                stamp_capacity=stamp_capacity,
            )
        )
        _set_up(bed.router, bed.outside.mtu)
        bed.router.run(["ip", "route", "add", _DESTINATION, "dev", TUN])
        yield Tunnel(own, other)


def _set_up(host: Host, mtu: int) -> None:
    if has_ipv6():
        # No packets of the host's own.
        host.sysctl(f"net.ipv6.conf.{TUN}.disable_ipv6", 1)
    host.run(["ip", "link", "set", TUN, "up", "mtu", str(mtu - OVERHEAD_BYTES)])


def wait_for_delivery(gateways: Tunnel, packets: int) -> dict[str, int]:
    """Wait until the far gateway has written so many packets, and return its account.

    Raises
    ------
    ParshallError
        The peer is missing, or packets were lost.
    """
    deadline_s = time.monotonic() + _DELIVERED_S
    while True:
        gateways.near.check_peer()
        account = gateways.far.status() if gateways.far else {}
        if account.get("written", 0) >= packets:
            return account
        if time.monotonic() > deadline_s:
            raise ParshallError(
                f"gateway: {account.get('written', 0)} of {packets} packets came through the tunnel: "
                f"near end {gateways.near.status()}, far end {account}"
            )
        time.sleep(0.005)


def departures_by_stamp(times_ns: np.ndarray, stamp_log: Path, count: int) -> np.ndarray:
    """Return when each packet left, by the generator's sequence number.

    Parameters
    ----------
    times_ns : numpy.ndarray
        When each datagram left, by the tunnel's sequence number; 0: it did not.
    stamp_log : pathlib.Path
        The generator's sequence number in each datagram, by the tunnel's.
    count : int
        Number of packets offered.
    """
    stamps = np.fromfile(stamp_log, np.uint64)[: len(times_ns)]
    departures = np.zeros(count, np.uint64)
    is_ours = stamps < count
    departures[stamps[is_ours].astype(np.int64)] = times_ns[: len(stamps)][is_ours]
    return departures
