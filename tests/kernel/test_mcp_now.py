"""What the tools of agents say of this host now: of a log that is being written, and of packets that drop."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conversation import connection, transfer
from ports import PORTS
from tcp_logger import Logger

import parshall
from parshall.agent.tools import Tools
from parshall.instruments.path import PathProfile
from parshall.instruments.path.histograms import as_object

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("root")]


def test_flows_of_a_log_that_is_being_written(pair: Any, tmp_path: Path, until: Callable[..., None]) -> None:
    left, right, address = pair
    port, tools = next(PORTS), Tools(tmp_path)
    with Logger(until, "-o", tmp_path / "now.arrow", "--port", str(port), "--netns", left.namespace) as log:
        with connection(left, right, address, port) as (active, passive):
            transfer(active, passive, 200_000)
            until("the flow is known", lambda: [row.acked_bytes for row in tools.flows("now.arrow").flows] == [200_000])
            answer = tools.flows("now.arrow")
            (flow,) = answer.flows
            assert flow.remote == f"{address}:{port}" and flow.state == "ESTABLISHED" and not flow.ended
            assert not answer.is_complete and answer.ledger is not None and not answer.ledger.complete
        log.end(signal.SIGINT)
    answer, report = tools.flows("now.arrow"), tools.report("now.arrow")
    assert answer.is_complete and answer.flows[0].ended
    expected = parshall.read(tmp_path / "now.arrow").ledger
    assert answer.ledger is not None and answer.ledger.model_dump() == expected
    # As the kernel counts: SYN and FIN are a byte each.
    assert report.flows == 1 and report.acked_bytes == 200_002 and report.ledger == answer.ledger
    assert report.kernel == os.uname().release


@pytest.mark.parametrize("kind", ["log", "histograms"])
def test_packets_that_drop(router: Any, tmp_path: Path, kind: str) -> None:
    profile = PathProfile(
        tmp_path / "path.arrow" if kind == "log" else None, netns=router.router.namespace, filter="udp"
    )
    with profile:
        router.send(200)
        router.send(24, ttl=1)
    (tmp_path / "path.json").write_text(json.dumps(as_object(profile.summary, profile.environment)))
    answer = Tools(tmp_path).drops("path.arrow" if kind == "log" else "path.json")
    assert sum(row.packets for row in answer.drops) == answer.paths["dropped"] == 24
    assert answer.ledger is not None and answer.ledger.complete
    assert [hook.model_dump() for hook in answer.ledger.hooks] == profile.summary.ledger["hooks"]
