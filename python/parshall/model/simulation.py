"""Run a network of queues; the results of a run."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import polars as pl

from parshall.errors import ParshallError
from parshall.host.quantities import many
from parshall.host.shown import html_lines, html_table, text_table
from parshall.model.network import Model, from_dict

_SHOWN_ESTIMATES = 20


@dataclass(frozen=True, repr=False)
class Results:
    """The results of a run. They print as a table of the estimates.

    Attributes
    ----------
    data : dict
        All results, as docs/model.md describes them.
    packets : polars.DataFrame or None
        Shape (packets and clones that left, 8), of the first replication: ``packet``, ``clone``, ``class``,
        ``bytes``, ``born_ps``, ``left_ps``, ``place`` (a sink, or the queue that lost it), ``lost``.
    visits : polars.DataFrame or None
        Shape (visits of queues, 8): ``packet``, ``clone``, ``class``, ``queue``, ``arrived_ps``,
        ``started_ps``, ``left_ps``, ``lost``.
    """

    data: dict[str, Any]
    packets: pl.DataFrame | None = None
    visits: pl.DataFrame | None = None

    def __repr__(self) -> str:
        return "\n".join([*text_table(*self._shown()), *self._rest()])

    def _repr_html_(self) -> str:
        return html_table(*self._shown()) + html_lines(self._rest())

    def _shown(self) -> tuple[list[str], list[tuple[object, ...]]]:
        """Return head and rows of the estimates that are shown."""
        rows = self.estimates.head(_SHOWN_ESTIMATES).with_columns(pl.col("mean", "half_width").round_sig_figs(4))
        return ["kind", "place", "class", "measure", "mean", "+-"], rows.rows()

    def _rest(self) -> list[str]:
        rest = self.estimates.height - _SHOWN_ESTIMATES
        options = self.data["options"]
        repeats = many(len(self.data["replications"]), "replication")
        units = "batches of one run" if options["by_batches"] else repeats
        level = f"means of {units}, +- half the width of their {100 * options['confidence']:g} % intervals"
        return [*([f"and {many(rest, 'more estimate')}: Results.estimates has all"] if rest > 0 else []), level]

    @cached_property
    def estimates(self) -> pl.DataFrame:
        """Shape (quantities, 6): ``kind``, ``place``, ``class``, ``measure``, ``mean``, ``half_width``."""
        texts = dict.fromkeys(("kind", "place", "class", "measure"), pl.String)
        return pl.DataFrame(self.data["estimates"], schema=texts | {"mean": pl.Float64, "half_width": pl.Float64})

    def mean(self, place: str, measure: str, packet_class: str = "") -> float:
        """Return the mean of a quantity over all replications.

        Raises
        ------
        ParshallError
            There is no such quantity.
        """
        for row in self.data["estimates"]:
            if (row["place"], row["measure"], row["class"]) == (place, measure, packet_class):
                return float(row["mean"])
        raise ParshallError(f"no {measure} of {packet_class!r} at {place!r} was estimated; see Results.estimates")

    def total(self, sink: str, measure: str) -> float:
        """Return the sum of a throughput at a sink over all classes."""
        rows = self.estimates.filter(kind="sink", place=sink, measure=measure)
        return float(rows["mean"].sum())

    @property
    def sinks(self) -> list[str]:
        """Names of the sinks of the model."""
        return [tail["sink"] for tail in self.data["replications"][0]["tails"]]

    def joins(self) -> pl.DataFrame:
        """Return the join times: the times until a packet and all its clones have left.

        Requires a trace from the first packet to the last: ``trace=True``, ``warm_up_s=0``, and sources that end.
        Packets that lost a copy have no join time and are left out.

        Returns
        -------
        polars.DataFrame
            Shape (packets, 4), in the order of their births: ``packet``, ``class`` (that of the first copy that
            left), ``copies``, ``join_ns``: from the birth until the last copy left.

        Raises
        ------
        ParshallError
            The run was not traced, or copies were inside when it began or ended.
        """
        if self.packets is None:
            raise ParshallError("results: have no packets; run the model with trace=True")
        balance = self.data["replications"][0]["balance"]
        if balance["inside_before"] or balance["inside"]:
            raise ParshallError(
                f"{balance['inside_before'] + balance['inside']} copies were inside when the run began or ended, so "
                "not all join times are known; give the sources numbers of packets, no duration, and warm_up_s=0"
            )
        join_ns = (pl.col("left_ps").max() - pl.col("born_ps").first()) / 1000
        packets = self.packets.group_by("packet").agg(
            pl.col("class").first(), pl.len().alias("copies"), join_ns.alias("join_ns"), pl.col("lost").any()
        )
        return packets.filter(~pl.col("lost")).drop("lost").sort("packet")

    def lost(self) -> dict[str, float]:
        """Return the lost fraction of all packets, by the queue that lost them."""
        entered = sum(replication["balance"]["entered"] for replication in self.data["replications"])
        lost: dict[str, float] = {}
        for replication in self.data["replications"]:
            for queue in replication["queues"]:
                lost[queue["queue"]] = lost.get(queue["queue"], 0) + queue["lost"] / max(entered, 1)
        return {queue: part for queue, part in lost.items() if part > 0}

    def latency(self, sink: str, packet_class: str | None = None) -> dict[str, Any]:
        """Return the latencies at a sink, of a class or of all packets.

        Raises
        ------
        ParshallError
            No packet reached the sink.
        """
        rows = [row for row in self.data["latencies"] if row["sink"] == sink]
        # The last row is that of all classes; with a single class, it is the only one.
        rows = rows[-1:] if packet_class is None else [row for row in rows if row["class"] == packet_class]
        if not rows:
            raise ParshallError(f"sink {sink!r}: no packet arrived; run longer, or lower the load")
        return dict(rows[0])

    def quantile_ns(self, sink: str, probability: float) -> float:
        """Return a quantile of the latency at a sink, ns; the results have certain quantiles only."""
        quantiles = dict(map(tuple, self.latency(sink)["quantiles"]))
        if probability not in quantiles:
            raise ParshallError(f"quantile {probability}: is not in the results; expected one of {sorted(quantiles)}")
        return float(quantiles[probability])


def run(
    model: Model | Mapping[str, Any],
    *,
    duration_s: float | None = None,
    warm_up_s: float | None = None,
    seed: int = 1,
    replications: int = 5,
    by_batches: bool = False,
    relative_half_width: float | None = None,
    confidence: float = 0.95,
    threads: int | None = None,
    trace: bool = False,
    allow_unstable: bool = False,
    jobs_max: int = 5_000_000,
    events_max: int = 10_000_000_000,
    traces: Mapping[str, Sequence[float]] | None = None,
) -> Results:
    """Simulate a network of queues.

    Parameters
    ----------
    model
        The network.
    duration_s
        Measured model time, seconds; None runs until all sources have ended.
    warm_up_s
        Model time before that, seconds; None determines it with a pilot run (MSER-5).
    seed
        Seed of all random numbers; results are the same on any number of cores.
    replications
        Number of independent runs, or of batches.
    by_batches
        Split one long run into batches, instead of independent runs that each warm up. ``is_uncorrelated`` of the
        results reports whether the batches are long enough.
    relative_half_width
        Add replications or batches until confidence intervals at the sinks are this narrow, relative to their means.
    confidence
        Confidence level of the intervals.
    threads
        Number of threads; None uses all cores.
    trace
        Whether to keep the packets and visits of the first replication.
    allow_unstable
        Whether to run networks whose queues grow without limit.
    jobs_max
        Maximum number of packets inside the network, each of which takes 64 bytes.
    events_max
        Maximum number of events of a replication, or of all batches. A run that is certain to need more is refused.
    traces
        Recorded values that the model refers to: gaps and services in ns, lengths in bytes.

    Raises
    ------
    UsageError
        The model or an option is wrong.
    ParshallError
        The network grew without limit.
    """
    from parshall._native import Simulation

    model = model if isinstance(model, Model) else from_dict(model)
    network = model.check(allow_unstable=allow_unstable, traces=traces)
    options = {
        "seed": seed,
        "duration_ns": None if duration_s is None else duration_s * 1e9,
        "warm_up_ns": None if warm_up_s is None else warm_up_s * 1e9,
        "replications": replications,
        "by_batches": by_batches,
        "relative_half_width": relative_half_width,
        "confidence": confidence,
        "threads": threads,
        "trace": trace,
        "allow_unstable": allow_unstable,
        "jobs_max": jobs_max,
        "events_max": events_max,
    }
    simulation = Simulation(network, json.dumps(options))
    packets, visits = simulation.packets(), simulation.visits()
    return Results(
        json.loads(simulation.results),
        None if packets is None else pl.DataFrame(packets),
        None if visits is None else pl.DataFrame(visits),
    )
