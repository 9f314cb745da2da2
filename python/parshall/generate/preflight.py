"""What is known before the first packet: why none would arrive."""

from parshall.generate.interface import Interface


def reasons_not_to_send(interface: Interface, largest_ip_bytes: int, backend: str = "xdp") -> list[str]:
    """Return why packets would not arrive, each with its remedy; empty when they would.

    Parameters
    ----------
    interface : Interface
        What sends.
    largest_ip_bytes : int
        The largest IP packet of the workload.
    backend : str
        What sends: only live XDP frames need somebody who takes them.
    """
    name = interface.name
    reasons = []
    if not interface.is_up:
        reasons.append(f"{name} is down: ip link set {name} up")
    elif not interface.has_carrier:
        other = "its peer is down" if interface.kind == "veth" else "nothing is connected to it"
        reasons.append(f"{name} has no carrier, {other}: set the other end up")
    reasons += reasons_not_to_ask_for(interface, largest_ip_bytes)
    if backend == "xdp":
        reasons += _reasons_not_to_take_frames(interface)
    return reasons


def reasons_not_to_ask_for(interface: Interface, largest_ip_bytes: int) -> list[str]:
    """Return those of these reasons that are the request's own, whatever the state of the host."""
    if largest_ip_bytes <= interface.mtu_bytes:
        return []
    return [
        f"packets of {largest_ip_bytes} bytes are longer than the MTU of {interface.name}, {interface.mtu_bytes}: "
        f"choose smaller sizes, or ip link set {interface.name} mtu {largest_ip_bytes} (and its peer's)"
    ]


def default_backend(interface: Interface, *, is_replay: bool, fits_live_frames: bool) -> str:
    """Return what sends when that is left open: live frames; for a capture file that they cannot send, a socket.

    A file has the sizes that it has, while a law may be asked for others: there the reasons are told instead.

    Parameters
    ----------
    interface : Interface
        What sends.
    is_replay : bool
        Whether a capture file is sent.
    fits_live_frames : bool
        Whether its frames are short enough.
    """
    # An old kernel does not tell; by a socket the file arrives in any case.
    can = fits_live_frames and interface.takes_xdp_frames is True
    return "af-packet" if is_replay and not can else "xdp"


def _reasons_not_to_take_frames(interface: Interface) -> list[str]:
    name = interface.name
    if interface.takes_xdp_frames is False:
        if interface.kind == "veth":
            return [
                f"the peer of {name} has no NAPI, so that redirected frames vanish: ethtool -K PEER gro on, "
                "or attach an XDP program to it, or take --backend af-packet"
            ]
        return [f"the driver of {name} sends no redirected frames (no ndo_xdp_xmit): take --backend af-packet"]
    if interface.takes_xdp_frames is None and interface.kind in ("dummy", "ifb", "tun", "macvlan", "vlan", "vxlan"):
        return [
            f"{name} is a {interface.kind}, and the kernel tells nothing of XDP frames for it: take "
            "--backend af-packet, a veth, or a card whose driver has ndo_xdp_xmit"
        ]
    return []
