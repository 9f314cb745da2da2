"""``parshall cpu`` as a command."""

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from in_process import parshall
from parshall.cli import cpu
from parshall.instruments import cpu as instrument

PARSHALL = [sys.executable, "-m", "parshall"]


def run(*arguments):
    return subprocess.run([*PARSHALL, "cpu", *arguments], capture_output=True, text=True, timeout=60)


def test_a_command_is_profiled_and_its_status_returned(tmp_path):
    busy = f"{sys.executable} -c 'import time; t=time.process_time\nwhile t() < 0.4: pass'; exit 3"
    result = run("--interval", "0.1", "-a", "--json", "--", "sh", "-c", busy)
    assert result.returncode == 3
    account = json.loads(result.stdout)
    assert account["states"][3] == "idle"
    assert account["summary"]["intervals"] == len(account["all"]) > 0
    assert [sum(line) for line in account["all"]] == pytest.approx([100] * len(account["all"]))
    # The kernel counts the time of a process apart that is nicer than others, as it is when these tests are.
    assert account["summary"]["avg"]["nice" if os.nice(0) > 0 else "user"] > 0


def test_text_machine_and_trim_agree(tmp_path):
    path = tmp_path / "usage"
    assert run("--interval", "0.05", "--duration", "0.3", "-a", "--machine", "-o", str(path)).returncode == 0
    trimmed = run("-a", "trim", str(path))
    assert trimmed.returncode == 0
    kept = [line for line in path.read_text().splitlines() if line[0].isdigit()]
    assert trimmed.stdout.splitlines()[: len(kept)] == kept
    assert trimmed.stdout.splitlines()[len(kept)] == "---Summary----"
    assert trimmed.stdout.splitlines()[-1].startswith("Avg:")
    text = run("--interval", "0.05", "--duration", "0.15", "-a").stdout
    assert text.startswith("user: ") and "---Summary---" in text and "Avg: user: " in text


def test_wrong_requests_are_one_line(tmp_path):
    for arguments, status in [
        (("--interval", "0"), 2),
        (("--limit", "0"), 2),
        (("--duration", "-1"), 2),
        (("trim",), 2),
        (("trim", str(tmp_path / "none")), 2),
        (("--", "no-such-command-here"), 127),
    ]:
        result = run(*arguments)
        assert result.returncode == status, result
        assert result.stderr.startswith("parshall: cpu: ") and result.stderr.count("\n") == 1


def test_a_profile_without_programs_says_so(monkeypatch, capsys):
    monkeypatch.setattr(cpu, "_hook_times", lambda: SimpleNamespace(read=list))
    assert cpu.command(interval=0.01, duration=0.05, hooks=True, all_lines=True) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "hooks: no eBPF program ran"


@pytest.mark.parametrize("machine", [(), ("--machine",)])
def test_trim_ignores_lines_of_cpus_and_programs(tmp_path, machine):
    plain, full = tmp_path / "plain", tmp_path / "full"
    assert run("--interval", "0.05", "--duration", "0.3", "-a", "--per-cpu", *machine, "-o", str(full)).returncode == 0
    lines = full.read_text().splitlines()
    kept = [line for line in lines if not line.startswith("cpu")]
    assert len(kept) < len(lines)
    plain.write_text("\n".join(kept))
    full.write_text("\n".join([*lines, "hook tcp_egress (program 7): 1,000 runs of 300 ns, 2.0 % of a CPU"]))
    assert run("-a", "trim", str(full)).stdout == run("-a", "trim", str(plain)).stdout != ""


@pytest.mark.parametrize("options", [(), ("-q",)])
def test_a_time_without_a_tick_is_not_called_idle(monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]) -> None:
    still = {"cpu": (7,) * 8, "cpu0": (7,) * 8}
    monkeypatch.setattr(instrument, "read_ticks", lambda: still)
    answer = parshall("cpu", "-d", "50ms", "--interval", "20ms", *options)
    assert answer.returncode == 0
    assert "nothing was measured: the kernel counted no time of the CPUs" in answer.stderr
    assert "never below" not in answer.stderr
