"""``parshall path --join``: recognise the files, join them, write or show the result."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from parshall._native import stream_format
from parshall.errors import UsageError, naming_damage, printable
from parshall.host.messages import progress_line, say, show
from parshall.host.quantities import duration_text, many
from parshall.host.session import check_choice
from parshall.host.stopping import exiting_on_signals
from parshall.host.whole_file import new_file, refuse_input
from parshall.instruments.path.comments import write_commented
from parshall.instruments.path.connections import connections
from parshall.instruments.path.log import PathLog
from parshall.instruments.path.perfetto import TRACE_SUFFIX, write_trace
from parshall.instruments.path.timeline import join
from parshall.instruments.path.trace import Trace, is_trace
from parshall.instruments.tcp_log import Log, read

_SHOWN = 20
_KINDS = {"path": "path log", "tcp-state": "TCP log", "trace": "capture"}


def run(files: list[Path], output: Path | None, to: str | None, *, quiet: bool, as_json: bool) -> int:
    """Join files and write the output, or print the answers for each connection."""
    for_perfetto = _is_for_perfetto(output, to)
    refuse_input(output, files)
    with exiting_on_signals(), progress_line("path", "joining the files", quiet=quiet):
        path_log, tcp_log, capture = _opened(files)
        with naming_damage(files, "make them again"):
            timeline = join(path_log, tcp_log, capture)
        for line in [] if quiet else _unmatched(timeline, tcp_log, capture):
            say("path", line)
        if output is not None:
            if for_perfetto:
                packets = write_trace(timeline, output)
                if not (quiet or as_json):
                    say("path", f"{output}: {many(packets, 'packet')}; open it at ui.perfetto.dev")
            else:
                _write(timeline, capture, output, quiet=quiet or as_json)
    if as_json or output is None:
        with naming_damage(files, "make them again"):
            found = connections(timeline)
        if as_json:
            logs = {"path": path_log, "tcp": tcp_log}
            ledgers = {name: log.ledger or None for name, log in logs.items() if log is not None}
            name = None if output is None else str(output)
            print(json.dumps({"output": name, "connections": found, "ledgers": ledgers}))
        else:
            show(*lines_of(found), *_accounts([log for log in (path_log, tcp_log) if log is not None]))
    return 0


def _unmatched(timeline: pa.Table, tcp_log: Log | None, capture: Trace | None) -> list[str]:
    """Return a line for each file in which no packet of the path was found: it may be of another time or host."""
    # A router forwards packets of connections that it does not have.
    files = (("tcp_match", tcp_log, ", and of an end of the connections"), ("capture_match", capture, ""))
    return [
        f"--join {printable(str(file.path))}: has none of the {many(timeline.num_rows, 'packet')}; is it of the same "
        f"time, host and network namespace{hint}?"
        for column, file, hint in files
        if file is not None and timeline.num_rows and pc.all(pc.equal(timeline[column].cast("string"), "none")).as_py()
    ]


def _accounts(logs: Sequence[PathLog | Log]) -> Iterator[str]:
    """Yield for each log what it saw, and what of it the answers lack."""
    for log in logs:
        yield account_line(str(log.path), log.ledger)


def account_line(name: str, ledger: Mapping[str, Any]) -> str:
    """Return what a log, or a capture, saw and lost."""
    accounts = ledger.get("hooks") or [
        account for subscriber in ledger.get("subscribers", []) for account in subscriber["interfaces"]
    ]
    if not accounts:
        return f"{printable(name)}: no ledger: it ended within its first second"
    counts = {part: sum(account[part] for account in accounts) for part in ("seen", "filtered", "thinned", "logged")}
    lost = sum(sum(account["lost"].values()) for account in accounts)
    text = " + ".join(f"{part} {counts[part]:,}" for part in ("filtered", "thinned", "logged"))
    return f"{printable(name)}: seen {counts['seen']:,} = {text} + lost {lost:,}"


def lines_of(found: list[dict[str, Any]]) -> list[str]:
    """Return the answers for the connections with most packets as text."""
    lines = [line for one in found[:_SHOWN] for line in connection_lines(one)]
    return lines + ([f"and {len(found) - _SHOWN} more; --json has all"] if len(found) > _SHOWN else [])


def kind_of(path: Path) -> str:
    """Return what a file is by its content: ``path``, ``tcp-state`` or ``trace``.

    Raises
    ------
    UsageError
        The file cannot be read, or is something else.
    """
    try:
        if is_trace(path):
            return "trace"
    except OSError as error:
        raise UsageError(f"--join {path}: {error.strerror or error}; name a file that can be read") from None
    kind = stream_format(path)
    if kind not in _KINDS:
        raise UsageError(f"--join {path}: of an unknown kind; expected a path log, a TCP log, pcapng or pcap")
    return kind


def _opened(files: list[Path]) -> tuple[PathLog, Log | None, Trace | None]:
    by_kind: dict[str, Path] = {}
    for path in files:
        kind = kind_of(path)
        if kind in by_kind:
            raise UsageError(f"--join {path}: a second {_KINDS[kind]} beside {by_kind[kind]}; leave out one of them")
        by_kind[kind] = path
    if "path" not in by_kind:
        raise UsageError(f"--join {files[0]}: no path log among the files; make one with: parshall path -o FILE")
    tcp, trace = by_kind.get("tcp-state"), by_kind.get("trace")
    return PathLog(by_kind["path"]), None if tcp is None else read(tcp), None if trace is None else Trace(trace)


def _is_for_perfetto(output: Path | None, to: str | None) -> bool:
    """Return whether the output is a trace of Perfetto; by its name where --to does not say so."""
    check_choice("--to", to, ("perfetto",))
    if to is not None and output is None:
        raise UsageError(f"--to {to}: needs a file; name one with -o, such as timeline.pftrace")
    if to is not None or output is None or output.suffix == TRACE_SUFFIX:
        return output is not None
    if output.suffix not in (".arrow", ".parquet", ".pcapng"):
        raise UsageError(
            f"-o {output}: with --join, expected a name that ends in .arrow, .parquet, .pcapng or {TRACE_SUFFIX}"
        )
    return False


def _write(timeline: pa.Table, capture: Trace | None, output: Path, *, quiet: bool) -> None:
    if output.suffix == ".pcapng":
        if capture is None:
            raise UsageError(f"-o {output}: no capture to comment; give a pcapng or pcap file with --join, too")
        commented = write_commented(capture, timeline, output)
        if not quiet:
            say("path", f"{output}: {commented:,} packets with comments")
        return
    with new_file(output, "wb") as (file, commit):
        if output.suffix == ".parquet":
            pyarrow.parquet.write_table(timeline, file)
        else:
            with pa.ipc.new_stream(file, timeline.schema) as stream:
                stream.write_table(timeline)
        file.flush()
        commit()
    if not quiet:
        say("path", f"{output}: {many(timeline.num_rows, 'row')}")


def connection_lines(one: dict[str, Any]) -> list[str]:
    """Return the answers for one direction of a connection as text; see `connections`."""
    namespaces = " and ".join(map(str, one["netns_inodes"])) or "unknown"
    counts = ", ".join(f"{count:,} {path}" for path, count in one["paths"].items())
    lines = [f"{one['connection']}, netns {namespaces}", f"  skbs: {counts}"]
    for drop in one["drops"]:
        lines.append(
            f"  dropped: {drop['packets']:,} {drop['reason']} after {drop['place']} in netns {drop['netns_inode']}, "
            f"{drop['sent_again']:,} sent again"
        )
    lines += [f"  from drop to retransmission: {_quantiles(row)}" for row in one["sent_again"]]
    if one["retransmissions"]:
        causes = ", ".join(f"{count:,} {cause}" for cause, count in one["causes"].items())
        lines.append(
            f"  retransmissions: {one['retransmissions']:,} ({causes}), {one['lost']:,} for a drop seen here, "
            f"{one['spurious']:,} spurious" + (f", {one['not_known']:,} not known" if one["not_known"] else "")
        )
    lines += [f"  read by {row['command']} (pid {row['pid']}): waited {_quantiles(row)}" for row in one["readers"]]
    for row in one["queues"]:
        place = f"interface {row['interface_out']} in netns {row['netns_inode']}"
        lines.append(f"  {row['kind']} in the queue of {place}: {_quantiles(row)}")
    return lines


def _quantiles(row: dict[str, Any]) -> str:
    times = ", ".join(f"{name} {duration_text(row[f'{name}_ns'])}" for name in ("median", "p99", "max"))
    return f"{times} ({row['rows']:,} skbs)"
