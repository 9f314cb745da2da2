"""Our own relay as the player of a link."""

from typing import Any

from parshall.installation import require_kernel_side
from parshall.testbed import namespaces
from parshall.testbed.cables import Cable
from parshall.testbed.players import Between
from parshall.testbed.shaping import Shaping

# The lowest realtime priority: above every ordinary program, below the kernel's own threads.
FIFO_PRIORITY = 1


class Relay(Between):
    """Our relay; see docs/testbed.md."""

    name = "relay"

    def __init__(
        self, namespace: str, cable: Cable, shapings: tuple[Shaping, Shaping], cpu: int | None, seed: int
    ) -> None:
        super().__init__(namespace, cable, offloads=False)
        self._running = False
        self._final: dict[str, Any] | None = None
        require_kernel_side()
        from parshall import _native

        self._relay = _native.Relay(
            "a",
            "b",
            netns_path=str(self.path),
            cpu=cpu,
            a_to_b=shapings[0].for_relay(),
            b_to_a=shapings[1].for_relay(),
            seed=seed,
            fifo_priority=FIFO_PRIORITY,
            mtu=cable.mtu,
        )

    def start(self) -> None:
        """Take packets from now on."""
        self._relay.start()
        self._running = True

    def statistics(self) -> dict[str, Any]:
        """Return the relay's ledger, the last one when it has stopped."""
        return {"relay": self._relay.statistics() if self._running else self._final}

    def close(self) -> dict[str, Any]:
        """Stop the thread, remove the namespace, return the final ledger."""
        try:
            if self._running:
                self._running = False
                self._final = self._relay.stop()
        finally:
            namespaces.remove(self.namespace)
        return {"relay": self._final}
