"""Talks to another host: one line for each round, after a connection, a datagram and an echo request."""

import contextlib
import socket
import struct
import sys
import threading

PEER = "10.9.0.2"
QUESTION_BYTES = 1000


def serve() -> None:
    """Answer connections to port 443."""
    with socket.create_server((PEER, 443)) as listener:
        print("serving", flush=True)
        while True:
            connection, _ = listener.accept()
            # Who talks is killed amid a connection.
            with connection, contextlib.suppress(ConnectionError):
                # One answer to each question, however it is cut.
                while len(connection.recv(QUESTION_BYTES, socket.MSG_WAITALL)) == QUESTION_BYTES:
                    connection.sendall(b"needle" * 1000)


def talk() -> None:
    """Send, and read what comes."""
    with socket.create_connection((PEER, 443)) as connection:
        for _ in range(3):
            connection.sendall(bytes(QUESTION_BYTES))
            wanted = 6000
            while wanted:
                wanted -= len(connection.recv(wanted))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as question, contextlib.suppress(ConnectionRefusedError):
        question.sendto(b"needle", (PEER, 53))
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP) as echo:
        # An echo request: type, code, checksum, number and sequence number.
        echo.sendto(struct.pack("!BBHHH", 8, 0, 0xF7FF - 1, 0, 1), (PEER, 0))


if sys.argv[1:] == ["serve"]:
    threading.Thread(target=serve, daemon=True).start()
    sys.stdin.read()
elif sys.argv[1:] == ["once"]:
    talk()
else:
    while True:
        talk()
        print("round", flush=True)
