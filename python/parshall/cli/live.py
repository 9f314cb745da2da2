"""``parshall live``: one page on the loopback that shows what runs."""

import contextlib
import json
import secrets
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from parshall.cli import options
from parshall.cli.confinement import confine
from parshall.cli.options import Accepted, count_option, share_option, size_option, time_option
from parshall.errors import UsageError
from parshall.host import privileges
from parshall.host.messages import report_start, say, show
from parshall.host.quantities import many, parse_address
from parshall.host.rotation import Rotation
from parshall.host.stopping import Stopping
from parshall.host.temporary import TemporaryDirectory

if TYPE_CHECKING:
    from parshall.instruments.path import PathProfile
    from parshall.instruments.path.profile import PathSummary
    from parshall.instruments.tcp import LogSummary, TcpLog

COMMAND_SETTINGS = {
    "epilog": "Without LOG_OR_DIR, it logs the host's connections itself, in a temporary directory of at most 1 GiB."
}
# Of the log that it writes itself.
_FILE_TIME_S = 30.0
_FILE_BYTES = 16 << 20
_FILES_MAX = 64
_KEEP_S = 900.0
_MEMORY_BYTES = 256 << 20
_MEMORY_BYTES_MIN = 1 << 20
_POLL_S = 0.1
_SHARES = Accepted("a share of the time above 0, at most 1, such as 0.05 or 5%", lambda share: 0 < share <= 1)


def command(
    log: Annotated[
        Path | None,
        typer.Argument(metavar="[LOG_OR_DIR]", help="Log of `parshall tcp` that is being written, or directory of one"),
    ] = None,
    tui: Annotated[bool, typer.Option("--tui", help="Show it in this terminal, and serve no page")] = False,
    listen: Annotated[
        str, typer.Option("--listen", metavar="ADDR", help="Serve the page at [ADDRESS:]PORT; 0 is any free port")
    ] = "0",
    token_file: Annotated[
        Path | None,
        typer.Option("--token-file", metavar="FILE", help="Keep the address's token there, so that it stays the same"),
    ] = None,
    keep: Annotated[
        float | None, time_option("--keep", help=f"How far one can go back [default: {_KEEP_S / 60:g}m]")
    ] = None,
    memory: Annotated[
        int | None, size_option("--memory", help=f"Memory for what is kept [default: {_MEMORY_BYTES >> 20}M]")
    ] = None,
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="DIR", help="Directory for spans that are saved")
    ] = Path(),
    path: Annotated[
        float | None,
        share_option("--path", help="Measure the path of packets, too, this share of the time", accepted=_SHARES),
    ] = None,
    ppl: Annotated[int, count_option("--ppl", help="Log every N-th packet of each flow")] = 1,
    port: options.Ports = None,
    host: options.Hosts = None,
    cgroup: options.Cgroup = None,
    unit: options.Unit = None,
    container: options.Container = None,
    netns: options.Netns = None,
    pid: options.Pids = None,
    duration: options.Duration = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> int:
    """Show what runs on a page of this host: flows, accept queues, what the measuring lost and cost."""
    address, number = parse_address("--listen", listen)
    keep_s = _KEEP_S if keep is None else keep
    memory_bytes = _MEMORY_BYTES if memory is None else memory
    if memory_bytes < _MEMORY_BYTES_MIN:
        raise UsageError(f"--memory {memory_bytes}: expected at least 1M")
    chosen = {"port": port, "host": host, "cgroup": cgroup, "netns": netns, "pid": pid}
    chosen |= {"unit": unit, "container": container}
    if log is not None:
        given = [name for name, value in chosen.items() if value] + (["ppl"] if ppl != 1 else [])
        if given:
            raise UsageError(f"--{given[0]}: chooses what is logged, and {log} is a log; leave one or the other out")
    if not output.is_dir():
        raise UsageError(f"-o {output}: is no directory; name one that exists")
    if tui and not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError("--tui: this is no terminal; in a pipe, `parshall show --follow LOG` shows the flows of a log")
    from parshall.live.listening import listening
    from parshall.live.reporting import Reporter
    from parshall.live.token import token_in

    with contextlib.ExitStack() as stack:
        stopping = stack.enter_context(Stopping())
        token = None if token_file is None else token_in(token_file)
        listener = None if tui else stack.enter_context(listening(address, number))
        own = None
        if log is None:
            own, shown = _own_log(stack, stopping, keep_s, ppl, chosen)
        else:
            # The name may be a link; what is beside it is others' business.
            shown = log.resolve()
        profile = None if path is None else stack.enter_context(_profile(path, stopping, chosen))
        # After the privileges are given up, nothing can be started.
        reporter = None if tui else stack.enter_context(Reporter())
        # Before libraries have threads of their own, which could not give anything up.
        has_child = reporter is not None
        confine("live", [shown, output / "span"], has_child=has_child, enters_namespaces=profile is not None)
        # What it costs is counted from then on: the time of these imports is not a part of it.
        from parshall.host import running
        from parshall.live import packets, rings
        from parshall.live.polled import Polled
        from parshall.live.saved import Saved
        from parshall.live.watch import Watch

        if listener is None:
            from parshall.live.tui import LiveApp
        else:
            from parshall.live.server import Server
        watch = stack.enter_context(Watch(shown, keep_s=keep_s, memory_bytes=memory_bytes, writes=own is not None))
        stack.enter_context(Polled(rings.listed, partial(watch.show, "rings")))
        stack.enter_context(Polled(running.listed, partial(watch.show, "commands")))
        if profile is not None:
            account = profile.account
            stack.enter_context(Polled(lambda: packets.shown(account()), partial(watch.show, "packets")))
        saved = Saved(output, reporter)
        end_s = None if duration is None else time.monotonic() + duration

        def is_over() -> bool:
            is_late = end_s is not None and time.monotonic() >= end_s
            # A terminal that is gone sends no signal to those who do not belong to it.
            is_alone = tui and not sys.stdin.isatty()
            has_ended = own is not None and bool(own.status()["has_ended"])
            # A measurement that failed is said at the end, not by numbers that stand still.
            has_failed = profile is not None and bool(profile.status()["has_ended"])
            return stopping.is_requested() or is_late or is_alone or has_ended or has_failed

        if listener is None:
            LiveApp(watch, saved, is_over).run()
        else:
            server = stack.enter_context(Server(watch, saved, listener, token))
            if as_json:
                print(json.dumps({"url": server.url, "log": str(shown)}), flush=True)
            elif quiet:
                # The page cannot be opened without it.
                show(server.url)
            report_start("live", f"{'logging; ' if own else ''}open {server.url}", quiet=quiet)
            if path is not None and path < 1 and not quiet:
                from parshall.instruments.path.text import windows_text

                say("live", f"--path {path:.3g} of the time: {windows_text(path)}; between them packets are not seen")
            if not quiet and address in ("0.0.0.0", "::"):
                say("live", "other hosts open it by a name or address of this one; only its token protects it")
            while not is_over():
                stopping.wait(_POLL_S)
            if not quiet:
                say("live", "ending")
        # It ends at once; a second Ctrl-C would lose the account.
        stopping.ignore_interrupts()
        followed = None if profile is None else profile.stop()
        summary = None if own is None else own.stop()
    return _end(summary, followed, quiet, as_json)


def _own_log(
    stack: contextlib.ExitStack, stopping: Stopping, keep_s: float, ppl: int, chosen: dict[str, Any]
) -> tuple["TcpLog", Path]:
    from parshall.instruments.tcp import TcpLog

    privileges.require_bpf("live")
    directory = stack.enter_context(TemporaryDirectory("live"))
    path = directory / "live.arrow"
    log = TcpLog(
        path,
        ppl=ppl,
        rotation=Rotation(
            rotate_size_bytes=_FILE_BYTES,
            rotate_time_s=_FILE_TIME_S,
            rotate_files=_FILES_MAX,
            keep_s=keep_s + _FILE_TIME_S,
        ),
        is_stopping=stopping.is_requested,
        **{name: value for name, value in chosen.items() if value},
    )
    return stack.enter_context(log), path


def _profile(share: float, stopping: Stopping, chosen: dict[str, Any]) -> "PathProfile":
    from parshall.instruments.path import PathProfile

    privileges.require_bpf("live")
    names = ("cgroup", "netns", "unit", "container")
    # Other windows each time: who looks again at the same moments after the start sees the same part of the traffic.
    return PathProfile(
        share=share,
        seed=secrets.randbits(63),
        is_stopping=stopping.is_requested,
        **{name: chosen[name] for name in names if chosen[name]},
    )


def _end(summary: "LogSummary | None", followed: "PathSummary | None", quiet: bool, as_json: bool) -> int:
    from parshall.cli.listener_text import listener_lines
    from parshall.host.ledger_text import ledger_lines
    from parshall.instruments.path.text import summary_lines

    failure = next((one.failure for one in (summary, followed) if one is not None and one.failure), None)
    if as_json and (summary or followed):
        path = None if followed is None else {"ledger": followed.ledger, "attached_s": followed.attached_s}
        log = {"ledger": summary.ledger, "flows": summary.flows} if summary else {"ledger": None, "flows": None}
        print(json.dumps({**log, "path": path, "failure": failure}))
    elif not quiet:
        lines = []
        if summary is not None:
            lines += [many(summary.flows, "flow"), *listener_lines(summary), *ledger_lines(summary.ledger)]
        if followed is not None:
            lines += [*summary_lines(followed), *ledger_lines(followed.ledger)]
        if lines:
            show(*lines, file=sys.stderr)
    if failure:
        say("live", failure)
        return 1
    return 0
