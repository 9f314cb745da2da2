"""The figures of a report, one by one: ``log.plot.cwnd()`` returns the chart."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import polars as pl

from parshall.errors import UsageError, naming_damage
from parshall.figures import cwnd, loss, path, rtt, sequence, throughput, together
from parshall.figures.legend import Legend, legends
from parshall.figures.overview import figures_of
from parshall.figures.path import drops, times, waits
from parshall.figures.reduction import Reduction, reduce
from parshall.instruments.path.histograms import PathHistograms
from parshall.instruments.path.profile import PathSummary

if TYPE_CHECKING:
    import altair as alt

    from parshall.instruments.path.log import PathLog
    from parshall.instruments.tcp_log import Log

_Flows = int | Sequence[int] | None


class LogPlots:
    """The figures of a TCP log; each method returns an Altair chart, which a notebook shows and ``save`` writes.

    The log is read once for each choice of flows, in memory that does not grow with its records.

    Parameters
    ----------
    log : Log
        What `parshall.read` returns.
    """

    def __init__(self, log: "Log") -> None:
        self._log = log
        self._reduced: dict[tuple[int, ...] | None, tuple[Reduction, Legend]] = {}

    def __repr__(self) -> str:
        return "plots of a TCP log: cwnd(), rtt(), round_trips(), throughput(), sequence(), retransmissions()"

    def cwnd(self, flows: _Flows = None) -> "alt.TopLevelMixin":
        """Return congestion window and slow-start threshold over time.

        Parameters
        ----------
        flows : int or sequence of int, optional
            The flows, by their numbers in `Log.flows`. Default: all.

        Raises
        ------
        UsageError
            The log has no such flow, or no data for this figure.
        """
        return self._figure(cwnd.NAME, flows)

    def rtt(self, flows: _Flows = None) -> "alt.TopLevelMixin":
        """Return smoothed and minimum round-trip time over time; `flows` as for `cwnd`."""
        return self._figure(rtt.NAME, flows)

    def throughput(self, flows: _Flows = None) -> "alt.TopLevelMixin":
        """Return the payload that was acknowledged or received over time; `flows` as for `cwnd`."""
        return self._figure(throughput.NAME, flows)

    def retransmissions(self, flows: _Flows = None) -> "alt.TopLevelMixin":
        """Return retransmitted segments and states of congestion control over time; `flows` as for `cwnd`."""
        return self._figure(loss.NAME, flows)

    def round_trips(self, flows: _Flows = None) -> "alt.TopLevelMixin":
        """Return the distribution of the smoothed round-trip time over time, a line for each flow that sent.

        Of more flows than have a colour, one line has all together. `flows` as for `cwnd`.
        """
        chosen = None if flows is None else (flows,) if isinstance(flows, int) else tuple(flows)
        reduction, legend = self._reduction(chosen)
        senders = [flow for flow in legend.colours if flow in set(reduction.senders)]
        held = {legend.labels[flow]: reduction.round_trips([flow]) for flow in senders}
        if not held or legend.is_crowded:
            held = {"all flows": reduction.round_trips()}
        rows = together.round_trips(held)
        if rows.is_empty():
            raise UsageError("round_trips: no flow that sent payload has a round-trip time; Log.flows lists the flows")
        return _chart(together.draw_round_trips(rows, "flow").chart)

    def sequence(self, flow: int | None = None, *, between_s: tuple[float, float] | None = None) -> "alt.TopLevelMixin":
        """Return the data sequence numbers of one flow over time, in the manner of tcptrace and Wireshark.

        Vertical lines are data, marks are retransmissions; below are the bytes that are acknowledged, above those that
        the receiver's window allows.

        Parameters
        ----------
        flow : int, optional
            Its number in `Log.flows`. Default: the flow that sent most.
        between_s : tuple of float, optional
            Begin and end of the time axis, seconds after the first record of the log. Default: all. A notebook also
            zooms with the mouse.

        Raises
        ------
        UsageError
            The log has no such flow, or it has no data at this time.
        """
        if flow is None:
            reduction, _ = self._reduction(None)
            sent = reduction.table.filter(pl.col("flow").is_in(reduction.senders)).sort("bytes", descending=True)
            if sent.is_empty():
                raise UsageError(
                    f"{self._log.path}: no flow sent data; name one of those that received: sequence(FLOW)"
                )
            flow = int(sent["flow"][0])
        _, legend = self._reduction((flow,))
        found = sequence.reduce(self._log, flow, between_s=between_s)
        if found is None:
            where = "this log" if between_s is None else f"the time {between_s[0]:g} to {between_s[1]:g} s"
            raise UsageError(f"flow {flow}: has no packet with data in {where}; Log.flows lists the others")
        return _chart(sequence.draw(found, legend.labels[flow]).chart)

    def _figure(self, name: str, flows: _Flows) -> "alt.TopLevelMixin":
        chosen = None if flows is None else (flows,) if isinstance(flows, int) else tuple(flows)
        reduction, legend = self._reduction(chosen)
        found = next(figures_of(reduction, legend, names=(name,)), None)
        if found is None:
            which = "the log" if chosen is None else f"flow {', '.join(map(str, chosen))}"
            raise UsageError(
                f"{which}: has no data for the figure {name}; windows and round trips are of flows that sent"
            )
        return _chart(found.chart)

    def _reduction(self, flows: tuple[int, ...] | None) -> tuple[Reduction, Legend]:
        if flows not in self._reduced:
            known = self._log.flows["flow"].to_pylist()
            for flow in flows or ():
                if flow not in known:
                    raise UsageError(f"flow {flow}: not in the log; Log.flows lists its {len(known):,} flows")
            reduction = reduce(self._log, flows=flows)
            self._reduced[flows] = reduction, legends([reduction])[0]
        return self._reduced[flows]


class PathPlots:
    """The figures of a path log, or of histograms of paths; each method returns an Altair chart.

    Parameters
    ----------
    measured : PathLog, PathHistograms or PathSummary
        What was measured.
    """

    def __init__(self, measured: "PathLog | PathHistograms | PathSummary") -> None:
        self._measured = measured
        self._reduced: path.PathReduction | None = None

    def __repr__(self) -> str:
        return "plots of packet paths: stages(), waits(), drops()"

    def stages(self, code_path: str | None = None) -> "alt.TopLevelMixin":
        """Return the histograms of the time of each stage.

        Parameters
        ----------
        code_path : str, optional
            What became of the packets: forwarded, delivered, sent or dropped. Default: that of most packets.

        Raises
        ------
        UsageError
            No packets have such a path, or none were seen from the first stage to the end.
        """
        chosen = self._code_path(code_path)
        return _chart(times.draw(times.reduce(self._reduction, chosen), self._reduction, chosen).chart)

    def waits(self, code_path: str | None = None) -> "alt.TopLevelMixin":
        """Return what the packets around percentiles waited for; `code_path` as for `stages`."""
        chosen = self._code_path(code_path)
        parts = waits.reduce(self._reduction, chosen)
        if parts.is_empty():
            raise UsageError(f"path {chosen}: too few packets for percentiles; measure for longer")
        return _chart(waits.draw(parts, self._reduction, chosen).chart)

    def drops(self) -> "alt.TopLevelMixin":
        """Return the drops by reason and the last stage that the packet passed.

        Raises
        ------
        UsageError
            There were none.
        """
        if self._reduction.drops.is_empty():
            raise UsageError("no packet was dropped; the figure would be empty")
        return _chart(drops.draw(drops.reduce(self._reduction), self._reduction).chart)

    @property
    def _reduction(self) -> path.PathReduction:
        if self._reduced is None:
            measured = self._measured
            if isinstance(measured, PathSummary):
                self._reduced = path.reduce_histograms(measured)
                return self._reduced
            with naming_damage([measured.path], "make it again with: parshall path"):
                if isinstance(measured, PathHistograms):
                    self._reduced = path.reduce_histograms(measured.summary)
                else:
                    self._reduced = path.reduce(measured)
        return self._reduced

    def _code_path(self, wanted: str | None) -> str:
        counts = {row["path"]: row["packets"] for row in self._reduction.paths.iter_rows(named=True)}
        found = [name for name in path.PATHS if self._reduction.stages_of(name)]
        if not found:
            raise UsageError("no packet was seen from its first stage to its end; measure for longer")
        if wanted is not None and wanted not in found:
            raise UsageError(f"path {wanted}: no packets with times of it; there are {', '.join(found)}")
        return wanted or max(found, key=lambda name: counts.get(name, 0))


def _chart(chart: Any) -> "alt.TopLevelMixin":
    found: alt.TopLevelMixin = chart
    return found
