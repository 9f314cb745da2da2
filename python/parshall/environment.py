"""The environment of a measurement: what a reader must know to repeat or to doubt it."""

import array
import fcntl
import os
import platform
import socket
import struct
import sys
from pathlib import Path
from typing import Any

_SIOCETHTOOL = 0x8946
# The classic ethtool queries: each asks for one switch and answers with 0 or 1.
_OFFLOADS = {
    "rx_checksum": 0x14,
    "tx_checksum": 0x16,
    "scatter_gather": 0x18,
    "tso": 0x1E,
    "gso": 0x23,
    "gro": 0x2B,
}
_SYSCTL_CORE = ("rmem_max", "wmem_max", "netdev_max_backlog", "netdev_budget", "default_qdisc")


def environment() -> dict[str, Any]:
    """Describe kernel, CPUs, clock, TCP settings and the interfaces of this network namespace.

    Returns
    -------
    dict
        JSON-ready; the keys are told in ``docs/formats/environment.md``.
    """
    from importlib.metadata import version

    return {
        "parshall": version("parshall"),
        "command_line": sys.argv,
        "kernel": platform.release(),
        "kernel_build": platform.version(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "cpu_model": _cpu_model(),
        "clock_source": _text("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
        "congestion_control": _text("/proc/sys/net/ipv4/tcp_congestion_control"),
        "congestion_control_available": (
            _text("/proc/sys/net/ipv4/tcp_available_congestion_control") or ""
        ).split(),
        "sysctl": _sysctls(),
        "interfaces": {name: _interface(name) for _, name in socket.if_nameindex()},
        "qdiscs": _qdiscs(),
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


def _interface(name: str) -> dict[str, Any]:
    base = Path("/sys/class/net") / name
    mtu = _text(base / "mtu")
    return {
        "mtu_bytes": int(mtu) if mtu else None,
        "state": _text(base / "operstate"),
        "driver": (base / "device/driver").resolve().name if (base / "device/driver").exists() else None,
        "offloads": {key: _ethtool(name, query) for key, query in _OFFLOADS.items()},
    }


def _ethtool(name: str, query: int) -> bool | None:
    value = array.array("I", [query, 0])
    request = struct.pack("16sP16x", name.encode(), value.buffer_info()[0])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        try:
            fcntl.ioctl(control, _SIOCETHTOOL, request)
        except OSError:
            return None
    return bool(value[1])


def _qdiscs() -> list[dict[str, Any]]:
    from pyroute2 import IPRoute

    names = dict(socket.if_nameindex())
    with IPRoute() as route:
        return [
            {"interface": names.get(entry["index"]), "kind": entry.get("kind"), "parent": entry["parent"]}
            for entry in route.get_qdiscs()
        ]
