"""The flows of a log at each time that is kept, in bounded memory."""

from bisect import bisect_right
from collections import deque
from dataclasses import dataclass
from typing import Any

import polars as pl

from parshall.instruments.flow_states import joined_flows

_Schema = dict[str, pl.DataType | type[pl.DataType]]
# What changes while a flow lives.
_CHANGING: _Schema = {
    "flow": pl.UInt32,
    "end_ns": pl.Int64,
    "acked_bytes": pl.Int64,
    "received_bytes": pl.Int64,
    "acked_may_lack": pl.Boolean,
    "received_may_lack": pl.Boolean,
    "retransmitted": pl.Int64,
    "cwnd_segments": pl.UInt32,
    "srtt_ms": pl.Float64,
    "state": pl.Categorical(),
    "ending": pl.Categorical(),
    "ended": pl.Boolean,
    "retransmitted_for": pl.String,
}
# Since the time before; 0 where nothing came.
_RATES: _Schema = dict.fromkeys(("acked_Mbps", "received_Mbps", "retransmitted_per_s"), pl.Float32)
# A flow changed when one of these did.
_MARKS: _Schema = {"records": pl.UInt64, "ended": pl.Boolean}
# A flow that ended is shown for so long.
_LINGER_NS = 10_000_000_000
# Times whose rows are one frame: few frames are quick to search.
_TIMES_OF_FRAME = 64


@dataclass(frozen=True)
class _Moment:
    """A time, how long after the one before, how many flows changed since then, and the rates of all."""

    time_ns: int
    elapsed_s: float
    changed: int
    total: dict[str, Any]


class History:
    """The flows of a log at each time that is kept.

    Parameters
    ----------
    keep_s : float
        Older times are forgotten.
    bytes_max : int
        So are the oldest ones when all take more than this memory.
    """

    def __init__(self, keep_s: float, bytes_max: int) -> None:
        self._keep_ns = int(keep_s * 1e9)
        self._bytes_max = bytes_max
        self._moments: deque[_Moment] = deque()
        # The flows that changed at each of these times, in their order.
        self._frames: deque[pl.DataFrame] = deque()
        self._times_of_newest = 0
        # The flows as they were before the oldest time.
        self._base = pl.DataFrame(schema=_CHANGING)
        self._last = pl.DataFrame(schema=_CHANGING | _MARKS)

    @property
    def begin_ns(self) -> int | None:
        """The oldest time that is kept, ns of ``CLOCK_REALTIME``; None: there is none."""
        return self._moments[0].time_ns if self._moments else None

    @property
    def end_ns(self) -> int | None:
        """The newest time."""
        return self._moments[-1].time_ns if self._moments else None

    def add(self, time_ns: int, table: pl.DataFrame) -> list[int]:
        """Add the flows at a time, see `FlowStates.table`; return those that ended some time ago: no more comes."""
        schema = _CHANGING | _MARKS
        now = table.select(*schema).cast(pl.Schema(schema)) if table.width else pl.DataFrame(schema=schema)
        elapsed_s = 0.0
        if self._moments:
            # The end of a log may come at a time that is known: it is a time of its own, over which nothing has a rate.
            newest_ns = self._moments[-1].time_ns
            elapsed_s = max(time_ns - newest_ns, 0) / 1e9
            time_ns = max(time_ns, newest_ns + 1)
        changed = _changed(now, self._last, elapsed_s)
        gone = now.filter(_is_over(time_ns))["flow"].to_list()
        self._last = now.filter(~_is_over(time_ns))
        total = {"time_ns": time_ns} | {name: changed[name].sum() for name in _RATES}
        self._moments.append(_Moment(time_ns, elapsed_s, changed.height, total))
        rows = changed.select(pl.lit(time_ns, pl.Int64).alias("time_ns"), *_CHANGING, *_RATES)
        if self._frames and self._times_of_newest < _TIMES_OF_FRAME:
            self._frames[-1] = pl.concat([self._frames[-1], rows])
            self._times_of_newest += 1
        else:
            if self._frames:
                self._frames[-1] = self._frames[-1].rechunk()
            self._frames.append(rows)
            self._times_of_newest = 1
        self._forget(time_ns)
        return gone

    def at(self, time_ns: int | None = None) -> tuple[int, pl.DataFrame]:
        """Return the newest time that is not after another one (None: the newest), and the flows as they were then.

        Returns
        -------
        int
            Nanoseconds of ``CLOCK_REALTIME``; 0: nothing is known.
        polars.DataFrame
            Shape (flows, columns): what changes while a flow lives, and its rates since the time before.
        """
        if not self._moments:
            return 0, pl.DataFrame(schema=_CHANGING | _RATES)
        newest_ns = self._moments[-1].time_ns
        if time_ns is not None and time_ns < newest_ns:
            times = [moment.time_ns for moment in self._moments]
            # Older than what is kept: the oldest.
            newest_ns = times[max(bisect_right(times, time_ns), 1) - 1]
        if newest_ns == self._moments[-1].time_ns:
            rows, flows = self._frames[-1].tail(self._moments[-1].changed), self._last.select(*_CHANGING)
        else:
            rows = self._rows(pl.col("time_ns") <= newest_ns)
            flows = _newest_of([self._base, rows]).filter(~_is_over(newest_ns))
        rates = rows.filter(pl.col("time_ns") == newest_ns).select("flow", *_RATES)
        flows = joined_flows(flows, rates, how="left")
        return newest_ns, flows.with_columns(pl.col(name).fill_null(0) for name in _RATES)

    def _rows(self, chosen: pl.Expr) -> pl.DataFrame:
        """Return the rows of some times or flows, in the order of time."""
        return pl.concat([frame.filter(chosen) for frame in self._frames])

    def totals(self) -> pl.DataFrame:
        """Return the sums over all flows at each time: ``time_ns`` and the rates."""
        rows = [moment.total for moment in self._moments if moment.elapsed_s > 0]
        return pl.DataFrame(rows, schema={"time_ns": pl.Int64, **_RATES})

    def curve(self, flow: int) -> pl.DataFrame:
        """Return a flow when it changed: ``time_ns``, ``cwnd_segments``, ``srtt_ms``, rates, ``retransmitted_for``."""
        # At the first time there is no rate.
        chosen = (pl.col("flow") == flow) & (pl.col("time_ns") > (self.begin_ns or 0))
        return self._rows(chosen).select("time_ns", "cwnd_segments", "srtt_ms", *_RATES, "retransmitted_for")

    def _forget(self, time_ns: int) -> None:
        taken_bytes = sum(frame.estimated_size() for frame in self._frames)
        row_bytes = taken_bytes / max(sum(frame.height for frame in self._frames), 1)
        count = 0
        while len(self._moments) > 1 and (
            self._moments[0].time_ns < time_ns - self._keep_ns or taken_bytes - count * row_bytes > self._bytes_max
        ):
            count += self._moments.popleft().changed
        if not count:
            return
        oldest = []
        while count:
            frame = self._frames.popleft()
            oldest.append(frame[:count])
            count -= oldest[-1].height
            if oldest[-1].height < frame.height or not self._frames:
                self._frames.appendleft(frame[oldest[-1].height :])
        self._base = _newest_of([self._base, *oldest]).filter(~_is_over(self._moments[0].time_ns))

    def flows(self) -> pl.Series:
        """Return the numbers of the flows that are kept, at any time."""
        return pl.concat([frame["flow"] for frame in (self._base, self._last, *self._frames)]).unique()


def _is_over(time_ns: int) -> pl.Expr:
    """Return whether a flow ended some time before a time; one without a row has no time of its own."""
    return pl.col("ended").fill_null(False) & (pl.col("end_ns") < time_ns - _LINGER_NS).fill_null(True)


def _newest_of(frames: list[pl.DataFrame]) -> pl.DataFrame:
    """Return the last row of each flow."""
    rows = pl.concat([frame.select(*_CHANGING) for frame in frames])
    return rows.unique("flow", keep="last", maintain_order=True).sort("flow")


def _changed(now: pl.DataFrame, before: pl.DataFrame, elapsed_s: float) -> pl.DataFrame:
    """Return the flows that changed, with their rates."""
    amounts = ("acked_bytes", "received_bytes", "retransmitted")
    earlier = before.select("flow", *(pl.col(name).alias(f"{name}_before") for name in (*_MARKS, *amounts)))
    same = (pl.col(name).eq_missing(pl.col(f"{name}_before")) for name in _MARKS)
    changed = joined_flows(now, earlier, how="left").filter(~pl.all_horizontal(same))
    # What moved before the first time has no rate.
    per_s = 1 / elapsed_s if elapsed_s > 0 else 0.0

    def moved_per_s(name: str) -> pl.Expr:
        return (pl.col(name) - pl.col(f"{name}_before").fill_null(0)).fill_null(0) * per_s

    return changed.with_columns(
        acked_Mbps=moved_per_s("acked_bytes") * 8e-6,
        received_Mbps=moved_per_s("received_bytes") * 8e-6,
        retransmitted_per_s=moved_per_s("retransmitted"),
    ).select(*_CHANGING, *_RATES)
