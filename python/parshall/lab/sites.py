"""Where a study runs: hosts of a testbed on this machine, or real hosts with a Dask worker each."""

import contextlib
import ipaddress
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from parshall.errors import ParshallError, UsageError
from parshall.host.input_file import brief, parse_toml
from parshall.host.whole_file import write_whole
from parshall.lab.agent import Agent, filled
from parshall.lab.study import Host, Setting
from parshall.testbed import Testbed

# A worker that does not answer for so long is lost.
ANSWER_S = 60.0
# Exchanges with a host to find the offset of its clock; the fastest one counts.
_CLOCK_EXCHANGES = 9


@dataclass(frozen=True)
class Place:
    """What commands can name of a host: ``{host.address}``, ``{host.interfaces[1]}``.

    Attributes
    ----------
    addresses, interfaces : list of str
        IPv4 addresses and interfaces, in the order of the links.
    """

    addresses: list[str] = field(default_factory=list)
    interfaces: list[str] = field(default_factory=list)

    @property
    def address(self) -> str:
        """The first address."""
        return self.addresses[0]

    @property
    def interface(self) -> str:
        """The first interface."""
        return self.interfaces[0]


@dataclass
class Scene:
    """The hosts of one run.

    Attributes
    ----------
    agents : dict
        The `Agent` of each host, or one with the same methods.
    places : dict
        The `Place` of each host.
    describe : callable
        Returns hosts and links with their parameters.
    ring : str
        A name for a capture ring, ``{ring}`` in commands, that no other run has.
    """

    agents: dict[str, Any]
    places: dict[str, Place]
    describe: Callable[[], dict[str, Any]]
    ring: str = field(default_factory=lambda: f"lab-{os.getpid()}-{time.monotonic_ns()}")


class Site(Protocol):
    """Makes the hosts of a run."""

    def scene(self, setting: Setting, directory: Path) -> contextlib.AbstractContextManager[Scene]:
        """Return the hosts of a setting, with links, for one run."""
        ...

    def describe(self) -> dict[str, Any]:
        """Return what is stored with the results: the kind of site and its hosts."""
        ...


class TestbedSite:
    """A testbed on this machine: a new one for each run, so that no run inherits caches of another."""

    # pytest would collect a class whose name begins with "Test".
    __test__ = False

    @contextlib.contextmanager
    def scene(self, setting: Setting, directory: Path) -> Iterator[Scene]:
        """Make hosts and links; they are removed at the end of the block."""
        with Testbed() as bed:
            hosts = {}
            for wanted in setting.hosts:
                cpu = Agent(directory=directory).cpu(wanted.cpu)
                hosts[wanted.name] = host = bed.host(wanted.name, cpu=cpu)
                for name, value in wanted.sysctl.items():
                    host.sysctl(name, value)
            places = {name: Place() for name in hosts}
            for wanted_link in setting.links:
                ends = hosts[wanted_link.a], hosts[wanted_link.b]
                link = bed.link(*ends, **wanted_link.options)
                for end in ends:
                    places[end.name].addresses.append(link.address(end))
                    places[end.name].interfaces.append(link.interface(end))
                    if wanted_link.napi:
                        end.run(["ethtool", "-K", link.interface(end), "gro", "on"])
            for wanted in setting.hosts:
                for command in wanted.commands:
                    hosts[wanted.name].run(filled(command, places))
            agents = {name: Agent(host.popen, directory) for name, host in hosts.items()}

            def describe() -> dict[str, Any]:
                return bed.describe() | {"statistics": [link.statistics() for link in bed.links]}

            yield Scene(agents, places, describe)

    def describe(self) -> dict[str, Any]:
        """Return that the hosts are network namespaces of this machine."""
        return {"kind": "testbed"}


@dataclass(frozen=True)
class RealHost:
    """A real host: its Dask worker, and its end of each link of the study, in their order."""

    worker: str
    interfaces: list[str]
    addresses: list[str]


class RealSite:
    """Real hosts, each with a Dask worker that has its name; cables and settings are the user's.

    Parameters
    ----------
    scheduler : str
        Address of the Dask scheduler.
    hosts : mapping
        The `RealHost` of each host of the study.
    """

    def __init__(self, scheduler: str, hosts: Mapping[str, RealHost]) -> None:
        self._scheduler = scheduler
        self._hosts = dict(hosts)

    @contextlib.contextmanager
    def scene(self, setting: Setting, directory: Path) -> Iterator[Scene]:
        """Create an agent at each host; outputs and files are fetched at the end of the block."""
        from parshall.model.cluster import connected

        for host in setting.hosts:
            self._check(host)
        with connected(self._scheduler) as client, contextlib.ExitStack() as stack:
            agents = {}
            for host in setting.hosts:
                worker = self._hosts[host.name].worker
                agents[host.name] = agent = RemoteAgent(client, host.name, worker)
                stack.callback(agent.close)
                # Before it is closed.
                stack.callback(agent.fetch, directory)
            offsets = {name: agent.clock_offset_ns() for name, agent in agents.items()}
            places = {name: Place(self._hosts[name].addresses, self._hosts[name].interfaces) for name in agents}
            yield Scene(agents, places, lambda: {"hosts": self.describe()["hosts"], "clock_offsets_ns": offsets})

    def _check(self, host: Host) -> None:
        if host.name not in self._hosts:
            raise UsageError(f"host {host.name}: is not in the file of hosts; add [hosts.{host.name}]")
        if changes := [*host.sysctl, *(" ".join(map(str, command)) for command in host.commands)]:
            raise UsageError(
                f"host {host.name}: the study sets {', '.join(changes)}; real hosts are not changed: remove it from "
                "the study, and set it on the host"
            )

    def describe(self) -> dict[str, Any]:
        """Return the real hosts."""
        hosts = {name: vars(host) for name, host in self._hosts.items()}
        return {"kind": "real hosts", "hosts": hosts}


class RemoteAgent:
    """The agent of a real host: each method is called on its Dask worker."""

    def __init__(self, client: Any, name: str, worker: str) -> None:
        self._name = name
        self._client = client
        known = [info.get("name") for info in client.scheduler_info()["workers"].values()]
        if worker not in [str(each) for each in known]:
            raise ParshallError(
                f"host {name}: no worker is called {worker!r}; start one there: dask worker SCHEDULER --name {worker}"
            )
        future = client.submit(Agent, workers=[worker], actor=True, pure=False, allow_other_workers=False)
        self._actor = self._answer(lambda: future.result(timeout=ANSWER_S))

    def _answer(self, ask: Callable[[], Any]) -> Any:
        try:
            # Dask looks for the client of an actor among the current ones.
            with self._client.as_current():
                return ask()
        except ParshallError:
            raise
        except Exception as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise ParshallError(f"host {self._name}: its worker does not answer: {reason}") from None

    def __getattr__(self, method: str) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            return self._answer(lambda: getattr(self._actor, method)(*arguments).result(timeout=ANSWER_S))

        return call

    def clock_offset_ns(self) -> int:
        """Return how far its CLOCK_REALTIME is ahead of ours: of the fastest of some exchanges."""
        found = []
        for _ in range(_CLOCK_EXCHANGES):
            before_ns = time.time_ns()
            theirs_ns = self.clock_ns()
            after_ns = time.time_ns()
            found.append((after_ns - before_ns, theirs_ns - (before_ns + after_ns) // 2))
        return int(min(found)[1])

    def fetch(self, directory: Path) -> None:
        """Write the outputs and files of the host into a directory here."""
        with contextlib.suppress(ParshallError):
            for name, content in self.files().items():
                write_whole(Path(Path(name).name), content, below=directory)

    def close(self) -> None:
        """End what still runs there."""
        with contextlib.suppress(ParshallError):
            self.__getattr__("close")()


def read_hosts(path: Path) -> RealSite:
    """Return the site of a file of hosts: TOML with ``scheduler`` and a table ``[hosts.NAME]`` for each host.

    Each table has ``worker``, ``interfaces`` and ``addresses``: the host's ends of the links, in the study's order.

    Raises
    ------
    UsageError
        The file cannot be read, or has another shape.
    """
    try:
        content = parse_toml(path.read_text())
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}; name a file of hosts") from None
    except ValueError as error:
        raise UsageError(f"{path}: {error}; expected TOML") from None
    scheduler, listed = content.get("scheduler"), content.get("hosts")
    if not isinstance(scheduler, str) or not isinstance(listed, dict) or not listed:
        raise UsageError(f'{path}: expected scheduler = "tcp://..." and a table [hosts.NAME] for each host')
    hosts = {}
    for name, entry in listed.items():
        try:
            hosts[name] = RealHost(
                str(entry["worker"]),
                [str(each) for each in entry["interfaces"]],
                [str(ipaddress.ip_address(each)) for each in entry["addresses"]],
            )
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(
                f"{path}: hosts.{brief(name)}: {brief(str(error))}; expected worker, interfaces and addresses, "
                'such as worker = "a", interfaces = ["eth1"], addresses = ["10.0.0.1"]'
            ) from None
    return RealSite(scheduler, hosts)
