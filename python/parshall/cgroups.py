"""Control groups that Parshall makes for a while: named after their owner, gone when it ends."""

from pathlib import Path

from parshall import privileges
from parshall.errors import ParshallError, file_error
from parshall.testbed import names, removal


class OwnCgroup:
    """A control group (version 2) directly below the mount.

    Making one also removes what killed runs left (`parshall.testbed.names.clean`).

    Parameters
    ----------
    purpose : str
        Last part of its name.

    Raises
    ------
    ParshallError
        No cgroup-v2 hierarchy is mounted, or it may not be written.
    """

    def __init__(self, purpose: str) -> None:
        names.clean()
        mount = next(names.cgroup2_mounts(), None)
        if mount is None:
            raise ParshallError(
                "no cgroup-v2 hierarchy is mounted, and this process may not mount one for itself:"
                f" {privileges.remedy('CAP_SYS_ADMIN')}, or mount one (mount -t cgroup2 none DIR), to tell CMD apart"
            )
        self.path: Path = mount / names.current_owner().name(purpose)
        try:
            self.path.mkdir()
        except OSError as error:
            raise file_error(
                error, f"cgroup {self.path}: {error.strerror}; {privileges.remedy('CAP_SYS_ADMIN')}"
            ) from None

    def remove(self) -> None:
        """Remove the group; what the command left running goes on in the parent group."""
        removal.remove_cgroup(str(self.path))
