"""A program that forwards between two interfaces and drops, delays or answers exactly the segments that a script names.

The script is a line of JSON on standard input: the interfaces, the client's port, the delay of each direction, and
rules. After another line, the program prints "quiet" when no packet is under way. At the end of standard input it
prints what it did with each segment, as JSON. Packets keep their order unless a rule lets others overtake one.
"""

import errno
import heapq
import json
import os
import select
import socket
import struct
import sys
import time
from itertools import count

ETH_P_ALL = 3
SOL_PACKET, PACKET_IGNORE_OUTGOING = 263, 23
SO_RCVBUFFORCE = 33
IPV4, IPV6 = 0x0800, 0x86DD
FIN, SYN, ACK = 1, 2, 16
# Bytes of the packet that an ICMP error returns: headers of IPv6 and TCP.
RETURNED_BYTES = 60
# A host answers a packet sooner.
ANSWER_MS = 5


class Connection:
    """Numbers the segments of one connection.

    Data segments, SYN and FIN are numbered by their first byte, in the order in which they first come; the SYN has
    number 0. A pure ACK has the number of the last data segment of the other end that it acknowledges.
    """

    def __init__(self):
        self.numbers = {"client": {}, "server": {}}
        self.ends = {"client": {}, "server": {}}
        self.seen = {}

    def name(self, source, segment):
        """Return kind, number and transmission (1 is the first) of a segment."""
        other = "server" if source == "client" else "client"
        extent = segment["payload_bytes"] + bool(segment["flags"] & SYN) + bool(segment["flags"] & FIN)
        if extent:
            kind = "syn" if segment["flags"] & SYN else "data" if segment["payload_bytes"] else "fin"
            numbers = self.numbers[source]
            number = numbers.setdefault(segment["seq"], len(numbers))
            self.ends[source].setdefault((segment["seq"] + extent) & 0xFFFFFFFF, number)
        else:
            kind = "ack"
            number = self.ends[other].get(segment["ack"], -1)
        self.seen[source, kind, number] = transmission = self.seen.get((source, kind, number), 0) + 1
        return kind, number, transmission


def parse(frame, port):
    """Return the fields of a TCP segment with this port; None for other packets."""
    protocol = int.from_bytes(frame[12:14], "big")
    if protocol == IPV4 and frame[23] == socket.IPPROTO_TCP:
        at, end = 14 + (frame[14] & 15) * 4, 14 + int.from_bytes(frame[16:18], "big")
    elif protocol == IPV6 and frame[20] == socket.IPPROTO_TCP:
        at, end = 54, 54 + int.from_bytes(frame[18:20], "big")
    else:
        return None
    source_port, destination_port, seq, ack, offset, flags = struct.unpack_from("!HHIIBB", frame, at)
    if port not in (source_port, destination_port):
        return None
    data = at + (offset >> 4) * 4
    begin, duplicate_end = duplicate(frame[at + 20 : data], ack)
    return {
        "seq": seq,
        "ack": ack,
        "flags": flags,
        "payload_bytes": end - data,
        "duplicate_begin": begin,
        "duplicate_end": duplicate_end,
    }


def duplicate(options, ack):
    """Return the ends of what a receiver says came twice (RFC 2883), or None of both: D-SACK is of one packet only."""
    while options and options[0] != 0:
        length = 1 if options[0] == 1 else max(2, options[1])
        if options[0] == 5:
            edges = struct.unpack_from(f"!{(length - 2) // 4}I", options, 2)
            # Differences of sequence numbers, which wrap.
            is_acknowledged = 0 < (ack - edges[0]) & 0xFFFFFFFF < 1 << 31
            if is_acknowledged or (len(edges) > 2 and is_within(edges[:2], edges[2:4])):
                return edges[:2]
        options = options[length:]
    return None, None


def is_within(inner, outer):
    """Return whether a span of sequence numbers is part of another one."""
    size = (outer[1] - outer[0]) & 0xFFFFFFFF
    return all((edge - outer[0]) & 0xFFFFFFFF <= size for edge in inner)


def checksum(data):
    """Return the Internet checksum (RFC 1071)."""
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def too_big(frame, mtu):
    """Return the frame that tells the source of `frame` that the MTU of the path is smaller."""
    ethernet = frame[6:12] + frame[:6] + frame[12:14]
    returned = frame[14 : 14 + RETURNED_BYTES]
    if frame[12:14] == IPV4.to_bytes(2, "big"):
        message = struct.pack("!BBHHH", 3, 4, 0, 0, mtu) + returned
        message = message[:2] + checksum(message).to_bytes(2, "big") + message[4:]
        header = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(message), 0, 0, 64, socket.IPPROTO_ICMP, 0)
        header += frame[30:34] + frame[26:30]
        return ethernet + header[:10] + checksum(header).to_bytes(2, "big") + header[12:] + message
    addresses = frame[38:54] + frame[22:38]
    message = struct.pack("!BBHI", 2, 0, 0, mtu) + returned
    pseudo_header = addresses + struct.pack("!II", len(message), socket.IPPROTO_ICMPV6)
    message = message[:2] + checksum(pseudo_header + message).to_bytes(2, "big") + message[4:]
    header = struct.pack("!IHBB", 6 << 28, len(message), socket.IPPROTO_ICMPV6, 64) + addresses
    return ethernet + header + message


class Box:
    """Forwards packets by a script."""

    def __init__(self, script):
        self.port = script["port"]
        self.delay_s = script["delay_ms"] / 1000
        self.rules = script["rules"]
        self.connection = Connection()
        self.log = []
        self.waiting = []
        self.order = count()
        self.released_s = {"client": 0.0, "server": 0.0}
        self.is_asked = False
        self.sockets = {}
        for source, interface in zip(("client", "server"), script["interfaces"], strict=True):
            opened = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
            opened.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
            opened.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)
            opened.bind((interface, ETH_P_ALL))
            opened.setblocking(False)
            self.sockets[source] = opened

    def rule_for(self, source, kind, number, transmission):
        """Return the first rule for a segment; without a rule it is forwarded."""
        for rule in self.rules:
            if (
                rule["source"] == source
                and rule["kind"] == kind
                and (rule["numbers"] is None or number in rule["numbers"])
                and (rule["transmissions"] is None or transmission in rule["transmissions"])
            ):
                return rule
        return {"action": "forward"}

    def take(self, source, frame, now_s):
        """Decide on a packet that has come."""
        entry = None
        rule = {"action": "forward"}
        fields = parse(frame, self.port)
        if fields:
            kind, number, transmission = self.connection.name(source, fields)
            rule = self.rule_for(source, kind, number, transmission)
            entry = {"source": source, "kind": kind, "number": number, "transmission": transmission, **fields}
            entry |= {"time_s": now_s, "due_s": None, "forwarded_s": None}
            self.log.append(entry)
        out = "server" if source == "client" else "client"
        if rule["action"] == "drop":
            return
        release_s = now_s + self.delay_s + rule.get("delay_ms", 0) / 1000
        if rule["action"] == "too_big":
            entry["due_s"] = release_s
            heapq.heappush(self.waiting, (release_s, next(self.order), source, too_big(frame, rule["mtu"]), entry))
            return
        if rule["action"] != "let_overtake":
            release_s = self.released_s[source] = max(release_s, self.released_s[source])
        if entry:
            entry["due_s"] = release_s
        heapq.heappush(self.waiting, (release_s, next(self.order), out, frame, entry))

    def run(self):
        """Forward until standard input ends."""
        poller = select.poll()
        poller.register(0, select.POLLIN | select.POLLHUP)
        by_descriptor = {opened.fileno(): source for source, opened in self.sockets.items()}
        for descriptor in by_descriptor:
            poller.register(descriptor, select.POLLIN)
        print("forwarding", flush=True)
        while True:
            timeout_ms = ANSWER_MS if self.is_asked else None
            if self.waiting:
                timeout_ms = max(0, (self.waiting[0][0] - time.monotonic()) * 1000)
            ready = poller.poll(timeout_ms)
            for descriptor, _ in ready:
                if descriptor == 0:
                    if not os.read(0, 1 << 16):
                        return
                    self.is_asked = True
                else:
                    self.receive(by_descriptor[descriptor])
            if self.is_asked and not ready and not self.waiting:
                self.is_asked = False
                print("quiet", flush=True)
            self.send()

    def receive(self, source):
        """Take in all packets of an interface."""
        while True:
            try:
                frame = self.sockets[source].recv(65536)
            except BlockingIOError:
                return
            self.take(source, frame, time.monotonic())

    @staticmethod
    def send_one(opened, frame):
        """Send a packet, again where the CPU's backlog was full: only the script may drop one."""
        while True:
            try:
                opened.send(frame)
                return
            except OSError as error:
                if error.errno not in (errno.ENOBUFS, errno.EAGAIN):
                    raise
            time.sleep(0.0005)

    def send(self):
        """Send the packets that are due."""
        while self.waiting and self.waiting[0][0] <= time.monotonic():
            _, _, out, frame, entry = heapq.heappop(self.waiting)
            self.send_one(self.sockets[out], frame)
            if entry:
                entry["forwarded_s"] = time.monotonic()


if __name__ == "__main__":
    # As the relay: busy programs must not delay what the script does not delay.
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    box = Box(json.loads(sys.stdin.readline()))
    box.run()
    json.dump(box.log, sys.stdout)
