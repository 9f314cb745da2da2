"""The questions that agents ask; each method answers one."""

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pydantic import Field

from parshall.agent.answers import (
    ROWS_MAX,
    DropsAnswer,
    FlowsAnswer,
    HostAnswer,
    ModelAnswer,
    ReportAnswer,
    RetransmissionsAnswer,
    bounded,
)
from parshall.errors import ParshallError, UsageError
from parshall.host.quantities import many
from parshall.host.session import check_choice
from parshall.outputs.base import Object
from parshall.outputs.ledger import Cost, HookAccount, Ledger, Lost, ProgramCost

if TYPE_CHECKING:
    import polars as pl

    from parshall.instruments.tcp_log import Log

_SORTS = {
    "bytes": ("acked_bytes", "received_bytes"),
    "retransmitted": ("retransmitted",),
    "rtt": ("srtt_ms",),
    "cwnd": ("cwnd_segments",),
    "duration": ("duration_s",),
}
_OTHER_KIND = "has an account of another kind; make the log again"
_DURATION_MAX_S = 10.0
_EVENTS_MAX = 20_000_000
_REPLICATIONS = 4
Answer = TypeVar("Answer", bound=Object)
LogName = Annotated[str, Field(description="A log of `parshall tcp`: a file, or the directory of one that rotates")]


class Tools:
    """Answers about this host and about files below a directory.

    Parameters
    ----------
    directory : path-like
        Files elsewhere are refused.

    Raises
    ------
    UsageError
        It is no directory.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = Path(directory).resolve()
        if not self.directory.is_dir():
            raise UsageError(f"--directory {directory}: is no directory; name one")

    def host(self) -> HostAnswer:
        """Tell which commands of Parshall work on this host, which do not, why, and what to do.

        Each feature is tried, which takes some seconds, and leaves nothing.
        """
        from parshall.host.commands import COMMANDS
        from parshall.host.doctor.decisions import decide
        from parshall.host.doctor.probes import probe_host

        found = probe_host()
        probes = [asdict(one) for one in found]
        decisions = [asdict(one) for one in decide(found, [*COMMANDS, "testbed"])]
        problems = [one for one in probes if one["status"] != "works"]
        counts = {status: sum(one["status"] == status for one in probes) for status in ("works", "degraded", "cannot")}
        return _answer(
            HostAnswer,
            commands=decisions,
            problems=problems[:ROWS_MAX],
            left_out=max(len(problems) - ROWS_MAX, 0),
            ledger={"tried": len(probes), **counts},
        )

    def flows(
        self,
        log: LogName,
        sort: Annotated[str, Field(description="bytes, retransmitted, rtt, cwnd or duration; largest first")] = "bytes",
        count: Annotated[int, Field(ge=1, le=ROWS_MAX, description="Connections of the answer")] = 20,
    ) -> FlowsAnswer:
        """List the TCP connections of a log, also of one that is being written: who talks, how much, in what state."""
        import polars as pl

        check_choice("sort", sort, tuple(_SORTS))
        opened = self._log(log)
        states = opened.flow_states()
        table = states.table()
        if not table.is_empty():
            by = pl.sum_horizontal(pl.col(*_SORTS[sort]).cast(pl.Float64))
            table = table.sort(by, descending=True, nulls_last=True, maintain_order=True)
        rows = [
            {
                "local": _end(row["local_address"], row["local_port"]),
                "remote": _end(row["remote_address"], row["remote_port"]),
            }
            | {name: row[name] for name in _FLOW_COLUMNS}
            for row in table.head(count).to_dicts()
        ]
        return _answer(
            FlowsAnswer,
            log=log,
            is_complete=opened.complete,
            until_time_ns=states.until_ns,
            flows=rows,
            left_out=table.height - len(rows),
            ledger=_ledger(opened.ledger),
        )

    def retransmissions(
        self,
        log: LogName,
        flow: Annotated[int | None, Field(description="Only of this connection, by its number; see `flows`")] = None,
        count: Annotated[
            int, Field(ge=1, le=ROWS_MAX, description="Retransmissions of the answer, the last ones")
        ] = 20,
    ) -> RetransmissionsAnswer:
        """Say why segments were sent again, and whether that was needless."""
        import polars as pl

        opened = self._log(log)
        found = _frame(opened.retransmissions)
        if flow is not None and flow not in opened.flows["flow"].to_pylist():
            has = many(opened.flows.num_rows, "flow")
            raise UsageError(f"flow {flow}: is not in {log}, which has {has}; `flows` lists them")
        if flow is not None:
            found = found.filter(pl.col("flow") == flow)
        rows = found.tail(count).drop("pkt_seq").with_columns(pl.col("time_ns").cast(pl.Int64)).to_dicts()
        return _answer(
            RetransmissionsAnswer,
            log=log,
            segments=_total(found, "segments"),
            causes=_segments_by_cause(found),
            spurious_segments=_total(found.filter(pl.col("spurious")), "segments"),
            not_known_segments=_total(found.filter(pl.col("spurious").is_null()), "segments"),
            retransmissions=rows,
            left_out=found.height - len(rows),
            ledger=_ledger(opened.ledger),
        )

    def drops(
        self,
        file: Annotated[str, Field(description="A log of `parshall path`, or what `parshall path --json` printed")],
        count: Annotated[int, Field(ge=1, le=ROWS_MAX, description="Reasons and places of the answer")] = 20,
    ) -> DropsAnswer:
        """Say where in the kernel packets are dropped, and why, most frequent first."""
        from parshall.figures.path import reduce, reduce_histograms
        from parshall.instruments.path.histograms import PathHistograms, is_path_histograms
        from parshall.instruments.path.log import PathLog

        path = self._path(file)
        histograms = PathHistograms(path) if is_path_histograms(path) else None
        log = histograms or PathLog(path)
        reduction = reduce_histograms(histograms.summary) if histograms else reduce(PathLog(path))
        rows = reduction.drops.sort("packets", descending=True, maintain_order=True)
        return _answer(
            DropsAnswer,
            file=file,
            paths=dict(reduction.paths.iter_rows()),
            drops=rows.head(count).to_dicts(),
            left_out=max(rows.height - count, 0),
            ledger=_ledger(log.ledger),
        )

    def report(self, log: LogName) -> ReportAnswer:
        """Sum up a log: connections and how they ended, bytes, retransmissions by cause, full accept queues."""
        opened = self._log(log)
        table = opened.flow_states().table()
        flows, listeners = _frame(opened.flows), _frame(opened.listeners)
        return _answer(
            ReportAnswer,
            log=log,
            is_complete=opened.complete,
            truncation=opened.truncation,
            kernel=_release(opened.environment.get("kernel")),
            flows=flows.height,
            endings=_counts(flows, "ending"),
            acked_bytes=_total(table, "acked_bytes"),
            received_bytes=_total(table, "received_bytes"),
            retransmissions=_segments_by_cause(_frame(opened.retransmissions)),
            refused=_total(listeners, "syns_refused") + _total(listeners, "acks_refused"),
            gaps=opened.gaps.num_rows,
            ledger=_ledger(opened.ledger),
        )

    def model(
        self,
        model: Annotated[str, Field(description="A built-in model: single-queue, bsd-router, linux-napi, ...")],
        settings: Annotated[
            dict[str, str | float] | None, Field(description="Parameters by name, such as load_mbps or cpu_mhz")
        ] = None,
        duration_s: Annotated[
            float, Field(gt=0, le=_DURATION_MAX_S, description="Simulated time of each replication, seconds")
        ] = 1.0,
        seed: Annotated[int, Field(ge=0, lt=1 << 64, description="Seed of all random numbers")] = 1,
    ) -> ModelAnswer:
        """Simulate a queueing model of a packet path: throughput, latency, loss and utilisation, with intervals."""
        from parshall.model import MODELS, run
        from parshall.model.variation import build

        if model not in MODELS:
            raise UsageError(f"model {model}: no such model; there are {', '.join(MODELS)}")
        results = run(
            build(model, settings or {}),
            duration_s=duration_s,
            warm_up_s=duration_s / 4,
            replications=_REPLICATIONS,
            events_max=_EVENTS_MAX,
            seed=seed,
        ).data
        estimates = [row for row in results["estimates"] if row["mean"]]
        balances = [one["balance"] for one in results["replications"]]
        return _answer(
            ModelAnswer,
            model=model,
            duration_s=duration_s,
            replications=len(balances),
            estimates=estimates[:ROWS_MAX],
            left_out=max(len(estimates) - ROWS_MAX, 0),
            ledger={name: sum(one[name] for one in balances) for name in balances[0]},
        )

    def _path(self, name: str) -> Path:
        """Return a file below the directory; links out of it are none."""
        try:
            path = (self.directory / name).resolve()
        except (OSError, ValueError) as error:
            raise UsageError(f"{name}: {error}; name a file") from None
        if not path.is_relative_to(self.directory):
            raise UsageError(f"{name}: is outside {self.directory}; start `parshall mcp` with --directory")
        return path

    def _log(self, name: str) -> "Log":
        from parshall.instruments.tcp_log import read

        return read(self._path(name))


_FLOW_COLUMNS = (
    *("flow", "command", "pid", "state", "ended", "ending", "duration_s", "acked_bytes", "received_bytes"),
    *("acked_may_lack", "received_may_lack"),
    *("retransmitted", "retransmitted_for", "srtt_ms", "cwnd_segments", "congestion_control"),
)


def _answer(kind: type[Answer], **values: Any) -> Answer:
    """Return an answer whose texts are bounded; what a damaged file has in place of a ledger is an error of its."""
    try:
        return kind.model_validate(bounded(values))
    except ValueError:
        raise ParshallError(f"{values.get('log') or values.get('file')}: {_OTHER_KIND}") from None


def _ledger(found: dict[str, Any]) -> dict[str, Any] | None:
    """Return the account of a file with all its keys: what an older log lacks is 0."""
    if not found:
        return None
    try:
        hooks = [
            _filled(HookAccount, hook) | {"lost": _filled(Lost, hook["lost"])} for hook in found["hooks"][:ROWS_MAX]
        ]
        programs = [_filled(ProgramCost, one) for one in found["cost"]["programs"][:ROWS_MAX]]
        return _filled(Ledger, found) | {"hooks": hooks, "cost": _filled(Cost, found["cost"]) | {"programs": programs}}
    except (AttributeError, KeyError, TypeError):
        raise ParshallError(f"the ledger of the log: {_OTHER_KIND}") from None


def _filled(kind: type[Object], found: dict[str, Any]) -> dict[str, Any]:
    return {name: found.get(name, 0) for name in kind.model_fields}


def _frame(table: Any) -> "pl.DataFrame":
    import polars as pl

    frame = pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame)
    return frame


def _counts(frame: "pl.DataFrame", column: str) -> dict[str, int]:
    """Return how often each value comes, most frequent first; null is `unknown`."""
    import polars as pl

    values = frame[column].cast(pl.String).fill_null("unknown")
    return dict(values.value_counts(sort=True).head(ROWS_MAX).iter_rows())


def _segments_by_cause(retransmissions: "pl.DataFrame") -> dict[str, int]:
    """Return the segments that were sent again by cause, most frequent first; null is `unknown`."""
    import polars as pl

    cause = pl.col("cause").cast(pl.String).fill_null("unknown")
    counted = retransmissions.group_by(cause).agg(pl.col("segments").cast(pl.Int64).sum())
    return dict(counted.sort("segments", "cause", descending=[True, False]).iter_rows())


def _total(frame: "pl.DataFrame", column: str) -> int:
    return sum(frame[column].drop_nulls().to_list()) if column in frame.columns else 0


def _release(kernel: object) -> str | None:
    """Return the release of the kernel; logs of other writers may have an object."""
    release = kernel.get("release") if isinstance(kernel, dict) else kernel
    return release if isinstance(release, str) else None


def _end(address: str | None, port: int | None) -> str:
    shown = f"[{address}]" if address and ":" in address else address
    return f"{shown}:{port}"
