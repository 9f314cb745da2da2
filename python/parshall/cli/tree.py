"""The commands as one tree of typer's objects, for shell completion and manual pages.

The entry point needs no such tree: it imports the module of one command only.
"""

import importlib
import os
import sys
from collections.abc import Collection
from typing import cast

import typer
from typer.core import TyperCommand, TyperGroup

from parshall.cli.options import HELP_NAMES
from parshall.errors import ParshallError, UsageError
from parshall.host.commands import COMMANDS

COMPLETE = "_PARSHALL_COMPLETE"
SHELLS = ("bash", "zsh", "fish")


def command_of(name: str) -> TyperCommand | TyperGroup:
    """Return a command, with its subcommands; its module is imported."""
    module = importlib.import_module(COMMANDS[name].module)
    app = getattr(module, "app", None)
    if app is None:
        app = typer.Typer(add_completion=False, rich_markup_mode=None)
        app.command(name=name, **getattr(module, "COMMAND_SETTINGS", {}))(module.command)
    command = cast(TyperCommand | TyperGroup, typer.main.get_command(app))
    subcommands = list(getattr(command, "commands", {}).values())
    for subcommand in subcommands:
        # Without a short help, typer truncates the first sentence to the width of the line.
        subcommand.short_help = (subcommand.help or "").split("\n\n")[0].rstrip(".")
    for option in (option for each in (command, *subcommands) for option in each.params):
        if option.metavar == "TIME" and isinstance(option.default, float):
            # The help shows it, and its unit with it.
            option.default = f"{option.default:g}s"
    return command


def tree(imported: Collection[str] = tuple(COMMANDS)) -> TyperGroup:
    """Return all commands below ``parshall``; those that are not to be imported have only their name and line."""
    return TyperGroup(
        name="parshall",
        context_settings={"help_option_names": HELP_NAMES},
        commands={
            name: command_of(name) if name in imported else TyperCommand(name, short_help=entry.line)
            for name, entry in COMMANDS.items()
        },
    )


def completion_script(shell: str) -> str:
    """Return the script that a shell reads to complete commands, options and values.

    Raises
    ------
    UsageError
        There is no script for this shell.
    """
    if shell not in SHELLS:
        raise UsageError(f"--show-completion {shell or '(nothing)'}: expected {', '.join(SHELLS[:-1])} or {SHELLS[-1]}")
    from typer.completion import get_completion_script  # type: ignore[attr-defined]

    script: str = get_completion_script(prog_name="parshall", complete_var=COMPLETE, shell=shell)
    return script


def complete(instruction: str) -> int:
    """Print what may follow on a command line, which the shell has put into the environment; return the status."""
    from typer.completion import completion_init, shell_complete  # type: ignore[attr-defined]

    words = (os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS") or "").split()
    completion_init()
    try:
        status: int = shell_complete(tree(words[1:2]), {}, "parshall", COMPLETE, instruction)
        return status
    except (ParshallError, typer.TyperException):
        # A value before the cursor is wrong, or not complete; the command will say so.
        return 0
    finally:
        sys.stdout.flush()
