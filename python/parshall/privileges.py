"""What this process may do, asked before the kernel refuses with less clear words."""

import os
from pathlib import Path

from parshall.errors import ParshallError

CAP_NET_ADMIN = 12
CAP_SYS_ADMIN = 21
CAP_PERFMON = 38
CAP_BPF = 39
_NAMES = {CAP_NET_ADMIN: "CAP_NET_ADMIN", CAP_PERFMON: "CAP_PERFMON", CAP_BPF: "CAP_BPF"}
_BTF = Path("/sys/kernel/btf/vmlinux")


def effective_capabilities() -> int:
    """Return the bit mask of the effective capabilities of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return int(line.split()[1], 16)
    return 0


def require_bpf(command: str) -> None:
    """Raise unless eBPF programs can be loaded for ``parshall COMMAND``.

    Raises
    ------
    ParshallError
        Capabilities or the kernel's type information are missing.
    """
    mask = effective_capabilities()
    if not mask & 1 << CAP_SYS_ADMIN:
        missing = [name for bit, name in _NAMES.items() if not mask & 1 << bit]
        if missing:
            # Root of a container may be without them.
            remedy = (
                f"run it as root (sudo parshall {command} ...)"
                if os.geteuid()
                else "root is without them here; give them to the container (--cap-add) or run it outside"
            )
            raise ParshallError(f"needs {', '.join(missing)}: {remedy}")
    if not _BTF.exists():
        raise ParshallError(
            f"needs the kernel's type information, and {_BTF} is not there: "
            "boot a kernel built with CONFIG_DEBUG_INFO_BTF=y"
        )
