"""Conversions read by small readers that know only docs/formats/conversions.md, compared with the rows of the log.

Of Parshall, only `convert` runs: the test writes the logs byte by byte, and the readers split strings and unpack bytes.
"""

import ipaddress
import struct
from pathlib import Path
from typing import Any

import pytest
from written_log import COLUMNS, NAMES, batch_of, flow_row, random_columns, write_log

from parshall.instruments.tcp_log import convert

BEGIN_NS = 1_700_000_000_000_000_000
# By the index of Linux's states, from UNKNOWN to NEW_SYN_RECV.
FREEBSD_STATE = [0, 4, 2, 3, 6, 9, 10, 0, 5, 8, 1, 7, 3]
RFC_4898_STATE = [1, 5, 3, 4, 6, 7, 11, 1, 8, 9, 2, 10, 4]
NEW_SYN_RECV = 12
SSTHRESH_MAX_BYTES = 65535 << 14
FIN, SYN, RST, ECE = 1, 2, 4, 64
U32 = 0xFFFFFFFF

FLOWS = {
    1: flow_row(1, first_time_ns=BEGIN_NS),
    2: flow_row(
        2,
        local_address="2001:db8::a:1",
        remote_address="fe80::1",
        ip_version=6,
        congestion_control="bbr",
        passive=True,
        ecn=False,
        first_time_ns=BEGIN_NS,
    ),
    3: flow_row(
        3,
        sack=False,
        timestamps=False,
        ecn=False,
        window_scaling=False,
        packets_thinned=17,
        mss_clamp_bytes=536,
        first_time_ns=BEGIN_NS,
    ),
    4: flow_row(4, local_port=9, first_time_ns=BEGIN_NS),  # It has no row.
}
SYSCTL = {"net.ipv4.tcp_timestamps": "1", "net.ipv4.tcp_sack": "0", "net.ipv4.tcp_ecn": "2"}
LEDGER_LOST, LEDGER_THINNED = 5, 11


@pytest.fixture(scope="module")
def log(tmp_path_factory) -> tuple[Path, list[dict[str, Any]]]:
    """Return a log with values of all sizes, and its rows."""
    columns = random_columns(1500, 3, seed=14, begin_ns=BEGIN_NS)
    # Most rows are packets of live connections, and windows and sizes are such that products fit into 32 bits.
    for name, index in (("event", 0), ("state", 1)):
        columns[name] = [index if row % 3 else int(value) for row, value in enumerate(columns[name])]
    columns["event"] = [int(event) for event in columns["event"]]
    for row, event in enumerate(columns["event"]):
        columns["direction"][row] = columns["direction"][row] % 2 if event == 0 else 2
    small = ("mss_bytes", "cwnd_segments", "packets_out", "retrans_out", "sacked_out", "lost_out", "payload_bytes")
    for name in small:
        columns[name] = [int(value) % 3000 for value in columns[name]]
    columns["ssthresh_segments"] = [None if value is None else value % 3000 for value in columns["ssthresh_segments"]]
    # Acknowledgements that repeat, in both directions.
    for row in range(len(columns["flow"])):
        if row % 4 == 0:
            columns["payload_bytes"][row] = 0
        if row % 5 == 0:
            columns["pkt_ack"][row] = columns["snd_una"][row] if columns["direction"][row] == 0 else 7
            columns["rcv_wnd_bytes"][row] = 1000
    path = tmp_path_factory.mktemp("witness") / "log.arrow"
    hooks = [
        {
            "hook": hook,
            "seen": 0,
            "filtered": 0,
            "thinned": LEDGER_THINNED * side,
            "logged": 0,
            "unowned": 0,
            "lost": {"overwritten": LEDGER_LOST * side, "dropped": 0, "missed": 0, "failed": 0, "unwritten": 0},
        }
        for hook, side in (("tcp_ingress", 1), ("tcp_egress", 2))
    ]
    cost = {"programs": [], "reader_cpu_s": 0.0, "wall_s": 0.0, "log_bytes": 0}
    ledger = {"hooks": hooks, "sequence_gaps": 0, "cost": cost, "complete": True}
    environment = {"kernel": {"release": "6.12.41-amd64"}, "sysctl": SYSCTL}
    write_log(path, [batch_of(columns)], list(FLOWS.values()), ledger, environment)
    rows = []
    for index in range(len(columns["flow"])):
        row = {name: columns[name][index] for name in COLUMNS}
        rows.append({name: value if value is None else int(value) for name, value in row.items()})
    return path, rows


def converted(log: tuple[Path, list[dict[str, Any]]], name: str, **options: Any) -> bytes:
    """Return the output of a conversion."""
    output = log[0].with_suffix(f".{name}")
    convert(log[0], name, output, **options)
    return output.read_bytes()


def packets(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows that are packets."""
    return [row for row in rows if row["event"] == 0]


def stamp(row: dict[str, Any]) -> str:
    """Return seconds with six digits of microseconds."""
    return f"{row['time_ns'] // 10**9}.{row['time_ns'] % 10**9 // 1000:06}"


def flight(row: dict[str, Any]) -> int:
    """Return snd_nxt - snd_una."""
    return (row["snd_nxt"] - row["snd_una"]) & U32


def full(address: str) -> str:
    """Return an address with all its groups, without leading zeros."""
    parsed = ipaddress.ip_address(address)
    if parsed.version == 4:
        return address
    return ":".join(f"{int(group, 16):x}" for group in parsed.exploded.split(":"))


def ends(flow: dict[str, Any], write: Any = str) -> list[Any]:
    """Return the four values that name a connection."""
    return [write(flow["local_address"]), flow["local_port"], write(flow["remote_address"]), flow["remote_port"]]


def t_flags(flow: dict[str, Any]) -> int:
    """Return TF_REQ_SCALE, TF_RCVD_SCALE, TF_REQ_TSTMP, TF_RCVD_TSTMP and TF_SACK_PERMIT of tcp_var.h."""
    return 0x60 * flow["window_scaling"] + 0x180 * flow["timestamps"] + 0x200 * flow["sack"]


def ssthresh_bytes(row: dict[str, Any]) -> int:
    """Return snd_ssthresh of FreeBSD, which begins with TCP_MAXWIN << TCP_MAX_WINSHIFT."""
    if row["ssthresh_segments"] is None:
        return SSTHRESH_MAX_BYTES
    return min(row["ssthresh_segments"] * row["mss_bytes"], SSTHRESH_MAX_BYTES)


def shown_by_siftr(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the packets that SIFTR logs: those of connections from ESTABLISHED on."""
    return [row for row in packets(rows) if FREEBSD_STATE[row["state"]] >= 4]


def key_values(line: str) -> dict[str, str]:
    """Return the words of a first or last line."""
    return dict(word.split("=", 1) for word in line.split("\t"))


@pytest.mark.parametrize("version", ["siftr-1.2", "siftr-1.3"])
def test_siftr(log, version):
    head, *data, foot = converted(log, version).decode().splitlines()
    rows = shown_by_siftr(log[1])
    assert len(data) == len(rows) > 500
    new = version == "siftr-1.3"
    assert key_values(head) == {
        "enable_time_secs": "1700000000",
        "enable_time_usecs": "000000",
        "siftrver": "1.3.0" if new else "1.2.4",
        **({} if new else {"hz": "1000", "tcp_rtt_scale": "32"}),
        "sysname": "Linux",
        "sysver": "612041",
        "ipmode": "6",
    }
    write = str if new else full
    for line, row in zip(data, rows, strict=True):
        flow = FLOWS[row["flow"]]
        windows = [row[name] for name in ("snd_wnd_bytes", "rcv_wnd_bytes", "snd_scale", "rcv_scale")]
        buffers = [row[name] for name in ("sndbuf_bytes", "sndbuf_used_bytes", "rcvbuf_bytes", "rcvbuf_used_bytes")]
        state = FREEBSD_STATE[row["state"]]
        in_flight = flight(row)
        if new:
            srtt, rto = row["srtt_us"], row["rto_us"]
            tail = [in_flight, 0, row["flow"], 0]
        else:
            srtt, rto = (row["srtt_us"] * 32 + 500) // 1000, row["rto_us"] // 1000
            taken = row["payload_bytes"] + bool(row["pkt_flags"] & FIN) + bool(row["pkt_flags"] & SYN)
            ahead = (row["pkt_seq"] + taken - row["snd_nxt"]) & U32
            if row["direction"] == 1 and taken and ahead < 1 << 31:
                in_flight = (in_flight + ahead) & U32
            ticks = max(1, (row["srtt_us"] + 500) // 1000) if row["srtt_us"] else 0
            tail = [in_flight, 0, ticks]
        expected = [
            "io"[row["direction"]],
            *([] if new else ["0x00000000"]),
            stamp(row),
            *ends(flow, write),
            ssthresh_bytes(row),
            row["cwnd_segments"] * row["mss_bytes"],
            0x20 * flow["ecn"] if new else 0,
            *windows,
            state,
            row["mss_bytes"],
            srtt,
            int(flow["sack"]),
            t_flags(flow),
            rto,
            *buffers,
            *tail,
        ]
        assert line.split(",") == [str(value) for value in expected]
    words = key_values(foot)
    skipped = [
        [row for row in packets(log[1]) if row["direction"] == side and FREEBSD_STATE[row["state"]] < 4]
        for side in (0, 1)
    ]
    without = [sum(row["state"] == NEW_SYN_RECV for row in rows) for rows in skipped]
    below = [len(rows) - count for rows, count in zip(skipped, without, strict=True)]
    for side, name in enumerate(("inbound", "outbound")):
        lines = sum(row["direction"] == side for row in rows)
        seen = lines + len(skipped[side]) + (LEDGER_LOST + LEDGER_THINNED) * (side + 1)
        assert words[f"num_{name}_tcp_pkts"] == str(seen)
        assert words[f"num_{name}_skipped_pkts_malloc"] == str(LEDGER_LOST * (side + 1))
        assert words[f"num_{name}_skipped_pkts_tcpcb"] == str(below[side])
        assert words[f"num_{name}_skipped_pkts_inpcb"] == str(without[side])
        assert words.get(f"num_{name}_skipped_pkts_mtx") == (None if new else "0")
    assert words["total_skipped_tcp_pkts"] == str(sum(below) + sum(without) + 3 * LEDGER_LOST)
    listed = ["{};{}-{};{}".format(*ends(FLOWS[number], write)) for number in (1, 2, 3)]
    assert words["flow_list"] == ",".join(listed) + ","


def siftr2_text(written: bytes) -> tuple[str, list[tuple[int, ...]], str]:
    """Return the first line, the records as numbers, and the last line of rec_fmt=txt."""
    head, *data, foot = written.decode().splitlines()
    assert int(key_values(foot)["max_str_size"]) == max(len(line) + 1 for line in data)
    records = []
    for line in data:
        identity, direction, *values = line.split(",")
        assert (len(identity), values) == (8, [f"{int(value, 16):x}" for value in values])
        records.append((int(identity, 16), "io".index(direction), *(int(value, 16) for value in values)))
    return head, records, foot


def siftr2_binary(written: bytes) -> tuple[str, list[tuple[int, ...]], str]:
    """Return the same of a file with rec_fmt=binary, whose last line says where records end and how long each is."""
    head, rest = written.split(b"\n", 1)
    body, foot = rest.rstrip(b"\n").rsplit(b"\n", 1)
    size = int(key_values(foot.decode())["record_size"])
    assert (size, len(body) % size) == (72, 0)
    # flowid, direction in a byte with three of padding, 16 words.
    records = list(struct.iter_unpack("<IB3x16I", body))
    return head.decode(), records, foot.decode()


@pytest.mark.parametrize(
    ("name", "rec_fmt", "read"), [("siftr2", "txt", siftr2_text), ("siftr2-binary", "binary", siftr2_binary)]
)
def test_siftr2(log, name, rec_fmt, read):
    head, records_found, foot = read(converted(log, name))
    rows = shown_by_siftr(log[1])
    assert key_values(head) == {
        "enable_time_secs": "1700000000",
        "enable_time_usecs": "000000",
        "siftrver": "2.5",
        "rec_fmt": rec_fmt,
        "sysver": "Linux 6.12.41-amd64",
    }
    first: dict[int, dict[str, Any]] = {}
    records = dict.fromkeys(FLOWS, 0)
    assert len(records_found) == len(rows)
    for found, row in zip(records_found, rows, strict=True):
        flow = FLOWS[row["flow"]]
        first.setdefault(row["flow"], row)
        records[row["flow"]] += 1
        lost = (row["sacked_out"] + row["lost_out"] - row["retrans_out"]) * row["mss_bytes"]
        expected = [
            row["flow"],
            row["direction"],
            (row["time_ns"] - BEGIN_NS) // 10**6,
            row["cwnd_segments"] * row["mss_bytes"],
            ssthresh_bytes(row),
            *(row[name] for name in ("srtt_us", "payload_bytes", "snd_wnd_bytes", "rcv_wnd_bytes")),
            t_flags(flow),
            0x20 * flow["ecn"],
            *(row[name] for name in ("rto_us", "sndbuf_bytes", "sndbuf_used_bytes", "rcvbuf_bytes")),
            row["rcvbuf_used_bytes"],
            min(max(0, flight(row) - lost), U32),
            0,
        ]
        assert found == tuple(expected)
    words = key_values(foot)
    assert words["global_flow_cnt"] == "3"
    assert words["ring_drops"] == str(3 * LEDGER_LOST)
    *listed, rest = words["flow_list"].split(";")
    assert rest == ""
    assert [int(item.split(",")[0], 16) for item in listed] == sorted(first, key=lambda flow: (records[flow], flow))
    for item in listed:
        number = int(item.split(",")[0], 16)
        flow, row = FLOWS[number], first[number]
        expected = [
            flow["ip_version"],
            *ends(flow),
            "linux",
            flow["congestion_control"],
            row["mss_bytes"],
            int(flow["sack"]),
            row["snd_scale"],
            row["rcv_scale"],
            records[number],
            records[number] + flow["packets_thinned"],
        ]
        assert item.split(",")[1:] == [str(value) for value in expected]


def current_ssthresh(row: dict[str, Any]) -> int | None:
    """Return tcp_current_ssthresh of the kernel, in segments; None is infinite."""
    if row["ssthresh_segments"] is None or row["ca_state"] in (2, 3):
        return row["ssthresh_segments"]
    return max(row["ssthresh_segments"], (row["cwnd_segments"] >> 1) + (row["cwnd_segments"] >> 2))


def skb_length(row: dict[str, Any]) -> int:
    """Return the length of the payload; inbound, with the TCP header and the negotiated options."""
    flow = FLOWS[row["flow"]]
    if row["direction"] == 1:
        return row["payload_bytes"]
    options = 12 * flow["timestamps"]
    if row["pkt_flags"] & SYN:
        options += 4 + 4 * flow["window_scaling"] + 4 * (flow["sack"] and not flow["timestamps"])
    return row["payload_bytes"] + 20 + options


def upper(address: str) -> str:
    """Return an address with all digits, in upper case."""
    return ipaddress.ip_address(address).exploded.upper()


def test_ttprobe(log):
    lines = converted(log, "ttprobe").decode().splitlines()
    rows = [row for row in packets(log[1]) if row["state"] != NEW_SYN_RECV]
    assert len(lines) == len(rows)
    for number, (line, row) in enumerate(zip(lines, rows, strict=True)):
        threshold = current_ssthresh(row)
        expected = [
            "io"[row["direction"]],
            stamp(row),
            *ends(FLOWS[row["flow"]], upper),
            number,
            row["mss_bytes"],
            row["srtt_us"],
            row["cwnd_segments"] * row["mss_bytes"],
            0x7FFFFFFF if threshold is None else threshold * row["mss_bytes"],
            *(row[name] for name in ("snd_wnd_bytes", "rcv_wnd_bytes", "state", "snd_una", "snd_nxt")),
            skb_length(row),
        ]
        assert line.split(",") == [str(value) for value in expected]


def test_ttprobe_binary(log):
    written = converted(log, "ttprobe-binary")
    rows = [row for row in packets(log[1]) if row["state"] != NEW_SYN_RECV]
    # struct tcp_log on x86-64; the ports are in network byte order.
    record = struct.Struct("<QQ16s16s2s2sH2x8IBcB5x")
    assert record.size == 96
    assert len(written) == 96 * len(rows)
    read = {b"i": 0, b"o": 0}
    for values, row in zip(record.iter_unpack(written), rows, strict=True):
        seconds, us, source, destination, sport, dport, length, *words, state, direction, family = values
        flow = FLOWS[row["flow"]]
        assert f"{seconds}.{us:06}" == stamp(row)
        for found, name in ((source, "local_address"), (destination, "remote_address")):
            assert found == ipaddress.ip_address(flow[name]).packed.ljust(16, b"\0")
        assert (sport, dport) == (struct.pack(">H", flow["local_port"]), struct.pack(">H", flow["remote_port"]))
        assert length == min(skb_length(row), 65535)
        threshold = current_ssthresh(row)
        assert words == [
            *(row[name] for name in ("snd_nxt", "snd_una", "snd_wnd_bytes", "rcv_wnd_bytes", "cwnd_segments")),
            0x7FFFFFFF if threshold is None else threshold,
            row["srtt_us"],
            row["mss_bytes"],
        ]
        assert (state, family) == (row["state"], 10 if flow["ip_version"] == 6 else 2)
        # Readers of ttprobe files select by these letters.
        read[direction] += 1
    assert read == {letter: sum(row["direction"] == side for row in rows) for side, letter in enumerate((b"i", b"o"))}


class Connection:
    """What RFC 4898 counts of a connection, column by column of docs/formats/conversions.md."""

    def __init__(self, flow: dict[str, Any]) -> None:
        self.flow = flow
        self.shown = False
        self.counts = dict.fromkeys(range(7, 124), 0)
        self.row: dict[str, Any] | None = None
        self.ca_state = 0
        self.sent: tuple[int, int] | None = None
        self.was_duplicate = self.ece_set = False
        self.last_packet_ns = BEGIN_NS
        self.limit: int | None = None
        self.limit_ns = [0, 0, 0]
        self.edges: dict[int, int] = {}

    def most(self, column: int, value: int) -> None:
        """Keep a maximum."""
        self.counts[column] = max(self.counts[column], value)

    def least(self, column: int, value: int) -> None:
        """Keep a minimum."""
        first = column not in self.edges
        self.edges[column] = 1
        self.counts[column] = value if first else min(self.counts[column], value)

    def take(self, row: dict[str, Any]) -> None:
        """Count a row."""
        if row["event"] == 0:
            self.take_packet(row)
        elif row["event"] == 1:
            self.counts[12] += row["payload_bytes"]
        if row["state"] not in (0, NEW_SYN_RECV):
            self.shown |= row["state"] not in (2, 3, 7, 10)
            self.take_state(row)
            self.row = row

    def take_packet(self, row: dict[str, Any]) -> None:
        """Count what is in the packet."""
        counts, flags = self.counts, row["pkt_flags"]
        self.last_packet_ns = row["time_ns"]
        segments = max(1, row["gso_segs"])
        base = 7 if row["direction"] == 1 else 13
        counts[base] += segments
        if row["payload_bytes"]:
            counts[base + 1] += segments
            counts[base + 2] += row["payload_bytes"]
            counts[base + 3] += row["payload_bytes"]
        if flags & SYN:
            counts[102 if row["direction"] == 1 else 103] = row["pkt_seq"]
        ece = flags & (ECE | SYN) == ECE
        bare = not row["payload_bytes"] and not flags & (SYN | FIN | RST)
        if row["direction"] == 1:
            counts[66] += ece and not self.ece_set
            self.ece_set = ece
            sent = (row["pkt_ack"], row["rcv_wnd_bytes"])
            duplicate = bare and sent == self.sent
            counts[64] += duplicate
            counts[62] += duplicate and not self.was_duplicate
            self.was_duplicate, self.sent = duplicate, sent
        else:
            counts[61] += segments if ece and self.flow["ecn"] else 0
            counts[83] += bare and row["packets_out"] > 0 and row["pkt_ack"] == row["snd_una"]

    def take_state(self, row: dict[str, Any]) -> None:
        """Count what is in the state of the connection."""
        counts, before = self.counts, self.row
        mss = row["mss_bytes"]
        cwnd = row["cwnd_segments"] * mss
        in_flight = row["packets_out"] + row["retrans_out"] - row["sacked_out"] - row["lost_out"]
        pipe = max(0, in_flight) * mss
        if before is None:
            self.ca_state = row["ca_state"]
        else:
            # Each change has an event; a row of another CPU may be of the state before, and lie behind it.
            old, state = self.ca_state, row["ca_state"]
            if row["event"] == 2 and state != old:
                self.ca_state = state
                if state == 4 or (state >= 2 and old < 2):
                    counts[25] += 1
                    counts[57] += before["cwnd_segments"] * before["mss_bytes"]
                counts[28] += state == 4
                counts[92] += state == 3
                counts[95] += state == 4 and old == 0
            if state == before["ca_state"] and row["cwnd_segments"] > before["cwnd_segments"]:
                counts[88 if slow_start(before) else 89] += 1
            counts[31] += row["rcv_wnd_bytes"] == 0 != before["rcv_wnd_bytes"]
            counts[34] += row["snd_wnd_bytes"] == 0 != before["snd_wnd_bytes"]
        limited_by_cwnd = max(0, in_flight) >= row["cwnd_segments"]
        limit = 0 if flight(row) + mss > row["snd_wnd_bytes"] else 1 if limited_by_cwnd else 2
        if self.limit is not None and before is not None:
            self.limit_ns[self.limit] += row["time_ns"] - before["time_ns"]
        counts[35 + limit] += limit != self.limit
        self.limit = limit
        for index in range(3):
            counts[38 + index] = self.limit_ns[index] // 10**6
        self.most(22, pipe)
        self.most(30, row["rcv_wnd_bytes"])
        self.most(33, row["snd_wnd_bytes"])
        self.most(52, row["rto_us"] // 1000)
        self.least(53, row["rto_us"] // 1000)
        self.most(78 if slow_start(row) else 79, cwnd)
        if row["ssthresh_segments"] is not None:
            self.most(80, min(row["ssthresh_segments"] * mss, 0x7FFFFFFF))
            self.least(81, min(row["ssthresh_segments"] * mss, 0x7FFFFFFF))
        self.most(100, mss)
        self.least(101, mss)
        unsent = max(0, row["sndbuf_used_bytes"] - flight(row))
        self.most(105, flight(row))
        self.most(117, unsent)
        self.most(119, row["rcvbuf_used_bytes"])
        threshold = row["ssthresh_segments"]
        flow = self.flow
        counts |= {
            11: row["total_retrans"],
            20: mss,
            21: pipe,
            23: row["srtt_us"] // 1000,
            24: row["rto_us"] // 1000,
            26: cwnd,
            27: 0x7FFFFFFF if threshold is None else min(threshold * mss, 0x7FFFFFFF),
            29: row["rcv_wnd_bytes"],
            32: row["snd_wnd_bytes"],
            46: row["rttvar_us"] // 1000,
            48: (row["min_rtt_us"] or 0) // 1000,
            70: row["rcv_scale"] if flow["window_scaling"] else -1,
            71: row["snd_scale"] if flow["window_scaling"] else -1,
            76: RFC_4898_STATE[row["state"]],
            82: [1, 2, 1, 3, 3][row["ca_state"]],
            104: flight(row),
            108: row["snd_una"],
            109: row["snd_nxt"],
            110: row["snd_nxt"],
            113: row["rcv_nxt"],
            116: unsent,
            118: row["rcvbuf_used_bytes"],
        }
        if row["state"] not in (2, 3):
            for column, name in ((111, "snd_una"), (114, "rcv_nxt")):
                step = (row[name] - self.edges.setdefault(column, row[name])) & U32
                if step < 1 << 31:
                    counts[column] += step
                    counts[column + 1] += step
                    self.edges[column] = row[name]

    def line(self, time_ns: int) -> list[str]:
        """Return the line at this time."""
        counts, flow = dict(self.counts), self.flow
        elapsed_us = self.last_packet_ns // 1000 - BEGIN_NS // 1000
        counts |= {
            17: elapsed_us // 10**6,
            18: elapsed_us % 10**6,
            19: BEGIN_NS // 1000,
            67: 2 if flow["passive"] else 1,
            68: flow["advmss_bytes"],
            69: flow["mss_clamp_bytes"],
            # The host offers time stamps, no SACK, and ECN to peers that request it.
            72: 1 if flow["timestamps"] else 3,
            73: 1 if flow["ecn"] else 3 if flow["passive"] else 2,
            74: 1 if flow["sack"] else 2,
            75: 1 if flow["sack"] else 2,
            123: flow["mss_clamp_bytes"],
        }
        # Counters without HC in their name have 32 bits.
        for column in (7, 8, 9, 12, 13, 14, 15, 61, 111, 114):
            counts[column] &= U32
        names = [stamp({"time_ns": time_ns}), str(flow["flow"]), *map(str, ends(flow, upper))]
        return names + [str(int(counts[column])) for column in range(7, 124)]


def slow_start(row: dict[str, Any]) -> bool:
    """Return tcp_in_slow_start of the kernel."""
    return row["ssthresh_segments"] is None or row["cwnd_segments"] < row["ssthresh_segments"]


def same(found: list[list[str]], expected: list[list[str]]) -> None:
    """Compare lines, and name the columns that differ."""
    assert len(found) == len(expected)
    for number, (line, other) in enumerate(zip(found, expected, strict=True)):
        assert len(line) == 123
        wrong = {column + 1: pair for column, pair in enumerate(zip(line, other, strict=True)) if pair[0] != pair[1]}
        assert not wrong, f"line {number}: {wrong}"


def test_web10g(log):
    written = converted(log, "web10g").decode()
    # TEACUP drops lines with small letters.
    assert written == written.upper()
    connections = {number: Connection(flow) for number, flow in FLOWS.items()}
    expected = []
    for row in log[1]:
        connection = connections[row["flow"]]
        connection.take(row)
        if row["event"] == 0 and row["state"] != NEW_SYN_RECV and connection.shown:
            expected.append(connection.line(row["time_ns"]))
    assert len(expected) > 500
    same([line.split(",") for line in written.splitlines()], expected)


def test_web10g_polled(log):
    every_ns = 20_000_000
    written = converted(log, "web10g", every_ns=every_ns).decode()
    connections: dict[int, Connection] = {}
    closed: set[int] = set()
    expected = []
    poll_ns = log[1][0]["time_ns"] + every_ns
    for row in [*log[1], None]:
        while row is None or poll_ns < row["time_ns"]:
            expected += [each.line(poll_ns) for _, each in sorted(connections.items()) if each.shown]
            for number in closed:
                connections.pop(number, None)
            closed.clear()
            poll_ns += every_ns
            if row is None:
                break
        if row is not None:
            connections.setdefault(row["flow"], Connection(FLOWS[row["flow"]])).take(row)
            if NAMES["event"][row["event"]] == "close":
                closed.add(row["flow"])
    assert len(expected) > 50
    same([line.split(",") for line in written.splitlines()], expected)


BOOLS = ("app_limited", "reordering_seen", "can_undo", "original_acked")


def test_csv(log):
    head, *lines = converted(log, "csv").decode().splitlines()
    assert head.split(",") == ["local_address", "local_port", "remote_address", "remote_port", *COLUMNS]
    assert len(lines) == len(log[1])
    for line, row in zip(lines, log[1], strict=True):
        values = [str(value) for value in ends(FLOWS[row["flow"]])]
        for name in COLUMNS:
            value = row[name]
            if value is None:
                values.append("")
            elif name in NAMES:
                values.append(NAMES[name][value])
            else:
                values.append(("false", "true")[value] if name in BOOLS else str(value))
        assert line.split(",") == values
