"""What an installation requires: everything that is imported, and versions that leave a user's environment alone."""

import ast
import importlib
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

from parshall.cli.main import COMMANDS
from parshall.host.installation import describe

ROOT = Path(__file__).parents[2]
CARGO = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# Names of modules that differ from those of their packages.
MODULES = {"vl-convert-python": "vl_convert", "typing-extensions": "typing_extensions"}
MODULES |= dict.fromkeys(("opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http"), "opentelemetry")
# Modules that come with a package, which chooses their version.
PARTS = {"pydantic": {"pydantic_core"}}
# Methods that need a package without importing it.
METHODS = {"to_pandas": "pandas"}
REQUIREMENT = re.compile(r"([\w-]+)((?:[<>=!~]=?[\w.]+,?)*)")


def modules(requirements: list[str]) -> set[str]:
    names = [REQUIREMENT.match(each)[1] for each in requirements]
    return {MODULES.get(name, name.replace("-", "_")) for name in names}.union(
        *(PARTS.get(name, set()) for name in names)
    )


def imported(source: str) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found.add(node.module.partition(".")[0])
        elif isinstance(node, ast.Attribute) and node.attr in METHODS:
            found.add(METHODS[node.attr])
    return found - set(sys.stdlib_module_names) - {"parshall"}


def test_all_imports_are_required_packages() -> None:
    required = modules(PROJECT["dependencies"])
    extras = PROJECT["optional-dependencies"]
    optional = modules(extras["cluster"] + extras["pandas"] + extras["mcp"] + extras["otlp"])
    for path in (ROOT / "python").rglob("*.py"):
        assert imported(path.read_text()) <= required | optional, path


def test_imports_of_examples_are_required_packages() -> None:
    required = modules(PROJECT["dependencies"])
    blocks = re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    assert blocks
    for block in blocks:
        assert imported(block) <= required


def test_an_installation_accepts_more_than_one_version() -> None:
    for each in PROJECT["dependencies"]:
        _, versions = REQUIREMENT.fullmatch(each).groups()
        assert versions.startswith(">="), each
        assert "==" not in versions, each


def test_all_required_packages_are_pinned() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {line.partition("==")[0] for line in lines if not line.startswith("#")}
    wanted = sum(PROJECT["optional-dependencies"].values(), PROJECT["dependencies"])
    assert pinned == {REQUIREMENT.match(each)[1] for each in wanted}


def test_the_version_has_one_source() -> None:
    assert PROJECT["dynamic"] == ["version"] and "version" not in PROJECT
    assert describe()["version"] == CARGO["version"]
    for crate in ROOT.glob("crates/*/Cargo.toml"):
        assert tomllib.loads(crate.read_text())["package"]["version"] == {"workspace": True}, crate


def test_the_newest_section_of_the_changelog_is_this_version() -> None:
    headings = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert re.fullmatch(re.escape(CARGO["version"]) + r" \((unreleased|\d{4}-\d\d-\d\d)\)", headings[0])


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the manual pages."""
    directory = tmp_path_factory.mktemp("man")
    subprocess.run([sys.executable, ROOT / "scripts/man", directory], check=True)
    return directory


def test_every_command_has_a_manual_page(pages: Path) -> None:
    assert {path.name for path in pages.iterdir()} == {"parshall.1"} | {f"parshall-{name}.1" for name in COMMANDS}


@pytest.mark.parametrize("name", ["", *(f"-{name}" for name in COMMANDS)])
def test_a_manual_page_is_complete_and_clean(name: str, pages: Path) -> None:
    page = pages / f"parshall{name}.1"
    sections = re.findall(r"^\.SH (.*)$", page.read_text(), re.MULTILINE)
    assert sections[:3] == ["NAME", "SYNOPSIS", "DESCRIPTION"]
    assert {"EXIT STATUS", "SEE ALSO"} <= set(sections) and {"OPTIONS", "COMMANDS"} & set(sections)
    if shutil.which("man") is None:
        pytest.skip("needs man")
    answer = subprocess.run(["man", "--warnings", "-l", page], capture_output=True, text=True, env={"MANWIDTH": "100"})
    assert answer.stderr == ""
    assert f"parshall{name} - " in answer.stdout


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the build backend of pyproject.toml."""
    monkeypatch.syspath_prepend(ROOT / "scripts")
    return importlib.import_module("build_backend")


def test_a_build_here_misses_nothing(backend: ModuleType) -> None:
    assert "maturin" not in backend.get_requires_for_build_wheel()


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({}, {"a C compiler", "clang 15", "pkg-config", "libelf", "zlib", "libpcap", "--no-default-features"}),
        ({"build-args": "--no-default-features"}, {"a C compiler"}),
    ],
)
def test_a_build_without_tools_ends_with_one_line(
    settings: dict[str, str], named: set[str], backend: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CLANG", raising=False)
    with pytest.raises(SystemExit) as ended:
        backend.get_requires_for_build_wheel(settings)
    (line,) = str(ended.value).splitlines()
    assert all(name in line for name in named)
    assert ("libelf" in line) == ("libelf" in named)


def test_the_check_of_a_build_and_the_build_agree_on_clang(backend: ModuleType) -> None:
    script = (ROOT / "crates/kernel/build.rs").read_text()
    assert f"CLANG_MAJOR_MIN: u32 = {backend.CLANG_MAJOR_MIN};" in script
