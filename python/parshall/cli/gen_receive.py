"""``parshall gen --receive``: take account of a stamped run at its other end."""

import json
from collections.abc import Iterator
from typing import Any

import typer

from parshall.cli.messages import report_start
from parshall.errors import UsageError
from parshall.generate import Receiver
from parshall.stopping import Stopping

# What a receiver needs to know.
_OPTIONS = {"interface", "netns", "count", "duration", "dst", "protocol", "dport", "receive", "quiet", "as_json"}
_QUANTILES = ("least", "median", "90 %", "99 %", "greatest")


def refuse_what_only_sends(context: typer.Context) -> None:
    """Raise for an option that was given although it says nothing to a receiver."""
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if source is None or source.name != "COMMANDLINE" or parameter.name in _OPTIONS:
            continue
        option = parameter.opts[-1]
        if option == "--vlan":
            raise UsageError(
                "--receive --vlan: the tag is not in the packets that are captured; receive at a VLAN interface"
            )
        raise UsageError(f"--receive {option}: that is for the sending end; leave it out here")


def receive(
    interface: str, *, count: int | None, duration_s: float | None, quiet: bool, as_json: bool, **headers: Any
) -> int:
    """Receive until everything has come, the time is over or Ctrl-C; print the account."""
    with Stopping() as stopping:
        receiver = Receiver(interface, **headers)
        report_start("gen", f"receiving at {interface}", quiet=quiet)
        account = receiver.receive(count, duration_s, stopping.wait)
    if as_json:
        print(json.dumps(account))
    else:
        for line in reception_lines(account):
            print(line)
    return 0 if account["received"] else 1


def reception_lines(account: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of the account: packets, what the measuring lost, latency."""
    arrived = account["received"] - account["duplicates"]
    sent = f"{arrived + account['lost']:,}"
    told = f"sent {sent}" if account["sent"] is not None else f"sent {sent} by the highest number that arrived"
    yield (
        f"packets   {told}, received {account['received']:,}, duplicates {account['duplicates']:,}, "
        f"lost {account['lost']:,}, reordered {account['reordered']:,}"
    )
    if account["capture_lost"]:
        yield f"          {account['capture_lost']:,} of the lost came, and were lost by the capture"
    if account["too_short"] or account["foreign"]:
        yield f"          beside them {account['too_short'] + account['foreign']:,} packets without a stamp"
    if account["latency_ns"]:
        values = ", ".join(
            f"{name} {value:,.0f}" for name, value in zip(_QUANTILES, account["latency_ns"], strict=True)
        )
        yield f"latency   {values} ns, from the send time to the capture's"
