"""Arguments that may be a store of logs of many hosts."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from parshall.errors import UsageError
from parshall.host.messages import progress_line

if TYPE_CHECKING:
    from parshall.fleet.reading import Fleet


def opened_fleet(
    command: str,
    inputs: Sequence[str],
    since: str | None,
    until: str | None,
    cluster: str | None,
    hosts: Sequence[str] | None = None,
    *,
    quiet: bool = False,
) -> "Fleet | None":
    """Return the store that the arguments name; None for anything else."""
    # As the reading of a fleet has it; that module loads slowly.
    stores = [each for each in inputs if "://" in each or any(Path(each).glob("logs/host=*"))]
    if not stores:
        for option, value in (
            ("--since", since),
            ("--until", until),
            ("--cluster", cluster),
            ("--host", hosts[0] if hosts else None),
        ):
            if value is not None:
                raise UsageError(f"{option} {value}: is for a store of logs of hosts; {inputs[0]} is none")
        return None
    if len(inputs) > 1:
        raise UsageError(f"{stores[0]}: is a store of logs; name it alone")
    from parshall.fleet.reading import Fleet, time_of

    times = {"since": time_of("--since", since), "until": time_of("--until", until)}
    # A host that does not answer takes seconds.
    with progress_line(command, "asking the store", quiet=quiet):
        return Fleet(stores[0], **times, hosts=hosts)
