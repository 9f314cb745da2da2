"""Entry point: the table of commands, and the one place where errors become exit statuses.

Commands are imported only when they are run, so that ``parshall --help`` stays quick.
"""

import importlib
import sys
from typing import Any

import click
import typer

from parshall.errors import ParshallError, UsageError

# name -> (module, one line for the table of commands)
COMMANDS = {
    "doctor": ("parshall.cli.doctor", "What this host can do, what not, why, and how to mend it."),
}


class LazyGroup(click.Group):
    """A group whose commands are imported on first use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module = importlib.import_module(COMMANDS[name][0])
        app = typer.Typer(add_completion=False, rich_markup_mode=None)
        app.command(name=name, **getattr(module, "COMMAND_SETTINGS", {}))(module.command)
        return typer.main.get_command(app)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="parshall", prog_name="parshall")
def app() -> None:
    """Measure the packet path of this host, with the loss and the cost of measuring."""


def main(arguments: list[str] | None = None) -> Any:
    """Run the command line and exit with its status: 0, 1 (failed) or 2 (usage)."""
    try:
        status = app.main(args=arguments, prog_name="parshall", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(2 if isinstance(error, click.UsageError) else 1)
    except UsageError as error:
        print(f"parshall: {error}", file=sys.stderr)
        sys.exit(2)
    except ParshallError as error:
        print(f"parshall: {error}", file=sys.stderr)
        sys.exit(1)
    except BrokenPipeError:
        # Whoever read our output has gone; that is how a pipe ends, not a failure of ours.
        sys.stderr.close()
        sys.exit(0)
    sys.exit(status if isinstance(status, int) else 0)
