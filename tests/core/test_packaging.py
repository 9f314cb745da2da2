"""What an installation requires: everything that is imported, and versions that leave a user's environment alone."""

import ast
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# Names of modules that differ from those of their packages.
MODULES = {"vl-convert-python": "vl_convert", "typing-extensions": "typing_extensions"}
# Modules that come with a package, which chooses their version.
PARTS = {"pydantic": {"pydantic_core"}}
# Methods that need a package without importing it.
METHODS = {"to_pandas": "pandas"}
REQUIREMENT = re.compile(r"([\w-]+)((?:[<>=!~]=?[\w.]+,?)*)")


def modules(requirements: list[str]) -> set[str]:
    names = [REQUIREMENT.match(each)[1] for each in requirements]
    return {MODULES.get(name, name) for name in names}.union(*(PARTS.get(name, set()) for name in names))


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
    optional = modules(extras["cluster"] + extras["pandas"])
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
