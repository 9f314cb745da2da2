"""Events that the kernel hides from every eBPF program, counted by a witness that is none.

Some kernels hide the first process from everybody, root among them. One that was looked at runs no tracing programs, of
whomever, in a softirq that interrupts a thread of that process, and counts nothing: packets and retransmissions that a
timer sends or drops at such a moment are in no measurement. ftrace sees them.
"""

import ctypes
import fcntl
import os
import tempfile
from contextlib import suppress
from pathlib import Path

_THREADS = Path("/proc/1/task")
_NAME = "parshall-tests-"
_EVENTS = ("net/net_dev_queue", "net/netif_receive_skb", "tcp/tcp_retransmit_skb", "skb/kfree_skb")
# What that process leaves unread in sockets of its own.
_ITS_OWN = "QUEUE_PURGE"
_MNT_DETACH = 2
_libc = ctypes.CDLL(None, use_errno=True)


def hides_first_process() -> bool:
    """Whether root cannot see the first process's namespaces."""
    try:
        Path("/proc/1/ns/net").readlink()
    except PermissionError:
        return os.geteuid() == 0
    return False


class HiddenEvents:
    """What network events interrupt threads of the first process, for as long as it is open."""

    def __init__(self) -> None:
        self._place = -1
        self._mark = -1

    def open(self) -> None:
        """Begin, where the kernel hides events and shows them to ftrace."""
        if self._place >= 0 or not hides_first_process():
            return
        try:
            self._place = _tracing()
            _remove_dead(self._place)
            os.mkdir(self._name, dir_fd=self._place)
            self._mark = _locked(self._name, self._place)
            self._watch()
        except OSError:
            # Without the witness, what fails has failed.
            self.close()

    @property
    def is_open(self) -> bool:
        """Whether hidden events are counted."""
        return self._place >= 0

    def forget(self) -> None:
        """Begin anew."""
        if self._place >= 0:
            self._write("trace", "")

    def count(self) -> int:
        """Return the events since then."""
        if self._place < 0:
            return 0
        with open(f"{self._name}/trace", opener=self._open) as trace:
            return sum(not line.startswith("#") and _ITS_OWN not in line for line in trace)

    def close(self) -> None:
        """Leave nothing in the kernel."""
        if self._place < 0:
            return
        with suppress(OSError):
            os.rmdir(self._name, dir_fd=self._place)
        for held in (self._place, self._mark):
            if held >= 0:
                os.close(held)
        self._place = self._mark = -1

    @property
    def _name(self) -> str:
        return f"{_NAME}{os.getpid()}"

    def _watch(self) -> None:
        """Trace the events of the threads that are there and of all that they start."""
        self._write("options/event-fork", "1")
        watched: set[str] = set()
        # A thread that came between the list and the kernel's copy of it is in the next one.
        while not (threads := {thread.name for thread in _THREADS.iterdir()}) <= watched:
            self._write("set_event_pid", " ".join(threads))
            watched = threads
        for event in _EVENTS:
            self._write(f"events/{event}/enable", "1")
        self.forget()

    def _open(self, path: str, flags: int) -> int:
        return os.open(path, flags, dir_fd=self._place)

    def _write(self, path: str, text: str) -> None:
        with open(f"{self._name}/{path}", "w", opener=self._open) as file:
            file.write(text)


def _locked(name: str, place: int) -> int:
    """Open an instance, and lock it, as sessions in other PID namespaces cannot see the process that has it."""
    held = os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=place)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(held)
        raise
    return held


def _remove_dead(place: int) -> None:
    """Remove what killed sessions left; others that begin at this moment do so, too."""
    with os.scandir(place) as instances:
        names = [instance.name for instance in instances if instance.name.startswith(_NAME)]
    for name in names:
        if Path("/proc", name.removeprefix(_NAME)).exists():
            continue
        with suppress(OSError):
            held = _locked(name, place)
            try:
                os.rmdir(name, dir_fd=place)
            finally:
                os.close(held)


def _tracing() -> int:
    """Open tracefs's directory of instances, which nobody else sees mounted."""
    with tempfile.TemporaryDirectory(prefix="parshall-tracing-") as place:
        if _libc.mount(b"none", os.fsencode(place), b"tracefs", 0, None):
            raise OSError(ctypes.get_errno(), "mount tracefs")
        try:
            return os.open(f"{place}/instances", os.O_RDONLY | os.O_DIRECTORY)
        finally:
            _libc.umount2(os.fsencode(place), _MNT_DETACH)
