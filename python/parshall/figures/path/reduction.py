"""The reduction of a path log: two passes over the file, in memory that does not grow with its rows."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl
import pyarrow as pa

from parshall.figures.reduction import tables_of
from parshall.instruments.path.stages import STAGES, WHOLE

if TYPE_CHECKING:
    from parshall.instruments.path.log import PathLog

PATHS = ("forwarded", "delivered", "sent", "dropped")
"""Code paths that have figures: what was seen from the first stage to the end."""
BUCKETS_PER_OCTAVE = 32
"""Buckets of times to each power of two: 2.2 % wide."""
# 9 % wide: fewer would hide steps, more would show the clock.
_DRAWN_PER_OCTAVE = 8
SAMPLE_MAX = 8_000
"""Packets of each code path in the sample, at most."""
LONGEST_MAX = 300
"""Longest times of each stage and code path that are kept, at most."""
# Percentile of the whole -> the ranks of the packets around it.
PERCENTILES = {"p50": (0.45, 0.55), "p90": (0.88, 0.92), "p99": (0.985, 0.995), "p99.9": (0.9985, 0.9995)}
# Packets of a code path from which on it has the percentile: some lie beyond it.
_PACKETS_NEEDED = {"p50": 1, "p90": 20, "p99": 200, "p99.9": 2000}
_BATCH_ROWS = 1 << 16
_COLUMNS = ("path", "time", "first_stage", "drop_reason", *(f"{stage}_ns" for stage in STAGES))
_NO_TIMES = {"path": pl.String, "stage": pl.String, "bucket": pl.Int32}


@dataclass(frozen=True)
class PathReduction:
    """What figures and tables need of a path log, or of histograms.

    Attributes
    ----------
    paths : polars.DataFrame
        ``path``, ``packets``: all code paths of the log.
    reads : int
        Reads from sockets.
    begin_ns : int or None
        Earliest time of a packet in the first rows, ``CLOCK_REALTIME``; None without packets, and for histograms.
    histograms : polars.DataFrame
        ``path``, ``stage`` (`WHOLE` among them), ``from_ns``, ``until_ns``, ``packets``: the times since the stage
        before.
    times : polars.DataFrame
        One row a code path and stage, in the order of the stages: ``packets``, ``share`` (of the sum of the whole),
        ``mean_ns``, ``median_ns``, ``p90_ns``, ``p99_ns``, ``max_ns``. Quantiles of a log are upper edges of buckets;
        those of the kernel's histograms are interpolated within buckets.
    waits : polars.DataFrame
        ``path``, ``percentile``, ``stage``, ``mean_ns``, ``packets``: mean times of the packets whose whole time is
        around a percentile; of the kernel's histograms, of one of seven packets.
    sample : polars.DataFrame
        Every n-th packet of each code path: ``path``, ``time_s`` since ``begin_ns``, and a column of nanoseconds for
        each stage. Empty where no packets were recorded.
    longest : polars.DataFrame
        ``path``, ``stage``, ``time_s`` since ``begin_ns``, ``time_ns``: the longest times.
    drops : polars.DataFrame
        ``reason``, ``place`` (the last stage that the packets passed), ``packets``.
    backwards : int
        Times since the stage before that were negative, which no table or figure has.
    """

    paths: pl.DataFrame
    reads: int
    begin_ns: int | None
    histograms: pl.DataFrame
    times: pl.DataFrame
    waits: pl.DataFrame
    sample: pl.DataFrame
    longest: pl.DataFrame
    drops: pl.DataFrame
    backwards: int

    @property
    def rows(self) -> int:
        """Rows of the log: packets and reads."""
        return int(self.paths["packets"].sum()) + self.reads

    def stages_of(self, path: str) -> list[str]:
        """Return the stages of a code path that have times, in their order, without the whole."""
        return self.times.filter(pl.col("stage") != WHOLE, path=path)["stage"].to_list()


def reduce(log: "PathLog", progress: Callable[[int], None] = lambda _: None) -> PathReduction:
    """Reduce a path log.

    Parameters
    ----------
    log : PathLog
        The log, which is read twice.
    progress : callable
        Called with the number of rows that were read so far; it ends at twice the rows of the log.

    Returns
    -------
    PathReduction
        Tables of polars.
    """
    first = _First(log.drop_reason_names())
    rows = 0
    for table in tables_of(log.batches(), _BATCH_ROWS):
        first.add(table)
        progress(rows := rows + table.num_rows)
    second = _Second(first)
    for table in tables_of(log.batches(), _BATCH_ROWS):
        second.add(table)
        progress(rows := rows + table.num_rows)
    return PathReduction(
        paths=first.paths,
        reads=first.reads,
        begin_ns=first.begin_ns,
        histograms=first.histograms,
        times=first.times,
        waits=second.waits,
        sample=first.sample,
        longest=second.longest,
        drops=first.drops,
        backwards=first.backwards,
    )


def stage_times(rows: pl.DataFrame) -> pl.DataFrame:
    """Turn the offsets of packets into times since the stage before.

    Parameters
    ----------
    rows : polars.DataFrame
        Rows of packets with the columns ``<stage>_ns`` of a log.

    Returns
    -------
    polars.DataFrame
        A column of signed nanoseconds for each stage, null where the packet did not pass the stage or began at it, and
        `WHOLE`: the time from the first to the last stage.
    """
    before = pl.Series([None] * rows.height, dtype=pl.Int64)
    columns = {}
    for stage in STAGES:
        offset = rows[f"{stage}_ns"].cast(pl.Int64)
        columns[stage] = offset - before
        before = offset.zip_with(offset.is_not_null(), before)
    return pl.DataFrame(columns | {WHOLE: before})


def bucket_of(time_ns: pl.Expr) -> pl.Expr:
    """Expression of the number of the bucket of a time."""
    return (time_ns.clip(1).log(2) * BUCKETS_PER_OCTAVE + 1e-9).floor().cast(pl.Int32)


def bucket_from_ns(bucket: pl.Expr, per_octave: int = BUCKETS_PER_OCTAVE) -> pl.Expr:
    """Expression of the lower edge of a bucket, ns."""
    return pl.lit(2.0).pow(bucket / per_octave)


def percentile_spans(wholes: pl.DataFrame) -> pl.DataFrame:
    """Return which buckets of the whole are around each percentile.

    Parameters
    ----------
    wholes : polars.DataFrame
        ``path``, ``bucket``, ``packets``: histograms of the whole.

    Returns
    -------
    polars.DataFrame
        ``path``, ``percentile``, ``low``, ``high`` (buckets, both included); without percentiles of code paths that
        have too few packets for them.
    """
    ranks = wholes.sort("bucket").with_columns(
        all=pl.col("packets").sum().over("path"),
        rank=pl.col("packets").cum_sum().over("path") / pl.col("packets").sum().over("path"),
    )
    spans = [
        ranks.filter(pl.col("all") >= _PACKETS_NEEDED[name])
        .group_by("path")
        .agg(
            percentile=pl.lit(name),
            low=pl.col("bucket").filter(pl.col("rank") >= low).first(),
            high=pl.col("bucket").filter(pl.col("rank") >= high - 1e-12).first(),
        )
        for name, (low, high) in PERCENTILES.items()
    ]
    return pl.concat(spans).with_columns(pl.col("percentile").cast(pl.String))


def _packets(table: pa.Table) -> pl.DataFrame:
    frame: pl.DataFrame = pl.from_arrow(table.select(_COLUMNS))  # type: ignore[assignment]
    return frame.filter(pl.col("path").is_not_null()).with_columns(pl.col("path").cast(pl.String))


def _long(times: pl.DataFrame, *index: str) -> pl.DataFrame:
    """Return one row a packet and stage."""
    return times.unpivot(
        [*STAGES, WHOLE], index=["path", *index], variable_name="stage", value_name="time_ns"
    ).drop_nulls("time_ns")


class _First:
    """The first pass: histograms, drops, sample."""

    def __init__(self, reason_name: Callable[[int], str]) -> None:
        self._reason_name = reason_name
        self.reads = self.backwards = 0
        self.begin_ns: int | None = None
        self._paths: list[pl.DataFrame] = []
        self._buckets: list[pl.DataFrame] = []
        self._drops: list[pl.DataFrame] = []
        self._samples: dict[str, tuple[int, int, pl.DataFrame]] = {}

    def add(self, table: pa.Table) -> None:
        """Add rows, in the order of the file."""
        packets = _packets(table)
        self.reads += table.num_rows - packets.height
        if packets.is_empty():
            return
        if self.begin_ns is None:
            self.begin_ns = packets["time"].cast(pl.Int64).min()  # type: ignore[assignment]
        self._paths.append(packets.group_by("path").len("packets"))
        ended = packets.filter(pl.col("path").is_in(PATHS))
        times = stage_times(ended).with_columns(
            path=ended["path"], time_s=(ended["time"].cast(pl.Int64) - self.begin_ns) / 1e9
        )
        long = _long(times)
        self.backwards += long.filter(pl.col("time_ns") < 0).height
        counted = long.filter(pl.col("time_ns") >= 0).group_by(
            "path", "stage", bucket_of(pl.col("time_ns")).alias("bucket")
        )
        self._buckets.append(
            counted.agg(packets=pl.len().cast(pl.Int64), sum_ns=pl.col("time_ns").sum(), max_ns=pl.col("time_ns").max())
        )
        self._buckets = [self.buckets]
        self._add_drops(ended)
        for (path,), rows in times.group_by("path", maintain_order=True):
            self._add_sample(str(path), rows)

    def _add_drops(self, packets: pl.DataFrame) -> None:
        dropped = packets.filter(pl.col("path") == "dropped")
        if dropped.is_empty():
            return
        passed = [
            pl.when(pl.col(f"{stage}_ns").is_not_null()).then(pl.lit(stage)) for stage in STAGES if stage != "drop"
        ]
        place = pl.coalesce(*reversed(passed), pl.col("first_stage").cast(pl.String))
        self._drops.append(dropped.group_by(reason="drop_reason", place=place).len("packets"))

    def _add_sample(self, path: str, rows: pl.DataFrame) -> None:
        """Keep every n-th packet, with n doubled when there are too many."""
        seen, step, kept = self._samples.get(path, (0, 1, rows.clear()))
        kept = pl.concat([kept, rows.gather_every(step, -seen % step)])
        while kept.height > SAMPLE_MAX:
            kept, step = kept.gather_every(2), step * 2
        self._samples[path] = seen + rows.height, step, kept

    @property
    def paths(self) -> pl.DataFrame:
        """Packets by code path."""
        if not self._paths:
            return pl.DataFrame(schema={"path": pl.String, "packets": pl.UInt32})
        return pl.concat(self._paths).group_by("path").sum().sort("packets", "path", descending=[True, False])

    @property
    def buckets(self) -> pl.DataFrame:
        """Histograms of all stages."""
        if not self._buckets:
            return pl.DataFrame(schema=_NO_TIMES | dict.fromkeys(("packets", "sum_ns", "max_ns"), pl.Int64))
        merged = pl.concat(self._buckets).group_by("path", "stage", "bucket")
        return merged.agg(pl.col("packets").sum(), pl.col("sum_ns").sum(), pl.col("max_ns").max())

    @property
    def histograms(self) -> pl.DataFrame:
        """Histograms of all stages as they are drawn."""
        coarse = pl.col("bucket").floordiv(BUCKETS_PER_OCTAVE // _DRAWN_PER_OCTAVE)
        counts = self.buckets.group_by("path", "stage", coarse.alias("bucket")).agg(pl.col("packets").sum())
        return counts.sort("path", "stage", "bucket").select(
            "path",
            "stage",
            from_ns=bucket_from_ns(pl.col("bucket"), _DRAWN_PER_OCTAVE),
            until_ns=bucket_from_ns(pl.col("bucket") + 1, _DRAWN_PER_OCTAVE),
            packets="packets",
        )

    @property
    def times(self) -> pl.DataFrame:
        """A row a code path and stage."""
        order = {name: number for number, name in enumerate([*STAGES, WHOLE])}
        codes = {name: number for number, name in enumerate(PATHS)}
        sorted_buckets = self.buckets.sort("bucket")
        ranks = sorted_buckets.with_columns(
            rank=pl.col("packets").cum_sum().over("path", "stage"), all=pl.col("packets").sum().over("path", "stage")
        )
        quantiles = {
            name: bucket_from_ns(pl.col("bucket").filter(pl.col("rank") >= fraction * pl.col("all")).first() + 1)
            for name, fraction in (("median_ns", 0.5), ("p90_ns", 0.9), ("p99_ns", 0.99))
        }
        rows = ranks.group_by("path", "stage").agg(
            pl.col("packets").sum(), pl.col("sum_ns").sum(), **quantiles, max_ns=pl.col("max_ns").max()
        )
        wholes = rows.filter(stage=WHOLE).select("path", whole_ns="sum_ns")
        return (
            rows.join(wholes, on="path", how="left")
            .select(
                "path",
                "stage",
                "packets",
                share=pl.col("sum_ns") / pl.col("whole_ns").clip(1),
                mean_ns=pl.col("sum_ns") / pl.col("packets"),
                **{name: pl.min_horizontal(name, "max_ns") for name in quantiles},
                max_ns="max_ns",
            )
            .sort(pl.col("path").replace_strict(codes), pl.col("stage").replace_strict(order))
        )

    @property
    def drops(self) -> pl.DataFrame:
        """Drops by reason and place, by packets."""
        if not self._drops:
            return pl.DataFrame(schema={"reason": pl.String, "place": pl.String, "packets": pl.UInt32})
        rows = pl.concat(self._drops)
        reasons = [self._reason_name(number or 0) for number in rows["reason"]]
        named = rows.with_columns(reason=pl.Series(reasons, dtype=pl.String))
        return named.group_by("reason", "place").sum().sort("packets", "reason", descending=[True, False])

    @property
    def sample(self) -> pl.DataFrame:
        """Every n-th packet of each code path."""
        frames = [rows for _, _, rows in self._samples.values()]
        return pl.concat(frames) if frames else pl.DataFrame(schema={"path": pl.String, "time_s": pl.Float64})


class _Second:
    """The second pass: the packets around percentiles, and the longest times."""

    def __init__(self, first: _First) -> None:
        self._begin_ns = first.begin_ns or 0
        self._waits: list[pl.DataFrame] = []
        self._longest: list[pl.DataFrame] = []
        wholes = first.buckets.filter(stage=WHOLE).select("path", "bucket", "packets")
        self._spans = percentile_spans(wholes)

    def add(self, table: pa.Table) -> None:
        """Add rows, in the order of the file."""
        packets = _packets(table).filter(pl.col("path").is_in(PATHS))
        if packets.is_empty():
            return
        times = stage_times(packets).with_columns(
            path=packets["path"], time_s=(packets["time"].cast(pl.Int64) - self._begin_ns) / 1e9
        )
        bucketed = times.with_columns(bucket=bucket_of(pl.col(WHOLE)))
        around = self._spans.join(bucketed, on="path").filter(pl.col("bucket").is_between("low", "high"))
        if not around.is_empty():
            counts = around.group_by("path", "percentile").len("packets")
            sums = (
                _long(around, "percentile")
                .filter(pl.col("time_ns") >= 0)
                .group_by("path", "percentile", "stage")
                .agg(sum_ns=pl.col("time_ns").sum())
            )
            self._waits.append(sums.join(counts, on=["path", "percentile"]))
        self._longest.append(_longest(_long(times, "time_s")))
        self._longest = [_longest(pl.concat(self._longest))]

    @property
    def waits(self) -> pl.DataFrame:
        """Mean times of the packets around the percentiles."""
        if not self._waits:
            return pl.DataFrame(
                schema={
                    "path": pl.String,
                    "percentile": pl.String,
                    "stage": pl.String,
                    "mean_ns": pl.Float64,
                    "packets": pl.Int64,
                }
            )
        sums = pl.concat(self._waits).group_by("path", "percentile", "stage").sum()
        # The mean is over all packets around the percentile, also those that did not pass the stage.
        packets = sums.filter(stage=WHOLE).select("path", "percentile", all="packets")
        return sums.join(packets, on=["path", "percentile"]).select(
            "path",
            "percentile",
            "stage",
            mean_ns=pl.col("sum_ns") / pl.col("all"),
            packets=pl.col("all").cast(pl.Int64),
        )

    @property
    def longest(self) -> pl.DataFrame:
        """The longest times of each stage."""
        if not self._longest:
            schema = {"path": pl.String, "time_s": pl.Float64, "stage": pl.String, "time_ns": pl.Int64}
            return pl.DataFrame(schema=schema)
        return self._longest[0]


def _longest(long: pl.DataFrame) -> pl.DataFrame:
    return long.sort("time_ns", descending=True).group_by("path", "stage", maintain_order=True).head(LONGEST_MAX)
