"""``parshall extcap``: capture for Wireshark, which lists our interfaces and rings beside its own."""

import socket
from pathlib import Path
from typing import Annotated

import typer

from parshall.cli import options as common
from parshall.cli.confinement import confine
from parshall.errors import UsageError
from parshall.host.messages import say, show
from parshall.host.stopping import Stopping
from parshall.instruments import extcap
from parshall.instruments.capture import DEFAULT_RING_BYTES, SNAPLEN_MAX, Capture, Output, Ring, rings

COMMAND_SETTINGS = {"epilog": "Wireshark passes these options; run only --install by hand."}
_POLL_INTERVAL_S = 0.05


def command(
    install: Annotated[bool, typer.Option("--install", help="Install the program that Wireshark runs")] = False,
    directory: Annotated[
        Path | None, typer.Option("--directory", metavar="DIR", help="Extcap folder of Wireshark (Help, About)")
    ] = None,
    interfaces: Annotated[bool, typer.Option("--extcap-interfaces", help="List interfaces and rings")] = False,
    link_types: Annotated[bool, typer.Option("--extcap-dlts", help="List the link type")] = False,
    options: Annotated[bool, typer.Option("--extcap-config", help="List the options")] = False,
    capture: Annotated[bool, typer.Option("--capture", help="Capture into the pipe")] = False,
    interface: Annotated[
        str | None, typer.Option("--extcap-interface", metavar="NAME", help="Interface or ring")
    ] = None,
    fifo: Annotated[Path | None, typer.Option("--fifo", metavar="PIPE", help="Pipe for the packets")] = None,
    capture_filter: Annotated[
        str, typer.Option("--extcap-capture-filter", metavar="EXPR", help="Capture filter, pcap-filter(7) syntax")
    ] = "",
    _version: Annotated[str | None, typer.Option("--extcap-version", metavar="V", help="Version of Wireshark")] = None,
    snaplen: Annotated[int, common.snaplen_option("--snaplen", longest=SNAPLEN_MAX)] = SNAPLEN_MAX,
    hook: Annotated[str, typer.Option("--hook", metavar="auto|tcx|xdp", help="Hook")] = "auto",
    buffer: Annotated[int, common.buffer_option(DEFAULT_RING_BYTES)] = DEFAULT_RING_BYTES,
    promiscuous: Annotated[bool, typer.Option("--promiscuous", help="Capture packets for other hosts, too")] = False,
) -> int:
    """Offer interfaces and rings of Parshall to Wireshark and tshark."""
    if install:
        show(extcap.install(directory or extcap.default_directory()))
        return 0
    if interfaces:
        from parshall.host.installation import version

        names = [name for _, name in socket.if_nameindex()]
        show(*extcap.interface_lines(version(), names, rings()))
        return 0
    if interface is None:
        raise UsageError("no option: Wireshark runs this command; install it with `parshall extcap --install`")
    source = extcap.CaptureSource.parse(interface)
    if link_types:
        show(*extcap.link_type_lines(source))
        return 0
    if options:
        show(*extcap.option_lines(source))
        return 0
    if not capture or fifo is None:
        # Wireshark checks the syntax of a filter this way: no output means that it is valid.
        return 0
    ring = None
    if source.interface is not None:
        ring = Ring(source.interface, hook=hook, buffer_bytes=common.ring_bytes(buffer, "1M"), promiscuous=promiscuous)
    output = Output(fifo, capture_filter, snaplen, format="pcapng", compress="none")
    with Stopping() as stopping:
        running = Capture([output], ring, join=source.ring, is_stopping=stopping.is_requested)
        with running:
            confine("extcap")
            while not running.status()["has_ended"] and not stopping.wait(_POLL_INTERVAL_S):
                pass
        summary = running.stop()
    if summary.failure:
        say("extcap", summary.failure)
        return 1
    return 0
