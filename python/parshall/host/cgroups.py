"""Temporary control groups, named after the process that owns them."""

import os
from pathlib import Path

from parshall.errors import ParshallError, file_error
from parshall.host import names, privileges, removal
from parshall.host.temporary import lock


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
