"""``parshall gen --receive``: receive the stamped packets of a run, and report loss and latency."""

import json
import os
from collections.abc import Iterator
from typing import Any

import typer

from parshall.cli import confinement
from parshall.errors import UsageError
from parshall.host.messages import report_start, show
from parshall.host.quantities import many
from parshall.host.stopping import Stopping

# Parameters that apply to a receiver.
_RECEIVER_OPTIONS = {
    *("interface", "netns", "count", "duration", "dst", "protocol", "dport"),
    *("receive", "quiet", "as_json"),
}
_QUANTILES = ("min", "median", "90 %", "99 %", "max")


def refuse_sender_options(context: typer.Context) -> None:
    """Raise for an option that applies to the sender only."""
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if source is None or source.name != "COMMANDLINE" or parameter.name in _RECEIVER_OPTIONS:
            continue
        option = parameter.opts[-1]
        if option == "--vlan":
            raise UsageError("--receive --vlan: captured packets have no tag; receive on a VLAN interface")
        raise UsageError(f"--receive {option}: applies to the sender only; leave it out")


def receive(
    interface: str, *, count: int | None, duration_s: float | None, quiet: bool, as_json: bool, **headers: Any
) -> int:
    """Receive until all packets have arrived, the time is over or Ctrl-C; print the account, return the exit status."""
    if confinement.is_own_process:
        # A thread of Arrow's allocator blocks all signals, and would keep its privileges: they are dropped by a signal.
        os.environ.setdefault("JE_ARROW_MALLOC_CONF", "background_thread:false")
    from parshall.instruments.generate import Receiver

    with Stopping() as stopping:
        receiver = Receiver(interface, **headers)
        report_start("gen", f"receiving at {interface}", quiet=quiet)
        confinement.confine("gen")
        account = receiver.receive(count, duration_s, stopping.wait)
    show(*([json.dumps(account)] if as_json else reception_lines(account)))
    return 0 if account["received"] else 1


def reception_lines(account: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of the account: packets, losses of the capture, latency."""
    arrived = account["received"] - account["duplicates"]
    sent = f"{arrived + account['lost']:,}"
    sent = f"sent {sent}" if account["sent"] is not None else f"sent {sent} (highest sequence number received)"
    yield (
        f"packets   {sent}, received {account['received']:,}, duplicates {account['duplicates']:,}, "
        f"lost {account['lost']:,}, reordered {account['reordered']:,}"
    )
    if account["capture_lost"]:
        yield f"          {account['capture_lost']:,} of the lost arrived, and were lost by the capture"
    if account["others"] and not account["received"]:
        others = many(account["others"], "packet")
        yield (
            f"          {others} came that did not match {account['filter']!r}: give the --dst, --protocol and --dport "
            "of the sender"
        )
    if account["too_short"] or account["foreign"]:
        yield f"          in addition {account['too_short'] + account['foreign']:,} packets without a stamp of this run"
    if account["latency_ns"]:
        values = ", ".join(
            f"{name} {value:,.0f}" for name, value in zip(_QUANTILES, account["latency_ns"], strict=True)
        )
        yield f"latency   {values} ns, from send time to capture time"
