"""The environment of a measurement: what a reader must know to repeat or to doubt it."""

import os
import platform
import socket
import sys
from pathlib import Path
from typing import Any

from parshall.errors import ParshallError

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
        "congestion_control_available": (_text("/proc/sys/net/ipv4/tcp_available_congestion_control") or "").split(),
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
        "offloads": _offloads(name),
    }


def _offloads(interface: str) -> dict[str, bool] | None:
    from parshall.testbed import offloads

    try:
        return offloads.read(interface)
    except ParshallError:
        return None  # an interface without ethtool


def _qdiscs() -> list[dict[str, Any]]:
    from pyroute2 import IPRoute

    names = dict(socket.if_nameindex())
    with IPRoute() as route:
        return [
            {"interface": names.get(entry["index"]), "kind": entry.get("kind"), "parent": entry["parent"]}
            for entry in route.get_qdiscs()
        ]
