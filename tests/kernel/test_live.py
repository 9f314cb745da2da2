"""`parshall live` on real connections: its page against ss, and against the log that it saves."""

import json
import os
import pty
import re
import select
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from capturer import Capturer
from conversation import check_balance, connection, socket_at, transfer
from ports import PORTS
from running_command import RunningCommand, read_until
from tcp_logger import PARSHALL, STARTED, run

import parshall
from parshall.instruments.tcp import TcpLog

if TYPE_CHECKING:
    from playwright.sync_api import Page

# Its statement stays open, whatever is measured.
STUDY = """
from parshall.lab import *

def setting(level, duration_s):
    program = Program("nothing", "a", ["true"], "workload", is_json=False)
    return Setting([Host("a"), Host("b")], [Link("a", "b")], [program], duration_s)

def moves(table):
    return Finding("it moves", None, is_open=True, low=-3.0, high=2.0, limit=5.0, unit="%")

study = Study(
    "small", "Small", "Does it move?", setting, levels=grid(n=[1]), repeats=3, duration_s=0,
    measures=[Measure("received", "packets", lambda run: run.received("b"))],
    statements=[Statement("A document", "it moves", moves)],
)
"""

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("root")]


class Live(RunningCommand):
    """A `parshall live --json` that runs."""

    def __init__(self, *arguments: str | Path, cwd: Path) -> None:
        pipe = subprocess.PIPE
        command = [PARSHALL, "live", "--json", *arguments]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True, cwd=cwd)
        STARTED.add(self.process.pid)
        started = json.loads(read_until(self.process.stdout, "\n"))
        self.url: str = started["url"]
        self.log = Path(started["log"])


def number(text: str) -> float:
    """The number that a cell shows: 1,234 or 12.3M."""
    match = re.fullmatch(r"([\d.,]+)([kMGT]?)", text)
    assert match, text
    return float(match[1].replace(",", "")) * 1000 ** " kMGT".index(match[2] or " ")


def flow_at(page: "Page", end: str) -> dict[str, str] | None:
    """The line of the flow that has this end as its peer, by the names of its columns."""
    heads = [text.rstrip(" ▾▴") for text in page.locator("#heads th").all_inner_texts()]
    lines = page.locator("#rows tr[data-flow]").evaluate_all(
        "rows => rows.map(row => [...row.cells].map(cell => cell.textContent))"
    )
    rows = [dict(zip(heads, cells, strict=True)) for cells in lines]
    return next((row for row in rows if row["peer"] == end), None)


def test_the_page_follows_a_connection_as_ss_does_and_goes_back(
    pair: Any, tmp_path: Path, until: Callable[..., None], on_page: Callable[..., Any]
) -> None:
    left, right, address = pair
    port = next(PORTS)
    end = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"

    def acked() -> float | None:
        row = on_page(lambda page: flow_at(page, end))
        return row and number(row["acked"])

    def evaluated(code: str) -> Any:
        return on_page(lambda page: page.evaluate(code))

    with Live("--port", str(port), "--netns", left.namespace, cwd=tmp_path) as live:
        on_page(lambda page: page.goto(live.url))
        with connection(left, right, address, port) as (active, passive):
            times = []
            for round_number in range(1, 4):
                transfer(active, passive, 300_000)
                transfer(passive, active, 50_000)
                until("the round is shown", lambda sent=300_000 * round_number: acked() == sent)
                times.append(evaluated("frame.time_ms"))
                text = left.run(["ss", "-Htin", "state", "established", f"dport = :{port}"]).stdout
                (kernel,) = re.findall(r"\bcwnd:(\d+)", text)
                row = on_page(lambda page: flow_at(page, end))
                assert (number(row["cwnd"]), row["state"]) == (int(kernel), "ESTABLISHED")
                assert evaluated("document.getElementById('lost').textContent") == "0"
            on_page(lambda page: page.locator("#rows tr[data-flow]").first.click())
            until("the curves are drawn", lambda: evaluated("single && single.rates.data[0].length > 1"))
            moved = evaluated(
                "single.rates.data[1].reduce((sum, rate, at) => at ? sum + rate *"
                " (single.rates.data[0][at] - single.rates.data[0][at - 1]) : 0, 0)"
            )
            # The first time of the curve has no one before it to take a time from.
            assert 0 < moved * 1e6 / 8 <= 900_001
            # Back to the end of the first round: what came later is not there.
            evaluated(
                "(() => { const slider = document.getElementById('when');"
                f" slider.value = ({times[0]} - frame.kept_ms[1]) / 1000;"
                " slider.dispatchEvent(new Event('input')); })()"
            )
            until("the first round is shown", lambda: acked() == 300_000)
            transfer(active, passive, 100_000)
            newest = "ask(frameUrl(0)).then(news => news.kept_ms[1])"
            until("what is new is kept meanwhile", lambda: evaluated(newest) > times[2])
            assert acked() == 300_000
            on_page(lambda page: page.get_by_role("button", name="Go on").click())
            until("now is shown again", lambda: acked() == 1_000_000)
            on_page(lambda page: page.get_by_role("button", name="Save as log").click())
            saving = "document.getElementById('saved').textContent.startsWith('saved in ')"
            until("it is saved", lambda: evaluated(saving))

            def heading(page: "Page") -> str:
                with page.context.expect_page() as report:
                    page.get_by_role("button", name="Open as report").click()
                return report.value.locator("h1").inner_text()

            # After the privileges were given up, too.
            assert "live-" in on_page(heading)
        ended = live.end(signal.SIGINT)
    assert ended.returncode == 0, ended.stderr
    # What it wrote for itself is gone, and its account balances.
    assert not live.log.parent.exists()
    check_balance(json.loads(ended.stdout)["ledger"])
    (saved,) = tmp_path.glob("live-*")
    (flow,) = parshall.read(saved).flow_states().table().iter_rows(named=True)
    assert flow["acked_bytes"] == 1_000_000


def test_readers_of_rings_are_on_the_page_after_the_privileges_were_given_up(
    ends: Any, tmp_path: Path, until: Callable[..., None], on_page: Callable[..., Any]
) -> None:
    left, right, link = ends
    what = ("-i", link.interface(right), "-w", tmp_path / "x.pcapng", "--filter", "udp port 9", "--json")
    with Live("--port", "9", cwd=tmp_path) as live, Capturer(until, right, *what) as capture:
        on_page(lambda page: page.goto(live.url))

        def line() -> str:
            lines = on_page(lambda page: page.locator("#rings li").all_inner_texts())
            return next((text for text in lines if text.startswith(f"{capture.ring}, pid {capture.process.pid}")), "")

        until("the reader is there", line)
        assert ", udp port 9: 0 of " in line()
        address = link.address(right)
        with socket_at(left, address, socket.SOCK_DGRAM) as sender:
            for _ in range(3):
                sender.sendto(b"x", (address, 9))
        until("its packets are counted", lambda: ", udp port 9: 3 of " in line())
        account = json.loads(capture.end().stdout)["ledger"]["subscribers"][0]["interfaces"]
        assert sum(one["logged"] for one in account) == 3
        until("it has gone", lambda: not line())
        assert live.end(signal.SIGINT).returncode == 0


def test_the_account_on_the_page_is_that_of_the_log(
    pair: Any, tmp_path: Path, on_page: Callable[..., Any], until: Callable[..., None]
) -> None:
    left, right, address = pair
    path, port = tmp_path / "x.arrow", next(PORTS)
    with TcpLog(path, netns=left.namespace, port=port, ppl=3):
        with connection(left, right, address, port) as (active, passive):
            transfer(active, passive, 300_000)
            transfer(passive, active, 100_000)
    log = parshall.read(path)
    ledger = log.ledger
    sums = {name: sum(hook[name] for hook in ledger["hooks"]) for name in ("seen", "filtered", "thinned", "logged")}
    lost = sum(sum(hook["lost"].values()) for hook in ledger["hooks"])
    assert sums["thinned"] and sums["seen"] == sums["filtered"] + sums["thinned"] + sums["logged"] + lost
    with Live(path, cwd=tmp_path) as live:
        on_page(lambda page: page.goto(live.url))

        def text(name: str) -> str:
            return on_page(lambda page: page.locator(f"#{name}").inner_text())  # type: ignore[no-any-return]

        until("all is read", lambda: text("state") == "the log has ended" and text("account"))
        parts = " + ".join(f"{name} {sums[name]:,}" for name in ("filtered", "thinned", "logged"))
        assert text("account").startswith(f"Since the log began: seen {sums['seen']:,} = {parts} + lost {lost:,}; ")
        assert number(text("account").split("; ")[1].split("B of log")[0]) == pytest.approx(
            ledger["cost"]["log_bytes"], rel=0.01
        )
        assert text("lost") == f"{lost:,}"
        cost = ledger["cost"]
        assert text("reader") == f"{100 * cost['reader_cpu_s'] / cost['wall_s']:.1f} % of a CPU"
        names = {hook["hook"] for hook in ledger["hooks"]}
        timed = [one["ns_per_run"] for one in cost["programs"] if one["sampled_runs"] and one["program"] in names]
        assert text("hooks") == (f"{min(timed):.0f} to {max(timed):.0f} ns" if timed else "not measured")
        states = log.flow_states().table()
        assert text("open") == f"{int((~states['ended']).sum()):,}"
        assert live.end(signal.SIGINT).returncode == 0


def test_a_generator_and_a_study_are_on_the_page_while_they_run(
    xdp_link: Any, tmp_path: Path, until: Callable[..., None], on_page: Callable[..., Any]
) -> None:
    sender, _, link = xdp_link
    (tmp_path / "study.py").write_text(STUDY)
    words = ["-i", link.interface(sender), "--netns", sender.namespace, "--pps", "2k", "-d", "1h", "--json"]
    pipe = subprocess.PIPE
    with Live("--port", "9", cwd=tmp_path) as live:
        on_page(lambda page: page.goto(live.url))

        def line_of(process: Any) -> str:
            lines = on_page(lambda page: page.locator("#commands > li").all_inner_texts())
            return next((text for text in lines if f"(pid {process.pid})" in text), "")

        def sent() -> int:
            match = re.match(r"gen \(pid \d+\) since [\d:]+: ([\d,]+) packets", line_of(generator))
            return int(match[1].replace(",", "")) if match else 0

        with subprocess.Popen([PARSHALL, "gen", *words], stdout=pipe, stderr=pipe, text=True) as generator:
            STARTED.add(generator.pid)
            until("a second of its packets are on the page", lambda: sent() > 2_000)
            shown = sent()
            generator.send_signal(signal.SIGINT)
            printed, _ = generator.communicate(timeout=60)
            assert shown <= json.loads(printed)["sent"]
        until("it has gone", lambda: not line_of(generator))
        study = ["lab", "run", tmp_path / "study.py", "-o", tmp_path / "out", "--budget", "1h"]
        with subprocess.Popen([PARSHALL, *study], stdout=pipe, stderr=pipe, text=True) as laboratory:
            STARTED.add(laboratory.pid)
            until("its run is named", lambda: "small: run " in line_of(laboratory))
            until("a statement has an interval", lambda: "A document: open, " in line_of(laboratory), 120)
            laboratory.send_signal(signal.SIGINT)
            laboratory.communicate(timeout=60)
        until("it has gone", lambda: not line_of(laboratory))
        assert live.end(signal.SIGINT).returncode == 0


def test_drops_of_packets_are_on_the_page_as_the_kernel_counts_them(
    pair: Any, tmp_path: Path, until: Callable[..., None], on_page: Callable[..., Any]
) -> None:
    left, right, address = pair
    counted = "/proc/net/snmp6" if ":" in address else "/proc/net/snmp"
    with Live("--port", "9", "--netns", right.namespace, "--path", "100%", cwd=tmp_path) as live:
        on_page(lambda page: page.goto(live.url))
        on_page(lambda page: page.locator("#packets").wait_for(state="visible"))
        with socket_at(left, address, socket.SOCK_DGRAM) as sender:
            for _ in range(7):
                sender.sendto(b"x", (address, 9))

        def rows() -> list[list[str]]:
            table = "rows => rows.map(row => [...row.cells].map(cell => cell.textContent))"
            found: list[list[str]] = on_page(lambda page: page.locator("#drops tr").evaluate_all(table))
            return found

        def are_counted() -> bool:
            return any(row[0] == "7" and row[1].startswith("NO_SOCKET") for row in rows())

        until("the drops are counted", are_counted, seen=rows)
        assert re.search(r"(Udp6NoPorts\s+7|Udp: \d+ 7 )", right.run(["cat", counted]).stdout)
        ended = live.end(signal.SIGINT)
    assert ended.returncode == 0, ended.stderr
    path = json.loads(ended.stdout)["path"]
    check_balance(path["ledger"])
    assert path["attached_s"] == pytest.approx(path["ledger"]["cost"]["wall_s"], abs=0.5)


def test_a_log_that_another_process_writes_needs_no_privileges(pair: Any, until: Callable[..., None]) -> None:
    left, right, address = pair
    port = next(PORTS)
    # Not below the directory of the tests, which is root's alone.
    with tempfile.TemporaryDirectory(prefix="live-of-another-") as name:
        path = Path(name) / "day.arrow"
        path.parent.chmod(0o755)
        with TcpLog(path, port=port, netns=left.namespace), connection(left, right, address, port) as sides:
            transfer(*sides, 100_000)
            until("there are rows", lambda: parshall.read(path).records.num_rows > 0)
            path.chmod(0o644)
            command = ["setpriv", "--reuid", "65534", "--clear-groups", "--bounding-set", "-all", PARSHALL, "live"]
            answer = subprocess.run(
                [*command, path, "-d", "1s"], capture_output=True, text=True, cwd="/tmp", timeout=60
            )
            refused = subprocess.run(
                [*command, path, "--path", "5%"], capture_output=True, text=True, cwd="/tmp", timeout=60
            )
    assert answer.returncode == 0, answer.stderr
    started, ending = answer.stderr.splitlines()
    assert "open http://127.0.0.1:" in started and ending == "parshall: live: ending"
    # What needs privileges names the command that was given.
    assert refused.returncode == 2 and refused.stderr.count("\n") == 1
    assert refused.stderr.endswith("run it as root (sudo parshall live ...)\n")


def test_what_is_left_after_a_kill_is_found_and_removed(tmp_path: Path, until: Callable[..., None]) -> None:
    with Live("--port", "9", cwd=tmp_path) as live:
        live.end(signal.SIGKILL)
    assert live.log.parent.exists()
    assert run("doctor", "--clean").returncode == 0
    assert not live.log.parent.exists()


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("nosuch.arrow",), "nosuch.arrow"),
        (("x.arrow", "--ppl", "3"), "--ppl: chooses what is logged, and x.arrow is a log"),
        (("--listen", "evil"), "--listen evil: expected a port, or an address and a port"),
        (("-o", "nosuch"), "-o nosuch: is no directory"),
        (("--memory", "1k"), "--memory 1024: expected at least 1M"),
    ],
)
def test_a_request_that_is_wrong_is_one_line(tmp_path: Path, words: tuple[str, ...], reason: str) -> None:
    answer = run("live", *words, cwd=tmp_path)
    assert (answer.returncode, answer.stderr.count("\n")) == (2, 1)
    assert reason in answer.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_terminal_shows_it_until_a_key_ends_it(pair: Any, tmp_path: Path, until: Callable[..., None]) -> None:
    left, right, address = pair
    port = next(PORTS)
    master, slave = pty.openpty()
    text = b""

    def has(wanted: bytes) -> bool:
        nonlocal text
        while select.select([master], [], [], 0)[0]:
            text += os.read(master, 65536)
        return wanted in text

    try:
        command = [PARSHALL, "live", "--tui", "--port", str(port), "--netns", left.namespace]
        environment = os.environ | {"TERM": "xterm"}
        process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, cwd=tmp_path, env=environment)
        STARTED.add(process.pid)
        until("it has begun", lambda: has(b"live") or process.poll() is not None)
        with connection(left, right, address, port) as (active, passive):
            transfer(active, passive, 100_000)
            until("the flow is on the screen", lambda: has(str(port).encode()) or process.poll() is not None)
        os.write(master, b"q")
        until("it has ended", lambda: has(b"") and process.poll() is not None)
        has(b"")
    finally:
        os.close(master)
        os.close(slave)
        process.kill()
        process.wait()
    # The screen of the shell is back, and the account is on it.
    _, _, after = text.rpartition(b"\x1b[?1049l")
    assert process.returncode == 0
    assert b"1 flow" in after and b"seen" in after


def test_it_ends_when_its_terminal_is_gone(tmp_path: Path, until: Callable[..., None]) -> None:
    master, slave = pty.openpty()
    command = [PARSHALL, "live", "--tui", "--port", "9"]
    process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, cwd=tmp_path)
    STARTED.add(process.pid)
    os.close(slave)
    try:
        until("it has begun", lambda: bool(select.select([master], [], [], 0)[0]) or process.poll() is not None)
        os.close(master)
        until("it has ended", lambda: process.poll() is not None)
    finally:
        process.kill()
        process.wait()


def test_a_terminal_is_asked_for_where_there_is_none(tmp_path: Path) -> None:
    answer = run("live", "--tui", cwd=tmp_path)
    assert (answer.returncode, answer.stderr.count("\n")) == (2, 1)
    assert "--tui: this is no terminal; in a pipe, `parshall show --follow LOG`" in answer.stderr
