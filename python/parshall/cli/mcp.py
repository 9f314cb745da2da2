"""``parshall mcp``: read-only tools for agents, over standard input and output."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from parshall.errors import UsageError
from parshall.host.messages import say
from parshall.host.stopping import dying_of_signals


def command(
    directory: Annotated[
        Path, typer.Option("--directory", metavar="DIR", help="Read files below this directory only")
    ] = Path(),
) -> None:
    """Answer the questions of an agent by the Model Context Protocol (MCP) on standard input and output."""
    try:
        from parshall.agent.server import serve
    except ImportError as error:
        if error.name is None or error.name.partition(".")[0] != "mcp":
            raise
        raise UsageError("needs the Python SDK of MCP; install it: pip install 'mcp<3'") from None
    from parshall.agent.tools import Tools

    if sys.stdin.isatty():
        say("mcp", "waiting for an agent, which starts this command itself and speaks MCP to it; Ctrl-C ends it")
    # The tools only read.
    with dying_of_signals():
        serve(Tools(directory))
