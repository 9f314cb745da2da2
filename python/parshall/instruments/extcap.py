"""Answers to the queries of Wireshark's extcap protocol for external capture programs.

``doc/README.extcap`` of Wireshark documents the lines: sentences of ``{key=value}``.
"""

import os
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parshall.errors import ParshallError, UsageError, printable
from parshall.host.whole_file import new_file

INTERFACE_PREFIX = "parshall-"
RING_PREFIX = "parshall-ring-"
_SYSTEM = Path("/sys/class/net")
# ARPHRD_ETHER and ARPHRD_LOOPBACK have Ethernet headers; on other interfaces, packets begin with IP.
_ETHERNET_TYPES = ("1", "772")


@dataclass(frozen=True)
class CaptureSource:
    """An entry of Wireshark's interface list: an interface of this host, or a running ring."""

    interface: str | None
    ring: str | None = None

    @classmethod
    def parse(cls, name: str) -> "CaptureSource":
        """Parse the name of an entry; raise `UsageError` if it is not one of ours."""
        if name.startswith(RING_PREFIX):
            return cls(None, name.removeprefix(RING_PREFIX))
        if name.startswith(INTERFACE_PREFIX):
            return cls(name.removeprefix(INTERFACE_PREFIX))
        raise UsageError(f"--extcap-interface {name}: expected one of those that --extcap-interfaces lists")


def _sentence(word: str, **values: object) -> str:
    # Braces would end the value.
    def plain(value: object) -> str:
        return printable(str(value)).translate({0x7B: "(", 0x7D: ")"})

    fields = "".join(f"{{{key}={plain(value)}}}" for key, value in values.items())
    return f"{word} {fields}"


def interface_lines(version: str, interfaces: list[str], rings: list[dict[str, Any]]) -> list[str]:
    """Return the lines that list interfaces, and rings as `parshall.instruments.capture.rings` returns them."""
    lines = [_sentence("extcap", version=version, display="Parshall: capture through a shared ring")]
    lines += [
        _sentence("interface", value=f"{INTERFACE_PREFIX}{name}", display=f"Parshall on {name}") for name in interfaces
    ]
    for ring in rings:
        if "unreadable" not in ring:
            shown = f"Parshall ring {ring['name']} ({', '.join(ring['hooks'])})"
            lines.append(_sentence("interface", value=f"{RING_PREFIX}{ring['name']}", display=shown))
    return lines


def link_type_lines(source: CaptureSource) -> list[str]:
    """Return the link type of a source; for a ring, the capture has the type of each interface."""
    if source.interface is not None:
        try:
            kind = (_SYSTEM / source.interface / "type").read_text().strip()
        except OSError as error:
            raise ParshallError(
                f"interface {source.interface}: {error.strerror}; `ip link` lists interfaces"
            ) from error
        if kind not in _ETHERNET_TYPES:
            return [_sentence("dlt", number=101, name="RAW", display="Raw IP")]
    return [_sentence("dlt", number=1, name="EN10MB", display="Ethernet")]


def option_lines(source: CaptureSource) -> list[str]:
    """Return the options for the user; a ring that runs has its settings already."""
    lines = [
        _sentence(
            "arg", number=0, call="--snaplen", display="Snapshot length", type="unsigned", default=262144,
            range="1,262144", tooltip="Maximum bytes of a packet to keep",
        )
    ]  # fmt: skip
    if source.ring is None:
        lines += [
            _sentence(
                "arg", number=1, call="--hook", display="Hook", type="selector",
                tooltip="XDP is fastest, and sees inbound packets only",
            ),
            _sentence("value", arg=1, value="auto", display="tcx, both directions", default="true"),
            _sentence("value", arg=1, value="xdp", display="XDP, inbound only"),
            _sentence(
                "arg", number=2, call="--buffer", display="Ring for each CPU", type="string", default="32M",
                tooltip="A power of two: 32M, 256M",
            ),
            _sentence("arg", number=3, call="--promiscuous", display="Promiscuous", type="boolflag", default="false"),
        ]  # fmt: skip
    return lines


def default_directory() -> Path:
    """Return Wireshark's directory for extcap programs: the user's own, if its version has one.

    Wireshark 4.0 names only the system's directory. Unless root runs it, ``WIRESHARK_EXTCAP_DIR`` replaces that.
    """
    try:
        output = subprocess.run(["tshark", "-G", "folders"], capture_output=True, text=True).stdout
    except OSError:
        output = ""
    folders = dict(line.split(":", 1) for line in output.splitlines() if ":" in line)
    for name in ("Personal Extcap path", "Extcap path"):
        if name in folders:
            return Path(folders[name].strip())
    return Path.home() / ".local/lib/wireshark/extcap"


def install(directory: Path) -> Path:
    """Install the program that Wireshark runs into one of its directories; return its path."""
    path = directory / "parshall"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with new_file(Path(path.name), below=directory) as (file, commit):
            file.write(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -P -m parshall extcap "$@"\n')
            os.fchmod(file.fileno(), 0o755)
            file.flush()
            commit()
    except OSError as error:
        raise ParshallError(f"{path}: {error.strerror}; name another directory with --directory") from error
    return path
