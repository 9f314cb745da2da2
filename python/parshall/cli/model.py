"""``parshall model``: list, run, sweep, compare, plan, calibrate, validate, published, figure."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer

from parshall.cli import options
from parshall.cli.options import Accepted, count_option, latency_option, share_option, span_option, time_option
from parshall.errors import UsageError
from parshall.host.messages import progress_line, report_start, say, show, show_paragraphs
from parshall.host.quantities import many
from parshall.host.stopping import exiting_on_signals
from parshall.host.whole_file import new_file, write_whole

app = typer.Typer(add_completion=False, rich_markup_mode=None)

_Model = Annotated[str, typer.Argument(metavar="MODEL", help="Built-in model, or .toml or .json file")]
_OptionalModel = Annotated[str | None, typer.Argument(metavar="[MODEL]", help="Built-in model, or .toml or .json file")]
_Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Set a parameter, or a field of a file: queues.q.weight=2"),
]
_Sink = Annotated[
    str | None, typer.Option("--sink", metavar="NAME", help="Sink to evaluate [default: forwarded, or the only one]")
]
_REPLICATIONS = 5
_Replications = Annotated[int, count_option("--replications", help="Number of independent runs")]
_Load = Annotated[
    str | None, typer.Option("--load", metavar="LOAD", help="Offered load: 225mbps, 8.5kpps; replaces load_*")
]
_Duration = Annotated[float, time_option("-d", "--duration", help="Model time to measure: 1, 500ms, 10m")]
_Calibration = Annotated[
    Path | None,
    typer.Option("--calibration", metavar="FILE", help="Parameters of linux-napi from this calibration"),
]
_Output = Annotated[
    Path | None, typer.Option("-o", "--output", metavar="FILE", help="CSV file for the table; - is standard output")
]

_CONFIDENCES = Accepted("a share between 0 and 1, such as 0.95 or 95%", lambda share: 0 < share < 1)
_LOSSES = Accepted("a share of the packets from 0 to 1, such as 0.001 or 0.1%", lambda share: 0 <= share <= 1)
_PRECISIONS = Accepted("a share above 0, such as 0.01 or 1%", lambda share: 0 < share < float("inf"))
_SEARCHING = "searching, one simulation after the other"
# A quarter of the model time of each step of a search, seconds.
_STEP_S = 4.0

# unit -> (parameter, factor); kpps before pps, which it ends with
_LOAD_UNITS = {
    "mbps": ("load_mbps", 1.0),
    "gbps": ("load_mbps", 1e3),
    "kpps": ("load_pps", 1e3),
    "pps": ("load_pps", 1),
}


@app.command("list")
def list_models(
    name: Annotated[str | None, typer.Argument(metavar="[MODEL]", help="Model whose parameters to list")] = None,
    as_json: options.Json = False,
) -> None:
    """List the built-in models, or the parameters of one."""
    from parshall.model import MODELS, parameters

    if name is not None:
        parameters(name, {})
        rows = [
            {"parameter": each.name, "default": each.default, "unit": each.metadata["unit"]}
            | {"what": _plain(each.metadata["what"])}
            for each in fields(MODELS[name])
        ]
    else:
        rows = [{"model": model, "what": _plain(kind.__doc__ or "")} for model, kind in MODELS.items()]
    _table(rows, as_json)


@app.command("run")
def run_model(
    model: _Model,
    settings: _Settings = None,
    load: _Load = None,
    calibration: _Calibration = None,
    duration: _Duration = 1.0,
    warm_up: Annotated[
        float | None, span_option("--warm-up", help="Model time before that [default: by MSER-5]")
    ] = None,
    replications: Annotated[
        int | None, count_option("--replications", help="Number of independent runs [default: 5]")
    ] = None,
    batches: Annotated[
        int | None,
        count_option("--batches", help="Split one long run into N batches; no --replications"),
    ] = None,
    precision: Annotated[
        float | None,
        share_option("--precision", help="Run until intervals at sinks are this narrow: 0.01", accepted=_PRECISIONS),
    ] = None,
    confidence: Annotated[
        float, share_option("--confidence", help="Confidence level of the intervals", accepted=_CONFIDENCES)
    ] = 0.95,
    seed: options.Seed = 1,
    threads: Annotated[int | None, count_option("--threads", help="Number of threads [default: all cores]")] = None,
    trace: Annotated[
        Path | None, typer.Option("--trace", metavar="DIR", help="Directory for packets and visits of one replication")
    ] = None,
    allow_unstable: Annotated[
        bool, typer.Option("--allow-unstable", help="Run although a queue grows without limit")
    ] = False,
    jobs_max: Annotated[int, count_option("--jobs-max", help="Maximum number of packets in the network")] = 5_000_000,
    events_max: Annotated[
        int, count_option("--events-max", help="Maximum number of events of a replication")
    ] = 10_000_000_000,
    as_json: options.Json = False,
) -> None:
    """Simulate a model, and show the results of every station, queue and sink."""
    from parshall.model import run

    if batches == 1:
        raise UsageError("--batches 1: expected 2 or more")
    if batches is not None and replications is not None:
        raise UsageError("--batches: given beside --replications; give one of them")
    if batches is not None and precision is not None:
        raise UsageError("--batches: given beside --precision, which adds replications; give one of them")
    with _progress(f"running {model}"):
        results = run(
            build_network(model, settings, load, calibration),
            duration_s=duration,
            warm_up_s=warm_up,
            replications=(replications or _REPLICATIONS) if batches is None else batches,
            by_batches=batches is not None,
            relative_half_width=precision,
            confidence=confidence,
            seed=seed,
            threads=threads,
            trace=trace is not None,
            allow_unstable=allow_unstable,
            jobs_max=jobs_max,
            events_max=events_max,
        )
    if trace is not None:
        trace.mkdir(parents=True, exist_ok=True)
        for name, frame in (("packets", results.packets), ("visits", results.visits)):
            if frame is not None:
                with new_file(Path(f"{name}.arrow"), "wb", below=trace) as (file, commit):
                    frame.write_ipc(file)
                    file.flush()
                    commit()
    if results.data["is_steady"] is False:
        _say("run: no steady state found, so half of the pilot run was discarded; raise --duration")
    if results.data["is_steady"] is None and warm_up is None and duration is not None:
        _say("run: too few packets to find a steady state, so none was discarded; raise --duration, or give --warm-up")
    if results.data["is_long_enough"] is False:
        _say("run: replications are too short to know the interval of the 99th percentile; raise --duration")
    if results.data["is_precise"] is False:
        _say(f"run: {len(results.data['replications'])} replications did not reach --precision {precision}")
    if results.data["is_uncorrelated"] is False:
        _say("run: the batches are correlated, so the intervals are too narrow; raise --duration")
    if as_json:
        print(json.dumps(results.data))
        return
    rows = [
        {
            "place": row["place"],
            "class": row["class"],
            "measure": row["measure"],
            "mean": f"{row['mean']:,.6g}",
            "+-": "" if row["half_width"] is None else f"{row['half_width']:,.2g}",
        }
        for row in results.data["estimates"]
        if row["mean"]
    ]
    repeats = many(len(results.data["replications"]), "replication")
    units = "batches of one run" if results.data["options"]["by_batches"] else repeats
    show(f"means of {units}, +- half the width of their {100 * confidence:g} % intervals:")
    _table(rows, False)
    if results.data["latencies"]:
        show("quantiles of all packets:")
    for row in results.data["latencies"]:
        quantiles = ", ".join(f"{100 * part:g} % {ns / 1e3:,.4g} us" for part, ns in row["quantiles"])
        show(f"  latency to {row['sink']}{' of ' + row['class'] if row['class'] else ''}: {quantiles}")


@app.command("sweep")
def sweep_model(
    model: _Model,
    over: Annotated[
        list[str],
        typer.Option("--over", metavar="NAME=VALUES", help="Values: load_mbps=100:1400:50, cpu_mhz=1000,3000"),
    ],
    settings: _Settings = None,
    sink: _Sink = None,
    duration: _Duration = 1.0,
    warm_up: Annotated[float, span_option("--warm-up", help="Model time before that")] = 0.3,
    replications: _Replications = 4,
    seed: options.Seed = 1,
    cluster: Annotated[
        str | None,
        typer.Option("--cluster", metavar="ADDRESS", help="Dask scheduler: tcp://10.0.0.1:8786"),
    ] = None,
    output: _Output = None,
    as_json: options.Json = False,
) -> None:
    """Run a model at every point of a grid of parameters, on all cores or on a Dask cluster."""
    from parshall.model.sweep import parse_values, sweep

    options.csv_file(output)
    grid = {name: parse_values(text) for name, text in (_assignment(each, "--over") for each in over)}
    with _progress(f"running {model}") as progress:
        frame = sweep(
            model,
            grid,
            settings=_settings(settings),
            sink=sink,
            progress=progress,
            cluster=cluster,
            duration_s=duration,
            warm_up_s=warm_up,
            replications=replications,
            seed=seed,
        )
    _frame(frame, output, as_json)


@app.command("compare")
def compare_models(
    measured: Annotated[
        Path, typer.Argument(metavar="TRACE", help="CSV, Parquet or Arrow: arrival_ns, departure_ns, bytes")
    ],
    models: Annotated[list[str], typer.Argument(metavar="MODEL...", help="Built-in models or files")],
    settings: _Settings = None,
    sink: _Sink = None,
    seed: options.Seed = 1,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="DIR", help="Directory for the table and the CCDFs")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Feed measured arrivals to models, and compare latencies and losses with the measured ones."""
    from parshall.model.compare import compare, read_trace

    trace = read_trace(measured)
    built_models = {name: build_network(name, settings, None) for name in models}
    with _progress("running the models"):
        comparison = compare(trace, built_models, sink=sink, seed=seed)
    if warning := comparison.warning():
        _say(f"compare: {warning}")
    if output is not None:
        comparison.write(output)
    _frame(comparison.table(), None, as_json)


@app.command("calibrate")
def calibrate_model(
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="Calibration: a TOML file")],
    receive: Annotated[
        str, typer.Option("--receive", metavar="rps|threaded", help="Softirq by RPS, or a NAPI thread")
    ] = "rps",
    no_gro: Annotated[bool, typer.Option("--no-gro", help="Receive without generic receive offload")] = False,
    routes: Annotated[int, count_option("--routes", help="Entries of the routing table")] = 4,
    destinations: Annotated[
        int, count_option("--destinations", help="Entries of the table that packets go to, at random")
    ] = 1,
    rules: Annotated[int, count_option("--rules", help="nftables rules that each packet passes", allow_0=True)] = 0,
    sizes: Annotated[str, typer.Option("--sizes", metavar="SPEC", help="Sizes of the IP packets, as for gen")] = "64",
    flows: Annotated[int, count_option("--flows", help="Number of flows")] = 1,
    count: Annotated[int, count_option("-c", "--count", help="Packets of each run")] = 25_000,
    repeats: Annotated[int, count_option("--repeats", help="Repeats of each run")] = 12,
    spread: Annotated[float, span_option("--spread", help="Spread the repeats evenly over this time")] = 0.0,
    seed: options.Seed = 1_000_001,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Measure the parameters of a router's model on this machine."""
    from parshall.cli import model_calibration

    with exiting_on_signals():
        model_calibration.calibrate(
            output,
            {
                "receive": receive,
                "gro": not no_gro,
                "routes": routes,
                "destinations": destinations,
                "rules": rules,
            },
            {"sizes": sizes, "flows": flows, "count": count, "repeats": repeats, "seed": seed, "spread_s": spread},
            quiet=quiet,
            as_json=as_json,
        )


@app.command("validate")
def validate_model(
    calibration: Annotated[Path, typer.Argument(metavar="FILE", help="Calibration to hold against measurements")],
    traffic: Annotated[
        str, typer.Option("--traffic", metavar="KIND[,KIND...]", help="constant, bursts, poisson, onoff")
    ] = "constant,bursts,poisson,onoff",
    loads: Annotated[
        str, typer.Option("--loads", metavar="SHARE[,SHARE...]", help="Shares of the rate under overload")
    ] = "0.3,0.6,0.8",
    count: Annotated[int, count_option("-c", "--count", help="Packets of each run")] = 100_000,
    repeats: Annotated[int, count_option("--repeats", help="Repeats of all runs")] = 3,
    beside: Annotated[
        bool, typer.Option("--beside", help="Calibrate in each repeat, too, for a second forecast")
    ] = False,
    keep: Annotated[
        bool, typer.Option("--keep", help="Add to FILE how many values its forecasts held at this age")
    ] = False,
    seed: options.Seed = 1,
    output: _Output = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Hold a calibrated model against what the router then does."""
    from parshall.cli import model_calibration

    options.csv_file(output)
    with exiting_on_signals(), _progress("measuring the router, then forecasting", quiet=quiet) as progress:
        table = model_calibration.validate(
            calibration,
            traffic,
            loads,
            {"count": count, "repeats": repeats, "seed": seed, "beside": beside, "on_run": progress},
            keep=keep,
            quiet=quiet,
        )
    _frame(table, output, as_json)


@app.command("plan")
def plan_capacity(
    model: _OptionalModel = None,
    settings: _Settings = None,
    sink: _Sink = None,
    loss: Annotated[float, share_option("--loss", help="Maximum loss (fraction of packets)", accepted=_LOSSES)] = 1e-3,
    p99: Annotated[float | None, latency_option("--p99", help="Maximum 99th percentile of latency: 300us")] = None,
    find: Annotated[
        str | None,
        typer.Option("--find", metavar="NAME", help="Largest load_pps, load_mbps, load_factor; or smallest NAME"),
    ] = None,
    load: _Load = None,
    duration: Annotated[
        float | None,
        time_option("-d", "--duration", help="Time of a step, or a stretch [default: 4; calibration: 1]"),
    ] = None,
    precision: Annotated[
        float | None,
        share_option("--precision", help="Lengthen runs until the interval is this narrow: 0.02", accepted=_PRECISIONS),
    ] = None,
    calibration: Annotated[
        Path | None,
        typer.Option("--calibration", metavar="FILE", help="Plan for the router of this calibration; no MODEL"),
    ] = None,
    seed: options.Seed = 1,
    as_json: options.Json = False,
) -> None:
    """Find the largest load, or the smallest clock or queue, within limits of loss and latency."""
    if calibration is not None:
        from parshall.cli import model_calibration

        if model is not None or settings or find is not None or sink is not None or precision is not None:
            raise UsageError(
                "--calibration: answers for one router; leave out MODEL, --set, --find, --sink, --precision"
            )
        found = {} if load is None else parse_load(load)
        offered = float(found["load_pps"]) if "load_pps" in found else None
        if load is not None and offered is None:
            raise UsageError(f"--load {load}: expected packets per second with --calibration: 300kpps")
        limits_us = None if p99 is None else p99 * 1e6
        length: dict[str, Any] = {} if duration is None else {"duration_s": duration}
        report_start("model plan", _SEARCHING, quiet=False)
        with progress_line("model", _SEARCHING) as say_step:
            rows = model_calibration.plan(calibration, loss, limits_us, offered, seed=seed, say=say_step, **length)
        if not as_json:
            rows = [{name: "unknown" if value is None else value for name, value in row.items()} for row in rows]
        _table(rows, as_json)
        return
    if model is None:
        raise UsageError("MODEL: missing; name a model (parshall model list), or give --calibration FILE")
    from parshall.model import MODELS
    from parshall.model.plan import LOADS, Limits, greatest_load, smallest
    from parshall.model.sweep import summary_rows
    from parshall.model.variation import LOAD_FACTOR

    chosen, limits = _settings(settings), Limits(loss, None if p99 is None else round(p99 * 1e6, 3))
    common: dict[str, Any] = {"duration_s": duration or _STEP_S, "seed": seed, "sink": sink, "within": precision}
    is_load = find is None or find in LOADS
    if is_load:
        if load is not None:
            raise UsageError(f"--load {load}: the search is for the load; leave it out, or --find another parameter")
        with _search(find or "load") as on_trial:
            answer = greatest_load(model, limits, settings=chosen, unit=find, on_trial=on_trial, **common)
        find = find or ("load_pps" if model in MODELS else LOAD_FACTOR)
    else:
        if load is not None:
            if model not in MODELS:
                raise UsageError(f"--load {load}: works with built-in models only; for {model}, --set load_factor=1.5")
            chosen = {key: value for key, value in chosen.items() if key not in LOADS} | parse_load(load)
        with _search(str(find)) as on_trial:
            answer = smallest(model, str(find), limits, settings=chosen, on_trial=on_trial, **common)
    _warn_of_width(str(find), answer, limits)
    ends = {"low": answer.low, "high": answer.high, "confidence": answer.confidence}
    row: dict[str, Any] = {str(find): answer.value, **ends, **summary_rows(answer.results, sink)[0]}
    if as_json:
        print(json.dumps(row))
        return
    title = f"at the {'largest load' if is_load else f'smallest {find}'}"
    row |= {name: "unknown" for name in ("low", "high") if row[name] is None}
    _table([{"": name, title: _text(value)} for name, value in row.items() if name != "class"], False)


def _warn_of_width(find: str, answer: Any, limits: Any) -> None:
    low, high = (("unknown" if each is None else f"{each:.6g}") for each in (answer.low, answer.high))
    if limits.loss == 0:
        _say(
            f"plan: none of {answer.packets:,} packets was lost at {find} {answer.value:.6g}, which does not prove "
            f"that none can be, so one end of the interval ({low} to {high}) is unknown; give a --loss above 0"
        )
    elif answer.is_wide():
        _say(
            f"plan: {find} lies between {low} and {high} with {answer.confidence:.0%} confidence, a wide interval; "
            "raise --duration, or give --precision"
        )


@app.command("published")
def show_published(output: _Output = None, as_json: options.Json = False) -> None:
    """Compare the published numbers of the software-router study with the models."""
    from parshall.model.published import KINDS, check_statements, table

    options.csv_file(output)
    what = "running the models for the published numbers"
    report_start("model", what, quiet=False)
    with _progress(what) as progress:
        numbers = table(progress)
        statements = check_statements()
    if output is not None and str(output) != "-":
        write_whole(output, numbers.write_csv())
    if str(output) == "-":
        sys.stdout.write(numbers.write_csv())
        return
    if as_json:
        print(json.dumps({"quantities": numbers.to_dicts(), "statements": statements.to_dicts()}))
        return
    rows = [
        {
            "section": row["section"],
            "quantity": row["quantity"],
            "published": f"{row['published']:g} {row['unit']}".rstrip(),
            "kind": row["kind"],
            **{
                key: text
                for name in ("A", "B")
                for key, text in (
                    (name, f"{row[name]:.4g}" + ("*" if name == row["judged_by"] else "")),
                    (f"error {name}", _error(row[f"error_{name}"], row["unit"])),
                )
            },
            "note": row["note"],
        }
        for row in numbers.iter_rows(named=True)
    ]
    _table(rows, False)
    show()
    for row in statements.iter_rows(named=True):
        sentences = [("seen", row["seen"]), *([("note", row["note"])] if row["note"] else [])]
        holds = "holds" if row["holds"] else "does NOT hold"
        place = row["figure"] if row["figure"].startswith("Table") else f"Figure {row['figure']}"
        show_paragraphs([(f"{row['section']}, {place}, {row['statement']}: {holds}", sentences)])
    show("", "* the calibration of this section")
    for kind, meaning in KINDS.items():
        show(f"{kind}: {meaning}")


@app.command("draw")
def draw_model(
    model: _Model,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="Output file: .svg, .png or .html")],
    settings: _Settings = None,
) -> None:
    """Draw a model: its queues, stations and the transitions between them."""
    from parshall.model.drawing import save

    network = build_network(model, settings, None)
    network.check(allow_unstable=True)
    with _progress(f"drawing {model}"):
        save(network, output)
    show(output)


@app.command("figure")
def draw_figure(
    names: Annotated[list[str], typer.Argument(metavar="FIGURE...", help="A figure such as 3.17, or all")],
    output: options.OutputDirectory = Path(),
    quick: Annotated[bool, typer.Option("--quick", help="Fewer points, shorter runs")] = False,
) -> None:
    """Draw figures of the software-router study from the models."""
    from parshall.model.figures import FIGURES, write

    wanted = list(FIGURES) if names == ["all"] else names
    for name in wanted:
        if name not in FIGURES:
            raise UsageError(f"no figure {name!r}; there are {', '.join(FIGURES)}, or all")
    for name in wanted:
        with _progress(f"running the models of figure {name}"):
            paths = write(name, output, quick=quick)
        show(*paths)
        if FIGURES[name].note:
            _say(f"figure {name}: {FIGURES[name].note}")


def build_network(name: str, settings: list[str] | None, load: str | None, calibration: Path | None = None) -> Any:
    """Return the network of a built-in model or of a file, under settings."""
    from parshall.model.variation import build, resolve

    base, chosen = resolve(name), _settings(settings)
    if calibration is not None:
        from parshall.cli.model_calibration import napi

        if base != "linux-napi":
            raise UsageError(f"--calibration {calibration}: has parameters of linux-napi, not of {name}")
        chosen = napi(calibration) | chosen
    if load is not None:
        if not isinstance(base, str):
            raise UsageError(f"--load {load}: works with built-in models only; for {name}, --set load_factor=1.5")
        chosen = {key: value for key, value in chosen.items() if not key.startswith("load_")} | parse_load(load)
    return build(base, chosen)


def parse_load(text: str) -> dict[str, str | float]:
    """Return the parameter that an offered load such as ``225mbps`` sets."""
    for unit, (parameter, factor) in _LOAD_UNITS.items():
        if text.lower().endswith(unit):
            try:
                value = float(text[: -len(unit)]) * factor
            except ValueError:
                break
            if value > 0:
                return {parameter: value}
    raise UsageError(f"--load {text}: expected a number above 0 with its unit: 225mbps, 1gbps, 8.5kpps or 8500pps")


def _settings(assignments: list[str] | None) -> dict[str, str | float]:
    return dict(_assignment(each, "--set") for each in assignments or [])


def _assignment(text: str, option: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise UsageError(f"{option} {text}: expected NAME=VALUE, such as cpu_mhz=1000")
    return name, value


@contextmanager
def _progress(what: str, *, quiet: bool = False) -> Iterator[Callable[[int, int], None]]:
    """While entered, show what is done; yields a function that takes how many are done, of how many."""
    with progress_line("model", what, quiet=quiet) as show_text:
        yield lambda done, total: show_text(f"{what}: {done} of {total}")


@contextmanager
def _search(what: str) -> Iterator[Callable[[float, int], None]]:
    """While entered, show what a search tries; yields a function that takes the value, and how many."""
    with progress_line("model", _SEARCHING) as show_text:
        yield lambda value, done: show_text(f"searching: {what} {value:.6g}, after {many(done, 'other')} of some 30")


def _plain(text: str) -> str:
    """Return the first line of a docstring without markup."""
    return text.partition("\n")[0].replace("``", "")


def _say(text: str) -> None:
    say("model", text)


def _frame(frame: Any, output: Path | None, as_json: bool) -> None:
    if str(output) == "-":
        sys.stdout.write(frame.write_csv())
        return
    if output is not None:
        write_whole(output, frame.write_csv())
    _table(frame.to_dicts(), as_json)


def _table(rows: list[dict[str, Any]], as_json: bool) -> None:
    """Print rows as JSON, or as aligned columns."""
    if as_json:
        print(json.dumps(rows))
        return
    columns = list(rows[0]) if rows else []
    texts = [[_text(row.get(column)) for column in columns] for row in rows]
    widths = [max(len(column), *(len(line[at]) for line in texts)) for at, column in enumerate(columns)]
    for line in [columns, *texts]:
        show("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())


def _error(error: float, unit: str) -> str:
    return f"{error:+.1f} points" if unit == "%" else f"{error:+.1%}"


def _text(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)
