"""``parshall model``: list, run, sweep, compare, plan, published, figure."""

import json
import sys
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer

from parshall.errors import UsageError

app = typer.Typer(add_completion=False, rich_markup_mode=None, no_args_is_help=True)

_Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Set a parameter; see `parshall model list NAME`."),
]
_Json = Annotated[bool, typer.Option("--json", help="Give the result as JSON.")]
_Seed = Annotated[int, typer.Option(help="Where all random numbers come from.")]
_Replications = Annotated[int, typer.Option(min=1, help="Independent runs.")]
_Load = Annotated[
    str | None, typer.Option(metavar="LOAD", help="Offered load: 225mbps, 8.5kpps or 8500pps; overrides load_*.")
]
_Output = Annotated[Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write the table as CSV, too.")]

# unit -> (parameter, factor)
_LOAD_UNITS = {
    "mbps": ("load_mbps", 1.0),
    "gbps": ("load_mbps", 1e3),
    "kpps": ("load_pps", 1e3),
    "pps": ("load_pps", 1.0),
}


@app.command("list")
def list_models(
    name: Annotated[str | None, typer.Argument(metavar="[MODEL]", help="Show the parameters of one.")] = None,
    as_json: _Json = False,
) -> None:
    """List the built-in models, or the parameters of one."""
    from parshall.model import MODELS, parameters

    if name is not None:
        parameters(name, {})
        rows = [
            {"parameter": each.name, "default": each.default, **{key: each.metadata[key] for key in ("unit", "what")}}
            for each in fields(MODELS[name])
        ]
    else:
        rows = [{"model": model, "what": (kind.__doc__ or "").splitlines()[0]} for model, kind in MODELS.items()]
    _table(rows, as_json)


@app.command("run")
def run_model(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A built-in model, or a .toml or .json file.")],
    settings: _Settings = None,
    load: _Load = None,
    duration: Annotated[float, typer.Option(metavar="S", min=1e-9, help="Seconds of the model that count.")] = 1.0,
    warm_up: Annotated[
        float | None, typer.Option(metavar="S", min=0, help="Seconds before that; found by MSER-5 if not given.")
    ] = None,
    replications: _Replications = 5,
    batches: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=2, help="One long run cut into so many batches, instead of independent --replications."
        ),
    ] = None,
    precision: Annotated[
        float | None,
        typer.Option(metavar="PART", help="Go on until intervals at the sinks are this small, as 0.01."),
    ] = None,
    confidence: Annotated[float, typer.Option(help="Of the intervals.")] = 0.95,
    seed: _Seed = 1,
    threads: Annotated[int | None, typer.Option(min=1, help="All cores if not given.")] = None,
    trace: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write packets.arrow and visits.arrow of the first replication.")
    ] = None,
    allow_unstable: Annotated[
        bool, typer.Option("--allow-unstable", help="Run it even if a queue grows for ever.")
    ] = False,
    as_json: _Json = False,
) -> None:
    """Simulate a model, and show what every station, queue and sink did."""
    from parshall.model import run

    results = run(
        built(model, settings, load),
        duration_s=duration,
        warm_up_s=warm_up,
        replications=replications if batches is None else batches,
        by_batches=batches is not None,
        relative_half_width=precision,
        confidence=confidence,
        seed=seed,
        threads=threads,
        trace=trace is not None,
        allow_unstable=allow_unstable,
    )
    if trace is not None:
        trace.mkdir(parents=True, exist_ok=True)
        for name, frame in (("packets", results.packets), ("visits", results.visits)):
            if frame is not None:
                frame.write_ipc(trace / f"{name}.arrow")
    if results.data["is_steady"] is False:
        _say("run: no steady state was found, half of a pilot run was left out; take a longer --duration")
    if results.data["is_precise"] is False:
        _say(f"run: {len(results.data['replications'])} replications did not reach --precision {precision}")
    if results.data["is_uncorrelated"] is False:
        _say("run: batches are too few or too short to be independent, so intervals are too narrow; raise --duration")
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
    _table(rows, False)
    for row in results.data["latencies"]:
        quantiles = ", ".join(f"{100 * part:g} % {ns / 1e3:,.4g} us" for part, ns in row["quantiles"])
        print(f"latency to {row['sink']}{' of ' + row['class'] if row['class'] else ''}: {quantiles}")


@app.command("sweep")
def sweep_model(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A built-in model.")],
    over: Annotated[
        list[str], typer.Option("--over", metavar="NAME=VALUES", help="load_mbps=100:1400:50, or cpu_mhz=1000,3000.")
    ],
    settings: _Settings = None,
    duration: Annotated[float, typer.Option(metavar="S", min=1e-9, help="Seconds of the model that count.")] = 1.0,
    warm_up: Annotated[float, typer.Option(metavar="S", min=0, help="Seconds before that.")] = 0.3,
    replications: _Replications = 4,
    seed: _Seed = 1,
    cluster: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Run on the workers of a Dask scheduler, such as tcp://10.0.0.1:8786."),
    ] = None,
    output: _Output = None,
    as_json: _Json = False,
) -> None:
    """Run a model at every point of a grid of parameters, on all cores or on a Dask cluster."""
    from parshall.model.sweep import sweep, values

    grid = {name: values(text) for name, text in (_assignment(each, "--over") for each in over)}
    with _progress() as progress:
        frame = sweep(
            model,
            grid,
            settings=_settings(settings),
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
        Path, typer.Argument(metavar="TRACE", help="CSV, Parquet or Arrow: arrived_ns, left_ns, bytes.")
    ],
    models: Annotated[list[str], typer.Argument(metavar="MODEL...", help="Built-in models or files.")],
    settings: _Settings = None,
    seed: _Seed = 1,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="DIR", help="Write the table, the CCDFs and their figure.")
    ] = None,
    as_json: _Json = False,
) -> None:
    """Feed the arrivals of a measurement to models, and lay their latencies beside the measured ones."""
    from parshall.model.compare import compare, read_trace

    trace = read_trace(measured)
    built_models = {name: built(name, settings, None) for name in models}
    comparison = compare(trace, built_models, seed=seed)
    if output is not None:
        comparison.write(output)
    _frame(comparison.table(), None, as_json)


@app.command("plan")
def plan_capacity(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A built-in model.")],
    settings: _Settings = None,
    loss: Annotated[float, typer.Option(metavar="PART", min=0, help="Greatest part of packets lost.")] = 1e-3,
    p99_us: Annotated[float | None, typer.Option(metavar="US", help="Greatest 99th percentile of latency.")] = None,
    find: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="load_pps or load_mbps: the greatest. Another parameter, such as cpu_mhz: the smallest.",
        ),
    ] = "load_pps",
    load: _Load = None,
    duration: Annotated[float, typer.Option(metavar="S", min=1e-9, help="Seconds of the model at each step.")] = 4.0,
    seed: _Seed = 1,
    as_json: _Json = False,
) -> None:
    """Find the greatest load, or the smallest clock or queue, within limits of loss and latency."""
    from parshall.model.plan import LOADS, Limits, greatest_load, smallest
    from parshall.model.sweep import summary_rows

    chosen, limits = _settings(settings), Limits(loss, p99_us)
    common: dict[str, Any] = {"duration_s": duration, "seed": seed}
    if find in LOADS:
        if load is not None:
            raise UsageError(
                f"--load {load}: the load is what is looked for; --find another parameter, or leave it out"
            )
        found, results = greatest_load(model, limits, settings=chosen, unit=find, **common)
    else:
        if load is not None:
            chosen = {key: value for key, value in chosen.items() if key not in LOADS} | offered(load)
        found, results = smallest(model, find, limits, settings=chosen, **common)
    row = {find: found, **summary_rows(results)[0]}
    if as_json:
        print(json.dumps(row))
        return
    title = f"at the {'greatest load' if find in LOADS else f'smallest {find}'}"
    _table([{"": name, title: _text(value)} for name, value in row.items() if name != "class"], False)


@app.command("published")
def show_published(output: _Output = None, as_json: _Json = False) -> None:
    """Lay every published number of the software-router study beside what the models say."""
    from parshall.model.published import KINDS, shapes, table

    with _progress() as progress:
        numbers = table(progress)
        statements = shapes()
    if output is not None:
        numbers.write_csv(output)
    if as_json:
        print(json.dumps({"quantities": numbers.to_dicts(), "statements": statements.to_dicts()}))
        return
    rows = [
        {
            "section": row["section"],
            "quantity": row["quantity"],
            "published": f"{row['published']:g} {row['unit']}",
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
    print()
    _table([{**row, "holds": "yes" if row["holds"] else "NO"} for row in statements.iter_rows(named=True)], False)
    print("\n* the calibration that is for this section")
    for kind, meaning in KINDS.items():
        print(f"{kind}: {meaning}")


@app.command("draw")
def draw_model(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A built-in model, or a .toml or .json file.")],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="A .svg, .png or .html.")],
    settings: _Settings = None,
) -> None:
    """Draw a model: its queues, stations and the ways between them."""
    from parshall.model.drawing import save

    network = built(model, settings, None)
    network.check(allow_unstable=True)
    save(network, output)
    print(output)


@app.command("figure")
def draw_figure(
    names: Annotated[list[str], typer.Argument(metavar="FIGURE...", help="3.11 3.12 3.15 3.17 3.19 3.21, or all.")],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="DIR", help="Where PNG, SVG and HTML go.")] = Path(),
    quick: Annotated[bool, typer.Option("--quick", help="Fewer points, shorter runs.")] = False,
) -> None:
    """Draw figures of the software-router study from the models."""
    from parshall.model.figures import FIGURES, write

    wanted = list(FIGURES) if names == ["all"] else names
    for name in wanted:
        if name not in FIGURES:
            raise UsageError(f"no figure {name!r}; there are {', '.join(FIGURES)}, or all")
    for name in wanted:
        for path in write(name, output, quick=quick):
            print(path)


def built(name: str, settings: list[str] | None, load: str | None) -> Any:
    """Return the network of a built-in model or of a file."""
    from parshall.model import MODELS, parameters
    from parshall.model import load as load_file

    if name in MODELS:
        chosen = _settings(settings)
        if load is not None:
            chosen = {key: value for key, value in chosen.items() if not key.startswith("load_")} | offered(load)
        return parameters(name, chosen).build()
    if settings or load is not None:
        raise UsageError(
            f"{name}: --set and --load are for built-in models; change the file, or name one of {', '.join(MODELS)}"
        )
    return load_file(name)


def offered(text: str) -> dict[str, str | float]:
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
def _progress() -> Any:
    """Give what shows how far it is, on a terminal only."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.progress import Progress

    with Progress(transient=True) as bar:
        task = bar.add_task("model", total=None)
        show: Callable[[int, int], None] = lambda done, total: bar.update(task, completed=done, total=total)  # noqa: E731
        yield show


def _say(text: str) -> None:
    print(f"parshall: model: {text}", file=sys.stderr)


def _frame(frame: Any, output: Path | None, as_json: bool) -> None:
    if output is not None:
        frame.write_csv(output)
    _table(frame.to_dicts(), as_json)


def _table(rows: list[dict[str, Any]], as_json: bool) -> None:
    """Print rows as JSON, or as columns as wide as they need."""
    if as_json:
        print(json.dumps(rows))
        return
    columns = list(rows[0]) if rows else []
    texts = [[_text(row.get(column)) for column in columns] for row in rows]
    widths = [max(len(column), *(len(line[at]) for line in texts)) for at, column in enumerate(columns)]
    for line in [columns, *texts]:
        print("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())


def _error(error: float, unit: str) -> str:
    return f"{error:+.1f} points" if unit == "%" else f"{error:+.1%}"


def _text(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)
