"""``parshall extcap``: capture for Wireshark, which lists our interfaces and rings among its own."""

import socket
import sys
from pathlib import Path
from typing import Annotated

import typer

from parshall import extcap
from parshall.capture import DEFAULT_RING_BYTES, SNAPLEN_MAX, Capture, Output, Ring, rings
from parshall.errors import UsageError
from parshall.quantities import parse_bytes
from parshall.stopping import Stopping

COMMAND_SETTINGS = {"epilog": "Wireshark gives the options; --install is for you."}
_LOOK_INTERVAL_S = 0.05


def command(
    install: Annotated[bool, typer.Option("--install", help="Write the program that Wireshark runs.")] = False,
    directory: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where to; Wireshark names its folders in Help, About.")
    ] = None,
    interfaces: Annotated[bool, typer.Option("--extcap-interfaces", help="List what can be captured.")] = False,
    link_types: Annotated[bool, typer.Option("--extcap-dlts", help="Tell the link type.")] = False,
    options: Annotated[bool, typer.Option("--extcap-config", help="List what can be chosen.")] = False,
    capture: Annotated[bool, typer.Option("--capture", help="Capture into the pipe.")] = False,
    interface: Annotated[
        str | None, typer.Option("--extcap-interface", metavar="NAME", help="Which of the list.")
    ] = None,
    fifo: Annotated[Path | None, typer.Option(metavar="PIPE", help="Where the packets go.")] = None,
    capture_filter: Annotated[
        str, typer.Option("--extcap-capture-filter", metavar="EXPR", help="Packets that pcap-filter(7) says.")
    ] = "",
    _version: Annotated[str | None, typer.Option("--extcap-version", metavar="V", help="Wireshark's version.")] = None,
    snaplen: Annotated[int, typer.Option(metavar="N", help="Most bytes of a packet.")] = SNAPLEN_MAX,
    hook: Annotated[str, typer.Option(metavar="auto|tcx|xdp", help="Where packets are taken.")] = "auto",
    buffer: Annotated[str, typer.Option(metavar="SIZE", help="Ring, for each CPU.")] = f"{DEFAULT_RING_BYTES >> 20}M",
    promiscuous: Annotated[bool, typer.Option("--promiscuous", help="Also packets that are for others.")] = False,
) -> int:
    """Capture for Wireshark and tshark: interfaces and rings of Parshall among their own."""
    if install:
        print(extcap.install(directory or extcap.usual_directory()))
        return 0
    if interfaces:
        from parshall.cli.main import version

        names = [name for _, name in socket.if_nameindex()]
        print("\n".join(extcap.interface_lines(version(), names, rings())))
        return 0
    if interface is None:
        raise UsageError("Wireshark runs this; let it know with `parshall extcap --install`")
    place = extcap.Place.of(interface)
    if link_types:
        print("\n".join(extcap.link_type_lines(place)))
        return 0
    if options:
        print("\n".join(extcap.option_lines(place)))
        return 0
    if not capture or fifo is None:
        # So Wireshark asks whether a filter is one: no word means yes.
        return 0
    ring = None
    if place.interface is not None:
        ring = Ring(
            [place.interface],
            hook=hook,
            ring_bytes=parse_bytes("--buffer", buffer),
            promiscuous=promiscuous,
        )
    output = Output(fifo, capture_filter, snaplen, format="pcapng", compression="none")
    with Stopping() as stopping:
        running = Capture([output], ring, join=place.ring, is_stopping=stopping.is_asked)
        with running:
            while not running.status()["has_ended"] and not stopping.wait(_LOOK_INTERVAL_S):
                pass
        summary = running.stop()
    if summary.failure:
        print(f"parshall: extcap: {summary.failure}", file=sys.stderr)
        return 1
    return 0
