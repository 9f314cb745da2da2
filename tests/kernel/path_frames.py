"""IP packets that a test makes byte by byte, so that each is known to be good or bad, and for which reason."""

import socket
import struct
from dataclasses import dataclass

UDP, TCP, ICMP, ICMP6, FRAGMENT, NO_PROTOCOL = 17, 6, 1, 58, 44, 253


def checksum(data: bytes) -> int:
    """Return the checksum of the Internet over some bytes."""
    words = struct.unpack(f"!{(len(data) + 1) // 2}H", data + bytes(len(data) % 2))
    total = sum(words)
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


@dataclass(frozen=True)
class Ends:
    """Two addresses of one family, and the headers between them."""

    source: str
    destination: str

    @property
    def version(self) -> int:
        """4 or 6."""
        return 6 if ":" in self.source else 4

    def _packed(self) -> bytes:
        family = socket.AF_INET6 if self.version == 6 else socket.AF_INET
        return socket.inet_pton(family, self.source) + socket.inet_pton(family, self.destination)

    def _transport_checksum(self, protocol: int, segment: bytes) -> int:
        return checksum(self._packed() + struct.pack("!II", len(segment), protocol) + segment)

    def udp(self, port: int, payload: bytes, *, source_port: int = 40000, is_wrong: bool = False) -> bytes:
        """A UDP header with its payload; `is_wrong` breaks the checksum."""
        head = struct.pack("!HHH", source_port, port, 8 + len(payload))
        right = self._transport_checksum(UDP, head + bytes(2) + payload) or 0xFFFF
        return head + struct.pack("!H", (right ^ 0x5555) or 1 if is_wrong else right) + payload

    def tcp_with_wrong_checksum(self, port: int) -> bytes:
        """A SYN that no connection may take."""
        head = struct.pack("!HHIIBBH", 40000, port, 1, 0, 5 << 4, 2, 1000)
        return head + struct.pack("!HH", self._transport_checksum(TCP, head + bytes(4)) ^ 0x5555, 0)

    def echo_request(self, number: int, *, is_wrong: bool = False) -> bytes:
        """A question of ping."""
        head, rest = struct.pack("!BB", 128 if self.version == 6 else 8, 0), struct.pack("!HH", 77, number) + bytes(32)
        data = head + bytes(2) + rest
        right = self._transport_checksum(ICMP6, data) if self.version == 6 else checksum(data)
        return head + struct.pack("!H", right ^ 0x5555 if is_wrong else right) + rest

    @property
    def icmp(self) -> int:
        """The number of ICMP."""
        return ICMP6 if self.version == 6 else ICMP

    def packet(
        self,
        protocol: int,
        payload: bytes,
        *,
        hops: int = 64,
        identification: int = 0,
        fragment: tuple[int, bool] | None = None,
        may_be_cut: bool = True,
        is_wrong: bool = False,
    ) -> bytes:
        """A packet of IP; `fragment` is the offset of its payload in a datagram, and whether more follow."""
        offset, more = fragment or (0, False)
        if self.version == 6:
            if fragment is not None:
                payload = struct.pack("!BBHI", protocol, 0, offset | more, identification) + payload
                protocol = FRAGMENT
            return struct.pack("!IHBB", 6 << 28, len(payload), protocol, hops) + self._packed() + payload
        flags = (offset >> 3) | (0x2000 if more else 0) | (0 if may_be_cut else 0x4000)
        head = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(payload), identification, flags, hops, protocol, 0)
        right = checksum(head + self._packed())
        return head[:10] + struct.pack("!H", right ^ 0x5555 if is_wrong else right) + self._packed() + payload

    def fragments(self, datagram: bytes, identification: int, pieces: int) -> list[bytes]:
        """The packets of a UDP datagram that was cut into so many pieces."""
        size = (len(datagram) // pieces + 7) & ~7
        offsets = range(0, len(datagram), size)
        return [
            self.packet(
                UDP,
                datagram[offset : offset + size],
                identification=identification,
                fragment=(offset, offset + size < len(datagram)),
            )
            for offset in offsets
        ]
