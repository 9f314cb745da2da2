"""Distributions of packet sizes: count, represent in two stages, draw, compare.

The command ``parshall sizes`` is a thin layer over this module; after ``createDist`` of F. Schneider, "Performance
evaluation of packet capturing systems for high-speed networks", 2005, sections 4.2 and A.1. A size is the length of an
IP packet in bytes.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from parshall import _native
from parshall.errors import ParshallError, UsageError

BUILT_IN = ("imix", "imix-tcp", "imix-ipsec", "thesis")


@dataclass(frozen=True)
class Parameters:
    """How a distribution is represented; the defaults are those of the program createDist.

    Attributes
    ----------
    maximum_bytes : int
        Largest size; larger packets are ignored.
    precision : int
        Cells of each of the two arrays.
    bin_bytes : int
        Width of a bin, bytes.
    outlier_share : float
        Share of all packets from which a size is an outlier, with cells of its own.
    """

    maximum_bytes: int = 1500
    precision: int = 1000
    bin_bytes: int = 20
    outlier_share: float = 0.002

    def _arguments(self) -> tuple[int, int, int, float]:
        for name, value in (
            ("maximum", self.maximum_bytes),
            ("precision", self.precision),
            ("bin", self.bin_bytes),
        ):
            if not 0 < value < 1 << 32:
                raise UsageError(f"--{name} {value}: expected a number above 0")
        return self.maximum_bytes, self.precision, self.bin_bytes, self.outlier_share


@dataclass(frozen=True)
class Counts:
    """How many packets there are of each size.

    Attributes
    ----------
    pairs : list of (int, int)
        Size in bytes and packets, ascending.
    ledger : dict
        For a capture file or a live capture: the packets seen, and those that are not in `pairs`.
    """

    pairs: list[tuple[int, int]]
    ledger: dict[str, int] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """Number of all packets."""
        return sum(packets for _, packets in self.pairs)

    @classmethod
    def from_trace(cls, path: str | os.PathLike[str]) -> Self:
        """Count the IP packets of a pcap or pcapng file, which may be compressed."""
        pairs, ledger = _native.count_trace_sizes(Path(path))
        return cls(pairs, json.loads(ledger))

    @classmethod
    def from_sizes(cls, path: str | os.PathLike[str]) -> Self:
        """Count the sizes in a text file; ``-`` is standard input."""
        return cls(_native.read_size_counts(Path(path), "sizes", " "))

    @classmethod
    def from_dist(cls, path: str | os.PathLike[str], separator: str = " ") -> Self:
        """Read lines of size and packets; ``-`` is standard input."""
        return cls(_native.read_size_counts(Path(path), "dist", separator))

    @classmethod
    def built_in(cls, name: str) -> Self:
        """Return a built-in distribution."""
        pairs = _native.built_in_sizes(name)
        if pairs is None:
            raise UsageError(f"distribution {name!r}: expected one of {', '.join(BUILT_IN)}")
        return cls(pairs)

    def joined(self, other: "Counts") -> "Counts":
        """Return the sum of both counts."""
        sums = dict(self.pairs)
        for size, packets in other.pairs:
            sums[size] = sums.get(size, 0) + packets
        ledger = {
            name: self.ledger.get(name, 0) + other.ledger.get(name, 0) for name in {**self.ledger, **other.ledger}
        }
        return Counts(sorted(sums.items()), ledger)

    def write(self, output: Path | None, separator: str = " ") -> None:
        """Write lines of size and packets; None is standard output."""
        _native.write_size_counts(self.pairs, output, separator)


@dataclass(frozen=True)
class SizeDistribution:
    """A distribution of sizes in two stages: exact cells for outliers, bins for the rest.

    Attributes
    ----------
    procfs : str
        Its text, in the format of the enhanced kernel packet generator.
    """

    procfs: str

    @classmethod
    def from_counts(cls, counts: Counts, parameters: Parameters | None = None) -> Self:
        """Represent counted sizes."""
        return cls(_native.represent_sizes(counts.pairs, *(parameters or Parameters())._arguments()))

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Self:
        """Read a procfs file; ``-`` is standard input."""
        return cls(_native.read_size_distribution(Path(path)))

    def write(self, output: Path | None, surround: bool = False) -> None:
        """Write the text, with `surround` each line in ``pgset "..."``; None is standard output."""
        _native.write_size_distribution(self.procfs, output, surround)

    def probabilities(self) -> list[float]:
        """Return the probability of each size from 0 to the maximum."""
        return _native.size_probabilities(self.procfs)

    def draw(self, count: int, seed: int) -> Counts:
        """Draw sizes and count them."""
        return Counts(_native.draw_sizes(self.procfs, count, seed, False, None))

    def write_draws(self, count: int, seed: int, output: Path | None) -> Counts:
        """Draw sizes and write them, one per line; None is standard output."""
        return Counts(_native.draw_sizes(self.procfs, count, seed, True, output))

    def expected(self, count: int) -> Counts:
        """Return the expected counts of `count` draws, rounded."""
        pairs = [(size, round(p * count)) for size, p in enumerate(self.probabilities())]
        return Counts([(size, packets) for size, packets in pairs if packets])


def compare(
    counts: Counts, distribution: SizeDistribution, parameters: Parameters | None = None, drawn: Counts | None = None
) -> dict[str, Any]:
    """Compute the distance of a distribution, and of draws from it, from the counts.

    Returns
    -------
    dict
        Total variation distances (``bins_distance`` is the part caused by the bins) and the heavy hitters; see
        ``docs/sizes.md``.
    """
    drawn_pairs: Sequence[tuple[int, int]] | None = None if drawn is None else drawn.pairs
    text = _native.compare_sizes(
        counts.pairs, distribution.procfs, *(parameters or Parameters())._arguments(), drawn=drawn_pairs
    )
    result: dict[str, Any] = json.loads(text)
    return result


def require_packets(counts: Counts, name: str) -> None:
    """Raise `ParshallError` when nothing was counted."""
    if counts.total == 0:
        seen = counts.ledger.get("seen", 0)
        among = f" among {seen:,} packets" if seen else ""
        raise ParshallError(f"{name}: no IP packet{among}, so there is no distribution; give an input with IP packets")
