"""Control groups: temporary ones, named after the process that owns them, and those of units and containers."""

import contextlib
import math
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

from parshall.errors import ParshallError, UsageError, file_error, printable
from parshall.host import names, privileges, removal
from parshall.host.input_file import read_json
from parshall.host.temporary import lock

_UNIT_KINDS = (".service", ".scope", ".slice")
_ID_LETTERS = 64
_ID_LETTERS_SHOWN = 12
# docker-ID.scope, cri-containerd-ID.scope, crio-ID.scope, libpod-ID.scope; without systemd: ID.
_CONTAINER = re.compile(r"(?:[a-z]+-)*([0-9a-f]{64})(?:\.scope)?")
_DOCKER = Path("/var/lib/docker/containers")
_PODMAN = Path("/var/lib/containers/storage/overlay-containers/containers.json")
# With Kubernetes, whatever the runtime: POD_NAMESPACE_CONTAINER-ID.log.
_KUBERNETES = Path("/var/log/containers")
_KUBERNETES_LOG = re.compile(r"([^_/]+)_[^_/]+_([^_/]+)-([0-9a-f]{64})\.log")
# A new container is not known at once, and files are not read at each flow of one that has no name.
_LOOK_AGAIN_S = 5.0


class TemporaryCgroup:
    """A control group (version 2) directly below the mount.

    The constructor also removes leftovers of killed runs (`parshall.host.names.clean`).

    Parameters
    ----------
    purpose : str
        Last part of its name.

    Raises
    ------
    ParshallError
        No cgroup-v2 hierarchy is mounted, or it is not writable.
    """

    def __init__(self, purpose: str) -> None:
        names.clean()
        mount = next(names.cgroup2_mounts(), None)
        if mount is None:
            raise ParshallError(
                "cgroup: no cgroup-v2 hierarchy is mounted, and this process may not mount one;"
                f" {privileges.remedy('CAP_SYS_ADMIN')}, or mount one: mount -t cgroup2 none DIR"
            )
        self.path: Path = mount / names.current_owner().name(purpose)
        try:
            self.path.mkdir()
            self._lock: int | None = lock(self.path)
        except OSError as error:
            raise file_error(
                error, f"cgroup {self.path}: {error.strerror}; {privileges.remedy('CAP_SYS_ADMIN')}"
            ) from None

    def remove(self) -> None:
        """Remove the group; processes that still run move to the parent group."""
        removal.remove_cgroup(str(self.path))
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def of_unit(unit: str) -> Path:
    """Return the control group of a unit of systemd.

    Parameters
    ----------
    unit : str
        Its name; ``nginx`` is ``nginx.service``.

    Raises
    ------
    UsageError
        No such unit runs, or several do, of different users.
    """
    wanted = unit if unit.endswith(_UNIT_KINDS) else f"{unit}.service"
    found = [path for path in _groups() if path.name == wanted]
    return _one("--unit", unit, found, "no unit of this name runs; systemctl list-units shows those that do")


def of_container(container: str) -> Path:
    """Return the control group of a container.

    Parameters
    ----------
    container : str
        Its name, as Docker or Podman has it, POD/CONTAINER as Kubernetes has it, or the beginning of its ID.

    Raises
    ------
    UsageError
        No such container runs, or several do.
    """
    named = {number for name, number in _container_names() if name == container}
    is_number = re.fullmatch(f"[0-9a-f]{{1,{_ID_LETTERS}}}", container) is not None
    found = []
    for path in _groups():
        match = _CONTAINER.fullmatch(path.name)
        if match and (match[1] in named or (not named and is_number and match[1].startswith(container))):
            found.append(path)
    return _one("--container", container, found, "no container of this name or ID runs; give the beginning of its ID")


def chosen(
    cgroup: str | os.PathLike[str] | None, unit: str | None, container: str | None
) -> str | os.PathLike[str] | None:
    """Return the control group that one of three arguments names: a path, a unit, a container; None: none does."""
    given = [name for name, value in (("cgroup", cgroup), ("unit", unit), ("container", container)) if value]
    if len(given) > 1:
        raise UsageError(f"--{given[1]}: does not go with --{given[0]}; give one of them")
    if unit is not None:
        return of_unit(unit)
    return cgroup if container is None else of_container(container)


def _groups() -> Iterator[Path]:
    """Yield the directories of the cgroup-v2 hierarchy."""
    for mount in names.cgroup2_mounts():
        # Groups come and go meanwhile.
        for directory, _, _ in os.walk(mount, onerror=None):
            yield Path(directory)


def _one(option: str, name: str, found: list[Path], reason: str) -> Path:
    if not found:
        raise UsageError(f"{option} {printable(name)}: {reason}")
    # Groups of the name may be inside each other: the outermost has all of them.
    outermost = [path for path in found if not any(other in path.parents for other in found)]
    if len(set(outermost)) > 1:
        others = ", ".join(map(str, sorted(set(outermost))[:3]))
        raise UsageError(f"{option} {printable(name)}: is the name of several; give one of them as --cgroup: {others}")
    return outermost[0]


class ContainerNames:
    """The names that runtimes have given to the containers of this host, read when one is asked for."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._looked_s = -math.inf

    def of_group(self, cgroup: str) -> str | None:
        """Return the name of the container that a control group belongs to, or the beginning of its ID; None: of none.

        A container may have control groups and units of its own below the one that its runtime made.
        """
        match = next(filter(None, map(_CONTAINER.fullmatch, cgroup.strip("/").split("/"))), None)
        if match is None:
            return None
        number = match[1]
        if number not in self._names and time.monotonic() - self._looked_s >= _LOOK_AGAIN_S:
            self._looked_s = time.monotonic()
            self._names = {number: name for name, number in _container_names()}
        return printable(self._names.get(number, number[:_ID_LETTERS_SHOWN]))


def _container_names() -> Iterator[tuple[str, str]]:
    """Yield names and IDs of the containers that Docker, Podman and Kubernetes know."""
    with contextlib.suppress(OSError):
        for path in _KUBERNETES.iterdir():
            if match := _KUBERNETES_LOG.fullmatch(path.name):
                yield f"{match[1]}/{match[2]}", match[3]
    for path in _DOCKER.glob("*/config.v2.json"):
        try:
            yield str(read_json(path)["Name"]).removeprefix("/"), path.parent.name
        except (OSError, ValueError, KeyError, TypeError, UsageError):
            continue
    try:
        containers = read_json(_PODMAN)
        yield from ((str(name), str(one["id"])) for one in containers for name in one["names"])
    except (OSError, ValueError, KeyError, TypeError, UsageError):
        return
