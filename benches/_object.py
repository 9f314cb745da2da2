"""Compiles an eBPF program of a benchmark, with the compiler and the headers that ours are built with."""

import platform
import shutil
import subprocess
from pathlib import Path

ARCHITECTURE = {"x86_64": "x86", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
ROOT = Path(__file__).resolve().parent.parent


def compiled(directory: Path, text: str, name: str, *options: str) -> Path | None:
    """Compile a program and return its object; None without a compiler or libbpf's headers."""
    clang = next((found for n in range(30, 14, -1) if (found := shutil.which(f"clang-{n}"))), shutil.which("clang"))
    includes = sorted(ROOT.glob("target/release/build/libbpf-sys-*/out/include"))
    if clang is None or not includes:
        return None
    source, target = directory / f"{name}.c", directory / f"{name}.o"
    source.write_text(text)
    paths = [f"-I{path}" for path in (includes[0], f"/usr/include/{platform.machine()}-linux-gnu", ROOT / "bpf")]
    kind = [*(ROOT / "bpf" / "compiler-flags").read_text().split(), f"-D__TARGET_ARCH_{ARCHITECTURE}"]
    subprocess.run([clang, *kind, *paths, *options, "-c", source, "-o", target], check=True)
    return target
