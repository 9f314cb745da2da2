"""The ledger of the TCP log: what it says was lost is what is missing, to the record."""

import contextlib
import gzip
import platform
import signal
from pathlib import Path
from typing import Any

import pytest
from conversation import connection, transfer
from ports import PORTS
from tcp_logger import PACKET_HOOKS, Logger, check_log, packets_of, rows_of, total
from threads import threads_named

from parshall.instruments.tcp import TcpLog

pytestmark = pytest.mark.kernel
SMALLEST_RING_BYTES = 32 << 10


def flood(pair: tuple[Any, Any, str], port: int, payload_bytes: int, flows: int = 1) -> None:
    """Several connections one after another, data in both directions."""
    left, right, address = pair
    for _ in range(flows):
        with connection(left, right, address, port) as (active, passive):
            transfer(active, passive, payload_bytes)
            transfer(passive, active, payload_bytes // 4)


def test_without_loss_every_packet_is_in_the_log(pair: Any, tmp_path: Path) -> None:
    port = next(PORTS)
    with TcpLog(tmp_path / "log", port=[port]) as log:
        flood(pair, port, 500_000, flows=3)
    logged, ledger = check_log(log.path)
    assert log.summary.ledger == ledger
    assert logged.flows.num_rows == 6
    assert not any(sum(account["lost"].values()) for account in ledger["hooks"])
    rows = rows_of(logged)
    for flow in logged.flows.to_pylist():
        assert packets_of(rows, flow["flow"])["flow_seq"].to_list() == list(range(1, flow["packets_seen"] + 1))


@pytest.mark.parametrize("policy", ["fast", "slow"])
def test_the_ledger_counts_what_the_smallest_ring_loses(pair: Any, policy: str, tmp_path: Path) -> None:
    port = next(PORTS)
    with TcpLog(tmp_path / "log", port=[port], buffer_bytes=SMALLEST_RING_BYTES, policy=policy) as log:
        flood(pair, port, 10_000_000, flows=2)
    assert_lost(log.path, "dropped" if policy == "slow" else "overwritten")


@pytest.mark.parametrize("policy", ["fast", "slow"])
def test_the_ledger_counts_what_a_stalled_reader_loses(pair: Any, policy: str, until: Any, tmp_path: Path) -> None:
    port, path = next(PORTS), tmp_path / "log"
    with Logger(until, "-o", path, "--port", str(port), "--buffer", "1M", "--policy", policy) as logger:
        flood(pair, port, 1_000_000)
        logger.process.send_signal(signal.SIGSTOP)
        flood(pair, port, 20_000_000)
        logger.process.send_signal(signal.SIGCONT)
        flood(pair, port, 1_000_000)
        result = logger.end(signal.SIGINT)
    assert result.returncode == 0
    cause = "dropped" if policy == "slow" else "overwritten"
    lost = assert_lost(path, cause)
    assert f"{lost:,} {cause}" in result.stderr


def assert_lost(path: Path, cause: str) -> int:
    """Records were lost for this cause alone; in every flow the gaps are what its account says."""
    log, ledger = check_log(path)
    causes = {name: sum(account["lost"][name] for account in ledger["hooks"]) for name in ledger["hooks"][0]["lost"]}
    assert causes.pop(cause) > 0
    assert not any(causes.values()), causes
    rows = rows_of(log)
    gaps = 0
    for flow in log.flows.to_pylist():
        missing = set(range(1, flow["packets_seen"] + 1)) - set(packets_of(rows, flow["flow"])["flow_seq"])
        assert len(missing) == flow[f"packets_{cause}"]
        gaps += len(missing)
    assert gaps == total(ledger, cause, PACKET_HOOKS) > 0
    return sum(account["lost"][cause] for account in ledger["hooks"])


def test_flow_facts_survive_a_flood_of_packets(pair: Any, tmp_path: Path) -> None:
    """Facts go through a ring of their own: every flow is known although most packets are lost."""
    left, right, address = pair
    port = next(PORTS)
    with TcpLog(tmp_path / "log", port=[port], buffer_bytes=SMALLEST_RING_BYTES) as log:
        with connection(left, right, address, next(PORTS)) as (active, passive):
            transfer(active, passive, 1_000)
        for _ in range(20):
            flood(pair, port, 1_000_000)
    logged, ledger = check_log(log.path)
    assert logged.flows.num_rows == 40
    for flow in logged.flows.to_pylist():
        assert flow["local_port"] == port or flow["remote_port"] == port
        assert flow["ended"]
    assert total(ledger, "filtered", PACKET_HOOKS) > 0


def charged_s(thread: Path) -> float:
    """Return the CPU seconds that the kernel has charged a thread of ours with."""
    return int((thread / "schedstat").read_text().split()[0]) * 1e-9


def accounts_interrupts_apart() -> bool:
    """Whether the kernel leaves interrupts out of the time of threads; skip where it does not say."""
    configuration = Path("/proc/config.gz")
    if configuration.exists():
        text = gzip.decompress(configuration.read_bytes()).decode()
    else:
        configuration = Path(f"/boot/config-{platform.release()}")
        if not configuration.exists():
            pytest.skip("the kernel's configuration is nowhere to be read")
        text = configuration.read_text()
    return "CONFIG_IRQ_TIME_ACCOUNTING=y" in text


def test_softirqs_that_interrupt_the_reader_do_not_count_as_its_time(pair: Any, until: Any, tmp_path: Path) -> None:
    port = next(PORTS)
    with TcpLog(tmp_path / "log", port=[port]) as log:
        until("the reader runs", lambda: bool(threads_named("parshall-tcp")))
        thread = threads_named("parshall-tcp")[0]
        # Long enough for some dozen ticks of the kernel, each of which ends in softirqs.
        while charged_s(thread) < 0.1:
            flood(pair, port, 5_000_000)
        at_least_s = charged_s(thread)
    cost = log.summary.ledger["cost"]
    assert cost["reader_cpu_s"] > 0
    assert cost["reader_cpu_s"] + cost["reader_softirq_s"] >= at_least_s
    if accounts_interrupts_apart():
        assert cost["reader_softirq_s"] == 0
        return
    assert 0 < cost["reader_softirq_s"] < at_least_s
    programs = {each["program"]: each["sampled_runs"] for each in cost["programs"]}
    assert programs["reader_softirq"] > 0 and programs["reader_softirq_end"] > 0


def test_a_log_that_is_switched_off_sees_nothing(pair: Any, tmp_path: Path) -> None:
    port = next(PORTS)
    with TcpLog(tmp_path / "log", port=[port]) as log:
        log.switch(False)
        flood(pair, port, 100_000)
        log.switch(True)
        flood(pair, port, 100_000)
    logged, _ = check_log(log.path)
    # What processes hold is looked for when the log begins, so the first connection may be known.
    observed = [flow for flow in logged.flows.to_pylist() if flow["packets_seen"] or flow["events_seen"]]
    assert len(observed) == 2


def test_switching_on_twice_loses_no_packet(pair: Any, tmp_path: Path) -> None:
    with TcpLog(tmp_path / "log", port=[next(PORTS)]) as log:
        before = links()
        log.switch(True)
        assert before <= links()
        log.switch(False)
        assert before - links()


def links() -> set[str]:
    """Numbers of the eBPF links that this process holds."""
    found = set()
    for path in Path("/proc/self/fdinfo").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile
            found.update(line for line in path.read_text().splitlines() if line.startswith("link_id:"))
    return found
