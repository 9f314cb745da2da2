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

"""
DATA_READY = 'SEC("tp_btf/sk_data_ready")\n'
PASS = "static __always_inline int pass("
READ = "\t/* What was read above may be the other packet's. */\n"
# Between the look at a packet and the note of its time, for which programs stop.
CHANGES = {
    "data_ready_ns": {
        "path_read.h": [
            (f"\n{DATA_READY}", STALL + DATA_READY),
            ("\tpacket->offset_ns[STAGE_DATA_READY] =", "\tstall();\n\tpacket->offset_ns[STAGE_DATA_READY] ="),
        ]
    },
    "tcp_receive_ns": {
        "path_begin.h": [
            (f"\n{PASS}", f"\n{STALL}{PASS}"),
            (READ, f"\tif (stage == STAGE_TCP_RECEIVE)\n\t\tstall();\n{READ}"),
        ]
    },
}


@pytest.mark.skipif(GIVEN is not None, reason="the objects are given")
@pytest.mark.parametrize(("name", "before"), [("data_ready_ns", "tcp_receive_ns"), ("tcp_receive_ns", "socket_in_ns")])
def test_the_time_of_a_stage_is_not_that_of_the_packet_that_took_its_place(
    monkeypatch: pytest.MonkeyPatch, bed: Any, tmp_path: Path, name: str, before: str
) -> None:
    """The sk_buff of data that was joined to earlier data is free before the data is ready: its place may be taken.

    So may the place of a packet in a full table, at any stage.
    """
    monkeypatch.setenv("PARSHALL_BPF_OBJECTS", str(compiled(tmp_path, "path", CHANGES[name])))
    sender, reader = bed.host("sender"), bed.host("reader")
    address = bed.link(sender, reader).address(reader)
    profile = PathProfile(tmp_path / "log", netns=reader.namespace, stages=STAGES, packets_max=1024)
    with connection(sender, reader, address, 9009) as (active, passive):
        transfer_for(active, passive, SENDING_S)
    check_balance(profile.stop().ledger)
    packets = PathLog(tmp_path / "log").packets
    both = packets.filter(pc.and_(pc.is_valid(packets[before]), pc.is_valid(packets[name])))
    assert both.num_rows > 1000
    wrong = pc.or_(pc.less(both[name], both[before]), pc.greater(both[name], 1_000_000_000 * SENDING_S))
    of_another = both.filter(wrong)
    assert of_another.num_rows == 0, f"of {both.num_rows} packets: {of_another.slice(0, 3).to_pylist()}"
