"""The receiving end of a stamped run: captures the packets, and reports loss, order and latency."""

import os
import threading
import time
from collections.abc import Callable
from typing import Any

from parshall.errors import UsageError
from parshall.instruments.capture import Capture, Output, Ring
from parshall.instruments.generate.reception import STAMP_BYTES, Reception, stamp_offset_bytes

_POLL_INTERVAL_S = 0.05
# Seconds to wait after the last packet of a run for reordered ones.
_STRAGGLERS_S = 0.5


class Receiver:
    """Receive the stamped packets of a ``parshall.instruments.generate.Generator``; the constructor starts the capture.

    Parameters
    ----------
    interface : str
        Receiving interface.
    netns : path-like or str, optional
        Its network namespace, by name or path.
    is_ipv6 : bool
        Whether the packets are IPv6.
    protocol : str
        ``udp``, ``tcp`` or an IP protocol number.
    dport : str
        ``PORT`` or ``FIRST-LAST``, of UDP and TCP.

    Raises
    ------
    ParshallError
        Privileges are missing, or there is no such interface.

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
        self._filter = _expression(is_ipv6, protocol, dport)
        self._capture = Capture(
            [Output(None, self._filter, snaplen=offset_bytes + STAMP_BYTES)], Ring(interface, netns, direction="in")
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
            Number of packets sent: ends after the last of them, and counts missing ones as lost.
        duration_s : float, optional
            Ends after this time, seconds.
        wait : callable, optional
            Called with a time in seconds; waits that long, and returns whether to end. Default: only waits.

        Returns
        -------
        dict
            The result of ``Reception.summary``, with ``sent``; ``capture_lost``, packets that arrived and that the
            capture lost, a part of ``lost``; ``filter``, which the packets of a run match; and ``others``, packets that
            came to the interface and did not match it.
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
        others = sum(account["filtered"] for account in accounts)
        of_capture = {"capture_lost": capture_lost, "filter": self._filter, "others": others}
        return {"sent": count, **self.reception.summary(count), **of_capture}

    def _watch(
        self, ended: threading.Event, sent: int | None, duration_s: float | None, wait: Callable[[float], bool]
    ) -> None:
        began = time.monotonic()
        last_s: float | None = None
        while not ended.is_set():
            should_end = wait(_POLL_INTERVAL_S)
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
