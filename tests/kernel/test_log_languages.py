"""Logs of every kind, in the readers of Arrow that other languages have: all rows, beside those that pyarrow reads.

The reader of Rust is among the tests of ``crates/core``.
"""

import shutil
import subprocess
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

import pyarrow as pa
import pytest
from languages import built
from test_log_readers import WRITERS, write_cut

from parshall.testbed import Testbed

pytestmark = [pytest.mark.kernel, pytest.mark.long, pytest.mark.usefixtures("root")]
CLIENTS = Path(__file__).with_name("log_clients")
ARROW_GO = "github.com/apache/arrow-go/v18/arrow/ipc@v18.8.0"
NODE_PACKAGES = ["apache-arrow@21.2.0", "fzstd@0.1.1", "lz4js@0.2.0"]
# Logs that a reader without codecs opens, too.
PLAIN = ("tcp, none", "tcp, empty", "path, empty")


@pytest.fixture(scope="module")
def logs(root: None, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Path]]:
    """Write a log of every kind, and one whose writer was killed."""
    directory = tmp_path_factory.mktemp("logs")
    written = {}
    for kind, write in WRITERS.items():
        whole, cut = directory / f"{kind}.arrow", directory / f"{kind}, cut.arrow"
        with Testbed() as bed:
            write(bed, whole)
        write_cut(whole, cut)
        written[kind] = [whole, cut]
    return written


def client_of(language: str, directory: Path) -> list[object]:
    """Return the words that start the client of a language, or skip."""
    if language == "go":
        shutil.copy(CLIENTS / "client.go", directory)
        # A release that is too old is not to fetch another.
        local = {"GOTOOLCHAIN": "local", "GOFLAGS": ""}
        for words in (["mod", "init", "client"], ["get", ARROW_GO], ["build", "-o", "client", "."]):
            built(["go", *words], directory, **local)
        return [directory / "client"]
    if language == "java":
        jars, classes = directory / "jars", directory / "classes"
        pom = ["-f", CLIENTS / "pom.xml", "dependency:copy-dependencies", f"-DoutputDirectory={jars}"]
        built(["mvn", "--quiet", "--batch-mode", *pom], directory)
        built(["javac", "-cp", f"{jars}/*", "-d", classes, CLIENTS / "Client.java"], directory)
        return ["java", "--add-opens=java.base/java.nio=ALL-UNNAMED", "-cp", f"{classes}:{jars}/*", "Client"]
    built(["npm", "install", "--silent", "--ignore-scripts", *NODE_PACKAGES], directory)
    return ["env", f"NODE_PATH={directory / 'node_modules'}", "node", CLIENTS / "client.js", language.split()[1]]


def text(value: object) -> str:
    """Return a value as the clients print it."""
    if value is None:
        return "-"
    if isinstance(value, bytes):
        return value.hex()
    return str(value).lower() if isinstance(value, bool) else str(value)


def lines(path: Path) -> Iterator[str]:
    """Return what a client prints for a log."""
    yield str(path)
    columns = pa.ipc.open_stream(path).read_all().columns
    numbers = (column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column for column in columns)
    for row in zip(*(column.to_pylist() for column in numbers), strict=True):
        yield "\t".join(map(text, row))


@pytest.mark.parametrize("language", ["go", "java", "node codecs", "node plain"])
def test_readers_of_other_languages_read_the_same(logs: dict[str, list[Path]], tmp_path: Path, language: str) -> None:
    words = client_of(language, tmp_path)
    paths = [path for kind in (PLAIN if language == "node plain" else WRITERS) for path in logs[kind]]
    done = subprocess.run([*words, *paths], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    expected = [line for path in paths for line in lines(path)]
    assert len(expected) > 2 * len(paths)
    pairs = zip_longest(done.stdout.splitlines(), expected)
    assert [pair for pair in pairs if pair[0] != pair[1]][:3] == []
