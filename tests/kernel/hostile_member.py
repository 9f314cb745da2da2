"""A hostile member of a ring's group: it sends anything to the keeper, reads now and then, disconnects at any moment.

``python tests/kernel/hostile_member.py RING SECONDS`` attacks, and prints the numbers of messages and answers.
"""

import array
import contextlib
import json
import os
import select
import socket
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

RUN_DIRECTORY = Path("/run/parshall")
MEMBER = 65534
LIST = {"request": "list"}
VERSION = 3
JOIN = {"request": "join", "version": VERSION}
# Limit of one packet to the keeper; longer messages are split.
PART_BYTES = 128 << 10
# The keeper answers most requests sooner; an unanswered one must not delay the attack.
ANSWER_S = 0.002


class KeeperConnection:
    """A connection to a ring's keeper, for any message."""

    def __init__(self, ring: str, user: int = MEMBER, group: int | None = None) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(60)
        # The keeper reads the peer's credentials when it connects.
        groups = os.getgroups()
        os.setgroups([])
        os.setegid(user if group is None else group)
        os.seteuid(user)
        try:
            self.socket.connect(str(RUN_DIRECTORY / f"{ring}.ring"))
        finally:
            os.seteuid(0)
            os.setegid(0)
            os.setgroups(groups)

    def send(self, what: Any) -> None:
        """Send a message."""
        self.socket.send(what if isinstance(what, bytes) else json.dumps(what).encode())

    def receive(self) -> tuple[dict[str, Any] | None, list[int]]:
        """Return the next message, or None at the end, and the descriptors that it carried."""
        room = socket.CMSG_SPACE(4 * struct.calcsize("i"))
        try:
            data, beside, _, _ = self.socket.recvmsg(1 << 20, room)
        except ConnectionResetError:
            # The keeper closed with unread messages; its last message is still readable.
            data, beside, _, _ = self.socket.recvmsg(1 << 20, room)
        descriptors = array.array("i")
        for _, _, sent in beside:
            descriptors.frombytes(sent)
        return (json.loads(data) if data else None), list(descriptors)

    def refusal(self) -> str:
        """Return the reason of a refusal: the last message before the keeper closes."""
        message, _ = self.receive()
        assert message is not None
        assert message["answer"] == "refused", message
        return message["message"]

    def close(self) -> None:
        """Close the connection."""
        self.socket.close()


def hostile_message(random: Random) -> bytes:
    """Return an almost valid request: wrong values, flipped bytes, or an unfinished message."""
    # ldh [12]; jeq #0x800, 0, 1; ret #96; ret #0
    program = [0x28 << 48 | 12, 0x15 << 48 | 1 << 32 | 0x800, 6 << 48 | 96, 6 << 48]
    for _ in range(random.randrange(3)):
        program[random.randrange(4)] = random.getrandbits(64)
    numbers = (0, 1, 96, 262_144, 1 << 31, (1 << 64) - 1, -1, 0.5, None, "1", [], {})
    subscription = {"filter": random.choice(["", "ip", "\x1b[31m", "x" * 5000]), "snaplen": random.choice(numbers)}
    programs = [[random.choice((1, 1, 1, 101, 65_535)), program * random.choice((1, 1, 1, 2000))]]
    compiled = {"by_link_type": programs, "view": random.choice(("whole", "untagged", "untagged", "", 0))}
    subscriptions = [[subscription, compiled]] * random.choice((1, 1, 2, 17, 70))
    message: Any = random.choice(
        [
            LIST,
            JOIN,
            {"request": "join", "version": random.choice(numbers)},
            {"request": "account"},
            {"request": "leave"},
            {"request": "subscribe", "subscriptions": random.choice([subscriptions, subscriptions, *numbers])},
            {"request": "found", "ring": random.choice(numbers), "version": VERSION},
            random.choice(numbers),
        ]
    )
    data = bytearray(json.dumps(message).encode()[:PART_BYTES])
    for _ in range(random.choice((0, 0, 0, 1, 5))):
        data[random.randrange(len(data))] = random.getrandbits(8)
    return random.choice((b"", b"", b"", b"", b"", b"+")) + bytes(data)


def attack(ring: str, random: Random, goes_on: Callable[[int], bool]) -> tuple[int, int]:
    """Send until `goes_on`, called with the number of messages, returns false; count messages and answers."""
    connections: list[KeeperConnection] = []
    sent_messages = answered = 0
    try:
        while goes_on(sent_messages):
            if len(connections) < 8 or random.random() < 0.01:
                connections.append(KeeperConnection(ring))
                connections[-1].socket.setblocking(False)
            number = random.randrange(len(connections))
            connection = connections[number]
            try:
                connection.send(hostile_message(random))
                sent_messages += 1
                if random.random() < 0.5 and select.select([connection.socket], [], [], ANSWER_S)[0]:
                    message, descriptors = connection.receive()
                    answered += message is not None
                    for descriptor in descriptors:
                        os.close(descriptor)
            except BlockingIOError:
                pass
            except OSError:
                connections.pop(number).close()
            if len(connections) > 24:
                connections.pop(random.randrange(len(connections))).close()
    finally:
        for connection in connections:
            connection.close()
    return sent_messages, answered


if __name__ == "__main__":
    end_s = time.monotonic() + float(sys.argv[2])
    # A signal may end it early.
    with contextlib.suppress(KeyboardInterrupt):
        print(*attack(sys.argv[1], Random(1), lambda _: time.monotonic() < end_s))
