"""What holds for all tests: kernel tests must run under CI, and nothing of ours stays on the host."""

import os
import signal
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from _pytest.runner import runtestprotocol
from hypothesis import settings

from host_state import SESSION_MARK, HostState, wait_until_clean

UNDER_CI = os.environ.get("CI", "").lower() in ("1", "true", "yes")
SMALL_LOG = Path(__file__).parent / "data/small.arrow"
BEFORE = pytest.StashKey[HostState]()
LEFT = pytest.StashKey[list[str]]()

# No test judges time: the machine may be busy.
settings.register_profile("untimed", parent=settings(), deadline=None)
settings.load_profile("untimed")


@pytest.fixture
def damaged_log(tmp_path: Path) -> Path:
    """Write a log whose first batch of rows has a wrong byte."""
    content = bytearray(SMALL_LOG.read_bytes())
    # The batch lies behind schema and dictionaries and before the first tick.
    content[content.find(b"parshall.crc32") + 1000] ^= 0xFF
    path = tmp_path / "damaged.arrow"
    path.write_bytes(content)
    return path


def pytest_sessionstart(session: pytest.Session) -> None:
    """Remember what was on the host, and mark what this session starts."""
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        # As under nohup. What is ignored stays so in what we start, what is handled does not.
        signal.signal(signal.SIGHUP, lambda *_: None)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # As behind `&` in a script.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ[SESSION_MARK] = str(os.getpid())
    session.config.stash[BEFORE] = HostState.now()


def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Run a test that is marked ``attempts(N)`` up to N times, with fixtures of its own each time.

    What another process takes from the CPUs for a moment is in one attempt; a fault of ours is in all.
    """
    marker = item.get_closest_marker("attempts")
    if marker is None:
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for _ in range(marker.args[0]):
        reports = runtestprotocol(item, nextitem=nextitem, log=False)
        if not any(report.failed for report in reports):
            break
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn the skip of a required test into a failure: under CI nothing may go untested unseen."""
    report = yield
    required = item.get_closest_marker("kernel") and not item.get_closest_marker("optional")
    if UNDER_CI and report.skipped and not hasattr(report, "wasxfail") and required:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"required under CI, but {reason}"
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Generator[None, None, None]:
    """Fail the session when something of ours is still on the host."""
    left = wait_until_clean(session.config.stash[BEFORE])
    if left:
        session.config.stash[LEFT] = left
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    yield


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say what was left."""
    for name in config.stash.get(LEFT, []):
        terminalreporter.write_line(f"FAILED: the tests left on this host: {name}", red=True)


@pytest.fixture(scope="session")
def root() -> None:
    """Skip when not root."""
    if os.geteuid() != 0:
        pytest.skip("needs root")


@pytest.fixture
def bed() -> Iterator[Any]:
    """Give a testbed, or skip with the reason why there can be none."""
    if os.geteuid() != 0:
        pytest.skip("needs root: network namespaces and packet sockets")
    from parshall.testbed import Testbed

    with Testbed() as testbed:
        yield testbed


@pytest.fixture
def until() -> Callable[..., None]:
    """Wait for a condition; fail with its name when it does not come true in time."""

    def wait(name: str, condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, f"still not after {timeout_s} s: {name}"
            time.sleep(0.005)

    return wait
