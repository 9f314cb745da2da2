"""The parts of this installation: the compiled module, and its kernel side."""

import json
import re
from typing import Any

from parshall.errors import UsageError

NO_KERNEL_SIDE = "this installation is for analysis only: it was built without the kernel side"
KERNEL_SIDE_REMEDY = (
    "install the wheel parshall, not parshall-analysis, or build without --no-default-features; see docs/install.md"
)
# Debian's packages of the libraries that the compiled module needs, by library name.
_PACKAGES = {"libpcap": "libpcap0.8", "libelf": "libelf1", "libz": "zlib1g"}


def version() -> str:
    """Return the version of this installation, which is that of its compiled module."""
    from parshall import _native

    return _native.__version__


def describe() -> dict[str, Any]:
    """Return what is installed.

    Returns
    -------
    dict
        ``version``; ``commit`` that was built, None if the build did not know it; ``kernel``, the versions of the
        libraries and the digests of the eBPF objects, None in an analysis-only installation; ``problem``, why the
        compiled module cannot be loaded, None if it can.
    """
    described: dict[str, Any] = {"version": None, "commit": None, "kernel": None, "problem": None}
    try:
        from parshall import _native
    except ImportError as error:
        return described | {"version": _version_of_metadata(), "problem": "; ".join(import_problem(error))}
    build_info = getattr(_native, "build_info", None)
    kernel = json.loads(build_info()) if build_info else None
    return described | {"version": _native.__version__, "commit": _native.commit, "kernel": kernel}


def _version_of_metadata() -> str | None:
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed_version

    for name in ("parshall", "parshall-analysis"):
        try:
            return installed_version(name)
        except PackageNotFoundError:
            continue
    return None


def require_kernel_side() -> None:
    """Raise `UsageError` unless the compiled module has the kernel side, which captures and sends packets."""
    from parshall import _native

    if not hasattr(_native, "probe_capabilities"):
        raise UsageError(f"{NO_KERNEL_SIDE}; {KERNEL_SIDE_REMEDY}")


def import_problem(error: ImportError) -> tuple[str, str]:
    """Return what is missing after a failed import of Parshall or its dependencies, and the remedy."""
    library = re.match(r"(lib[\w+-]+)\.so\S*(?=: cannot open shared object file)", str(error))
    if library:
        package = _PACKAGES.get(library[1])
        install = f"install it (Debian: apt-get install {package})" if package else "install it"
        return f"the shared library {library[0]} is missing", install
    if (error.name or "").startswith("parshall"):
        return (
            f"the compiled module cannot be loaded: {error}",
            "build it for this Python and this machine: make build, or pip install --force-reinstall",
        )
    return (
        f"the Python package {(error.name or str(error)).partition('.')[0]} cannot be imported: {error}",
        "install it, or install Parshall with pip, which installs its dependencies",
    )
