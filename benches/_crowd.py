"""Many TCP connections between two network namespaces that all have a little to say.

Run as ``python benches/_crowd.py serve PORT`` and ``python benches/_crowd.py talk ADDRESS PORT CONNECTIONS [RATE]``.
The talker says "connected" when all are, and then sends a byte over one after the other, RATE in a second, which comes
back.
"""

import resource
import selectors
import socket
import sys
import time


def serve(port: int) -> None:
    """Accept connections for ever, and return what comes."""
    listener = socket.create_server(("", port), backlog=4096)
    listener.setblocking(False)
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fileobj is listener:
                connection, _ = listener.accept()
                connection.setblocking(False)
                selector.register(connection, selectors.EVENT_READ)
                continue
            assert isinstance(key.fileobj, socket.socket)
            if content := key.fileobj.recv(64):
                key.fileobj.send(content)
            else:
                selector.unregister(key.fileobj)
                key.fileobj.close()


def talk(address: str, port: int, count: int, rate: float = float("inf")) -> None:
    """Open connections, and use one after the other for ever."""
    connections = [socket.create_connection((address, port), timeout=30) for _ in range(count)]
    print("connected", flush=True)
    began_s, sent = time.monotonic(), 0
    while True:
        # A few at a time are under way, so that both ends have work for each wake-up.
        for begin in range(0, count, 16):
            time.sleep(max(0.0, began_s + sent / rate - time.monotonic()))
            some = connections[begin : begin + 16]
            sent += len(some)
            for connection in some:
                connection.send(b"x")
            for connection in some:
                connection.recv(64)


if __name__ == "__main__":
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if sys.argv[1] == "serve":
        serve(int(sys.argv[2]))
    else:
        talk(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), *map(float, sys.argv[5:]))
