"""``parshall pcap``: run programs that use libpcap on a shared ring."""

from typing import Annotated

import typer

from parshall.errors import UsageError
from parshall.host.messages import show
from parshall.instruments import pcap

COMMAND_SETTINGS = {
    "context_settings": {"allow_interspersed_args": False},
    "epilog": "Without --join, the program joins a ring that runs at its interface, or creates one.",
}


def command(
    cmd: Annotated[list[str] | None, typer.Argument(metavar="-- CMD...", help="Program and its arguments")] = None,
    join: Annotated[str | None, typer.Option("--join", metavar="RING", help="Join this ring")] = None,
    list_programs: Annotated[bool, typer.Option("--list-programs", help="List the programs that were tried")] = False,
) -> int:
    """Run a program that uses libpcap, unmodified, on a ring that it shares with others."""
    if list_programs:
        width = max(len(program.name) for program in pcap.PROGRAMS) + 2
        for program in pcap.PROGRAMS:
            show(f"{program.name:{width}}{program.compared}")
        return 0
    if not cmd:
        raise UsageError("no program; name one: parshall pcap -- tcpdump -i eth0")
    pcap.run(cmd, join)
