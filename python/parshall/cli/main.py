"""Entry point, and the one place where errors become exit statuses.

A command's module is imported only when the command runs, so that ``parshall --help`` answers at
once. The module has either a function ``command``, which
typer turns into the command, or, when it has subcommands, a ``typer.Typer`` called ``app``.
"""

import errno
import gc
import importlib
import os
import signal
import sys
from collections.abc import Sequence

try:
    # Until `main` handles it, Ctrl-C ends the process as it ends other programs, without a traceback.
    _handler = signal.signal(signal.SIGINT, signal.SIG_DFL)
except ValueError:
    # Imported by another thread than the first, by a program that is not ours.
    _handler = None

from parshall.cli import confinement
from parshall.host.commands import COMMANDS

if _handler is not None:
    signal.signal(signal.SIGINT, _handler)

FAILED = 1
USAGE = 2
INTERRUPTED = 130


def usage() -> str:
    """Return the help text of ``parshall`` itself."""
    width = max(map(len, COMMANDS)) + 2
    table = "\n".join(f"  {name:{width}}{line}" for name, (_, line, _) in COMMANDS.items())
    return f"""Usage: parshall [-h | --help | --version] COMMAND [ARGUMENTS]...

Measure the packet path of this host, with the loss and the cost of measuring.

Commands:
{table}

`parshall COMMAND --help` shows the options of a command."""


def print_error(message: str, status: int) -> int:
    """Print an error on one line, and return the exit status."""
    from parshall.errors import printable

    print(f"parshall: {printable(message)}", file=sys.stderr)
    return status


def version() -> str:
    """Return the version of the installed package."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed_version

    try:
        return installed_version("parshall")
    except PackageNotFoundError:
        return "not installed"


def dispatch(arguments: Sequence[str]) -> int:
    """Run the command that the arguments name; return the exit status."""
    if not arguments:
        print(usage(), file=sys.stderr)
        return USAGE
    name, *rest = arguments
    if name == "help" and rest:
        name, rest = rest[0], ["--help"]
    if name in ("-h", "--help", "help"):
        print(usage())
        return 0
    if name == "--version":
        print(f"parshall {version()}")
        return 0
    if name.startswith("-"):
        return print_error(f"no option {name!r} before the command; see `parshall --help`", USAGE)
    if name not in COMMANDS:
        import difflib

        near = difflib.get_close_matches(name, COMMANDS, n=1)
        hint = f"did you mean `parshall {near[0]}`?" if near else "see `parshall --help`"
        return print_error(f"no command {name!r}; {hint}", USAGE)
    return run_command(name, rest)


def run_command(name: str, arguments: Sequence[str]) -> int:
    """Import the command's module and run it; return the exit status."""
    import typer

    from parshall.cli.options import HELP_NAMES
    from parshall.errors import ParshallError, UsageError, file_error
    from parshall.host.installation import import_problem

    try:
        module = importlib.import_module(COMMANDS[name][0])
        app = getattr(module, "app", None)
        if app is None:
            app = typer.Typer(add_completion=False, rich_markup_mode=None)
            app.command(name=name, **getattr(module, "COMMAND_SETTINGS", {}))(module.command)
        command = typer.main.get_command(app)
        for subcommand in getattr(command, "commands", {}).values():
            # Without a short help, typer truncates the first sentence to the width of the line.
            subcommand.short_help = (subcommand.help or "").split("\n\n")[0].rstrip(".")
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
        hint = f"; see `parshall {name} --help`" if error.exit_code == USAGE else ""
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
    # Imports make many objects and no garbage; looking for it took a tenth of a start.
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
