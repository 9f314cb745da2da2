"""The backend that plays a link with Parshall's relay."""

import json
from typing import TYPE_CHECKING, Any

from parshall.errors import ParshallError
from parshall.host import namespaces
from parshall.host.installation import require_kernel_side
from parshall.host.session import request_json
from parshall.testbed.cables import Cable
from parshall.testbed.players import MiddleNamespace
from parshall.testbed.shaping import Shaping

if TYPE_CHECKING:
    from parshall import _native

# Memory for the frames of one direction.
_MEMORY_BYTES = 64 << 20
# The lowest realtime priority: above ordinary programs, below the kernel's threads.
FIFO_PRIORITY = 1


class Relay(MiddleNamespace):
    """Plays a link with Parshall's relay; see docs/testbed.md."""

    name = "relay"

    def __init__(
        self, namespace: str, cable: Cable, shapings: tuple[Shaping, Shaping], cpu: int | None, seed: int
    ) -> None:
        super().__init__(namespace, cable, offloads=False)
        self._final: dict[str, Any] | None = None
        require_kernel_side()
        self._relay: _native.Session | None = None
        self._request = {
            "interfaces": ["a", "b"],
            "shapes": [shaping.for_relay() for shaping in shapings],
            "seed": seed,
            "placement": {"namespace": self.path, "cpu": cpu, "fifo_priority": FIFO_PRIORITY},
            "mtu_bytes": cable.mtu,
            "memory_bytes": _MEMORY_BYTES,
        }

    def start(self) -> None:
        """Start to forward packets."""
        from parshall import _native

        self._relay = _native.Session("relay", request_json(self._request))

    def statistics(self) -> dict[str, Any]:
        """Return the relay's ledger; after the stop, the final one."""
        if self._relay is None:
            return {"relay": self._final}
        status = json.loads(self._relay.status())
        if status.pop("has_ended"):
            raise ParshallError("relay: its thread has ended, so the link is down; create a new link")
        return {"relay": status}

    def close(self) -> dict[str, Any]:
        """Stop the thread, remove the namespace, return the final ledger."""
        try:
            if self._relay is not None:
                relay, self._relay = self._relay, None
                self._final = json.loads(relay.stop())
        finally:
            namespaces.remove(self.namespace)
        return {"relay": self._final}
