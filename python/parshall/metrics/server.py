"""Serves the metrics of a measurement for Prometheus, by HTTP."""

from prometheus_client import CollectorRegistry, start_http_server

from parshall.errors import UsageError
from parshall.host.quantities import parse_address
from parshall.metrics.collection import Metrics


class Server:
    """Serves metrics by HTTP in a thread, until the end of the block.

    Parameters
    ----------
    metrics : Metrics
        What it serves.
    address : str
        Where: ``9777`` or ``127.0.0.1:9777`` for this host only, ``[::1]:9777``; ``0.0.0.0:9777`` for all.

    Raises
    ------
    UsageError
        It is no address, or cannot be listened to.
    """

    def __init__(self, metrics: Metrics, address: str) -> None:
        host, port = parse_address("--metrics", address)
        registry = CollectorRegistry()
        registry.register(metrics)
        try:
            self._server, self._thread = start_http_server(port, host, registry)
        except OSError as error:
            reason = error.strerror or error
            raise UsageError(f"--metrics {address}: {reason}; name another address or port") from None
        shown = f"[{host}]" if ":" in host else host
        self.url: str = f"http://{shown}:{self._server.server_port}/metrics"
        """Where it serves them."""

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *exception: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
