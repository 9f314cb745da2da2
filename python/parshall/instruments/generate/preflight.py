"""Checks before the first packet: reasons why none would arrive."""

from parshall.instruments.generate.interface import Interface


def reasons_not_to_send(interface: Interface, largest_ip_bytes: int, backend: str = "xdp") -> list[str]:
    """Return the reasons why packets would not arrive, each with its remedy; empty when they would.

    Parameters
    ----------
    interface : Interface
        The sending interface.
    largest_ip_bytes : int
        The largest IP packet of the workload.
    backend : str
        The backend; only live XDP frames need a receiver that accepts them.
    """
    name = interface.name
    reasons = []
    if not interface.is_up:
        reasons.append(f"{name} is down: ip link set {name} up")
    elif not interface.has_carrier:
        cause = "its peer is down" if interface.kind == "veth" else "nothing is connected to it"
        reasons.append(f"{name} has no carrier, {cause}: set the other end up")
    reasons += request_errors(interface, largest_ip_bytes)
    if backend == "xdp":
        reasons += [": ".join(obstacle) for obstacle in _live_frame_obstacles(interface)]
    return reasons


def request_errors(interface: Interface, largest_ip_bytes: int) -> list[str]:
    """Return the reasons that concern the request itself, not the state of the host."""
    if largest_ip_bytes <= interface.mtu_bytes:
        return []
    return [
        f"packets of {largest_ip_bytes} bytes are longer than the MTU of {interface.name}, {interface.mtu_bytes}: "
        f"choose smaller sizes, or set the MTU of both ends where they are: ip link set {interface.name} mtu "
        f"{largest_ip_bytes}"
    ]


def default_backend(interface: Interface, *, is_replay: bool, fits_live_frames: bool) -> tuple[str, str | None]:
    """Return the default backend, live frames where they arrive, and why it is a packet socket where it is.

    The sizes of a replay are fixed. For generated packets, other sizes can be requested, so the backend refuses those.

    Parameters
    ----------
    interface : Interface
        The sending interface.
    is_replay : bool
        Whether a capture file is replayed.
    fits_live_frames : bool
        Whether all frames are short enough.
    """
    obstacles = [reason for reason, _ in _live_frame_obstacles(interface)]
    if is_replay and not obstacles:
        # Old kernels do not report it; the packet socket works in any case.
        if not fits_live_frames:
            obstacles = ["the frames are too long for xdp"]
        elif interface.takes_xdp_frames is None:
            obstacles = [f"this kernel does not say whether {interface.name} sends redirected frames"]
    return ("af-packet", obstacles[0]) if obstacles else ("xdp", None)


def _live_frame_obstacles(interface: Interface) -> list[tuple[str, str]]:
    """Return why live frames would vanish, and what to do about it."""
    name = interface.name
    if interface.takes_xdp_frames is False:
        if interface.kind == "veth":
            reason = f"the peer of {name} has no NAPI, so redirected frames are dropped"
            return [(reason, "ethtool -K PEER gro on, or attach an XDP program to it, or use --backend af-packet")]
        return [(f"the driver of {name} sends no redirected frames (no ndo_xdp_xmit)", "use --backend af-packet")]
    if interface.takes_xdp_frames is None and interface.kind in ("dummy", "ifb", "tun", "macvlan", "vlan", "vxlan"):
        reason = f"{name} is a {interface.kind}, for which the kernel does not report support of XDP frames"
        return [(reason, "use --backend af-packet, a veth, or a card whose driver has ndo_xdp_xmit")]
    return []
