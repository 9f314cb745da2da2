"""Entry point, and the one place where errors become exit statuses.

A command is imported only when it is run, and nothing else is imported at all, so that
``parshall --help`` answers at once. A command's module has either a function ``command``, which
typer turns into the command, or, when it has subcommands, a ``typer.Typer`` called ``app``.
"""

import errno
import importlib
import os
import sys
from collections.abc import Sequence

from parshall.commands import COMMANDS

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


def complain(message: str, status: int) -> int:
    """Say what went wrong as every error is said, and return the status to exit with."""
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
    """Do what the arguments ask for; return the exit status."""
    if not arguments:
        print(usage(), file=sys.stderr)
        return USAGE
    name, *rest = arguments
    if name in ("-h", "--help", "help"):
        print(usage())
        return 0
    if name == "--version":
        print(f"parshall {version()}")
        return 0
    if name.startswith("-"):
        return complain(f"no option {name!r} before the command; see `parshall --help`", USAGE)
    if name not in COMMANDS:
        import difflib

        near = difflib.get_close_matches(name, COMMANDS, n=1)
        hint = f"did you mean `parshall {near[0]}`?" if near else "see `parshall --help`"
        return complain(f"no command {name!r}; {hint}", USAGE)
    return run_command(name, rest)


def run_command(name: str, arguments: Sequence[str]) -> int:
    """Import the command's module and run it; return the exit status."""
    import typer

    from parshall.cli.options import HELP_NAMES
    from parshall.errors import ParshallError, UsageError, file_error
    from parshall.installation import import_problem

    try:
        module = importlib.import_module(COMMANDS[name][0])
        app = getattr(module, "app", None)
        if app is None:
            app = typer.Typer(add_completion=False, rich_markup_mode=None)
            app.command(name=name, **getattr(module, "COMMAND_SETTINGS", {}))(module.command)
        command = typer.main.get_command(app)
        for subcommand in getattr(command, "commands", {}).values():
            # Without a short help typer cuts the first sentence to what is left of the line.
            subcommand.short_help = (subcommand.help or "").split("\n\n")[0].rstrip(".")
        # Not its own main, which would settle Ctrl-C and closed pipes before we see them.
        with command.make_context(f"parshall {name}", list(arguments), help_option_names=HELP_NAMES) as context:
            status = command.invoke(context)
            sys.stdout.flush()
    except typer.Exit as stop:
        return stop.exit_code
    except typer.Abort:
        return FAILED
    except typer.TyperException as error:
        # Its own text is one line; which command it concerns and where to look is added.
        hint = f"; see `parshall {name} --help`" if error.exit_code == USAGE else ""
        text = " ".join(error.format_message().split()).rstrip(".")
        return complain(f"{name}: {text}{hint}", error.exit_code)
    except UsageError as error:
        return complain(f"{name}: {error}", USAGE)
    except ParshallError as error:
        # A command that was to be measured and could not be run has a status of its own.
        return complain(f"{name}: {error}", getattr(error, "status", FAILED))
    except BrokenPipeError:
        raise
    except ImportError as error:
        if os.environ.get("PARSHALL_TRACEBACK"):
            raise
        return complain(f"{name}: {'; '.join(import_problem(error))}", USAGE)
    except OSError as error:
        # What has no name and takes no more is standard output: files that are opened have one.
        is_full = error.errno in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT, errno.EIO)
        thing = f"{error.filename}: " if error.filename is not None else "standard output: " if is_full else ""
        if thing == "standard output: ":
            _discard_output()
        remedy = "; make room, or write elsewhere" if is_full else ""
        refusal = file_error(error, f"{thing}{error.strerror or error}{remedy}")
        return complain(f"{name}: {refusal}", USAGE if isinstance(refusal, UsageError) else FAILED)
    return status if isinstance(status, int) else 0


def _discard_output() -> None:
    """Send what is still to be written nowhere: the interpreter flushes at its end, and must find room."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fill_standard_streams() -> None:
    """Put /dev/null where a standard stream is closed: else the next file that is opened would be one."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is not None:
            continue
        null = os.open(os.devnull, os.O_RDWR)
        try:
            os.fstat(number)
        except OSError:
            os.dup2(null, number)
        # The lowest free number is the one that was closed.
        os.set_inheritable(null, null == number)
        setattr(sys, name, os.fdopen(null, "r" if number == 0 else "w", closefd=False))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its status: 0, 1 (failed), 2 (usage), 130 (Ctrl-C)."""
    _fill_standard_streams()
    try:
        status = dispatch(sys.argv[1:] if arguments is None else arguments)
        sys.stdout.flush()
    except KeyboardInterrupt:
        status = INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has gone; that is how a pipe ends, not a failure of ours.
        _discard_output()
        status = 0
    except Exception as error:
        if os.environ.get("PARSHALL_TRACEBACK"):
            raise
        status = complain(
            f"an error that nobody foresaw, {type(error).__name__}: {error};"
            " with PARSHALL_TRACEBACK=1 in the environment it shows where, which is worth a report",
            FAILED,
        )
    sys.exit(status)
