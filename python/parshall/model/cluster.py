"""Sweeps on a Dask cluster: points go to its workers, rows come back in the order of the points.

Requires the extra ``cluster`` here, and the same version of Parshall on every worker, so that results do not depend
on the worker.
"""

import asyncio
import logging
import socket
import struct
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from parshall.errors import ParshallError, UsageError
from parshall.host.installation import version

CONNECT_TIMEOUT_S = 10.0
# Seconds that a cluster may have no worker before a sweep fails.
WORKERLESS_S = 30.0
# Seconds between checks for workers.
POLL_INTERVAL_S = 1.0
# How Dask's messages begin. Its first one has some hundred bytes.
_LENGTH = struct.Struct("=Q")
_GREETING_BYTES_MAX = 1 << 20


@contextmanager
def connected(address: str, *, timeout_s: float = CONNECT_TIMEOUT_S) -> Iterator[Any]:
    """Yield a client of the scheduler at an address, such as ``tcp://10.0.0.1:8786``.

    Raises
    ------
    UsageError
        Dask is not installed, or no scheduler answers at the address.
    ParshallError
        The cluster has no worker.
    """
    try:
        from distributed import Client
    except ImportError:
        raise UsageError("--cluster: Dask is not installed; install it: pip install distributed") from None
    # Dask logs every lost connection in many lines; our messages have the cause.
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    try:
        _check_greeting(address, timeout_s)
        _check_reachable(address, timeout_s)
        client = Client(address, timeout=timeout_s, set_as_default=False)
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UsageError(f"cluster {address}: cannot be reached: {reason}; name a running scheduler") from None
    try:
        try:
            client.wait_for_workers(1, timeout=timeout_s)
        except TimeoutError:
            raise ParshallError(
                f"cluster {address}: has no worker after {timeout_s:g} s; start one: dask worker {address}"
            ) from None
        yield client
    finally:
        client.close(timeout=2)


def _check_greeting(address: str, timeout_s: float) -> None:
    """Raise `ValueError` unless what answers at a TCP address begins as Dask does: with the length of a short message.

    Dask's own client allocates whatever length it is sent.
    """
    from distributed.comm.addressing import parse_address, parse_host_port

    scheme, place = parse_address(address)
    if scheme != "tcp":
        return
    greeting = b""
    with socket.create_connection(parse_host_port(place, 8786), timeout_s) as connection:
        while len(greeting) < _LENGTH.size:
            part = connection.recv(_LENGTH.size - len(greeting))
            if not part:
                break
            greeting += part
    if len(greeting) < _LENGTH.size or not 0 < _LENGTH.unpack(greeting)[0] <= _GREETING_BYTES_MAX:
        raise ValueError("what answers there is not Dask")


def _check_reachable(address: str, timeout_s: float) -> None:
    """Connect to an address once, and raise the error that a client would raise.

    A client whose connection fails stays half initialised, and deadlocks if it is garbage-collected while another one
    starts. So a client is created only after a connection has succeeded.
    """
    from distributed.comm.core import connect

    async def try_connection() -> None:
        await (await connect(address, timeout=timeout_s)).close()

    # In a separate thread, since the thread of a notebook already runs an event loop.
    with ThreadPoolExecutor(1) as thread:
        thread.submit(lambda: asyncio.run(try_connection())).result()


def map_in_order(
    address: str,
    function: Callable[..., Any],
    points: Sequence[Any],
    progress: Callable[[int, int], None] | None = None,
) -> list[Any]:
    """Return the results of a function for all points, computed by the workers of a cluster.

    When a worker is lost, another one computes its points again.

    Raises
    ------
    UsageError, ParshallError
        As for `connected`; or the function failed, or the cluster lost its scheduler or its last worker.
    """
    with connected(address) as client:
        futures = [client.submit(_checked, version(), function, point, pure=False) for point in points]
        try:
            return _collected(client, address, futures, progress)
        except BaseException:
            # On Ctrl-C and errors, cancel the points that have not started.
            if client.status == "running":
                client.cancel(futures)
            raise


def _checked(expected: str, function: Callable[..., Any], point: Any) -> Any:
    """Compute a point, on a worker."""
    own = version()
    if own != expected:
        raise ParshallError(f"a worker has parshall {own}, the sweep {expected}; install the same version everywhere")
    return function(point)


def _collected(client: Any, address: str, futures: list[Any], progress: Callable[[int, int], None] | None) -> list[Any]:
    from distributed import wait
    from distributed.client import FutureCancelledError, FuturesCancelledError
    from distributed.scheduler import KilledWorker

    # Dask cancels all futures when it loses its scheduler.
    lost = (FutureCancelledError, FuturesCancelledError)
    waiting: set[Any] = set(futures)
    results: dict[str, Any] = {}
    workerless_s, done = 0.0, 0
    while waiting:
        try:
            with client.as_current():
                finished, waiting = wait(list(waiting), timeout=POLL_INTERVAL_S, return_when="FIRST_COMPLETED")
            workerless_s = 0.0
            if any(future.status == "error" for future in finished):
                break
            # A worker keeps a result until nobody needs it any more.
            for future in finished:
                try:
                    results[future.key] = future.result(timeout=WORKERLESS_S)
                    future.release()
                except TimeoutError:
                    # Its worker was lost: another one computes it again.
                    waiting.add(future)
        except TimeoutError:
            workerless_s = 0.0 if _has_workers(client, address) else workerless_s + POLL_INTERVAL_S
            if workerless_s >= WORKERLESS_S:
                raise ParshallError(
                    f"cluster {address}: has had no worker for {WORKERLESS_S:g} s, {len(waiting)} of {len(futures)} "
                    "points are left; start workers, and sweep again"
                ) from None
        except lost:
            raise _lost(address) from None
        if progress and len(futures) - len(waiting) > done:
            done = len(futures) - len(waiting)
            progress(done, len(futures))
    try:
        client.gather([future for future in futures if future.key not in results])
        return [results[future.key] for future in futures]
    except ParshallError:
        raise
    except KilledWorker:
        raise ParshallError(
            f"cluster {address}: every worker that tried a certain point died; give workers more memory"
        ) from None
    except lost:
        raise _lost(address) from None
    except Exception as error:
        raise ParshallError(
            f"cluster {address}: a worker failed: {type(error).__name__}: {str(error).splitlines()[0]}; "
            f"it needs parshall {version()}"
        ) from error


def _has_workers(client: Any, address: str) -> bool:
    try:
        return bool(client.nthreads())
    except (OSError, TimeoutError):
        raise _lost(address) from None


def _lost(address: str) -> ParshallError:
    return ParshallError(f"cluster {address}: lost its scheduler; start it, and sweep again")
