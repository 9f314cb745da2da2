"""Programs of `path` that stop for a while at their narrowest place: what they write then may be of another packet."""

from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
from changed_programs import compiled
from conversation import connection, transfer_for
from path_run import check_balance
from test_compilers import GIVEN

from parshall.instruments.path import PathLog, PathProfile

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("root")]
STAGES = ["netif_rx", "receive", "local_in", "socket_in", "tcp_receive", "data_ready", "queue", "start_xmit", "drop"]
SENDING_S = 1.5
STALL = """
static long is_over(__u64 step, void *until_ns) { return bpf_ktime_get_ns() > *(__u64 *)until_ns; }

static __noinline int stall(void)
{
	__u64 until_ns = bpf_ktime_get_ns() + 20000;

	bpf_loop(1 << 12, is_over, &until_ns, 0);
	return 0;
}

SEC("tp_btf/sk_data_ready")
"""


@pytest.fixture
def stalled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Load programs that stop between the look at a packet whose data is ready and the note of its time."""
    changes = [
        ('\nSEC("tp_btf/sk_data_ready")\n', STALL),
        ("\tpacket->offset_ns[STAGE_DATA_READY] =", "\tstall();\n\tpacket->offset_ns[STAGE_DATA_READY] ="),
    ]
    objects = compiled(tmp_path, "path", {"path_read.h": changes})
    monkeypatch.setenv("PARSHALL_BPF_OBJECTS", str(objects))


@pytest.mark.skipif(GIVEN is not None, reason="the objects are given")
def test_the_time_of_ready_data_is_not_that_of_the_packet_that_took_its_place(
    stalled: None, bed: Any, tmp_path: Path
) -> None:
    """The sk_buff of data that was joined to earlier data is free before the data is ready: its place may be taken."""
    sender, reader = bed.host("sender"), bed.host("reader")
    address = bed.link(sender, reader).address(reader)
    profile = PathProfile(tmp_path / "log", netns=reader.namespace, stages=STAGES, packets_max=1024)
    with connection(sender, reader, address, 9009) as (active, passive):
        transfer_for(active, passive, SENDING_S)
    check_balance(profile.stop().ledger)
    packets = PathLog(tmp_path / "log").packets
    ready = packets.filter(pc.and_(pc.is_valid(packets["tcp_receive_ns"]), pc.is_valid(packets["data_ready_ns"])))
    assert ready.num_rows > 1000
    times_ns = ready["data_ready_ns"]
    wrong = pc.or_(pc.less(times_ns, ready["tcp_receive_ns"]), pc.greater(times_ns, 1_000_000_000 * SENDING_S))
    of_another = ready.filter(wrong)
    assert of_another.num_rows == 0, f"of {ready.num_rows} packets: {of_another.slice(0, 3).to_pylist()}"
