"""Frames of every kind that a program of libpcap meets at an Ethernet interface."""

import socket
import struct
from dataclasses import dataclass
from typing import Any

from capturer import Sender
from path_frames import TCP, UDP, Ends

SOURCE, DESTINATION = bytes.fromhex("027073000800"), bytes.fromhex("027073000001")
IP, IP6, ARP, VLAN, SERVICE_VLAN, MPLS, PPPOE = 0x0800, 0x86DD, 0x0806, 0x8100, 0x88A8, 0x8847, 0x8864
HOPS, ROUTES, OPTIONS = 0, 43, 60
MTU_BYTES = 9200
ENDS, ENDS6 = Ends("192.0.2.1", "192.0.2.2"), Ends("fd70::1", "fd70::2")
PORT = 5999
_VNET_HEADER, _PACKET_VNET_HDR, _SOL_PACKET, _SO_SNDBUFFORCE = "=BBHHHH", 15, 263, 32
_NEEDS_CHECKSUM, _TCP4, _TCP6 = 1, 1, 4


@dataclass(frozen=True)
class Frame:
    """A frame, and for one of many segments (GSO) how they are cut."""

    data: bytes
    segment_bytes: int = 0
    headers_bytes: int = 0


def ethernet(kind: int, payload: bytes, *tags: tuple[int, int]) -> bytes:
    """A frame; its tags are in line, the outer one first."""
    between = b"".join(struct.pack("!HH", *tag) for tag in tags)
    return DESTINATION + SOURCE + between + kind.to_bytes(2, "big") + payload


def _segment(payload_bytes: int) -> bytes:
    return struct.pack("!HHIIBBHHH", 40000, PORT, 7, 9, 5 << 4, 0x10, 1000, 0, 0) + bytes(payload_bytes)


def _options(following: int) -> bytes:
    """An extension header of IPv6 with padding alone."""
    return struct.pack("!BBBB", following, 0, 1, 4) + bytes(4)


def _jumbogram(payload_bytes: int) -> bytes:
    """BIG TCP: the length is in an option, as it does not fit the header (RFC 2675)."""
    segment = _segment(payload_bytes)
    jumbo = struct.pack("!BBBBI", TCP, 0, 0xC2, 4, len(segment) + 8)
    packet = bytearray(ENDS6.packet(HOPS, jumbo))
    packet[4:6] = bytes(2)
    return bytes(packet) + segment


def frames() -> dict[str, list[Frame]]:
    """Frames by their kind."""
    datagram, datagram6 = ENDS.udp(PORT, b"x" * 30), ENDS6.udp(PORT, b"x" * 30)
    packet, packet6 = ENDS.packet(UDP, datagram), ENDS6.packet(UDP, datagram6)
    long = ENDS.udp(PORT, b"y" * 2000)
    vxlan = bytes.fromhex("0800000000000700") + ethernet(IP, packet)
    kinds = {
        "untagged": [ethernet(IP, packet), ethernet(IP6, packet6), ethernet(IP, ENDS.packet(TCP, _segment(40)))],
        "tagged": [
            ethernet(IP, packet, (VLAN, 5)),
            ethernet(IP6, packet6, (VLAN, 0x6006)),
            ethernet(ARP, bytes(28), (VLAN, 5)),
        ],
        "QinQ": [ethernet(IP, packet, (SERVICE_VLAN, 5), (VLAN, 6)), ethernet(IP, packet, (VLAN, 6), (VLAN, 5))],
        "jumbo": [ethernet(IP, ENDS.packet(UDP, ENDS.udp(PORT, b"j" * 9000)))],
        "cut": [ethernet(IP, packet[:bytes_]) for bytes_ in (1, 12, 20, 24, 30)] + [ethernet(IP6, packet6[:41])],
        "zero-length": [ethernet(IP, b""), ethernet(IP, ENDS.packet(UDP, ENDS.udp(PORT, b"")))],
        "fragments": [
            ethernet(IP, ENDS.packet(UDP, long[:1480], fragment=(0, True))),
            ethernet(IP, ENDS.packet(UDP, long[1480:], fragment=(1480, False))),
            ethernet(IP6, ENDS6.packet(UDP, long[:1232], fragment=(0, True))),
            ethernet(IP6, ENDS6.packet(UDP, long[1232:], fragment=(1232, False))),
        ],
        "ARP": [ethernet(ARP, bytes.fromhex("0001080006040001") + SOURCE + bytes(4) + bytes(6) + bytes(4))],
        "extension headers": [
            ethernet(IP6, ENDS6.packet(HOPS, _options(UDP) + datagram6)),
            ethernet(IP6, ENDS6.packet(HOPS, _options(OPTIONS) + _options(UDP) + datagram6)),
            ethernet(IP6, ENDS6.packet(ROUTES, _options(TCP) + _segment(10))),
        ],
        "MPLS": [ethernet(MPLS, struct.pack("!I", 0x00010140) + packet)],
        "PPPoE": [ethernet(PPPOE, struct.pack("!BBHHH", 0x11, 0, 7, len(packet) + 2, 0x21) + packet)],
        "VXLAN": [ethernet(IP, ENDS.packet(UDP, ENDS.udp(4789, vxlan)))],
        "LLC": [ethernet(38, bytes.fromhex("424203") + bytes(35))],
    }
    found = {name: [Frame(data) for data in each] for name, each in kinds.items()}
    head = 14 + 20 + 20
    found["GSO"] = [Frame(ethernet(IP, ENDS.packet(TCP, _segment(8000))), 1448, head)]
    found["BIG TCP"] = [Frame(ethernet(IP6, _jumbogram(80_000)), 1440, 14 + 40 + 8 + 20)]
    return found


class FrameSender:
    """Sends frames from an interface, also those of many segments."""

    def __init__(self, host: Any, interface: str) -> None:
        self._sender = Sender(host, interface)
        self._sender.socket.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, 1 << 20)
        self._sender.socket.setsockopt(_SOL_PACKET, _PACKET_VNET_HDR, 1)

    def send(self, frames: list[Frame]) -> None:
        """Send them in this order."""
        self._sender.send([_with_header(frame) for frame in frames])

    def close(self) -> None:
        """Close the socket."""
        self._sender.close()


def _with_header(frame: Frame) -> bytes:
    """Put a header before a frame that says how it is cut (struct virtio_net_hdr)."""
    if not frame.segment_bytes:
        return bytes(struct.calcsize(_VNET_HEADER)) + frame.data
    kind = _TCP6 if frame.data[12:14] == IP6.to_bytes(2, "big") else _TCP4
    checksum_at = (frame.headers_bytes - 20, 16)
    return (
        struct.pack(_VNET_HEADER, _NEEDS_CHECKSUM, kind, frame.headers_bytes, frame.segment_bytes, *checksum_at)
        + frame.data
    )
