"""Hosts: network namespaces in which programs run."""

import errno
import os
import shlex
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

from parshall.errors import ParshallError, UsageError
from parshall.host import namespaces, programs
from parshall.host.netlink import route_socket
from parshall.host.removal import OWNER_VARIABLE, end_processes

# Seconds from SIGTERM to SIGKILL when a testbed closes.
_GRACE_S = 2.0


class Host:
    """A host of a testbed; made by `Testbed.host`.

    Attributes
    ----------
    name : str
        Name inside the testbed.
    namespace : str
        Name of its network namespace, as ``ip netns`` shows it.
    path : pathlib.Path
        Path of the namespace.
    cpu : int or None
        CPU of its programs; None for no affinity.
    """

    def __init__(self, name: str, namespace: str, owner_prefix: str, cpu: int | None = None) -> None:
        self.name = name
        self.namespace = namespace
        self.cpu = cpu
        self.interface_count = 0
        self._owner_prefix = owner_prefix
        self._programs: list[subprocess.Popen[Any]] = []
        # A CPU that cannot be used is a mistake here, not at the first program.
        with _on_cpu(cpu):
            pass
        self.path = namespaces.create(namespace)
        with self.enter(), route_socket() as route:
            (loopback,) = route.link_lookup(ifname="lo")
            route.link("set", index=loopback, state="up")

    def __repr__(self) -> str:
        return f"Host({self.name!r}, namespace={self.namespace!r})"

    def enter(self) -> AbstractContextManager[None]:
        """Move the calling thread into this host for the length of a ``with`` block.

        Sockets opened inside stay in this host. Other threads are not moved.
        """
        return namespaces.entered(self.path)

    def popen(
        self,
        command: Sequence[str | os.PathLike[str]],
        *,
        cpu: int | None = None,
        env: Mapping[str, str] | None = None,
        **options: Any,
    ) -> "subprocess.Popen[Any]":
        """Start a program on this host; it ends with the testbed, and is killed when this process ends.

        Parameters
        ----------
        command : sequence of str
            Program and arguments.
        cpu : int, optional
            Its CPU. Default: that of the host.
        env : mapping, optional
            Its environment. Default: that of the caller.
        **options
            Further arguments of `subprocess.Popen`.

        Raises
        ------
        ParshallError
            The program cannot be started.
        UsageError
            The CPU cannot be used.
        """
        if isinstance(command, str | os.PathLike):
            raise UsageError(
                f"host {self.name}: command {str(command)!r}: expected program and arguments as a list, such as "
                f"{shlex.split(str(command)) or ['ls', '-l']}"
            )
        environment = {**(os.environ if env is None else env), OWNER_VARIABLE: self._owner_prefix}

        # Namespace and affinity belong to a thread, and a child inherits them.
        def start() -> programs.Program:
            with self.enter(), _on_cpu(self.cpu if cpu is None else cpu):
                return programs.start(command, env=environment, **options)

        try:
            program = programs.in_starter(start)
        except OSError as error:
            raise ParshallError(f"host {self.name}: {command[0]} cannot be started: {error.strerror}") from error
        self._programs = [*(running for running in self._programs if running.poll() is None), program]
        return program

    def run(
        self,
        command: Sequence[str | os.PathLike[str]],
        *,
        check: bool = True,
        timeout_s: float | None = None,
        input: str | None = None,
        **options: Any,
    ) -> "subprocess.CompletedProcess[str]":
        """Run a program on this host to its end, and return its output as text.

        Parameters
        ----------
        command : sequence of str
            Program and arguments.
        check : bool
            Whether to raise when its exit status is not 0.
        timeout_s : float, optional
            Seconds after which it is killed.
        input : str, optional
            Its standard input.
        **options
            Further arguments of `popen`.

        Raises
        ------
        ParshallError
            The program fails or takes too long.
        """
        pipe = subprocess.PIPE
        streams = {"stdout": pipe, "stderr": pipe, "stdin": None if input is None else pipe}
        program = self.popen(command, text=True, **{**streams, **options})
        try:
            output, errors = program.communicate(input, timeout=timeout_s)
        except subprocess.TimeoutExpired as error:
            raise ParshallError(
                f"host {self.name}: {command[0]} did not end within {timeout_s} s; give it a longer timeout_s"
            ) from error
        finally:
            if program.poll() is None:
                program.kill()
                program.communicate()
        if check and program.returncode != 0:
            last_line = ((errors or output or "").strip().splitlines() or ["no output"])[-1]
            raise ParshallError(
                f"host {self.name}: {' '.join(map(str, command))} ended with status {program.returncode}: {last_line}"
            )
        return subprocess.CompletedProcess(list(command), program.returncode, output, errors)

    def wait_for_listener(
        self, port: int, timeout_s: float = 10.0, program: "subprocess.Popen[str] | None" = None
    ) -> None:
        """Wait until a program on this host listens on a TCP port.

        Parameters
        ----------
        port : int
            The port.
        timeout_s : float
            Seconds to wait.
        program : subprocess.Popen, optional
            The program that should listen. If it ends early, the message has the last line of its standard error, which
            must be a pipe.

        Raises
        ------
        ParshallError
            No program listens within `timeout_s` seconds, or `program` has ended.
        """
        deadline = time.monotonic() + timeout_s
        while not self._listens(port):
            if program is not None and program.poll() is not None:
                _, errors = program.communicate()
                last_line = ((errors or "").strip().splitlines() or ["no output"])[-1]
                raise ParshallError(
                    f"host {self.name}: the program for TCP port {port} ended with status "
                    f"{program.returncode}: {last_line}"
                )
            if time.monotonic() > deadline:
                raise ParshallError(
                    f"host {self.name}: nothing listens on TCP port {port} after {timeout_s:g} s; "
                    "check that the server started"
                )
            time.sleep(0.002)

    def _listens(self, port: int) -> bool:
        with self.enter():
            tables = [Path("/proc/thread-self/net") / name for name in ("tcp", "tcp6")]
            lines = [line for table in tables if table.exists() for line in table.read_text().splitlines()]
        # Columns: number, local address:port, remote, state (0A is LISTEN), ...; all hexadecimal.
        fields = (line.split() for line in lines)
        return any(field[3] == "0A" and int(field[1].rpartition(":")[2], 16) == port for field in fields)

    def sysctl(self, name: str, value: object = None) -> str:
        """Return a setting of this host's network stack, after setting it when a value is given.

        Parameters
        ----------
        name : str
            Such as ``net.ipv4.tcp_congestion_control``; only settings of ``net.`` belong to a host. A dot
            inside a part (an interface ``eth0.5``) is written as ``/``, as in sysctl(8).
        value : object, optional
            New value.

        Raises
        ------
        ParshallError
            There is no such setting, or the kernel rejects the value.
        """
        if not name.startswith("net."):
            raise UsageError(
                f"host {self.name}: setting {name} applies to the whole machine; only net.* belongs to a host"
            )
        path = Path("/proc/sys") / name.translate(str.maketrans("./", "/."))
        try:
            # The file shows the setting of the namespace of the thread that opens it.
            with self.enter():
                if value is not None:
                    path.write_text(str(value))
                return path.read_text().strip()
        except OSError as error:
            assignment = "" if value is None else f" to {value}"
            raise ParshallError(f"host {self.name}: setting {name}{assignment}: {_why(name, value, error)}") from error

    def route(self, destination: str, gateway: str) -> None:
        """Add a route, for testbeds with hosts that forward (``net.ipv4.ip_forward``).

        Parameters
        ----------
        destination : str
            Network, such as ``10.77.2.0/24``, or ``default``.
        gateway : str
            Address of the next host.
        """
        family = ["-6"] if ":" in gateway else []
        self.run(["ip", *family, "route", "replace", destination, "via", gateway])

    def close(self) -> None:
        """End the programs that still run, and remove the namespace; called by the testbed."""
        running = [program for program in self._programs if program.poll() is None]
        for program in running:
            program.terminate()
        for program in running:
            try:
                program.wait(_GRACE_S)
            except subprocess.TimeoutExpired:
                program.kill()
                program.wait()
        self._programs.clear()
        # Processes that programs left behind, such as daemons, would keep the namespace.
        with suppress(OSError):
            end_processes(self.path, self._owner_prefix)
        namespaces.remove(self.namespace)


@contextmanager
def _on_cpu(cpu: int | None) -> Iterator[None]:
    """Bind the calling thread to a CPU within the block; None does nothing."""
    if cpu is None:
        yield
        return
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {cpu})
    except OSError as error:
        raise UsageError(f"CPU {cpu}: cannot be used; choose one of {sorted(before)}") from error
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _why(name: str, value: object, error: OSError) -> str | None:
    """Return why a setting cannot be read or changed, with the remedy."""
    # The kernel has one list of algorithms for all namespaces, and another of those that other namespaces may choose.
    if name == "net.ipv4.tcp_congestion_control" and value is not None:
        if error.errno == errno.ENOENT:
            return "the kernel has no such algorithm; `sysctl net.ipv4.tcp_available_congestion_control` lists them"
        if error.errno == errno.EPERM:
            list_name = "net.ipv4.tcp_allowed_congestion_control"
            allowed = (Path("/proc/sys") / list_name.replace(".", "/")).read_text().strip()
            return f"not allowed in namespaces on this machine; allow it: sysctl -w {list_name}='{allowed} {value}'"
    return "is none of this kernel; `sysctl -a` lists them" if error.errno == errno.ENOENT else error.strerror
