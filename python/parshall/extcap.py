"""What Wireshark asks of a program that captures for it, and the answers (its protocol is called extcap).

The lines are those of ``doc/README.extcap`` of Wireshark: sentences of ``{key=value}``.
"""

import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parshall.errors import ParshallError, UsageError

INTERFACE_PREFIX = "parshall-"
RING_PREFIX = "parshall-ring-"
_SYSTEM = Path("/sys/class/net")
# ARPHRD_ETHER and ARPHRD_LOOPBACK have Ethernet headers; what else we capture are IP packets.
_ETHERNET_TYPES = ("1", "772")


@dataclass(frozen=True)
class Place:
    """What a name of Wireshark's list stands for: an interface of this host, or a ring that runs."""

    interface: str | None
    ring: str | None = None

    @classmethod
    def of(cls, name: str) -> "Place":
        """Take the name apart.

        Raises
        ------
        UsageError
            It is none of ours.
        """
        if name.startswith(RING_PREFIX):
            return cls(None, name.removeprefix(RING_PREFIX))
        if name.startswith(INTERFACE_PREFIX):
            return cls(name.removeprefix(INTERFACE_PREFIX))
        raise UsageError(f"--extcap-interface {name}: expected one of those that --extcap-interfaces lists")


def _sentence(word: str, **values: object) -> str:
    # What ends a value cannot stand in it.
    told = "".join(f"{{{key}={str(value).translate({0x7B: '(', 0x7D: ')'})}}}" for key, value in values.items())
    return f"{word} {told}"


def interface_lines(version: str, interfaces: list[str], rings: list[dict[str, Any]]) -> list[str]:
    """Return the list of what can be captured.

    Parameters
    ----------
    version : str
        Ours.
    interfaces : list of str
        Names of the interfaces of this host.
    rings : list of dict
        As `parshall.capture.rings` gives them; those that may not be read are left out.
    """
    lines = [_sentence("extcap", version=version, display="Parshall: one shared ring for all who capture")]
    lines += [
        _sentence("interface", value=f"{INTERFACE_PREFIX}{name}", display=f"Parshall on {name}") for name in interfaces
    ]
    for ring in rings:
        if "unreadable" not in ring:
            shown = f"Parshall ring {ring['name']} ({', '.join(ring['hooks'])})"
            lines.append(_sentence("interface", value=f"{RING_PREFIX}{ring['name']}", display=shown))
    return lines


def link_type_lines(place: Place) -> list[str]:
    """Return the link type of a place; the capture itself tells it for each of a ring's interfaces."""
    if place.interface is not None:
        try:
            kind = (_SYSTEM / place.interface / "type").read_text().strip()
        except OSError as error:
            raise ParshallError(
                f"interface {place.interface}: {error.strerror}; `ip link` lists those that are there"
            ) from error
        if kind not in _ETHERNET_TYPES:
            return [_sentence("dlt", number=101, name="RAW", display="Raw IP")]
    return [_sentence("dlt", number=1, name="EN10MB", display="Ethernet")]


def option_lines(place: Place) -> list[str]:
    """Return what a user may choose; who joins a ring has no say in how it was made."""
    lines = [
        _sentence(
            "arg", number=0, call="--snaplen", display="Snapshot length", type="unsigned", default=262144,
            range="1,262144", tooltip="Most bytes of a packet",
        )
    ]  # fmt: skip
    if place.ring is None:
        lines += [
            _sentence(
                "arg", number=1, call="--hook", display="Hook", type="selector",
                tooltip="Where packets are taken: XDP is fastest, and sees what comes in only",
            ),
            _sentence("value", arg=1, value="auto", display="tcx, both directions", default="true"),
            _sentence("value", arg=1, value="xdp", display="XDP, incoming"),
            _sentence(
                "arg", number=2, call="--buffer", display="Ring for each CPU", type="string", default="32M",
                tooltip="A power of two: 32M, 256M",
            ),
            _sentence("arg", number=3, call="--promiscuous", display="Promiscuous", type="boolflag", default="false"),
        ]  # fmt: skip
    return lines


def usual_directory() -> Path:
    """Where Wireshark looks for programs of this kind: the user's own directory, if its version has one.

    Wireshark 4.0 has the one of the system alone, and takes ``WIRESHARK_EXTCAP_DIR`` in its place unless root runs it.
    """
    try:
        said = subprocess.run(["tshark", "-G", "folders"], capture_output=True, text=True).stdout
    except OSError:
        said = ""
    folders = dict(line.split(":", 1) for line in said.splitlines() if ":" in line)
    for name in ("Personal Extcap path", "Extcap path"):
        if name in folders:
            return Path(folders[name].strip())
    return Path.home() / ".local/lib/wireshark/extcap"


def install(directory: Path) -> Path:
    """Write the program that Wireshark runs; return its path.

    Parameters
    ----------
    directory : Path
        One of those that Wireshark names in Help, About, Folders.
    """
    path = directory / "parshall"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        path.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m parshall extcap "$@"\n')
        path.chmod(0o755)
    except OSError as error:
        raise ParshallError(f"{path}: {error.strerror}; name another directory with --directory") from error
    return path
