"""Reports of logs that hold both ends of connections: the programs' own count is the reference."""

import json
import sys

import pytest
from tcp_logger import run

import parshall
from parshall.figures import reduce
from parshall.report import write_report

pytestmark = pytest.mark.kernel

# Sends to itself over loopback, on several connections, and prints how many bytes the receiving sockets read.
PROGRAM = """
import json, socket, sys, threading
address, sizes = sys.argv[1], [int(size) for size in sys.argv[2:]]
listener = socket.create_server((address, 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET)
read = []
def take():
    for _ in sizes:
        with listener.accept()[0] as end:
            count = 0
            while part := end.recv(65536):
                count += len(part)
            read.append(count)
            end.sendall(b"done")
taking = threading.Thread(target=take)
taking.start()
for size in sizes:
    with socket.create_connection((address, listener.getsockname()[1])) as end:
        end.sendall(bytes(size))
        end.shutdown(socket.SHUT_WR)
        end.recv(4)
taking.join()
print(json.dumps(read))
"""


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
# On a loopback few packets of 64 KiB may be all: each flow needs a record.
@pytest.mark.parametrize("thinning", [(), ("--ppl", "5")])
def test_a_connection_over_loopback_is_counted_once(root, tmp_path, address, thinning):
    path = tmp_path / "loop.arrow"
    sizes = (3_000_000, 700_000)
    command = [sys.executable, "-c", PROGRAM, address, *map(str, sizes)]
    ended = run("tcp", "-o", path, *thinning, "--", *command)
    assert ended.returncode == 0, ended.stderr
    read = json.loads(ended.stdout.splitlines()[0])
    assert read == list(sizes)
    reduced = reduce(parshall.read(path))
    ends = {row["flow"]: row for row in reduced.table.iter_rows(named=True)}
    assert len(ends) == 4
    for row in ends.values():
        other = ends[row["other_end"]]
        assert (row["local_port"], row["remote_port"]) == (other["remote_port"], other["local_port"])
        assert row["is_counted"] != other["is_counted"]
        assert row["is_counted"] == (not row["passive"])
    # As the kernel counts, also what is thinned out: SYN and FIN of each connection are a byte each.
    assert reduced.counted_bytes == sum(read) + 4
    if thinning:
        return
    page = write_report({"loop": parshall.read(path)}, tmp_path, "Loop", images=False)
    words = " ".join(page.read_text().split())
    assert "Both ends of 2 connections are in the log" in words
    assert "moved 3.0 MB" in words and "(81%)" in words
    assert "3.7 MB of 2 connections, 4 flows" in words
