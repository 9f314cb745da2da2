"""A security gateway in user space: encrypts packets of a TUN device, and sends them to its peer in UDP datagrams."""

import os
import secrets
from pathlib import Path
from typing import Any

from parshall.errors import ParshallError
from parshall.host import privileges
from parshall.host.installation import require_kernel_side
from parshall.host.session import Session, check_choice, request_json
from parshall.router.setup import TUNNELS

PORT = 4500
# Sequence number, tag, UDP and IPv4 headers.
OVERHEAD_BYTES = 8 + 16 + 8 + 20


class Gateway(Session[dict[str, int]]):
    """One end of an encrypted tunnel; the constructor creates its TUN device, the end removes it.

    It is a workload for measurements. There is no key exchange: both ends get one secret, fresh for each session, from
    which they derive a key for each direction. Datagrams carry a sequence number, the encrypted packet and a tag of 16
    bytes. The receiver drops what is not authentic, and what it has received before.

    Parameters
    ----------
    tun : str
        Name of the TUN device. Set it up, and add its routes, when the gateway has started.
    local, peer : str
        Own address and the peer's, ``ADDRESS:PORT``.
    secret : str
        At least 16 characters, the same at both ends; see `new_secret`.
    is_first : bool
        True at one end, False at the other.
    cipher : {"aes-gcm", "chacha20"}
        AES-128-GCM or ChaCha20-Poly1305.
    netns : path-like, optional
        Path of the network namespace. Default: that of the caller.
    cpu : int, optional
        CPU of its thread. Default: any.
    stamp_log : path-like, optional
        File for the sequence number of the generator in each packet sent, 8 bytes in the machine's byte order, in the
        order of the tunnel's sequence numbers; written at the end.
    stamp_capacity : int
        Packets for which memory is reserved in that log.

    Raises
    ------
    UsageError
        An argument is invalid.
    ParshallError
        The device or the socket cannot be created.
    """

    def __init__(
        self,
        tun: str,
        local: str,
        peer: str,
        secret: str,
        *,
        is_first: bool,
        cipher: str = "aes-gcm",
        netns: str | os.PathLike[str] | None = None,
        cpu: int | None = None,
        stamp_log: Path | None = None,
        stamp_capacity: int = 0,
    ) -> None:
        check_choice("--tunnel", cipher, TUNNELS)
        require_kernel_side()
        privileges.require("router", "CAP_NET_ADMIN")
        from parshall import _native

        self.peer = peer
        request: dict[str, Any] = {
            "tun": tun,
            "namespace": None if netns is None else str(netns),
            "local": local,
            "peer": peer,
            "cipher": cipher,
            "secret": secret,
            "is_first": is_first,
            "cpu": cpu,
            "stamp_log": stamp_log,
            # Behind the headers of IPv4 and UDP.
            "stamp_offset": 28,
            "stamp_capacity": stamp_capacity,
        }
        self._native = _native.Session("gateway", request_json(request))

    def check_peer(self) -> None:
        """Raise `ParshallError` if the peer's host has reported that no gateway listens there."""
        refused = self.status()["refused"]
        if refused:
            raise ParshallError(
                f"gateway: peer {self.peer}: no program listens there, {refused} datagrams were refused; "
                "start the gateway at the other end"
            )

    def _summarize(self, account: dict[str, Any]) -> dict[str, int]:
        return account


def new_secret() -> str:
    """Return a random secret for one session."""
    return secrets.token_hex(32)
