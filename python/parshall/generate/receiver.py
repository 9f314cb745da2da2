"""The other end of a stamped run: captures what arrives, and tells what became of the packets."""

import os
import threading
import time
from collections.abc import Callable
from typing import Any

from parshall.capture import Capture, Output, Ring
from parshall.errors import UsageError
from parshall.generate.reception import STAMP_BYTES, Reception, stamp_offset_bytes

_LOOK_INTERVAL_S = 0.05
# After the last packet of a run, so long for those that were overtaken by it.
_STRAGGLERS_S = 0.5


class Receiver:
    """Receive the packets of a ``parshall.generate.Generator`` with ``stamp``, from its making on.

    Parameters
    ----------
    interface : str
        Where they arrive.
    netns : path-like or str, optional
        Its network namespace, by name or path.
    is_ipv6 : bool
        Whether they are IPv6.
    protocol : str
        ``udp``, ``tcp`` or an IP protocol number.
    dport : str
        ``PORT`` or ``FIRST-LAST``, of UDP and TCP.

    Raises
    ------
    ParshallError
        Missing privileges, no such interface.

    Examples
    --------
    >>> receiver = Receiver("veth1")  # doctest: +SKIP
    >>> Generator("veth0", stamp=True, count=1000).wait()  # doctest: +SKIP
    >>> receiver.receive(count=1000)["lost"]  # doctest: +SKIP
    0
    """

    def __init__(
        self,
        interface: str,
        *,
        netns: str | os.PathLike[str] | None = None,
        is_ipv6: bool = False,
        protocol: str = "udp",
        dport: str = "9",
    ) -> None:
        offset_bytes = stamp_offset_bytes(is_ipv6=is_ipv6, protocol=protocol)
        self.reception = Reception(offset_bytes)
        expression = _expression(is_ipv6, protocol, dport)
        self._capture = Capture(
            [Output(None, expression, snaplen=offset_bytes + STAMP_BYTES)], Ring(interface, netns, direction="in")
        )

    def receive(
        self,
        count: int | None = None,
        duration_s: float | None = None,
        wait: Callable[[float], bool] | None = None,
    ) -> dict[str, Any]:
        """Receive until the end, and return the account.

        Parameters
        ----------
        count : int, optional
            Packets that are sent: it ends when the last of them has come, and counts the missing among them as lost.
        duration_s : float, optional
            It ends after this time.
        wait : callable, optional
            Called with a time in seconds: waits so long, and tells whether to end. By default it only waits.

        Returns
        -------
        dict
            That of ``Reception.summary``, with ``sent`` and ``capture_lost``: packets that arrived and that the
            capture lost; they are among ``lost``.
        """
        ended = threading.Event()
        watching = threading.Thread(
            target=self._watch, args=(ended, count, duration_s, wait or ended.wait), daemon=True
        )
        watching.start()
        try:
            for batch in self._capture.batches():
                self.reception.add(batch)
        finally:
            ended.set()
            watching.join()
            summary = self._capture.stop()
        accounts = summary.ledger["subscribers"][0]["interfaces"]
        capture_lost = sum(sum(account["lost"].values()) for account in accounts)
        return {"sent": count, **self.reception.summary(count), "capture_lost": capture_lost}

    def _watch(
        self, ended: threading.Event, sent: int | None, duration_s: float | None, wait: Callable[[float], bool]
    ) -> None:
        began = time.monotonic()
        last_s: float | None = None
        while not ended.is_set():
            should_end = wait(_LOOK_INTERVAL_S)
            now = time.monotonic()
            if sent is not None and last_s is None and self.reception.highest >= sent - 1:
                last_s = now
            is_over = duration_s is not None and now - began >= duration_s
            if should_end or is_over or (last_s is not None and now - last_s >= _STRAGGLERS_S):
                self._capture.request_stop()
                return


def _expression(is_ipv6: bool, protocol: str, dport: str) -> str:
    family = "ip6" if is_ipv6 else "ip"
    if protocol not in ("udp", "tcp"):
        if not protocol.isdigit():
            raise UsageError(f"--protocol {protocol}: expected udp, tcp or an IP protocol number from 0 to 255")
        return f"{family} proto {protocol}"
    ports = dport.replace(" ", "")
    return f"{family} and {protocol} dst portrange {ports if '-' in ports else f'{ports}-{ports}'}"
