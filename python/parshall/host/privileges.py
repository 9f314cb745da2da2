"""The privileges of this process, checked beforehand for clearer messages than the kernel's."""

import os
from pathlib import Path

from parshall.errors import ParshallError, UsageError
from parshall.host.installation import require_kernel_side

# Numbers of capabilities(7).
_NUMBERS = {"CAP_NET_ADMIN": 12, "CAP_NET_RAW": 13, "CAP_SYS_ADMIN": 21, "CAP_PERFMON": 38, "CAP_BPF": 39}
# Split from CAP_SYS_ADMIN, which still includes them.
_SPLIT_FROM_SYS_ADMIN = ("CAP_PERFMON", "CAP_BPF")
_BPF = ("CAP_NET_ADMIN", "CAP_PERFMON", "CAP_BPF")
_BTF = Path("/sys/kernel/btf/vmlinux")


def effective_capabilities() -> int:
    """Return the bit mask of the effective capabilities of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return int(line.split()[1], 16)
    return 0


def missing_capabilities(*names: str) -> list[str]:
    """Return the named capabilities that this process lacks."""
    mask = effective_capabilities()
    has_sys_admin = bool(mask & 1 << _NUMBERS["CAP_SYS_ADMIN"])
    return [
        name
        for name in names
        if not mask & 1 << _NUMBERS[name] and not (has_sys_admin and name in _SPLIT_FROM_SYS_ADMIN)
    ]


def remedy(*names: str, command: str = "") -> str:
    """Return how this process can get the named capabilities.

    Root in a container or below setpriv(1) may lack them; running as root does not help there.
    """
    if os.geteuid():
        return f"run it as root (sudo parshall {command} ...)" if command else "run it as root"
    missing = ", ".join(missing_capabilities(*names))
    if not missing:
        return "root has the capabilities, so something else forbids it; check the security modules"
    return f"root lacks {missing} here; add it to the container (--cap-add), or run it outside"


def require(command: str, *names: str) -> None:
    """Raise `UsageError` unless this process has the capabilities that ``parshall COMMAND`` needs."""
    missing = missing_capabilities(*names)
    if missing:
        raise UsageError(f"needs {', '.join(missing)}: {remedy(*missing, command=command)}")


def require_bpf(command: str, *others: str) -> None:
    """Raise unless this process can load the eBPF programs of ``parshall COMMAND``, which needs `others`, too.

    Raises `UsageError` for missing capabilities and analysis-only installations, `ParshallError` without BTF.
    """
    require_kernel_side()
    require(command, *others, *_BPF)
    require_type_information()


def require_type_information() -> None:
    """Raise `ParshallError` unless the kernel has BTF."""
    if not _BTF.exists():
        raise ParshallError(
            f"{_BTF}: the kernel's type information is missing; boot a kernel built with CONFIG_DEBUG_INFO_BTF=y"
        )
