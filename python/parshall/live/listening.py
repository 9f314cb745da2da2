"""The socket of the page: made while there are still privileges for ports below 1024."""

import socket

from parshall.errors import UsageError

CONNECTIONS_MAX = 256


def listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens at an address; port 0 is any that is free.

    Raises
    ------
    UsageError
        It cannot be listened to.
    """
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(CONNECTIONS_MAX)
    except OSError as error:
        listener.close()
        reason = error.strerror or error
        raise UsageError(f"--listen {host}:{port}: {reason}; name another address or port") from None
    return listener
