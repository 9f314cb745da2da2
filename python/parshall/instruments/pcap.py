"""Run programs that use libpcap on a ring: our library replaces libpcap, and their packets come from the ring."""

import json
import os
import shutil
import signal
import stat
import struct
from pathlib import Path
from typing import NamedTuple, NoReturn

from parshall.errors import CommandError, ParshallError, UsageError
from parshall.host.installation import require_kernel_side
from parshall.instruments.capture import KEEPER

DIRECTORY = Path(__file__).parents[1] / "libpcap"
LIBRARY = DIRECTORY / "libpcap.so.0.8"

# Programs that leave capturing to another one.
_CAPTURED_BY = {"tshark": "dumpcap", "wireshark": "dumpcap"}
_PATHS = "LD_LIBRARY_PATH"
_SYSTEM = "PARSHALL_PCAP_SYSTEM"
_PT_INTERP = 3


class Program(NamedTuple):
    """A program that was compared, on the ring and on its own packet socket, with the same traffic."""

    name: str
    compared: str


PROGRAMS = (
    Program("tcpdump", "packets, bytes, order, times, counts; options -c -w -C -G -U -l -Q -s -j -J -L -D -i any -Z"),
    Program("tshark", "packets, bytes, order, times (by dumpcap, as root)"),
    Program("ngrep", "matching packets"),
    Program("arp-scan", "hosts found"),
    Program("nmap", "hosts found by the ping scan -sn"),
    Program("p0f", "signatures"),
    Program("suricata", "alerts, flows, counts (af-packet off: --pcap=INTERFACE)"),
    Program("scapy", "packets, order (sniff with libpcap)"),
)


def environment(join: str | None = None) -> dict[str, str]:
    """Return the environment in which a program finds our library in place of libpcap.

    Parameters
    ----------
    join : str, optional
        Ring to join. Default: one that runs at the interface that the program names, or a new one.

    Raises
    ------
    ParshallError
        This installation has no such library.
    """
    if not LIBRARY.exists():
        raise ParshallError(f"{LIBRARY}: no such file; build it with `make build` in a checkout")
    before = os.environ.get(_PATHS)
    # The keeper of a new ring is our own program, which needs the system's libpcap. The program may have another PATH
    # and directory.
    keeper = [
        str(Path(shutil.which("env") or "/usr/bin/env").absolute()),
        *([f"{_PATHS}={before}"] if before else ["-u", _PATHS]),
        *KEEPER,
    ]
    ours = {
        _PATHS: f"{DIRECTORY}:{before}" if before else str(DIRECTORY),
        "PARSHALL_PCAP_KEEPER": json.dumps(keeper),
    }
    return os.environ | ours | _own_libpcap(before) | ({"PARSHALL_PCAP_RING": join} if join else {})


def _own_libpcap(paths: str | None) -> dict[str, str]:
    """Return where our library finds the libpcap that the program would have had from its own library path."""
    found = (
        Path(directory, name)
        for directory in (paths or "").split(":")
        for name in ("libpcap.so.0.8", "libpcap.so.1")
        if directory and Path(directory, name).is_file()
    )
    own = next(found, None)
    return {} if own is None or _SYSTEM in os.environ else {_SYSTEM: str(own.absolute())}


def run(arguments: list[str], join: str | None = None) -> NoReturn:
    """Become a program that finds our library in place of libpcap.

    Raises
    ------
    CommandError
        The program does not exist (status 127) or cannot be run (status 126), as in shells.
    UsageError
        The loader would not use our library for it.
    """
    require_kernel_side()
    name = arguments[0]
    found = shutil.which(name)
    if found is None:
        if Path(name).exists():
            raise CommandError(f"{name}: cannot be run; make it executable", 126)
        raise CommandError(f"{name}: no such command; check the name and PATH", 127)
    reason = refusal(Path(found))
    if reason:
        raise UsageError(f"{name}: {reason}")
    # Only there does the library say that a program captures without the ring.
    ours = {"PARSHALL_PCAP_STDERR": _file_of(2)}
    # Python ignores these; a program expects the kernel's default.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execve(found, arguments, environment(join) | ours)
    except OSError as error:
        raise CommandError(f"{name}: cannot be run: {error.strerror}; check the file", 126) from error


def _file_of(descriptor: int) -> str:
    """Return the numbers by which the library knows a file again."""
    try:
        file = os.fstat(descriptor)
    except OSError:
        return "closed"
    return f"{file.st_dev}:{file.st_ino}"


def refusal(program: Path) -> str | None:
    """Return why the loader would not use our library for a program; None if it would."""
    reason = _protection(program)
    if reason:
        return f"it {reason}"
    capturer = shutil.which(_CAPTURED_BY.get(program.name, ""))
    reason = _protection(Path(capturer)) if capturer else None
    return f"it captures by {capturer}, which {reason}" if reason else None


def _protection(program: Path) -> str | None:
    status = program.stat()
    changes_user = status.st_mode & stat.S_ISUID and status.st_uid != os.getuid()
    changes_group = status.st_mode & stat.S_ISGID and status.st_gid != os.getgid()
    has_capabilities = os.getuid() != 0 and "security.capability" in os.listxattr(program)
    if changes_user or changes_group or has_capabilities:
        kind = "has file capabilities" if has_capabilities else "is setuid or setgid"
        return f"{kind}, so the loader uses only the system's libpcap; run it as root, or use `parshall extcap`"
    if _is_static(program):
        return "is statically linked, so it has its own libpcap; use a dynamically linked build"
    return None


def _is_static(program: Path) -> bool:
    """Whether a program is an ELF file without a loader. Scripts are not: their interpreters load libraries."""
    with program.open("rb") as file:
        head = file.read(64)
        if head[:4] != b"\x7fELF" or len(head) < 64 or head[4] != 2:
            return False
        order = "<" if head[5] == 1 else ">"
        (offset,) = struct.unpack_from(f"{order}Q", head, 32)
        size, count = struct.unpack_from(f"{order}HH", head, 54)
        file.seek(offset)
        table = file.read(size * count)
    kinds = (struct.unpack_from(f"{order}I", table, size * index)[0] for index in range(len(table) // max(size, 1)))
    return _PT_INTERP not in kinds
