"""Find the segment that holds a byte of a stream, at about a time."""

from dataclasses import dataclass
from typing import Any

import numpy as np

# Segments of a stream that hold a byte: copies, and large ones that began earlier. Further ones are not looked at.
_STEPS_MAX = 512
NONE = -1


@dataclass
class Segments:
    """Segments with payload, for `covering`.

    Attributes
    ----------
    stream, seq, payload_bytes, from_ns, until_ns : numpy.ndarray
        Shape (segments,), int64. Their streams by number, first sequence number, length, and the time from the
        first stage to the last.
    """

    stream: Any
    seq: Any
    payload_bytes: Any
    from_ns: Any
    until_ns: Any

    def __post_init__(self) -> None:
        self._order = np.lexsort((self.seq, self.stream))
        self._key = self.stream[self._order] * (1 << 32) + self.seq[self._order]

    def covering(self, stream: Any, seq: Any, time_ns: Any, when: str, tolerance_ns: int) -> tuple[Any, Any]:
        """Return for each point the segment that holds its byte.

        Parameters
        ----------
        stream, seq, time_ns : numpy.ndarray
            Shape (points,), int64.
        when : {"nearest", "before", "after"}
            Which segment: the nearest in time; the last one that began before; the first one that began after.
        tolerance_ns : int
            Greatest distance in time.

        Returns
        -------
        index, candidates : numpy.ndarray
            Shape (points,): index of the segment, or -1, and how many were within the tolerance.
        """
        points = len(stream)
        best = np.full(points, NONE, np.int64)
        count = np.zeros(points, np.int64)
        if not len(self._key) or not points:
            return best, count
        best_ns = np.full(points, tolerance_ns + 1, np.int64)
        place = np.searchsorted(self._key, stream * (1 << 32) + seq, side="right") - 1
        longest = int(self.payload_bytes.max())
        active = np.flatnonzero(place >= 0)
        for _ in range(_STEPS_MAX):
            if not len(active):
                break
            index = self._order[place[active]]
            behind = seq[active] - self.seq[index]
            is_near = (self.stream[index] == stream[active]) & (behind < longest)
            active, index, behind = active[is_near], index[is_near], behind[is_near]
            distance = self._distance(index, time_ns[active], when)
            fits = (behind < self.payload_bytes[index]) & (distance >= 0) & (distance <= tolerance_ns)
            count[active[fits]] += 1
            better = fits & (distance < best_ns[active])
            best[active[better]], best_ns[active[better]] = index[better], distance[better]
            place[active] -= 1
            active = active[place[active] >= 0]
        return best, count

    def _distance(self, index: Any, time_ns: Any, when: str) -> Any:
        """Return distances in time; negative where the segment is on the wrong side."""
        if when == "before":
            return time_ns - self.from_ns[index]
        if when == "after":
            return self.from_ns[index] - time_ns
        return np.maximum(0, np.maximum(self.from_ns[index] - time_ns, time_ns - self.until_ns[index]))
