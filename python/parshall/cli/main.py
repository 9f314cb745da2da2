"""Entry point, and the one place where errors become exit statuses.

A command's module is imported only when the command runs, so that ``parshall --help`` answers at once. The module has
either a function ``command``, which typer turns into the command, or, when it has subcommands, a ``typer.Typer`` called
``app``.
"""

import errno
import gc
import os
import signal
import sys
from collections.abc import Sequence

try:
    # Until `main` handles it, Ctrl-C ends the process as it ends other programs, without a traceback.
    _handler = signal.signal(signal.SIGINT, signal.SIG_DFL)
except ValueError:
    # A program imports this module in a thread that is not its main thread.
    _handler = None

from parshall.cli import confinement
from parshall.host.commands import COMMANDS

if _handler is not None:
    signal.signal(signal.SIGINT, _handler)

VERSION_FORMAT = "parshall-version/1"
FAILED = 1
USAGE = 2
INTERRUPTED = 130


def usage() -> str:
    """Return the help text of ``parshall`` itself."""
    width = max(map(len, COMMANDS)) + 2
    table = "\n".join(f"  {name:{width}}{line}" for name, (_, line, _) in COMMANDS.items())
    return f"""Usage: parshall [-h | --help | --version [--json]] COMMAND [ARGUMENTS]...

Measure the packet path of this host, with the loss and the cost of measuring.

Commands:
{table}

`parshall COMMAND --help` shows the options of a command.
`parshall --show-completion bash|zsh|fish` prints the completion script of a shell."""


def print_error(message: str, status: int) -> int:
    """Print an error on one line, and return the exit status."""
    from parshall.errors import printable

    print(f"parshall: {printable(message)}", file=sys.stderr)
    return status


def version(*, as_json: bool = False) -> str:
    """Return what ``parshall --version`` prints: version, commit, and what the compiled module has inside."""
    from parshall.host.installation import NO_KERNEL_SIDE, describe

    described = describe()
    if as_json:
        import json

        return json.dumps({"format": VERSION_FORMAT} | described, indent=2)
    commit, kernel, problem = described["commit"], described["kernel"], described["problem"]
    lines = [f"parshall {described['version'] or 'of an unknown version'}" + (f" (commit {commit})" if commit else "")]
    if problem:
        lines.append(problem)
    elif kernel is None:
        lines.append(NO_KERNEL_SIDE)
    else:
        objects = ", ".join(f"{name} {digest}" for name, digest in kernel["objects"].items())
        lines.append(f"kernel side: libbpf {kernel['libbpf']}, libpcap {kernel['libpcap']}")
        lines.append(f"eBPF objects: {objects}")
    return "\n".join(lines)


def dispatch(arguments: Sequence[str]) -> int:
    """Run the command that the arguments name; return the exit status."""
    instruction = os.environ.get("_PARSHALL_COMPLETE")
    if instruction:
        from parshall.cli.tree import complete

        return complete(instruction)
    if not arguments:
        print(usage(), file=sys.stderr)
        return USAGE
    name, *rest = arguments
    if name == "--show-completion":
        return show_completion(" ".join(rest))
    if name == "help" and rest:
        name, rest = rest[0], ["--help"]
    if name in ("-h", "--help", "help"):
        print(usage())
        return 0
    if name == "--version":
        print(version(as_json="--json" in rest))
        return 0
    if name.startswith("-"):
        return print_error(f"no option {name!r} before the command; see `parshall --help`", USAGE)
    if name not in COMMANDS:
        import difflib

        near = difflib.get_close_matches(name, COMMANDS, n=1)
        hint = f"did you mean `parshall {near[0]}`?" if near else "see `parshall --help`"
        return print_error(f"no command {name!r}; {hint}", USAGE)
    return run_command(name, rest)


def show_completion(shell: str) -> int:
    """Print the completion script of a shell; return the exit status."""
    from parshall.cli.tree import completion_script
    from parshall.errors import UsageError

    try:
        print(completion_script(shell))
    except UsageError as error:
        return print_error(str(error), USAGE)
    return 0


def run_command(name: str, arguments: Sequence[str]) -> int:
    """Import the command's module and run it; return the exit status."""
    import typer

    from parshall.cli.options import HELP_NAMES
    from parshall.errors import ParshallError, UsageError, file_error
    from parshall.host.installation import import_problem
    from parshall.host.messages import show

    try:
        from parshall.cli.tree import command_of

        command = command_of(name)
        if (
            getattr(command, "commands", None)
            and not arguments
            and not getattr(command, "invoke_without_command", False)
        ):
            group = typer.Context(command, info_name=f"parshall {name}", help_option_names=HELP_NAMES)
            show(*group.get_help().splitlines(), file=sys.stderr)
            return USAGE
        # Not typer's own main, which handles Ctrl-C and closed pipes itself.
        with command.make_context(f"parshall {name}", list(arguments), help_option_names=HELP_NAMES) as context:
            status = command.invoke(context)
            sys.stdout.flush()
    except typer.Exit as stop:
        return stop.exit_code
    except typer.Abort:
        return FAILED
    except typer.TyperException as error:
        # Typer's text is one line; add the command and a hint.
        where = getattr(error, "ctx", None)
        command_path = where.command_path if where else f"parshall {name}"
        hint = f"; see `{command_path} --help`" if error.exit_code == USAGE else ""
        text = " ".join(error.format_message().split()).rstrip(".")
        return print_error(f"{name}: {text}{hint}", error.exit_code)
    except UsageError as error:
        return print_error(f"{name}: {error}", USAGE)
    except ParshallError as error:
        # CMD that cannot be run has its own status: 126 or 127.
        return print_error(f"{name}: {error}", getattr(error, "status", FAILED))
    except BrokenPipeError:
        raise
    except ImportError as error:
        if os.environ.get("PARSHALL_TRACEBACK"):
            raise
        return print_error(f"{name}: {'; '.join(import_problem(error))}", USAGE)
    except OSError as error:
        # Errors of files have a name; one without a name is a full standard output.
        is_full = error.errno in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT, errno.EIO)
        thing = f"{error.filename}: " if error.filename is not None else "standard output: " if is_full else ""
        if thing == "standard output: ":
            _discard_output()
        remedy = "; make room, or write elsewhere" if is_full else ""
        refusal = file_error(error, f"{thing}{error.strerror or error}{remedy}")
        return print_error(f"{name}: {refusal}", USAGE if isinstance(refusal, UsageError) else FAILED)
    return status if isinstance(status, int) else 0


def _discard_output() -> None:
    """Discard buffered output: the interpreter flushes standard output when it exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fill_standard_streams() -> None:
    """Open /dev/null for closed standard streams: otherwise the next opened file becomes one."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is not None:
            continue
        null = os.open(os.devnull, os.O_RDWR)
        try:
            os.fstat(number)
        except OSError:
            os.dup2(null, number)
        # Open takes the lowest free descriptor, so this is normally the closed one.
        os.set_inheritable(null, null == number)
        setattr(sys, name, os.fdopen(null, "r" if number == 0 else "w", closefd=False))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its status: 0, 1 (failed), 2 (usage), 130 (Ctrl-C)."""
    _fill_standard_streams()
    confinement.is_own_process = arguments is None
    # Imports make many objects and no garbage: collections would take a tenth of the start.
    gc.set_threshold(50_000, 20, 20)
    try:
        status = dispatch(sys.argv[1:] if arguments is None else arguments)
        sys.stdout.flush()
    except KeyboardInterrupt:
        status = INTERRUPTED
    except BrokenPipeError:
        # The reader of a pipe may close it at any time; that is no error.
        _discard_output()
        status = 0
    except Exception as error:
        if os.environ.get("PARSHALL_TRACEBACK"):
            raise
        status = print_error(
            f"internal error: {type(error).__name__}: {error}; set PARSHALL_TRACEBACK=1 for a traceback, and report it",
            FAILED,
        )
    sys.exit(status)
