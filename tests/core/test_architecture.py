"""Dependencies have one direction: py -> kernel -> core; the stub matches the module."""

import ast
import shutil
import subprocess
from pathlib import Path

import pytest

from parshall import _native

ROOT = Path(__file__).parents[2]


def dependencies(package: str, *options: str) -> set[str]:
    """Return the names of all packages that a package is built from."""
    if shutil.which("cargo") is None:
        pytest.skip("needs cargo")
    command = ["cargo", "tree", "--locked", "--prefix", "none", "--edges", "normal,build"]
    tree = subprocess.run(
        [*command, "--package", package, *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return {line.split()[0] for line in tree.stdout.splitlines() if line}


def test_core_depends_on_nothing_of_the_kernel():
    names = dependencies("parshall-core")
    assert "arrow" in names, "the list of dependencies could not be read"
    assert not {name for name in names if "bpf" in name or name in ("parshall-kernel", "pyo3", "pcap")}


def test_kernel_depends_on_nothing_of_python():
    assert not dependencies("parshall-kernel") & {"pyo3", "parshall-py"}


def test_the_module_for_analysis_depends_on_nothing_of_the_kernel():
    names = dependencies("parshall-py", "--no-default-features")
    assert "parshall-core" in names
    assert not {name for name in names if "bpf" in name or name == "parshall-kernel"}


def test_the_stub_matches_the_native_module():
    stub = ast.parse((ROOT / "python/parshall/_native.pyi").read_text())
    declared = {node.name for node in stub.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    declared |= {node.target.id for node in stub.body if isinstance(node, ast.AnnAssign)}
    present = {name for name in dir(_native) if not name.startswith("_")} | {"__version__"}
    assert declared == present
