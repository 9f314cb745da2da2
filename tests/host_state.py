"""What of ours is on this host: the guard of the test session compares it before and after.

The machine may be shared, so a thing counts as ours only when nobody else can be its owner.
"""

import ctypes
import os
import platform
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from parshall.host import names, temporary

BPF_SYSCALL = {"x86_64": 321, "aarch64": 280, "riscv64": 280, "s390x": 351, "ppc64le": 361}
BPF_PROG_GET_NEXT_ID = 11
BPF_LINK_GET_NEXT_ID = 31
# See parshall.host.names: "ps", then the number of the owner's process in base 36.
INTERFACE = re.compile(r"ps(?P<pid>[0-9a-z]{5})[0-9a-z]{8}")
# In the environment of every process that the session starts, with the number of the session.
SESSION_MARK = "PARSHALL_TEST_SESSION"
# The kernel frees programs and namespaces some time after their last user has gone.
SETTLE_S = 5.0


@dataclass(frozen=True)
class HostState:
    """Names and numbers of what the host holds at one moment."""

    named: frozenset[str] = field(default_factory=frozenset)
    programs: frozenset[int] = field(default_factory=frozenset)
    links: frozenset[int] = field(default_factory=frozenset)
    processes: frozenset[str] = field(default_factory=frozenset)
    owner_of_null: int = 0

    @classmethod
    def now(cls) -> "HostState":
        """Look at the host; without root the eBPF objects cannot be seen."""
        return cls(
            frozenset(named_things()),
            frozenset(bpf_ids(BPF_PROG_GET_NEXT_ID)),
            frozenset(bpf_ids(BPF_LINK_GET_NEXT_ID)),
            frozenset(processes_left()),
            Path("/dev/null").stat().st_uid,
        )


def named_things() -> list[str]:
    """Return network namespaces, rings, cgroups, interfaces and pins that carry our name."""
    found = named_in_directories()
    for mount in mounts("cgroup2"):
        found += [f"cgroup {path}" for path in mount.rglob("parshall-*") if path.is_dir()]
    for mount in mounts("bpf"):
        found += [f"pin {path}" for path in mount.rglob("parshall*")]
    found += [f"interface {path.name}" for path in Path("/sys/class/net").iterdir() if INTERFACE.fullmatch(path.name)]
    return found


def named_in_directories() -> list[str]:
    """Return the namespaces and rings that carry our name; a process that is isolated sees its own."""
    found = [f"namespace {path.name}" for path in Path("/run/netns").glob("parshall-*")]
    # The rings of captures are named by those who test them: see tests/kernel/capturer.py.
    return found + [f"ring {path.name}" for path in Path("/run/parshall").glob(f"test-{os.getpid()}-*")]


def mounts(kind: str) -> list[Path]:
    """Return the mount points of a kind of file system."""
    lines = (line.split() for line in Path("/proc/self/mounts").read_text().splitlines())
    return [Path(fields[1]) for fields in lines if fields[2] == kind]


def bpf_ids(command: int) -> list[int]:
    """Return the identifiers of all eBPF programs or links of the host."""
    number = BPF_SYSCALL.get(platform.machine())
    if number is None or os.geteuid() != 0:
        return []
    libc = ctypes.CDLL(None, use_errno=True)
    identifiers: list[int] = []
    attributes = (ctypes.c_uint32 * 4)()
    while libc.syscall(number, command, ctypes.byref(attributes), ctypes.sizeof(attributes)) == 0:
        identifiers.append(attributes[1])
        attributes[0] = attributes[1]
    return identifiers


def ids_held_by_others(key: str) -> set[int]:
    """Return the identifiers that living processes hold which this session did not start."""
    held: set[int] = set()
    for directory in Path("/proc").glob("[0-9]*"):
        if started_by_session(int(directory.name)):
            continue
        try:
            texts = [path.read_text() for path in (directory / "fdinfo").iterdir()]
        except OSError:
            continue  # it ended meanwhile
        for text in texts:
            held.update(int(number) for number in re.findall(rf"^{key}:\t(\d+)", text, re.MULTILINE))
    return held


def started_by_session(process: int) -> bool:
    """Say whether a process is this session or comes from it, be it that its parent has gone."""
    try:
        environment = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
    except OSError:
        environment = []
    return f"{SESSION_MARK}={os.getpid()}".encode() in environment or descends_from(process, os.getpid())


def descends_from(process: int, ancestor: int) -> bool:
    """Say whether a process is, or comes from, another one."""
    while process > 1:
        if process == ancestor:
            return True
        try:
            process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            return False
    return False


def processes_left() -> list[str]:
    """Return the processes that this session started, itself or through others, and that run still."""
    found = []
    for directory in Path("/proc").glob("[0-9]*"):
        process = int(directory.name)
        if process == os.getpid() or not started_by_session(process):
            continue
        try:
            state = (directory / "stat").read_text().rpartition(")")[2].split()[0]
            command = (directory / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        except OSError:
            continue  # it ended meanwhile
        if state != "Z":
            found.append(f"process {process}: {command}")
    return found


def ours(thing: str) -> bool:
    """Say whether nobody but this session can answer for a thing: its owner is gone, or is of us."""
    kind, _, name = thing.partition(" ")
    if kind == "interface":
        dead = any(leftover.name == name for leftover in names.stale())
        return dead or started_by_session(int(INTERFACE.fullmatch(name)["pid"], 36))
    owner = names.owner_of(Path(name).name)
    return owner is None or not owner.is_alive() or started_by_session(owner.pid)


def left_behind(before: HostState) -> list[str]:
    """Return what is on the host now, was not before, and belongs to nobody else; and what runs still."""
    now = HostState.now()
    left = sorted(thing for thing in now.named - before.named if ours(thing))
    for kind, key, new in (
        ("program", "prog_id", now.programs - before.programs),
        ("link", "link_id", now.links - before.links),
    ):
        if new:
            # A program is also held through a link, whose number alone its owner then shows.
            others = ids_held_by_others(key)
            left += [f"eBPF {kind} {number}" for number in sorted(new - others)]
    # A program that gives up root gives its output to its own user first.
    if now.owner_of_null not in (before.owner_of_null, 0):
        left.append(f"/dev/null with the owner {now.owner_of_null}")
    return left + sorted(now.processes - before.processes)


def left_in_directories(before: HostState) -> list[str]:
    """Return the namespaces, rings and temporary directories that are there now and were not before."""
    temporary_ones = [f"directory {path}" for path in temporary.leftovers()]
    return sorted({*named_in_directories(), *temporary_ones} - before.named)


def wait_until_clean(before: HostState, look: Callable[[HostState], list[str]] = left_behind) -> list[str]:
    """Return what is still left behind when the kernel had time to free what has no user."""
    deadline_s = time.monotonic() + SETTLE_S
    while (left := look(before)) and time.monotonic() < deadline_s:
        time.sleep(0.1)
    return left
