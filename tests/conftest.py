"""What holds for all tests: kernel tests must run under CI, and nothing of ours stays on the host."""

import contextlib
import gc
import os
import shutil
import signal
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

from hidden_events import HiddenEvents
from host_state import SESSION_MARK, HostState, left_in_directories, wait_until_clean
from isolation import isolate, isolate_temporary
from recorded_commands import RecordedCommands

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

UNDER_CI = os.environ.get("CI", "").lower() in ("1", "true", "yes")
TESTS = Path(__file__).parent
OF_TRACING = ("test_path", "test_tcp")
SMALL_LOG = TESTS / "data/small.arrow"
# Modules of more than half a minute, by what they took when all tests ran beside each other.
LONGEST = (
    "test_figures", "test_capture_faults", "test_lab_runs", "test_capture_members", "test_readme", "test_tcp_faults",
    "test_tcp_scripted_losses", "test_model_command", "test_capture_truth", "test_capture_rings", "test_lab",
    "test_model_cluster", "test_path_faults", "test_pcap_tags", "test_path_pieces", "test_demo", "test_generate",
    "test_tcp_command", "test_foreign_directories", "test_path_identity", "test_tcp_handshakes",
)  # fmt: skip
BEFORE = pytest.StashKey[HostState]()
LEFT = pytest.StashKey[list[str]]()
COMMANDS = RecordedCommands()
HIDDEN = HiddenEvents()

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


def is_worker(config: pytest.Config) -> bool:
    """Whether this process runs a part of a session's tests, beside others (pytest-xdist)."""
    return hasattr(config, "workerinput")


def pytest_configure(config: pytest.Config) -> None:
    """Separate the tests of a worker from those beside it, and record the programs that tests start."""
    # Until the tests are known: almost nothing of what is loaded goes away.
    gc.disable()
    if is_worker(config) and os.geteuid() == 0:
        isolate()
        isolate_temporary()
    COMMANDS.install()


def pytest_sessionstart(session: pytest.Session) -> None:
    """Remember what was on the host, and mark what this session starts."""
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        # As under nohup. What is ignored stays so in what we start, what is handled does not.
        signal.signal(signal.SIGHUP, lambda *_: None)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # As behind `&` in a script.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # A worker's programs are those of the session that started it, which looks for what is left of them.
    if not is_worker(session.config):
        os.environ[SESSION_MARK] = str(os.getpid())
    session.config.stash[BEFORE] = HostState.now()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Forget what belongs to the test before."""
    COMMANDS.forget()
    if item.get_closest_marker("kernel"):
        HIDDEN.open()
        HIDDEN.forget()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with the modules that take longest: none is left to one worker when the others have ended."""
    if is_worker(config):
        places = {name: place for place, name in enumerate(LONGEST)}
        items.sort(key=lambda item: places.get(item.path.stem, len(places)))


def pytest_collection_finish() -> None:
    """Look for garbage again, but not in what was loaded: that took a tenth of the time of all tests."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture
def hidden_events() -> HiddenEvents:
    """What the kernel hides, for tests that compare more than once."""
    return HIDDEN


def is_comparison(item: pytest.Item, call: pytest.CallInfo[None]) -> bool:
    """Whether a test of tracing programs compared something, or looked in vain for a row.

    Other errors have other causes, and other programs (tcx, cgroups, XDP) see what the kernel hides from these.
    """
    if call.excinfo is None or call.when != "call" or not item.path.name.startswith(OF_TRACING):
        return False
    if not item.get_closest_marker("kernel"):
        return False
    looked_in_vain = isinstance(call.excinfo.value, LookupError) and TESTS in call.excinfo.traceback[-1].path.parents
    return isinstance(call.excinfo.value, AssertionError) or looked_in_vain


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the programs of a failed test, and let a required test that skips under CI fail: nothing goes unseen."""
    report = yield
    required = item.get_closest_marker("kernel") and not item.get_closest_marker("optional")
    if UNDER_CI and report.skipped and not hasattr(report, "wasxfail") and required:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"required under CI, but {reason}"
    elif report.failed and is_comparison(item, call) and (hidden := HIDDEN.count()):
        # No program can have seen them, so that no number of a measurement need be right.
        report.outcome = "skipped"
        report.wasxfail = f"reason: this kernel hid {hidden} network events from all programs meanwhile"
    if report.failed and (commands := COMMANDS.text()):
        report.sections.append(("programs that the test ran", commands))
    return report


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> Generator[None, None, None]:
    """Fail the session when something of ours is still on the host."""
    config = session.config
    HIDDEN.close()
    if is_worker(config):
        config.workeroutput["left"] = wait_until_clean(config.stash[BEFORE], left_in_directories)
        yield
        return
    # Workers end meanwhile; the summary, which says what was left, comes behind it.
    yield
    left = config.stash.setdefault(LEFT, [])
    left += wait_until_clean(config.stash[BEFORE])
    if left:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take over from a worker what its tests left in the directories that only it sees."""
    node.config.stash.setdefault(LEFT, []).extend(getattr(node, "workeroutput", {}).get("left", []))


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
    """Wait for a condition; fail with its name, and with what is `seen`, when it does not come true in time."""

    def wait(
        name: str, condition: Callable[[], bool], timeout_s: float = 20.0, seen: Callable[[], object] = lambda: ""
    ) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, f"still not after {timeout_s} s: {name} {seen()}"
            time.sleep(0.005)

    return wait


@contextlib.contextmanager
def opened_browser() -> Iterator["Browser"]:
    """Yield Chromium without a window, while the block runs; skip a test without Chromium."""
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("chromium is not installed (package chromium)")
    # A second, which other tests need not wait for.
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextlib.contextmanager
def opened_page(browser: "Browser") -> Iterator["Page"]:
    """Yield a page that may have no error, and open no dialog."""
    with browser.new_context(viewport={"width": 1300, "height": 900}) as context:
        page = context.new_page()
        faults: list[str] = []
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("dialog", lambda dialog: (faults.append(dialog.message), dialog.dismiss()))
        yield page
        assert faults == []


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    """Chromium; it takes the event loop of its thread."""
    with opened_browser() as browser:
        yield browser


@pytest.fixture
def page(browser: "Browser") -> Iterator["Page"]:
    """Make a page for tests that need no event loop themselves."""
    with opened_page(browser) as page:
        yield page


@pytest.fixture(scope="module")
def browsing() -> Iterator[tuple[ThreadPoolExecutor, "Browser"]]:
    """Chromium, and the thread of its own that may use it."""
    with ThreadPoolExecutor(1) as thread, contextlib.ExitStack() as stack:
        browser = thread.submit(stack.enter_context, opened_browser()).result()
        yield thread, browser
        thread.submit(stack.pop_all().close).result()


@pytest.fixture
def on_page(browsing: tuple[ThreadPoolExecutor, "Browser"]) -> Iterator[Callable[[Callable[["Page"], Any]], Any]]:
    """Give a function that calls another one with a page, in a thread of its own, and returns what that returns."""
    thread, browser = browsing
    with contextlib.ExitStack() as stack:
        page = thread.submit(stack.enter_context, opened_page(browser)).result()
        yield lambda function: thread.submit(function, page).result()
        thread.submit(stack.pop_all().close).result()
