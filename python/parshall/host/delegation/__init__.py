"""What an administrator delegates to a group: to join capture rings, to read logs, to start and stop the units.

Members get no capabilities: the units have them, and only root decides what these run. So everything that a unit runs
must be root's. What is written has a mark, by which `revoke` finds it.
"""

import grp
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from parshall.errors import ParshallError, UsageError
from parshall.host.input_file import read_regular
from parshall.host.whole_file import write_whole

_FILES = Path(__file__).parent / "files"
_MARK = "Written by parshall doctor --grant; --revoke removes it."
_RINGS, _LOGS = Path("/run/parshall"), Path("/var/log/parshall")
_UNITS = ("parshall-tcp.service", "parshall-capture@.service")
# Of the Debian package, which brings the units: only their group is another one then.
_PACKAGED = Path("/usr/lib/systemd/system")
_PACKAGE_GROUP = "parshall"
_SYSTEM_UNITS = Path("/etc/systemd/system")
_OPTIONS = Path("/etc/default/parshall")
_TEMPORARY = Path("/etc/tmpfiles.d/parshall.conf")
_RULES = Path("/etc/polkit-1/rules.d")
_RULE = _RULES / "50-parshall.rules"
# As shadow's groupadd takes it everywhere.
_GROUP_NAME = re.compile(r"[a-z_][a-z0-9_-]{0,31}")
# In a line of a unit, other characters have meanings.
_PLAIN_PATH = re.compile(r"[A-Za-z0-9/._+-]+")


@dataclass
class Outcome:
    """What was done, and what remains for the administrator, as lines."""

    done: list[str] = field(default_factory=list)
    advice: list[str] = field(default_factory=list)


def grant(group: str) -> Outcome:
    """Let members of a group join rings, read the logs of the unit, and start and stop the units.

    Makes the group when there is none. Writes units of systemd, or settings for those of the Debian package, and a rule
    of polkit. The same again changes nothing.

    Raises
    ------
    UsageError
        We are not root; the name is none of a group, or that of root's; others can change what root would run; a file
        of somebody else is in the way.
    ParshallError
        A program or a write failed. What was written before stays: `revoke` removes it.
    """
    _require_root(f"--grant {group}")
    if not _GROUP_NAME.fullmatch(group):
        raise UsageError(f"--grant {group}: is no name of a group; expected letters a to z, digits, - and _")
    outcome = Outcome()
    files = _files(group)
    for path in files:
        if _is_there(path) and not _is_ours(path):
            raise UsageError(f"{path}: was not written by --grant; move it away, or set up what it says yourself")
    for directory in (_RINGS, _LOGS):
        _check_directory(directory)
    number = _group_number(group)
    if number == 0:
        raise UsageError(f"--grant {group}: is root's own group; name another")
    if number is None:
        _run("groupadd", "--system", group)
        outcome.done.append(f"group {group}: made")
        number = grp.getgrnam(group).gr_gid
    for path, content in files.items():
        if _is_there(path) and read_regular(path) == content:
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, content)
        path.chmod(0o644)
        outcome.done.append(f"{path}: written")
    _RINGS.mkdir(mode=0o755, exist_ok=True)
    _LOGS.mkdir(mode=0o750, exist_ok=True)
    if _hand_over(_LOGS, number):
        outcome.done.append(f"{_LOGS}: readable for {group}")
    if outcome.done:
        _reload_units()
    outcome.advice = [*_advice(group, has_changed=bool(outcome.done))]
    return outcome


def revoke() -> Outcome:
    """Take back what `grant` gave: stop its units, remove its files, close the logs. Logs and group stay.

    Raises
    ------
    UsageError
        We are not root.
    ParshallError
        A program failed, or a file cannot be removed.
    """
    _require_root("--revoke")
    outcome = Outcome()
    written = [path for path in _places() if _is_there(path) and _is_ours(path)]
    if not written:
        return outcome
    has_units = any(path.parent == _SYSTEM_UNITS for path in written)
    if _runs_systemd() and has_units:
        _run("systemctl", "stop", "parshall-tcp.service", "parshall-capture@*.service")
    for path in written:
        if path == _OPTIONS and read_regular(path) != _marked("parshall.default"):
            outcome.advice.append(f"{path}: has settings of yours, and stays")
            continue
        path.unlink()
        outcome.done.append(f"{path}: removed")
        if path.parent.name.endswith(".d") and path.parent.parent == _SYSTEM_UNITS and not any(path.parent.iterdir()):
            path.parent.rmdir()
    # Those of units that were enabled.
    for link in _SYSTEM_UNITS.glob("*.wants/parshall-*.service"):
        if link.is_symlink() and not link.exists():
            link.unlink()
            outcome.done.append(f"{link}: removed")
    if _LOGS.is_dir():
        owner = _group_number(_PACKAGE_GROUP) if _is_packaged() else None
        if _hand_over(_LOGS, owner or 0):
            outcome.done.append(f"{_LOGS}: closed to the group; the logs are still there")
    _reload_units()
    if _runs_systemd() and not has_units:
        _run("systemctl", "try-restart", "parshall-tcp.service", "parshall-capture@*.service")
    outcome.advice.append("members who have joined a ring keep it until they end: parshall capture --list")
    outcome.advice.append("the group is still there: groupdel removes it")
    return outcome


def _files(group: str) -> dict[Path, str]:
    """Return what is written for a group. Where the host has no systemd, nothing."""
    if not _SYSTEM_UNITS.is_dir():
        return {}
    directories = f"# {_MARK}\nd {_RINGS} 0755 root root -\nd {_LOGS} 0750 root {group} -\n"
    files = {_TEMPORARY: directories}
    if _RULES.is_dir():
        rule = (_FILES / "parshall.rules").read_text()
        files[_RULE] = f"// {_MARK}\n" + rule.replace(f'"{_PACKAGE_GROUP}"', f'"{group}"')
    if _is_packaged():
        for unit, setting in zip(_UNITS, (f"Group={group}", f"Environment=PARSHALL_GROUP={group}"), strict=True):
            files[_dropped_in(unit)] = f"# {_MARK}\n[Service]\n{setting}\n"
        return files
    command = _command()
    for unit in _UNITS:
        files[_SYSTEM_UNITS / unit] = _unit(unit, group, command)
    if not _is_there(_OPTIONS) or _is_ours(_OPTIONS):
        # Settings that were changed since stay.
        files[_OPTIONS] = read_regular(_OPTIONS) if _is_there(_OPTIONS) else _marked("parshall.default")
    return files


def _places() -> list[Path]:
    """Return the files that `grant` may have written."""
    units = [place for unit in _UNITS for place in (_SYSTEM_UNITS / unit, _dropped_in(unit))]
    return [*units, _RULE, _TEMPORARY, _OPTIONS]


def _dropped_in(unit: str) -> Path:
    return _SYSTEM_UNITS / f"{unit}.d" / "50-group.conf"


def _marked(name: str) -> str:
    return f"# {_MARK}\n" + (_FILES / name).read_text()


def _unit(name: str, group: str, command: str) -> str:
    """Return a unit for this installation and a group. Only the package has manual pages."""
    lines = [line for line in _marked(name).splitlines() if not line.startswith("Documentation=man:")]
    text = "\n".join([*lines, ""]).replace("/usr/bin/parshall ", f"{command} ")
    for setting in ("Group", "PARSHALL_GROUP"):
        text = text.replace(f"{setting}={_PACKAGE_GROUP}", f"{setting}={group}")
    if any(Path(sys.prefix).is_relative_to(home) for home in ("/home", "/root", "/run/user")):
        text = text.replace("ProtectHome=yes", "ProtectHome=read-only")
    return text


def _command() -> str:
    """Return the command line of this installation, which nobody but root can change.

    Raises
    ------
    UsageError
        Others can change a part of it, or it is where units of systemd do not find it.
    """
    interpreter = Path(sys.executable)
    for place in ("/tmp", "/var/tmp"):
        if Path(sys.prefix).is_relative_to(place):
            raise UsageError(f"--grant: this installation is in {place}, which units do not see; install it elsewhere")
    if not _PLAIN_PATH.fullmatch(str(interpreter)):
        raise UsageError(
            f"--grant: {interpreter} has characters that a unit of systemd cannot have; install Parshall elsewhere"
        )
    try:
        isolated = subprocess.run(
            [interpreter, "-I", "-c", "import sys, parshall; print(parshall.__file__, *sys.path, sep='\\n')"],
            capture_output=True, text=True, check=True,
        ).stdout.splitlines()  # fmt: skip
    except (OSError, subprocess.CalledProcessError) as error:
        raise UsageError(
            f"--grant: {interpreter} -I does not find Parshall, which units would run; install it for root"
        ) from error
    trees = {Path(isolated[0]).parent, *map(Path, isolated[1:])}
    for path in (*_way_to(interpreter), *(part for tree in sorted(trees) for part in _parts(tree))):
        owner = _stranger(path)
        if owner:
            raise UsageError(
                f"--grant: {path} {owner}, so others decide what root would run; install Parshall for root, as its "
                "package does"
            )
    return shlex.join([str(interpreter), "-I", "-m", "parshall"])


def _way_to(path: Path) -> Iterator[Path]:
    """Yield the directories above a path and itself, as it is named and as links resolve it."""
    for way in {path, path.resolve()}:
        yield from reversed(way.parents)
        yield way


def _parts(tree: Path) -> Iterator[Path]:
    """Yield a tree of modules, the way to it, and all in it."""
    if not tree.exists():
        return
    yield from _way_to(tree)
    if not tree.is_dir():
        return
    for directory, names, files in os.walk(tree):
        for name in (*names, *files):
            yield Path(directory, name)


def _stranger(path: Path) -> str:
    """Return who but root can change a path; nothing, if nobody can."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return ""
    if found.st_uid != 0:
        return f"is of user {found.st_uid}"
    # Of a link, only its owner counts.
    if stat.S_ISLNK(found.st_mode):
        return ""
    if found.st_mode & stat.S_IWOTH or (found.st_mode & stat.S_IWGRP and found.st_gid != 0):
        return f"may be written by others than root (mode {stat.S_IMODE(found.st_mode):04o})"
    return ""


def _is_packaged() -> bool:
    return (_PACKAGED / _UNITS[0]).exists()


def _is_there(path: Path) -> bool:
    return path.is_symlink() or path.exists()


def _is_ours(path: Path) -> bool:
    return not path.is_symlink() and path.is_file() and read_regular(path).partition("\n")[0].endswith(_MARK)


def _check_directory(path: Path) -> None:
    """Raise `UsageError` unless a directory is root's, or not there."""
    if not _is_there(path):
        return
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != 0 or found.st_mode & stat.S_IWOTH:
        raise UsageError(f"{path}: is no directory that only root may change; move it away")


def _hand_over(directory: Path, group: int) -> bool:
    """Let a group read a directory and root's files in it; return whether that changed anything."""
    has_changed = False
    place = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if (found := os.fstat(place)).st_gid != group:
            os.fchown(place, -1, group)
            has_changed = True
        if stat.S_IMODE(found.st_mode) != 0o750:
            os.fchmod(place, 0o750)
            has_changed = True
        with os.scandir(place) as entries:
            for entry in entries:
                found = entry.stat(follow_symlinks=False)
                if stat.S_ISREG(found.st_mode) and found.st_uid == 0 and found.st_gid != group:
                    os.chown(entry.name, -1, group, dir_fd=place, follow_symlinks=False)
                    has_changed = True
    finally:
        os.close(place)
    return has_changed


def _advice(group: str, *, has_changed: bool) -> Iterator[str]:
    yield f"add people to the group: usermod --append --groups {group} NAME; they log in again"
    yield f"members read every packet of the group's rings, and the logs in {_LOGS}"
    if not _SYSTEM_UNITS.is_dir():
        yield f"this host has no systemd, so there are no units: parshall capture --group {group} makes a ring"
        return
    if _RULES.is_dir():
        yield "members and root start and stop the units: systemctl start parshall-capture@eth0 parshall-tcp"
    else:
        yield "root starts and stops the units: systemctl start parshall-capture@eth0 parshall-tcp"
        yield "members cannot, without polkit; install it, and grant again"
    if has_changed and _runs_systemd():
        yield "units that run keep what they had: systemctl try-restart parshall-tcp 'parshall-capture@*'"


def _group_number(name: str) -> int | None:
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        return None


def _require_root(option: str) -> None:
    if os.geteuid():
        raise UsageError(f"{option}: needs root (sudo parshall doctor {option})")


def _runs_systemd() -> bool:
    return Path("/run/systemd/system").is_dir()


def _reload_units() -> None:
    if _runs_systemd():
        _run("systemctl", "daemon-reload")


def _run(*words: str) -> None:
    if shutil.which(words[0]) is None:
        raise ParshallError(f"{words[0]}: is not installed, and needed for {shlex.join(words)}")
    done = subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        reason = said[-1] if said else f"exit status {done.returncode}"
        raise ParshallError(f"{shlex.join(words)}: {reason}")
