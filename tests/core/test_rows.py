"""Rows of tables, from Python and back, without pandas."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from written_log import listener_row, write_log

from parshall.host.rows import table_of

VALUES = {
    "count": (pa.uint64(), st.integers(0, 2**64 - 1)),
    "time_ns": (pa.timestamp("ns", "UTC"), st.integers(-(2**63) + 1, 2**63 - 1)),
    "name": (pa.string(), st.text()),
    "ended": (pa.bool_(), st.booleans()),
    "share": (pa.float64(), st.floats(allow_nan=False)),
}
ROWS = st.fixed_dictionaries({}, optional={name: st.none() | values for name, (_, values) in VALUES.items()})
SCHEMA = pa.schema([(name, kind) for name, (kind, _) in VALUES.items()])


@given(st.lists(ROWS))
def test_a_table_of_rows_is_what_arrow_makes_of_them(rows: list[dict[str, Any]]) -> None:
    assert table_of(rows, SCHEMA).equals(pa.Table.from_pylist(rows, schema=SCHEMA))


def test_the_listeners_of_a_log_are_read_without_pandas(tmp_path: Path) -> None:
    """Arrow loads it to look at a list, which takes longer than all else of a small report."""
    code = "import sys; from parshall.instruments.tcp_log import Log; rows = Log(sys.argv[1]).listeners.num_rows"
    log = tmp_path / "tcp.arrow"
    write_log(log, [], [], listeners=[listener_row(1)])
    command = [sys.executable, "-c", f"{code}; print(rows, 'pandas' in sys.modules)", log]
    answer = subprocess.run(command, capture_output=True, text=True)
    assert answer.stdout.split() == ["1", "False"], answer.stderr
