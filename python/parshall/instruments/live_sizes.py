"""Count the sizes of the IP packets on an interface."""

import os
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from parshall.errors import ParshallError, UsageError
from parshall.host import privileges
from parshall.host.stopping import Stopping
from parshall.host.temporary import TemporaryDirectory
from parshall.instruments.capture import Capture, Output, Ring
from parshall.instruments.sizes import Counts

# Enough for the link header, tags and the length fields of the IP header.
_HEADER_BYTES = 128
_POLL_INTERVAL_S = 0.05


def count_live(
    interface: str,
    duration_s: float | None = None,
    count: int | None = None,
    *,
    netns: str | os.PathLike[str] | None = None,
    on_start: Callable[[], None] = lambda: None,
) -> Counts:
    """Count until the time is over, `count` packets were counted, or Ctrl-C.

    ``parshall.instruments.capture.Capture`` writes the packets' headers through a pipe to the counter for capture
    files. The ledger counts the packets that were lost in between.

    Raises
    ------
    UsageError
        A limit is out of range.
    ParshallError
        There is no such interface, or privileges are missing.
    """
    if duration_s is not None and not duration_s > 0:
        raise UsageError(f"--duration {duration_s}: expected seconds above 0")
    if count is not None and count < 1:
        raise UsageError(f"--count {count}: expected 1 packet or more")
    privileges.require_bpf("sizes")
    with TemporaryDirectory("sizes") as directory, ThreadPoolExecutor(1) as pool:
        pipe = directory / "headers.pcap"
        os.mkfifo(pipe)
        counted = pool.submit(Counts.from_trace, pipe)
        try:
            output = Output(pipe, snaplen=_HEADER_BYTES, compress="none")
            capture = Capture([output], Ring(interface, netns), count=count)
        except BaseException:
            _release(pipe, counted)
            raise
        with capture:
            on_start()
            _wait(capture, counted, duration_s)
        summary = capture.stop()
        if summary.failure is not None:
            raise ParshallError(f"interface {interface}: {summary.failure}")
        counts = counted.result()
    return Counts(counts.pairs, counts.ledger | {"lost_by_capture": _lost(summary.ledger)})


def _wait(capture: Capture, counted: Future[Counts], duration_s: float | None) -> None:
    deadline = None if duration_s is None else time.monotonic() + duration_s
    with Stopping() as stopping:
        while not stopping.wait(_POLL_INTERVAL_S):
            if capture.status()["has_ended"] or counted.done():
                return
            if deadline is not None and time.monotonic() >= deadline:
                return


def _lost(ledger: dict[str, Any]) -> int:
    """Return the number of packets that the kernel saw and the counter did not."""
    accounts = [account for subscriber in ledger["subscribers"] for account in subscriber["interfaces"]]
    return sum(account["seen"] - account["filtered"] - account["thinned"] - account["logged"] for account in accounts)


def _release(pipe: Path, counted: Future[Counts]) -> None:
    """Unblock the counter, which waits for a writer to open the pipe."""
    while not counted.done():
        os.close(os.open(pipe, os.O_RDWR | os.O_NONBLOCK))
        time.sleep(_POLL_INTERVAL_S)
