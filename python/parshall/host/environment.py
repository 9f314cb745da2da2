"""The environment of a measurement: what a reader needs to repeat or question it."""

import json
import os
import platform
import socket
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from parshall.errors import ParshallError

_COMMENT_MAX_BYTES = 1600
_SYSCTL_CORE = ("rmem_max", "wmem_max", "netdev_max_backlog", "netdev_budget", "default_qdisc")


def environment() -> dict[str, Any]:
    """Describe kernel, CPUs, clock, TCP settings and the interfaces of this network namespace.

    Returns
    -------
    dict
        Can be written as JSON; ``docs/formats/environment.md`` documents the keys.
    """
    return _host() | {
        "congestion_control": _text("/proc/sys/net/ipv4/tcp_congestion_control"),
        "congestion_control_available": (_text("/proc/sys/net/ipv4/tcp_available_congestion_control") or "").split(),
        "sysctl": _sysctls(),
        "interfaces": _interfaces(name for _, name in socket.if_nameindex()),
        "qdiscs": _qdiscs(),
    }


def comment_of_capture(interfaces: Iterable[str]) -> str:
    """Describe the host and the captured interfaces, as a comment for capture files.

    Wireshark 4.0 crashes when a live capture begins with a block of more than 2048 bytes. Entries that would make the
    comment too long are left out, such as a long list of interfaces or a long command line.

    Parameters
    ----------
    interfaces : iterable of str
        Names of the captured interfaces.

    Returns
    -------
    str
        A JSON object of at most 1600 bytes; keys as in ``environment``.
    """
    described = _host()
    command_line = described.pop("command_line")
    kept: dict[str, Any] = {}
    facts = {"interfaces": _interfaces(interfaces), "command_line": command_line}
    for key, value in (described | facts).items():
        if len(as_json(kept | {key: value}).encode()) <= _COMMENT_MAX_BYTES:
            kept[key] = value
    return as_json(kept)


def as_json(value: Any) -> str:
    """Return JSON that is valid UTF-8: other bytes of command lines and file names become ``?``."""
    return json.dumps(value, ensure_ascii=False).encode(errors="replace").decode()


def _host() -> dict[str, Any]:
    from parshall.host.installation import version

    return {
        "parshall": version(),
        "command_line": sys.argv,
        "kernel": platform.release(),
        "kernel_build": platform.version(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "cpu_model": _cpu_model(),
        "clock_source": _text("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
    }


def _text(path: str | Path) -> str | None:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return None


def _cpu_model() -> str | None:
    for line in (_text("/proc/cpuinfo") or "").splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return None


def _sysctls() -> dict[str, str]:
    found = {}
    for path in sorted(Path("/proc/sys/net/ipv4").glob("tcp_*")):
        value = _text(path)
        if value is not None:
            found[f"net.ipv4.{path.name}"] = value
    for name in _SYSCTL_CORE:
        value = _text(Path("/proc/sys/net/core") / name)
        if value is not None:
            found[f"net.core.{name}"] = value
    return found


def _interfaces(names: Iterable[str]) -> dict[str, Any]:
    """Describe interfaces of the calling thread's network namespace.

    Uses netlink and ioctl, since /sys/class/net shows the namespace in which sysfs was mounted.
    """
    links = {name: (mtu_bytes, state) for name, _, mtu_bytes, state in _asked("list_interfaces")}
    return {name: _interface(name, *links.get(name, (None, None))) for name in names}


def _interface(name: str, mtu_bytes: int | None, state: str | None) -> dict[str, Any]:
    from parshall.host import offloads

    return {"mtu_bytes": mtu_bytes, "state": state, "driver": offloads.driver(name), "offloads": _offloads(name)}


def _offloads(interface: str) -> dict[str, bool] | None:
    from parshall.host import offloads

    try:
        return offloads.read(interface)
    except ParshallError:
        return None  # an interface without ethtool


def _qdiscs() -> list[dict[str, Any]]:
    names = dict(socket.if_nameindex())
    return [
        {"interface": names.get(index), "kind": kind, "parent": parent} for index, kind, parent in _asked("list_qdiscs")
    ]


def _asked(request: str) -> list[tuple[Any, ...]]:
    """Return what the compiled module lists; nothing in an installation without the kernel side."""
    from parshall import _native

    ask: Callable[[], list[tuple[Any, ...]]] = getattr(_native, request, list)
    return ask()
