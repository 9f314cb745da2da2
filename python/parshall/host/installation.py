"""The parts of this installation: the compiled module, and its kernel side."""

import re

from parshall.errors import UsageError

NO_KERNEL_SIDE = "this installation is for analysis only: it was built without the kernel side"
KERNEL_SIDE_REMEDY = "install Parshall with clang and without --no-default-features, see CONTRIBUTING.md"
# Debian's packages of the libraries that the compiled module needs, by library name.
_PACKAGES = {"libpcap": "libpcap0.8", "libelf": "libelf1", "libz": "zlib1g"}


def require_kernel_side() -> None:
    """Raise `UsageError` unless the compiled module has the kernel side, which captures and sends packets."""
    from parshall import _native

    if not hasattr(_native, "probe_capabilities"):
        raise UsageError(f"{NO_KERNEL_SIDE}; {KERNEL_SIDE_REMEDY}")


def import_problem(error: ImportError) -> tuple[str, str]:
    """Return what is missing after a failed import of Parshall or its dependencies, and the remedy."""
    from importlib.metadata import PackageNotFoundError

    if isinstance(error, PackageNotFoundError):
        return (
            f"the package {error.name} is not installed, so its version is unknown",
            "install it with pip, or make build",
        )
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
