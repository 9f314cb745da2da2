"""Choose the backend of a link."""

from parshall.errors import UsageError
from parshall.testbed.disciplines import NETEM_DELAY_MAX_MS, kernel_offers
from parshall.testbed.shaping import Shaping


def choose(wanted: str, shapings: tuple[Shaping, Shaping], offloads: bool) -> str:
    """Choose the backend of a link.

    Parameters
    ----------
    wanted : str
        "auto", or the name of a backend.
    shapings : tuple of Shaping
        Both directions.
    offloads : bool
        Whether the hosts' offloads are on.

    Returns
    -------
    str
        "veth" when nothing is shaped; else "kernel" if this kernel has netem and tbf, and they support
        the parameters, which is found by trying; else "relay".

    Raises
    ------
    UsageError
        The requested backend does not support these parameters.
    """
    plain = all(shaping.is_plain for shaping in shapings)
    kernel_lacks = _kernel_lacks(shapings)
    if wanted == "auto":
        if plain:
            return "veth"
        # A rate alone needs only tbf. Yet all levels of a factor of an experiment (delay 0, 1, 10 ms)
        # should use the same backend.
        wanted = "relay" if kernel_lacks or kernel_offers("netem") is not None else "kernel"
    if wanted == "veth" and not plain:
        raise UsageError("link: backend 'veth' shapes nothing; choose 'auto', 'kernel' or 'relay'")
    if wanted == "kernel" and kernel_lacks:
        raise UsageError(f"link: backend 'kernel' does not support this: {kernel_lacks}; choose 'relay'")
    if wanted == "relay" and offloads:
        raise UsageError("link: backend 'relay' does not support offloads; leave offloads off")
    if wanted not in ("veth", "kernel", "relay"):
        raise UsageError(f"link: backend {wanted!r} is unknown; choose 'auto', 'veth', 'kernel' or 'relay'")
    return wanted


def _kernel_lacks(shapings: tuple[Shaping, Shaping]) -> str | None:
    for shaping in shapings:
        if shaping.discipline != "drop-tail":
            return f"discipline '{shaping.discipline}'"
        if shaping.queue_packets is not None and shaping.queue_bytes is not None:
            return "a queue can be limited in packets or in bytes, not both"
        if shaping.jitter_ms:
            return "netem reorders packets when their delay varies"
        if shaping.delay_ms > NETEM_DELAY_MAX_MS:
            return f"tc supports no delay above {NETEM_DELAY_MAX_MS / 1000:.0f} s"
        if shaping.needs_netem and (reason := kernel_offers("netem")):
            return reason
        if shaping.rate_bps is not None and (reason := kernel_offers("tbf")):
            return reason
    return None
