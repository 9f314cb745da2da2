"""The reduction of histograms that the kernel filled: what figures need of a measurement without a log."""

from typing import TYPE_CHECKING

import polars as pl

from parshall.figures.path.reduction import PATHS, PathReduction, percentile_spans
from parshall.instruments.path.stages import STAGES, WHOLE

if TYPE_CHECKING:
    from parshall.instruments.path.profile import PathSummary

_TIMES = ("packets", "share", "mean_ns", "median_ns", "p90_ns", "p99_ns", "max_ns")


def reduce_histograms(summary: "PathSummary") -> PathReduction:
    """Reduce the summary of a measurement.

    Parameters
    ----------
    summary : PathSummary
        The summary of a measurement with or without a log.

    Returns
    -------
    PathReduction
        Without `sample` and `longest`: no packets were recorded, so figures of single packets are not drawn.
    """
    rows = [row for row in summary.times if row["group"] is None and row["path"] in PATHS]
    paths = sorted(((name, count) for name, count in summary.paths.items() if count), key=lambda one: -one[1])
    drops = [
        {"reason": row["name"], "place": place, "packets": packets}
        for row in summary.drops
        for place, packets in row["places"].items()
    ]
    no_times = {"path": pl.String, "stage": pl.String}
    drop_columns = {"reason": pl.String, "place": pl.String, "packets": pl.Int64}
    return PathReduction(
        paths=pl.DataFrame(paths, schema={"path": pl.String, "packets": pl.Int64}, orient="row"),
        reads=sum(row["events"] for row in summary.reads if row["kind"] == WHOLE),
        begin_ns=None,
        histograms=_histograms(rows),
        times=_times(rows),
        waits=_waits(summary),
        sample=pl.DataFrame(schema=no_times | dict.fromkeys(STAGES, pl.Int64)),
        longest=pl.DataFrame(schema=no_times | {"time_s": pl.Float64, "time_ns": pl.Int64}),
        drops=pl.DataFrame(drops, schema=drop_columns).sort("packets", "reason", descending=[True, False]),
        backwards=0,
    )


def bucket_edges_ns(bucket: pl.Expr) -> pl.Expr:
    """Expression of the lower edge of a bucket of the kernel, ns; docs/formats/path-log.md has the rule."""
    octave = bucket // 8
    return pl.when(bucket < 8).then(bucket).otherwise((8 + bucket % 8) * pl.lit(2.0).pow(octave - 1)).cast(pl.Float64)


def _histograms(rows: list[dict[str, object]]) -> pl.DataFrame:
    long = [
        (row["path"], row["stage"], bucket, packets)
        for row in rows
        for bucket, packets in row["buckets"]  # type: ignore[attr-defined]
    ]
    schema = {"path": pl.String, "stage": pl.String, "bucket": pl.Int64, "packets": pl.Int64}
    # Times below 1 ns have no place on a logarithmic axis.
    return (
        pl.DataFrame(long, schema=schema, orient="row")
        .with_columns(pl.col("bucket").clip(1))
        .group_by("path", "stage", "bucket", maintain_order=True)
        .agg(pl.col("packets").sum())
        .select(
            "path",
            "stage",
            from_ns=bucket_edges_ns(pl.col("bucket")),
            until_ns=bucket_edges_ns(pl.col("bucket") + 1),
            packets="packets",
        )
    )


def _times(rows: list[dict[str, object]]) -> pl.DataFrame:
    schema = {"path": pl.String, "stage": pl.String, "sum_ns": pl.Int64}
    columns = schema | {"packets": pl.Int64, "max_ns": pl.Int64}
    columns |= dict.fromkeys(("share", "median_ns", "p90_ns", "p99_ns"), pl.Float64)
    codes = {name: number for number, name in enumerate(PATHS)}
    order = {name: number for number, name in enumerate([*STAGES, WHOLE])}
    found = pl.DataFrame([{name: row[name] for name in columns} for row in rows], schema=columns)
    return (
        found.with_columns(mean_ns=pl.col("sum_ns") / pl.col("packets"))
        .select("path", "stage", *_TIMES)
        .sort(pl.col("path").replace_strict(codes), pl.col("stage").replace_strict(order))
    )


def _waits(summary: "PathSummary") -> pl.DataFrame:
    """Return mean times of the packets around percentiles of the whole; as for a log, but from every seventh packet."""
    schema = {"path": pl.String, "bucket": pl.Int64, "packets": pl.Int64}
    wholes = pl.DataFrame([{name: row[name] for name in schema} for row in summary.waits], schema=schema)
    sums = [
        (row["path"], row["bucket"], stage, sum_ns) for row in summary.waits for stage, sum_ns in row["sum_ns"].items()
    ]
    columns = {"path": pl.String, "bucket": pl.Int64, "stage": pl.String, "sum_ns": pl.Int64}
    long = pl.DataFrame(sums, schema=columns, orient="row")
    spans = percentile_spans(wholes)
    within = pl.col("bucket").is_between("low", "high")
    counts = spans.join(wholes, on="path").filter(within).group_by("path", "percentile").agg(pl.col("packets").sum())
    times = (
        spans.join(long, on="path").filter(within).group_by("path", "percentile", "stage").agg(pl.col("sum_ns").sum())
    )
    return times.join(counts, on=["path", "percentile"]).select(
        "path", "percentile", "stage", mean_ns=pl.col("sum_ns") / pl.col("packets"), packets="packets"
    )
