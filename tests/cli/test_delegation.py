"""``parshall doctor --grant`` and ``--revoke``, on a copy of this host's files."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from forked import Forked

from parshall.host import delegation

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("root")]
ROOT = Path(__file__).parents[2]
# Where the tests find this checkout: the way to it is root's there, wherever it lies.
PLACE = Path("/opt/checkout")
PYTHON = PLACE / ".venv/bin/python3"
PARSHALL = [str(PYTHON), "-m", "parshall"]
GROUP = "measurers"
NOBODY = 65534
UNITS = ("parshall-tcp.service", "parshall-capture@.service")
# What groupadd(8) and the loader of programs read.
OF_GROUPS = ("group", "gshadow", "passwd", "shadow", "login.defs", "nsswitch.conf", "ld.so.cache")
PACKAGED = Path("/usr/lib/systemd/system")
# Of no command here, and large: --grant examines each file of an installation.
UNUSED = ("zensical", "jedi", "moto", "cfnlint", "sympy", "pandas", "botocore", "scipy", "networkx", "mypy", "pip")
# Lets programs find this checkout at its place.
PLACED = ["mount -t tmpfs -o mode=755 none /opt", f"mkdir {PLACE}", f"mount --bind {ROOT} {PLACE}"]


def apart(*commands: str) -> list[str]:
    """Return a command that runs others, where no one else sees what they mount."""
    return ["unshare", "--mount", "--net", "--propagation", "private", "sh", "-c", " && ".join(commands)]


def bind_package(directory: Path) -> tuple[Path, Path]:
    """Return what programs shall find in the place of what: the environment names the package by its path."""
    (link,) = Path(sys.prefix).glob("lib/python3*/site-packages/parshall.pth")
    (directory / link.name).write_text(f"{PLACE}/python\n")
    return directory / link.name, PLACE / link.relative_to(ROOT)


@pytest.fixture(scope="module")
def forked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forked]:
    """Run commands of the checkout at its place."""
    mine, theirs = bind_package(tmp_path_factory.mktemp("package"))
    empty = tmp_path_factory.mktemp("empty")
    packages = theirs.parent
    unused = [packages / name for name in UNUSED if (ROOT / packages.relative_to(PLACE) / name).is_dir()]
    # The environment does not use those of its interpreter.
    unused += [path for path in [Path(sysconfig.get_path("stdlib"), "site-packages")] if path.is_dir()]
    hide = [f"mount --bind {empty} {path}" for path in unused]
    prefix = apart(*PLACED, f"mount --bind {mine} {theirs}", *hide, 'exec "$0" "$@"')
    with Forked(prefix, PYTHON, cwd="/") as forked:
        yield forked


class Copy:
    """Directories that programs find in the place of the host's."""

    def __init__(self, directory: Path, forked: Forked) -> None:
        self.directory = directory
        self.forked = forked
        self.bound: list[tuple[Path, Path]] = []
        for name in ("systemd/system", "polkit-1/rules.d", "tmpfiles.d", "default"):
            (directory / "etc" / name).mkdir(parents=True)
        for name in OF_GROUPS:
            shutil.copy(Path("/etc", name), directory / "etc")
        # mount(8) makes a directory for itself.
        for name in ("var/log", "run/mount"):
            (directory / name).mkdir(parents=True)
        for name in ("etc", "var/log", "run"):
            self.bind(directory / name, Path("/") / name)
        self.bind(*bind_package(directory))

    def bind(self, mine: Path, theirs: Path) -> None:
        """Let programs find `mine` in the place of `theirs`."""
        self.bound.append((mine, theirs))

    def binds(self) -> list[str]:
        """Return what lets a program see the directories."""
        return [f"mount --bind {mine} {theirs}" for mine, theirs in self.bound]

    def words(self, *words: str | Path) -> list[str]:
        """Return a command that runs another one here."""
        return apart(*PLACED, *self.binds(), f"exec {shlex.join(map(str, words))}")

    def run(self, *words: str | Path) -> "subprocess.CompletedProcess[str]":
        """Run a command here."""
        return subprocess.run(
            self.words(*words), capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60, cwd="/"
        )

    def doctor(self, *words: str) -> "subprocess.CompletedProcess[str]":
        """Run the command here."""
        return self.forked.run("doctor", *words, mounts="\n".join(self.binds()))

    def files(self) -> dict[str, tuple[int, int, bytes]]:
        """Return mode, group and content of all files and directories, but for those of groups."""
        return {
            str(path.relative_to(self.directory)): (
                path.lstat().st_mode,
                path.lstat().st_gid,
                path.read_bytes() if path.is_file() and not path.is_symlink() else b"",
            )
            for path in sorted(self.directory.rglob("*"))
            if path.suffix != ".pth"
            and not re.match(r"etc/(\.pwd\.lock|(sub)?g(roup|shadow|id))", str(path.relative_to(self.directory)))
        }

    def group(self) -> int:
        """Return the number of the group."""
        (line,) = (line for line in (self.directory / "etc/group").read_text().splitlines() if line.startswith(GROUP))
        return int(line.split(":")[2])

    def unit(self, name: str) -> str:
        """Return the text of a unit."""
        return (self.directory / "etc/systemd/system" / name).read_text()


@pytest.fixture
def copy(tmp_path: Path, forked: Forked) -> Copy:
    """Make directories of a host's own."""
    return Copy(tmp_path, forked)


def test_what_is_granted_is_taken_back(copy: Copy) -> None:
    before = copy.files()
    done = copy.doctor("--grant", GROUP)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"group {GROUP}: made\n" in done.stdout
    assert f"usermod --append --groups {GROUP} NAME" in done.stdout
    logs = copy.directory / "var/log/parshall"
    assert (logs.stat().st_mode & 0o777, logs.stat().st_gid) == (0o750, copy.group())
    assert (copy.directory / "run/parshall").stat().st_mode & 0o777 == 0o755
    (logs / "host.000001.arrow").write_text("a log")

    log = logs / "host.000001.arrow"
    assert log.stat().st_gid == 0
    assert f"{delegation._LOGS}: readable for {GROUP}\n" in copy.doctor("--grant", GROUP).stdout
    assert log.stat().st_gid == copy.group()
    assert copy.doctor("--grant", GROUP).stdout.splitlines()[0] == "nothing changed"

    (copy.directory / "etc/systemd/system/multi-user.target.wants").mkdir(exist_ok=True)
    enabled = copy.directory / "etc/systemd/system/multi-user.target.wants/parshall-tcp.service"
    enabled.symlink_to("/etc/systemd/system/parshall-tcp.service")
    done = copy.doctor("--revoke")
    assert (done.returncode, done.stderr) == (0, "")
    assert not enabled.is_symlink()
    assert log.stat().st_gid == logs.stat().st_gid == 0
    log.unlink()
    left = {name for name, value in copy.files().items() if before.get(name) != value}
    # The time of its last change is in no value.
    assert left <= {"var/log/parshall", "run/parshall", "etc/systemd/system/multi-user.target.wants"}
    assert not before.keys() - copy.files().keys()
    assert copy.doctor("--revoke").stdout == "nothing was granted\n"


def test_systemd_takes_what_is_written(copy: Copy) -> None:
    assert copy.doctor("--grant", GROUP).returncode == 0
    done = copy.run("systemd-analyze", "verify", "parshall-tcp.service", "parshall-capture@lo.service")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    for name in ("var/log/parshall", "run/parshall"):
        (copy.directory / name).rmdir()
    done = copy.run("systemd-tmpfiles", "--create", "/etc/tmpfiles.d/parshall.conf")
    assert (done.returncode, done.stderr) == (0, "")
    logs, rings = (copy.directory / name for name in ("var/log/parshall", "run/parshall"))
    assert (logs.stat().st_mode & 0o777, logs.stat().st_gid) == (0o750, copy.group())
    assert (rings.stat().st_mode & 0o777, rings.stat().st_gid) == (0o755, 0)


def started(unit: str, instance: str) -> list[str]:
    """Return what systemd runs for an instance of a unit."""
    text = unit.replace("%i", instance)
    (line,) = re.findall(r"^ExecStart=(.*)", text, re.MULTILINE)
    settings = dict(re.findall(r"^Environment=(\w+)=(.*)", text, re.MULTILINE))
    words = [re.sub(r"\$\{(\w+)\}", lambda found: settings[found[1]], word) for word in shlex.split(line)]
    # A variable of no value is no word.
    return [word for word in words if not word.startswith("$")]


@pytest.fixture
def ring(copy: Copy, until: Callable[..., None]) -> Iterator[Copy]:
    """Run the unit of a ring at the loopback interface of a namespace, as systemd would."""
    assert copy.doctor("--grant", GROUP).returncode == 0
    words = started(copy.unit(UNITS[1]), "lo")
    with subprocess.Popen(copy.words(*words), stderr=subprocess.PIPE, text=True) as unit:
        try:
            until("a ring", lambda: any((copy.directory / "run/parshall").glob("*lo*")))
            yield copy
        finally:
            unit.terminate()
            unit.communicate(timeout=30)


def test_only_members_join_the_ring_of_its_unit(ring: Copy) -> None:
    def join(group: int) -> "subprocess.CompletedProcess[str]":
        user = ["setpriv", f"--reuid={NOBODY}", f"--regid={group}", "--clear-groups", "--no-new-privs"]
        return ring.run(*user, *PARSHALL, "capture", "--join", "lo", "-w", "/dev/null", "-d", "0.2", "--json", "-q")

    member = join(ring.group())
    assert member.returncode == 0, member.stderr
    assert json.loads(member.stdout)
    other = join(NOBODY)
    assert other.returncode == 2
    assert re.fullmatch(r"parshall: capture: .*lo.*\n", other.stderr), other.stderr


def test_the_package_brings_the_units_so_only_their_group_is_set(copy: Copy, tmp_path: Path) -> None:
    packaged = tmp_path / "packaged"
    packaged.mkdir()
    for unit in UNITS:
        shutil.copy(delegation._FILES / unit, packaged)
    copy.bind(packaged, PACKAGED)
    assert copy.doctor("--grant", GROUP).returncode == 0
    units = copy.directory / "etc/systemd/system"
    assert {str(path.relative_to(units)) for path in units.rglob("*parshall*")} == {f"{unit}.d" for unit in UNITS}
    assert f"\nGroup={GROUP}\n" in copy.unit("parshall-tcp.service.d/50-group.conf")
    assert f"\nEnvironment=PARSHALL_GROUP={GROUP}\n" in copy.unit("parshall-capture@.service.d/50-group.conf")
    assert copy.doctor("--revoke").returncode == 0
    assert not list(units.rglob("*parshall*"))


def test_an_installation_that_others_can_change_is_refused(copy: Copy, tmp_path: Path) -> None:
    theirs = tmp_path / "py.typed"
    theirs.touch()
    inside = PLACE / "python/parshall/py.typed"
    copy.bind(theirs, inside)
    before = copy.files()
    os.chown(theirs, NOBODY, 0)
    done = copy.doctor("--grant", GROUP)
    assert done.returncode == 2
    assert done.stderr == (
        f"parshall: doctor: --grant: {inside} is of user {NOBODY}, so others decide what root would run; install "
        "Parshall for root, as its package does\n"
    )
    os.chown(theirs, 0, 0)
    theirs.chmod(0o666)
    assert f"{inside} may be written by others than root (mode 0666)" in copy.doctor("--grant", GROUP).stderr
    assert {**copy.files(), "py.typed": None} == {**before, "py.typed": None}


def made_by_others(copy: Copy) -> None:
    (copy.directory / "etc/systemd/system/parshall-tcp.service").write_text("[Service]\nExecStart=/bin/true\n")


def linked_elsewhere(copy: Copy) -> None:
    (copy.directory / "etc/tmpfiles.d/parshall.conf").symlink_to("/etc/hostname")


def logs_linked_elsewhere(copy: Copy) -> None:
    (copy.directory / "var/log/parshall").symlink_to("/etc")


def rings_of_a_user(copy: Copy) -> None:
    (copy.directory / "run/parshall").mkdir()
    os.chown(copy.directory / "run/parshall", NOBODY, 0)


@pytest.mark.parametrize(
    ("obstacle", "said"),
    [
        (
            made_by_others,
            "/etc/systemd/system/parshall-tcp.service: was not written by --grant; move it away, or set up",
        ),
        (linked_elsewhere, "/etc/tmpfiles.d/parshall.conf: was not written by --grant"),
        (logs_linked_elsewhere, "/var/log/parshall: is no directory that only root may change; move it away"),
        (rings_of_a_user, "/run/parshall: is no directory that only root may change"),
    ],
)
def test_what_is_in_the_way_stays(copy: Copy, obstacle: Callable[[Copy], None], said: str) -> None:
    obstacle(copy)
    before = copy.files(), (copy.directory / "etc/group").read_bytes()
    done = copy.doctor("--grant", GROUP)
    assert done.returncode == 2
    assert done.stderr.startswith(f"parshall: doctor: {said}") and done.stderr.count("\n") == 1
    assert (copy.files(), (copy.directory / "etc/group").read_bytes()) == before
    assert copy.doctor("--revoke").stdout == "nothing was granted\n"


def test_settings_of_the_administrator_stay(copy: Copy) -> None:
    assert copy.doctor("--grant", GROUP).returncode == 0
    options = copy.directory / "etc/default/parshall"
    changed = options.read_text().replace('OPTIONS=""', 'OPTIONS="--port 443"')
    options.write_text(changed)
    assert copy.doctor("--grant", GROUP).stdout.splitlines()[0] == "nothing changed"
    assert "/etc/default/parshall: has settings of yours, and stays\n" in copy.doctor("--revoke").stdout
    assert options.read_text() == changed


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--grant", "root"), "--grant root: is root's own group; name another"),
        (("--grant", "a b"), "--grant a b: is no name of a group; expected letters a to z, digits, - and _"),
        (("--grant", "x\n[Service]"), "--grant x\\n[Service]: is no name of a group"),
        (("--grant", GROUP, "--revoke"), "--grant: is a run of its own; leave out the others"),
        (("--revoke", "--json"), "--revoke: is a run of its own; leave out the others"),
    ],
)
def test_wrong_requests_are_refused(copy: Copy, words: tuple[str, ...], said: str) -> None:
    before = copy.files()
    done = copy.doctor(*words)
    assert done.returncode == 2
    assert done.stderr.startswith(f"parshall: doctor: {said}")
    assert done.stderr.count("\n") == 1
    assert copy.files() == before


def test_only_root_grants(copy: Copy) -> None:
    user = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    done = copy.run(*user, *PARSHALL, "doctor", "--grant", GROUP)
    assert done.returncode == 2
    assert done.stderr == f"parshall: doctor: --grant {GROUP}: needs root (sudo parshall doctor --grant {GROUP})\n"


def test_members_start_and_stop_the_units_and_no_others(page: Any) -> None:
    rule = (delegation._FILES / "parshall.rules").read_text()

    def may(
        unit: str | None, verb: str | None, group: str, identity: str = "org.freedesktop.systemd1.manage-units"
    ) -> bool:
        return page.evaluate(
            """([rule, unit, verb, group, id]) => {
                let asked;
                const polkit = {addRule: (one) => { asked = one; }, Result: {YES: "yes", NOT_HANDLED: undefined}};
                new Function("polkit", rule)(polkit);
                const action = {id, lookup: (name) => ({unit, verb})[name]};
                return asked(action, {isInGroup: (name) => name === group}) === "yes";
            }""",
            [rule, unit, verb, group, identity],
        )

    for unit in ("parshall-tcp.service", "parshall-capture@eth0.service", r"parshall-capture@a\x2db.service"):
        assert all(may(unit, verb, "parshall") for verb in ("start", "stop", "restart"))
        assert not may(unit, "start", "users")
        assert not may(unit, "enable", "parshall") and not may(unit, None, "parshall")
        assert not may(unit, "start", "parshall", "org.freedesktop.systemd1.manage-unit-files")
    for unit in (
        "ssh.service",
        "xparshall-tcp.service",
        "parshall-tcp.service.d",
        "parshall-capture@a b.service",
        None,
    ):
        assert not may(unit, "start", "parshall"), unit
