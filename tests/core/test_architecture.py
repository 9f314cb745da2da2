"""Dependencies have one direction: py -> kernel -> core, and room to room in Python; the stub matches the module."""

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import parshall
from parshall import _native

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "python/parshall"
# Each room uses those before it.
ROOMS = (
    "_native",
    "errors",
    "host",
    "outputs",
    "statistics",
    "instruments",
    "metrics",
    "testbed",
    "figures",
    "report",
    "live",
    "model",
    "router",
    "fleet",
)
ROOMS += ("lab", "studies", "agent", "cli")


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


def test_the_page_can_be_set_up_before_the_native_module_is_built():
    # scripts/setup makes the page's copy of Vega in a checkout where nothing was compiled.
    without = "import sys; sys.modules['parshall._native'] = None; import parshall.report.document"
    subprocess.run([sys.executable, "-c", without], check=True)


def rooms_used_by(path: Path) -> set[str]:
    """Return the rooms of the package that a module imports, at once or on first use."""
    modules = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            modules += [f"{node.module}.{name.name}" for name in node.names]
        elif isinstance(node, ast.Import):
            modules += [name.name for name in node.names]
    parts = [module.split(".") for module in modules if module.startswith("parshall.")]
    return {part[1] for part in parts if not part[1].startswith("__")}


@pytest.mark.parametrize("room", [room for room in ROOMS if room != "_native"])
def test_a_room_uses_those_before_it(room):
    files = list((PACKAGE / room).rglob("*.py")) or [PACKAGE / f"{room}.py"]
    assert all(file.exists() for file in files)
    allowed = set(ROOMS[: ROOMS.index(room) + 1])
    wrong = {(str(file.relative_to(PACKAGE)), used) for file in files for used in rooms_used_by(file) - allowed}
    assert not wrong


def test_every_room_has_its_place():
    found = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert found - {"__init__", "__main__"} == set(ROOMS) - {"_native"}


def test_what_a_notebook_needs_stands_at_the_top():
    for name in parshall.__all__:
        assert callable(getattr(parshall, name)), name
    with pytest.raises(AttributeError, match="nosuch"):
        parshall.nosuch  # noqa: B018


def test_importing_the_package_imports_no_library():
    script = "import sys, parshall; print(*{name.split('.')[0] for name in sys.modules})"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert "parshall" in loaded
    assert not {"polars", "pyarrow", "numpy", "pandas", "altair", "typer", "pydantic"} & set(loaded)
