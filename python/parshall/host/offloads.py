"""Offloads of an interface (with them off, one packet in the kernel is one packet on the wire) and its driver."""

import fcntl
import socket
import struct
from array import array

from parshall.errors import ParshallError

_SIOCETHTOOL = 0x8946
_GET_DRIVER = 0x03
# Names as in ethtool -K, with the commands that get and set them (linux/ethtool.h). Order matters for
# disabling: segmentation depends on checksums, and is disabled with them.
_COMMANDS = {
    "rx": (0x14, 0x15),
    "tx": (0x16, 0x17),
    "sg": (0x18, 0x19),
    "tso": (0x1E, 0x1F),
    "gso": (0x23, 0x24),
    "gro": (0x2B, 0x2C),
}
NAMES = tuple(_COMMANDS)


def read(interface: str) -> dict[str, bool]:
    """Return the state of the offloads of an interface of the calling thread's namespace."""
    return {name: bool(_ethtool(interface, name, get, 0)) for name, (get, _) in _COMMANDS.items()}


def switch(interface: str, on: bool) -> None:
    """Switch all offloads of an interface of the calling thread's namespace, and verify their state.

    Raises
    ------
    ParshallError
        The interface refuses, or an offload does not change. Receive checksumming is not switched: some
        drivers do not support that, and it does not change packets.
    """
    for name, (get, set_) in _COMMANDS.items():
        if name == "rx":
            continue
        _ethtool(interface, name, set_, int(on))
        if bool(_ethtool(interface, name, get, 0)) != on:
            raise ParshallError(
                f"interface {interface}: offload {name} cannot be switched {'on' if on else 'off'}; "
                f"see ethtool -k {interface}"
            )


def driver(interface: str) -> str | None:
    """Return the driver of an interface of the calling thread's namespace; None if it has none."""
    # struct ethtool_drvinfo: the command, the driver in 32 bytes, and further fields.
    data = array("B", struct.pack("I192x", _GET_DRIVER))
    try:
        _ethtool_ioctl(interface, data)
    except OSError:
        return None
    return data.tobytes()[4:36].split(b"\0", 1)[0].decode(errors="replace") or None


def _ethtool(interface: str, offload: str, command: int, value: int) -> int:
    data = array("B", struct.pack("II", command, value))
    try:
        _ethtool_ioctl(interface, data)
    except OSError as error:
        raise ParshallError(
            f"interface {interface}: offload {offload}: {error.strerror}; it needs CAP_NET_ADMIN"
        ) from error
    return int(struct.unpack("II", data.tobytes())[1])


def _ethtool_ioctl(interface: str, data: "array[int]") -> None:
    """Pass an ethtool structure to the kernel through struct ifreq; the kernel writes the answer into it."""
    address, _ = data.buffer_info()
    request = struct.pack("16sP16x", interface.encode(), address)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, _SIOCETHTOOL, request)
