"""One link that several hosts observe at once, each of which gets every packet."""

from collections.abc import Sequence
from typing import Any

from parshall.errors import UsageError
from parshall.lab.study import Host, Link

_BRIDGE = "split"


def splitter(name: str, source: str, sniffers: Sequence[str], **options: Any) -> tuple[Host, list[Link]]:
    """Return a host that copies what comes from another one to several, and its links.

    On this machine it is a bridge that learns no addresses, so that it sends each frame to every port. With real hosts
    put a splitter or the mirror port of a switch in its place, and leave it out of the study.

    Parameters
    ----------
    name : str
        Name of the host.
    source : str
        The host whose packets are observed.
    sniffers : sequence of str
        The hosts that get them.
    **options
        Arguments of the links, see `Link`.

    Returns
    -------
    host : Host
        The splitter.
    links : list of Link
        From the source to the splitter, and from there to each sniffer, in their order.
    """
    if not sniffers or len({name, source, *sniffers}) < len(sniffers) + 2:
        raise UsageError(f"splitter {name}: expected a source and sniffers with names of their own")
    ports = [f"{{{name}.interfaces[{number}]}}" for number in range(len(sniffers) + 1)]
    # It forgets at once where an address is, and asks for no groups.
    bridge = ["ip", "link", "add", _BRIDGE, "type", "bridge", "ageing_time", "0", "mcast_snooping", "0"]
    quiet = f"[ ! -d /proc/sys/net/ipv6 ] || echo 1 > /proc/sys/net/ipv6/conf/{_BRIDGE}/disable_ipv6"
    commands = [
        bridge,
        ["sh", "-c", quiet],
        *(["ip", "link", "set", port, "master", _BRIDGE] for port in ports),
        ["ip", "link", "set", _BRIDGE, "up"],
    ]
    links = [Link(source, name, **options), *(Link(name, sniffer, **options) for sniffer in sniffers)]
    return Host(name, commands=commands), links
