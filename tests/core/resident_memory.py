"""The peak of this process's resident memory, from a moment on: earlier tests must not hide what one takes."""

from pathlib import Path


def forget_peak() -> None:
    """Begin again: the peak is what is resident."""
    Path("/proc/self/clear_refs").write_text("5")


def peak_bytes() -> int:
    """Return the peak since `forget_peak`."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024
