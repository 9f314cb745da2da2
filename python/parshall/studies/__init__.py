"""The built-in studies, one file each; ``parshall lab list`` shows them."""

from pathlib import Path

from parshall.errors import UsageError

DIRECTORY = Path(__file__).parent
NAMES = (
    "siftr",
    "ttprobe",
    "ffpf",
    "capture",
    "generator",
    "model",
    "router",
    "bottleneck",
    "completion",
    "competition",
)


def path_of(name: str) -> Path:
    """Return the file of a study: of a built-in one by its name, or of a user's by its path.

    Raises
    ------
    UsageError
        There is no such study.
    """
    if name in NAMES:
        return DIRECTORY / f"{name}.py"
    path = Path(name)
    if path.suffix != ".py" and not path.exists():
        raise UsageError(f"no study {name!r}; there are {', '.join(NAMES)}, or name a Python file that defines one")
    return path
