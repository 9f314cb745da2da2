"""``--metrics`` and ``--otlp`` of the commands that run long."""

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from parshall.host.messages import say

if TYPE_CHECKING:
    from parshall.metrics.collection import Instrument, Metrics


@contextlib.contextmanager
def published(
    instrument: "Instrument", address: str | None, url: str | None, *, quiet: bool
) -> "Iterator[Metrics | None]":
    """While entered, serve and send metrics; yields them, for the session to give its account, or None.

    Entered before anything is measured: a port that is taken is a mistake.
    """
    if address is None and url is None:
        yield None
        return
    from parshall.metrics.collection import Metrics

    metrics = Metrics(instrument)
    with contextlib.ExitStack() as stack:
        if address is not None:
            from parshall.metrics.server import Server

            server = stack.enter_context(Server(metrics, address))
            if not quiet:
                say(instrument, f"metrics at {server.url}")
        if url is not None:
            from parshall.metrics.otlp import Exporter

            stack.enter_context(Exporter(metrics, url, partial(say, instrument)))
        yield metrics
