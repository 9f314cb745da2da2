"""The guards of the test session itself detect violations."""

import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]


@pytest.fixture
def session(tmp_path):
    """Return a function that runs pytest, guarded as here, on one file with the given text."""

    def run(text: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        for path in TESTS.glob("*.py"):
            shutil.copy(path, tmp_path)
        # What these sessions leave stays, however long they wait.
        with (tmp_path / "host_state.py").open("a") as state:
            state.write("\nSETTLE_S = 1.0\n")
        (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n  kernel: needs root\n")
        (tmp_path / "test_it.py").write_text(textwrap.dedent(text))
        # Options and workers of the session outside are not those of this one.
        inherited = {
            name: value for name, value in os.environ.items() if name != "CI" and not name.startswith("PYTEST")
        }
        return subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments, tmp_path],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            env={**inherited, **environment},
            timeout=60,
        )

    return run


SKIPPING = """
    import pytest
    @pytest.mark.kernel
    def test_required(): pytest.skip("no such kernel")
    @pytest.mark.kernel
    @pytest.mark.skipif(True, reason="no such mark")
    def test_required_by_mark(): pass
    def test_other(): pytest.skip("not today")
"""


def test_under_ci_a_skipped_required_test_fails_with_its_reason_and_a_skip_by_mark_as_well(session):
    answer = session(SKIPPING, CI="true")
    assert answer.returncode == 1
    # What a mark skips fails before it begins.
    assert "1 failed, 1 skipped, 1 error" in answer.stdout
    assert "required under CI, but Skipped: no such kernel" in answer.stdout
    assert "required under CI, but Skipped: no such mark" in answer.stdout


def test_without_ci_it_is_a_skip(session):
    answer = session(SKIPPING)
    assert answer.returncode == 0
    assert "3 skipped" in answer.stdout


@pytest.mark.kernel
@pytest.mark.alone
def test_a_session_that_leaves_a_cgroup_fails(session, root):
    from parshall._native import cgroup2_mount

    text = f"""
        import os
        from pathlib import Path
        def test_that_leaks():
            ticks = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
            path = Path({str(cgroup2_mount())!r}) / f"parshall-{{os.getpid()}}-{{ticks}}-leak"
            path.mkdir()
            print("made", path)
    """
    answer = session(text)
    leaked = list(Path(cgroup2_mount()).glob("parshall-*-leak"))
    for path in leaked:
        path.rmdir()
    assert len(leaked) == 1
    assert answer.returncode == 1
    assert f"the tests left on this host: cgroup {leaked[0]}" in answer.stdout


def test_a_session_that_leaves_a_process_fails(session):
    text = """
        import subprocess
        def test_that_leaks():
            quiet = subprocess.DEVNULL
            subprocess.Popen(["sleep", "60"], start_new_session=True, stdout=quiet, stderr=quiet)
    """
    answer = session(text)
    left = re.search(r"the tests left on this host: process (\d+): sleep 60", answer.stdout)
    os.kill(int(left[1]), signal.SIGKILL)
    assert "1 passed" in answer.stdout
    assert answer.returncode == 1


@pytest.mark.kernel
@pytest.mark.alone
def test_a_session_that_leaves_a_process_with_a_program_fails(session, root):
    text = """
        import subprocess, sys
        HOLD = '''
        import ctypes, os, struct, sys, time
        sys.path.insert(0, sys.argv[1])
        from host_state import BPF_SYSCALL
        import platform
        code = struct.pack("<BBhiBBhi", 0xb7, 0, 0, 0, 0x95, 0, 0, 0)
        code = ctypes.create_string_buffer(code, len(code))
        licence = ctypes.create_string_buffer(b"GPL")
        attributes = struct.pack("IIQQ", 1, 2, ctypes.addressof(code), ctypes.addressof(licence))
        attributes = ctypes.create_string_buffer(attributes.ljust(72, bytes(1)), 72)
        assert ctypes.CDLL(None).syscall(BPF_SYSCALL[platform.machine()], 5, attributes, 72) > 0
        if os.fork(): os._exit(0)
        os.setsid()
        os.close(1)
        time.sleep(60)
        '''
        def test_that_leaks():
            import textwrap
            from pathlib import Path
            subprocess.run([sys.executable, "-c", textwrap.dedent(HOLD), str(Path(__file__).parent)],
                           check=True, stderr=subprocess.DEVNULL)
    """
    answer = session(text)
    left = re.search(r"the tests left on this host: process (\d+): ", answer.stdout)
    assert left, answer.stdout
    os.kill(int(left[1]), signal.SIGKILL)
    assert "1 passed" in answer.stdout, answer.stdout
    assert answer.returncode == 1
    assert "the tests left on this host: eBPF program " in answer.stdout


@pytest.mark.kernel
def test_workers_have_directories_of_their_own_and_report_what_is_left_there(session, root):
    text = """
        import os, time
        from pathlib import Path
        def test_in_each_worker(tmp_path_factory):
            Path("/run/netns/parshall-1-1-left").touch(exist_ok=False)
            Path("/run/parshall/only-one").touch(exist_ok=False)
            meeting = Path(__file__).with_name("meeting")
            meeting.mkdir(exist_ok=True)
            (meeting / os.environ["PYTEST_XDIST_WORKER"]).touch()
            deadline = time.monotonic() + 30
            while len(list(meeting.iterdir())) < 2:
                assert time.monotonic() < deadline, "the other worker did not come"
                time.sleep(0.01)
    """
    answer = session(text, "--dist", "each", "--tx", "2*popen")
    assert "2 passed" in answer.stdout, answer.stdout
    assert answer.returncode == 1
    assert answer.stdout.count("the tests left on this host: namespace parshall-1-1-left") == 2
    assert not Path("/run/netns/parshall-1-1-left").exists()
