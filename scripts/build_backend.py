"""The build backend of pyproject.toml: maturin, after a check of what the build needs.

Without the check, a missing compiler or header ends in pages of messages of cargo, with the reason somewhere in them.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import maturin
from maturin import (
    build_editable,
    build_sdist,
    build_wheel,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

# As in crates/kernel/build.rs.
CLANG_MAJOR_MIN = 15
_LIBRARIES = {
    "libelf": ("#include <libelf.h>\n#include <gelf.h>", "-lelf", "libelf-dev"),
    "zlib": ("#include <zlib.h>", "-lz", "zlib1g-dev"),
    "libpcap": ("", "-lpcap", "libpcap-dev"),
}


def get_requires_for_build_wheel(config_settings: Mapping[str, Any] | None = None) -> list[str]:
    """Return what maturin requires; end with one line when the build would fail for want of a tool."""
    arguments = maturin.get_maturin_pep517_args(config_settings)
    missing = _missing(has_kernel_side="--no-default-features" not in arguments)
    if missing:
        names = ", ".join(missing)
        packages = " ".join(missing.values())
        sys.exit(
            f"parshall cannot be built here. Missing: {names}. Debian: apt-get install {packages}. Or build for "
            "analysis only, with just a C compiler: pip install --config-settings=build-args=--no-default-features ..."
        )
    return maturin.get_requires_for_build_wheel(config_settings)


get_requires_for_build_editable = get_requires_for_build_wheel


def _missing(*, has_kernel_side: bool) -> dict[str, str]:
    """Return what is missing, with the package of Debian that has it."""
    compiler = os.environ.get("CC", "cc")
    if shutil.which(compiler.split()[0]) is None:
        missing = {"a C compiler": "gcc libc6-dev"}
        libraries_missing = {f"the headers of {name}": package for name, (_, _, package) in _LIBRARIES.items()}
    else:
        missing = {}
        libraries_missing = {
            f"the headers of {name}": package
            for name, (source, flag, package) in _LIBRARIES.items()
            if not (name == "libpcap" and "PARSHALL_LIBPCAP_DIR" in os.environ) and not _links(compiler, source, flag)
        }
    if not has_kernel_side:
        return missing
    if not _has_clang():
        missing[f"clang {CLANG_MAJOR_MIN} or newer (or CLANG=PATH)"] = "clang-19"
    for program in ("make", "pkg-config"):
        if shutil.which(program) is None:
            missing[program] = program
    return missing | libraries_missing


def _links(compiler: str, source: str, flag: str) -> bool:
    command = [*compiler.split(), "-shared", "-x", "c", "-", "-o", os.devnull, flag]
    return subprocess.run(command, input=source, text=True, capture_output=True).returncode == 0


def _has_clang() -> bool:
    named = os.environ.get("CLANG")
    if named:
        return shutil.which(named) is not None
    if any(shutil.which(f"clang-{major}") for major in range(CLANG_MAJOR_MIN, 31)):
        return True
    if shutil.which("clang") is None:
        return False
    answer = subprocess.run(["clang", "-dumpversion"], capture_output=True, text=True).stdout
    version = re.match(r"\d+", answer)
    return version is not None and int(version[0]) >= CLANG_MAJOR_MIN
