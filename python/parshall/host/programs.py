"""Programs that are killed when the process that started them ends, for whatever reason."""

import contextlib
import errno
import os
import queue
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any


class Program(subprocess.Popen[Any]):
    """A program that notes what it used when `poll` finds that it has ended.

    Attributes
    ----------
    cpu_s : float or None
        CPU time of the program and of the children that it waited for, seconds; None while it runs, or when `wait`
        took its exit status.
    context_switches : int or None
        How often they gave up a CPU or lost it; None as above.
    """

    cpu_s: float | None = None
    context_switches: int | None = None

    def poll(self) -> int | None:
        """Return the exit status; None while it runs."""
        if self.returncode is None:
            try:
                ended, status, usage = os.wait4(self.pid, os.WNOHANG)
            except ChildProcessError:
                # Another thread has just taken it.
                return super().poll()
            if ended:
                self.returncode = os.waitstatus_to_exitcode(status)
                self.cpu_s = usage.ru_utime + usage.ru_stime
                self.context_switches = usage.ru_nvcsw + usage.ru_nivcsw
        return self.returncode


class _Starter:
    """A thread that starts programs and lives as long as the process.

    The kernel sends the signal when the thread that started the program ends, not its process.
    """

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[tuple[Callable[[], Program], Future[Program]]] = queue.SimpleQueue()
        # A daemon thread, so that testbeds can still clean up when the interpreter exits.
        threading.Thread(target=self._serve, name="parshall-programs", daemon=True).start()

    def call(self, job: Callable[[], Program]) -> Program:
        """Run `job` in the thread, with the affinity and signal mask of the caller, and return its result."""
        cpus, mask = os.sched_getaffinity(0), signal.pthread_sigmask(signal.SIG_BLOCK, ())

        def as_the_caller() -> Program:
            os.sched_setaffinity(0, cpus)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            try:
                return job()
            finally:
                signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())

        done: Future[Program] = Future()
        self._jobs.put((as_the_caller, done))
        return done.result()

    def _serve(self) -> None:
        # Other threads handle signals.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        while True:
            job, done = self._jobs.get()
            try:
                done.set_result(job())
            except BaseException as error:
                done.set_exception(error)


_lock = threading.Lock()
_starter: _Starter | None = None


def _forget_starter() -> None:
    global _lock, _starter
    _lock, _starter = threading.Lock(), None


# A forked process has only the calling thread.
os.register_at_fork(after_in_child=_forget_starter)


def in_starter(job: Callable[[], Program]) -> Program:
    """Run `job`, which calls `start`, in the thread that lives as long as the process; return its result."""
    global _starter
    with _lock:
        _starter = _starter or _Starter()
    return _starter.call(job)


# In the started process, which becomes the program: a callback of Python's would copy the page tables of a process that
# may be large. When the parent has ended before the signal is set, the shell has another one.
_ENDS_WITH_PARENT = ("--pdeathsig", "KILL", "--", "/bin/sh", "-c", '[ "$PPID" = "$0" ] && exec "$@"')


# What a whole process group gets, from a terminal or from who ends it.
_OF_TERMINALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Times that a program is started again when they ended it, so that a storm of them ends, too.
_STARTS_MAX = 100


def start(command: Sequence[str | os.PathLike[str]], **options: Any) -> Program:
    """Start a program that is killed when the calling thread ends; `in_starter` provides a lasting thread.

    Parameters
    ----------
    command : sequence of str
        Program and arguments.
    **options
        Further arguments of `subprocess.Popen`.

    Raises
    ------
    OSError
        The program is not there, or cannot be run.
    """
    words = [os.fspath(word) for word in command]
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        raise OSError(errno.ENOENT, "setpriv is missing, install util-linux")
    _check(words[0], options)
    line = [setpriv, *_ENDS_WITH_PARENT, str(os.getpid()), *words]
    program = Program(line, **options)
    starts_left = _STARTS_MAX if options.get("process_group") == 0 else 0
    while starts_left and _ended_before_it_began(program):
        starts_left -= 1
        program.wait()
        program = Program(line, **options)
    program.args = words
    return program


def _ended_before_it_began(program: Program) -> bool:
    """Whether a signal for the group of this process, such as Ctrl-C, ended a program before it had its own group.

    `subprocess.Popen` returns when the program runs or has ended, and does not say which.
    """
    with contextlib.suppress(OSError):
        Path(f"/proc/{program.pid}/exe").readlink()
        return False
    ended = os.waitid(os.P_PID, program.pid, os.WEXITED | os.WNOWAIT)
    return ended is not None and ended.si_code == os.CLD_KILLED and ended.si_status in _OF_TERMINALS


def _check(program: str, options: Mapping[str, Any]) -> None:
    """Raise what `subprocess.Popen` would: the shell would only end with a status."""
    directories = [options.get("cwd") or ""] if "/" in program else os.get_exec_path(options.get("env"))
    found = [path for directory in directories if (path := Path(directory, program)).exists()]
    if not any(path.is_file() and os.access(path, os.X_OK) for path in found):
        code = errno.EACCES if found else errno.ENOENT
        raise OSError(code, os.strerror(code), program)
