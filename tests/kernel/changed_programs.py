"""eBPF programs that a test compiles with changes, such as a delay at the narrowest place or a table of one element."""

import platform
import subprocess
from pathlib import Path

from test_compilers import COMPILERS

ROOT = Path(__file__).parents[2]


def compiled(directory: Path, name: str, changes: dict[str, list[tuple[str, str]]]) -> Path:
    """Compile an object from changed sources.

    Parameters
    ----------
    directory
        Where sources and object go.
    name
        The object, without ``.bpf.o``.
    changes
        By file of ``bpf/``: a text that is there once, and what stands in its place.

    Returns
    -------
    pathlib.Path
        A directory for ``PARSHALL_BPF_OBJECTS``.
    """
    sources, objects = directory / "bpf", directory / "objects"
    objects.mkdir()
    sources.mkdir()
    for source in (ROOT / "bpf").iterdir():
        text = source.read_text()
        for before, after in changes.get(source.name, []):
            assert text.count(before) == 1, (source.name, before)
            text = text.replace(before, after)
        (sources / source.name).write_text(text)
    headers = next((ROOT / "target" / "release" / "build").glob("libbpf-sys-*/out/include"))
    machine = platform.machine()
    architecture = {"x86_64": "x86", "aarch64": "arm64"}.get(machine, machine)
    flags = [*(ROOT / "bpf" / "compiler-flags").read_text().split(), f"-D__TARGET_ARCH_{architecture}"]
    includes = ["-I", headers, "-I", f"/usr/include/{machine}-linux-gnu"]
    command = [COMPILERS[-1], *flags, *includes, "-c", sources / f"{name}.bpf.c"]
    subprocess.run([*command, "-o", objects / f"{name}.bpf.o"], check=True)
    return objects
