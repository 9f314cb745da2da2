"""Capture files as the timeline needs them: blocks of pcapng or pcap, and the TCP header of each packet."""

import ipaddress
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import IO, NamedTuple, cast

import pyarrow as pa

from parshall.errors import ParshallError, UsageError
from parshall.host.input_file import open_regular

SECTION, INTERFACE, ENHANCED, SIMPLE = 0x0A0D0D0A, 1, 6, 3
BLOCK_BYTES_MAX = 64 << 20
ETHERNET, RAW, IPV4, IPV6, COOKED, COOKED_2 = 1, 101, 228, 229, 113, 276
_PCAP_MAGICS = {0xA1B2C3D4: 1000, 0xA1B23C4D: 1}
_BYTE_ORDER = 0x1A2B3C4D
# First bytes of compressed files, and how Arrow names the compression.
_COMPRESSIONS = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"\x04\x22\x4d\x18": "lz4"}
_VLANS = (0x8100, 0x88A8, 0x9100)
# Headers of IPv6 before the one of TCP: hop-by-hop, routing, destination options.
_EXTENSIONS = (0, 43, 60)


class Segment(NamedTuple):
    """A TCP segment of a capture."""

    packet: int
    """Number of the packet in the file, from 1, as Wireshark counts."""
    time_ns: int
    """Nanoseconds since 1970."""
    source: str
    destination: str
    source_port: int
    destination_port: int
    seq: int
    ack: int
    payload_bytes: int


@dataclass
class Block:
    """A block of a pcapng file, or a record of a pcap file as if it were one."""

    kind: int
    body: bytes
    order: str
    """Byte order of its section, for `struct`."""
    time_ns: int | None = None
    link_type: int = 0
    data: bytes | None = None
    """The captured bytes of a packet; None for other blocks."""


@dataclass
class _Interface:
    link_type: int
    ticks_per_s: int = 1_000_000
    offset_s: int = 0


class Trace:
    """A capture file that is read block by block.

    Parameters
    ----------
    path : str or os.PathLike
        A pcapng or pcap file, also compressed with gzip, zstd or lz4.

    Raises
    ------
    UsageError
        The file cannot be read, or is of another kind.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        try:
            with _opened(self.path) as file:
                head = file.read(4)
        except OSError as error:
            raise UsageError(f"{self.path}: {error.strerror or error}; name a capture file") from None
        if not _is_head(head):
            raise UsageError(f"{self.path}: not a pcapng or pcap file, or not compressed with gzip, zstd or lz4")
        self.is_pcapng = struct.unpack("<I", head)[0] == SECTION

    def blocks(self) -> Iterator[Block]:
        """Yield the blocks; a file that was cut ends with its last whole block.

        Raises
        ------
        ParshallError
            The file is damaged.
        """
        try:
            with _opened(self.path) as file:
                yield from (_pcapng_blocks if self.is_pcapng else _pcap_blocks)(file, self.path)
        except OSError as error:
            raise ParshallError(f"{self.path}: cannot be read to its end: {error}; the file is damaged") from None

    def segments(self) -> Iterator[Segment]:
        """Yield the TCP segments whose headers were captured."""
        number = 0
        for block in self.blocks():
            if block.data is None:
                continue
            number += 1
            if block.time_ns is None:
                continue
            found = _tcp_header(block.link_type, block.data)
            if found:
                yield Segment(number, block.time_ns, *found)


def is_trace(path: Path) -> bool:
    """Return whether a file is a pcapng or pcap file, also compressed."""
    with _opened(path) as file:
        return _is_head(file.read(4))


def _opened(path: Path) -> IO[bytes]:
    file = open_regular(path)
    head = file.read(4)
    file.seek(0)
    compression = next((name for magic, name in _COMPRESSIONS.items() if head.startswith(magic)), None)
    return file if compression is None else cast("IO[bytes]", pa.input_stream(file, compression=compression))


def _is_head(head: bytes) -> bool:
    if len(head) < 4:
        return False
    numbers = {struct.unpack(order + "I", head[:4])[0] for order in "<>"}
    return bool(numbers & {SECTION, *_PCAP_MAGICS})


def _pcap_blocks(file: IO[bytes], path: Path) -> Iterator[Block]:
    head = file.read(24)
    order = "<" if struct.unpack("<I", head[:4])[0] in _PCAP_MAGICS else ">"
    if len(head) < 24:
        return
    tick_ns = _PCAP_MAGICS[struct.unpack(order + "I", head[:4])[0]]
    link_type = struct.unpack(order + "I", head[20:])[0] & 0xFFFF
    while len(record := file.read(16)) == 16:
        seconds, fraction, captured, wire = struct.unpack(order + "IIII", record)
        if captured > BLOCK_BYTES_MAX:
            raise ParshallError(f"{path}: a packet of {captured} bytes; the file is damaged")
        data = file.read(captured)
        if len(data) < captured:
            return
        body = struct.pack(order + "I", wire)
        yield Block(ENHANCED, body, order, seconds * 10**9 + fraction * tick_ns, link_type, data)


def _pcapng_blocks(file: IO[bytes], path: Path) -> Iterator[Block]:
    order, interfaces = "<", list[_Interface]()
    while len(head := file.read(8)) == 8:
        magic = b""
        if head[:4] == struct.pack("<I", SECTION):
            magic = file.read(4)
            if len(magic) < 4:
                return
            order = "<" if struct.unpack("<I", magic)[0] == _BYTE_ORDER else ">"
            if struct.unpack(order + "I", magic)[0] != _BYTE_ORDER:
                raise ParshallError(f"{path}: a section without byte order; the file is damaged")
            interfaces = []
        kind, length = struct.unpack(order + "II", head)
        if length % 4 or not 12 <= length <= BLOCK_BYTES_MAX:
            raise ParshallError(f"{path}: a block of {length} bytes; the file is damaged")
        body = magic + file.read(length - 8 - len(magic))
        if len(body) < length - 8:
            return
        if body[-4:] != head[4:]:
            raise ParshallError(f"{path}: a block whose two lengths differ; the file is damaged")
        block = Block(kind, body[:-4], order)
        try:
            if kind == INTERFACE:
                interfaces.append(_interface(block))
            elif kind == ENHANCED:
                _read_packet(block, interfaces)
            elif kind == SIMPLE:
                block.data, block.link_type = block.body[4:], interfaces[0].link_type
        except (struct.error, IndexError):
            raise ParshallError(f"{path}: a block of type {kind} that is too short; the file is damaged") from None
        yield block


def _interface(block: Block) -> _Interface:
    interface = _Interface(struct.unpack_from(block.order + "H", block.body)[0])
    for code, value in options_of(block.body[8:], block.order):
        if code == 9 and value:
            power = value[0] & 0x7F
            interface.ticks_per_s = 2 ** min(power, 63) if value[0] & 0x80 else 10 ** min(power, 18)
        elif code == 14 and len(value) == 8:
            interface.offset_s = struct.unpack(block.order + "q", value)[0]
    return interface


def _read_packet(block: Block, interfaces: list[_Interface]) -> None:
    number, high, low, captured, _ = struct.unpack_from(block.order + "IIIII", block.body)
    interface = interfaces[number]
    time_ns = ((high << 32) | low) * 10**9 // interface.ticks_per_s + interface.offset_s * 10**9
    # Times that do not fit into 64 bits are no times.
    block.time_ns = time_ns if 0 <= time_ns < 1 << 62 else 0
    block.link_type = interface.link_type
    block.data = block.body[20 : 20 + captured]
    if len(block.data) < captured:
        raise struct.error


def options_of(data: bytes, order: str) -> Iterator[tuple[int, bytes]]:
    """Yield the options at the end of a block: code and value."""
    start = 0
    while start + 4 <= len(data):
        code, length = struct.unpack_from(order + "HH", data, start)
        if code == 0:
            return
        yield code, data[start + 4 : start + 4 + length]
        start += 4 + (length + 3 & ~3)


@lru_cache(maxsize=4096)
def _address(value: bytes) -> str:
    address = ipaddress.ip_address(value)
    return str(getattr(address, "ipv4_mapped", None) or address)


def _tcp_header(link_type: int, data: bytes) -> tuple[str, str, int, int, int, int, int] | None:
    """Return addresses, ports, sequence number, acknowledgement and payload; None for other packets."""
    try:
        start = _network_header(link_type, data)
        return None if start is None else _from_network(data, start)
    except (struct.error, IndexError):
        return None


def _network_header(link_type: int, data: bytes) -> int | None:
    if link_type == ETHERNET:
        start = 14
        kind = struct.unpack_from(">H", data, 12)[0]
        while kind in _VLANS:
            kind = struct.unpack_from(">H", data, start + 2)[0]
            start += 4
        return start if kind in (0x0800, 0x86DD) else None
    return {RAW: 0, IPV4: 0, IPV6: 0, COOKED: 16, COOKED_2: 20}.get(link_type)


def _from_network(data: bytes, start: int) -> tuple[str, str, int, int, int, int, int] | None:
    version = data[start] >> 4
    if version == 4:
        length, fragment = struct.unpack_from(">H2xH", data, start + 2)
        header = start + (data[start] & 15) * 4
        if data[start + 9] != 6 or fragment & 0x1FFF:
            return None
        source, destination = data[start + 12 : start + 16], data[start + 16 : start + 20]
        end = start + (length or len(data) - start)
    elif version == 6:
        length, kind = struct.unpack_from(">HB", data, start + 4)
        header = start + 40
        while kind in _EXTENSIONS:
            kind, header = data[header], header + 8 * (data[header + 1] + 1)
        if kind != 6:
            return None
        source, destination = data[start + 8 : start + 24], data[start + 24 : start + 40]
        end = start + 40 + length if length else len(data)
    else:
        return None
    source_port, destination_port, seq, ack, offset = struct.unpack_from(">HHIIB", data, header)
    payload = end - header - (offset >> 4) * 4
    if payload < 0:
        return None
    return _address(source), _address(destination), source_port, destination_port, seq, ack, payload
