"""Packet sizes through Python: a distribution of counted sizes, and how far draws from it are."""

import collections
import gzip
import re
import shutil
import struct
import subprocess

import pytest
import vl_convert
from browser import drawn

from parshall.errors import ParshallError, UsageError
from parshall.figures import sizes as figure
from parshall.instruments.sizes import BUILT_IN, Counts, Parameters, SizeDistribution, compare
from parshall.report.figure_file import save


def trace(path, sizes, opened=open):
    """Write a pcap file of IPv4 packets cut off after 34 bytes."""
    with opened(path, "wb") as file:
        file.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 34, 1))
        for number, size in enumerate(sizes):
            header = bytes(12) + b"\x08\x00\x45\x00" + struct.pack(">H", size) + bytes(16)
            file.write(struct.pack("<IIII", number, 0, len(header), size + 14) + header)


def test_from_a_trace_to_procfs_and_back_to_ten_million_sizes(tmp_path):
    drawn = SizeDistribution.from_counts(Counts.built_in("thesis")).draw(200_000, seed=8)
    sizes = [size for size, packets in drawn.pairs for _ in range(packets)]
    trace(tmp_path / "day.pcap.gz", sizes, gzip.open)
    counted = Counts.from_trace(tmp_path / "day.pcap.gz")
    assert counted.pairs == drawn.pairs
    assert counted.ledger["seen"] == counted.ledger["ipv4"] == 200_000

    SizeDistribution.from_counts(counted).write(tmp_path / "day.procfs", surround=True)
    assert (tmp_path / "day.procfs").read_text().startswith('pgset "dist 1000 20 1500 ')
    distribution = SizeDistribution.read(tmp_path / "day.procfs")
    comparison = compare(counted, distribution, drawn=distribution.draw(10_000_000, seed=1))
    for heavy in comparison["heavy_hitters"]:
        assert abs(heavy["drawn_share"] - heavy["counted_share"]) < 0.001, heavy
    bound = comparison["bins_distance"] + comparison["cells_distance"] + 1.2 * comparison["chance_distance"]
    assert comparison["bins_distance"] < comparison["drawn_distance"] <= bound


def test_equal_seeds_draw_equal_sizes(tmp_path):
    distribution = SizeDistribution.from_counts(Counts.built_in("imix"))
    one, two = tmp_path / "one", tmp_path / "two"
    drawn = distribution.write_draws(5000, 3, one)
    distribution.write_draws(5000, 3, two)
    assert one.read_bytes() == two.read_bytes() and Counts.from_sizes(one) == drawn
    distribution.write_draws(5000, 4, two)
    assert one.read_bytes() != two.read_bytes()


@pytest.mark.parametrize("name", BUILT_IN)
def test_built_in_distributions_are_represented(name):
    distribution = SizeDistribution.from_counts(Counts.built_in(name))
    assert sum(distribution.probabilities()) == pytest.approx(1)
    assert sum(packets for _, packets in distribution.expected(10**6).pairs) == pytest.approx(10**6, rel=1e-3)


def test_several_files_are_added_up_with_their_separator(tmp_path):
    counts = Counts([(40, 3), (1500, 1)])
    counts.write(tmp_path / "dist", ":")
    assert (tmp_path / "dist").read_text() == "40:3\n1500:1\n"
    assert Counts.from_dist(tmp_path / "dist", ":") == counts
    assert counts.joined(Counts([(40, 1), (52, 2)])).pairs == [(40, 4), (52, 2), (1500, 1)]


def test_wrong_arguments_are_named(tmp_path):
    with pytest.raises(UsageError, match="expected one of imix"):
        Counts.built_in("nothing")
    with pytest.raises(UsageError, match="--precision 0"):
        SizeDistribution.from_counts(Counts([(40, 1)]), Parameters(precision=0))
    with pytest.raises(UsageError, match="outlier boundary is 0"):
        SizeDistribution.from_counts(Counts([(40, 1)]), Parameters(outlier_share=0.0))
    with pytest.raises(ParshallError, match="no packet sizes from 1 to 1500 bytes"):
        SizeDistribution.from_counts(Counts([]))
    (tmp_path / "bad").write_text("40 1\n52 x\n")
    with pytest.raises(ParshallError, match=r"bad:2: .*expected SIZE COUNT"):
        Counts.from_dist(tmp_path / "bad")
    with pytest.raises(ParshallError, match="cannot be read"):
        Counts.from_sizes(tmp_path / "none")
    (tmp_path / "text").write_text("no trace at all, only words")
    with pytest.raises(ParshallError):
        Counts.from_trace(tmp_path / "text")


@pytest.mark.parametrize(
    ("packets", "labels"),
    [
        ((40, 35, 25), {"30", "40"}),
        ((60, 40), {"40", "50", "60"}),
        ((35, 35, 30), {"30", "35"}),
        ((90_000, 9000, 900, 90, 10), {"100", "10", "1", "0.1", "0.01"}),
    ],
)
def test_the_axis_of_shares_has_several_labels(packets, labels):
    reduced = figure.reduce([(100 * (place + 1), count) for place, count in enumerate(packets)])
    drawing = vl_convert.vegalite_to_svg(figure.draw(reduced, "a few").to_dict())
    assert labels <= set(re.findall(r">([\d.]+)</text>", drawing[: drawing.index("most frequent sizes")]))


def test_a_figure_has_counted_and_generated_sizes(tmp_path):
    counted = Counts.built_in("thesis")
    reduced = figure.reduce(counted.pairs, SizeDistribution.from_counts(counted).expected(10**6).pairs)
    assert set(reduced["origin"]) == {"counted", "generated"}
    first = reduced.row(0, named=True)
    assert (first["size_bytes"], first["rank"]) == (1500, 1)
    assert reduced.filter(reduced["origin"] == "counted")["cumulative"].max() == pytest.approx(100)
    save(figure.draw(reduced, "the thesis"), tmp_path / "sizes.html")
    # The narrowest window that Chromium has.
    document = drawn(tmp_path / "sizes.html", width_px=500)
    assert 'name="viewport" content="width=device-width' in document
    (width_px,) = map(float, re.findall(r'<svg[^>]* class="marks" width="([\d.]+)"', document))
    assert 300 < width_px <= 500 - 2 * 16


def test_packets_behind_the_link_headers_of_other_taps_are_counted(tmp_path):
    packet = b"\x45\x00" + struct.pack(">H", 576) + bytes(16)
    packet6 = b"\x60\x00\x00\x00" + struct.pack(">H", 60) + bytes(34)
    cooked2 = {kind: struct.pack(">HHIHBB8s", kind, 0, 1, 1, 0, 6, bytes(8)) for kind in (0x0800, 0x86DD, 0x0806)}
    for link_type, packets, expected in (
        (276, [cooked2[0x0800] + packet, cooked2[0x86DD] + packet6, cooked2[0x0806] + bytes(28)], (1, 1, 1)),
        (
            0,
            [struct.pack("=I", 2) + packet, struct.pack("=I", 30) + packet6, struct.pack("=I", 7) + bytes(9)],
            (1, 1, 1),
        ),
        (108, [struct.pack(">I", 2) + packet], (1, 0, 0)),
        (228, [packet], (1, 0, 0)),
        (229, [packet6], (0, 1, 0)),
    ):
        path = tmp_path / f"{link_type}.pcap"
        with path.open("wb") as file:
            file.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, link_type))
            for one in packets:
                file.write(struct.pack("<IIII", 1, 0, len(one), len(one)) + one)
        counts = Counts.from_trace(path)
        ledger = counts.ledger
        assert (ledger["ipv4"], ledger["ipv6"], ledger["not_ip"]) == expected, link_type
        assert {size for size, _ in counts.pairs} <= {576, 100}


def test_packets_of_length_0_have_the_length_of_tshark(tmp_path):
    """Segments that the interface is to cut, and jumbograms, cut off by the capture behind their headers."""
    if shutil.which("tshark") is None:
        pytest.skip("needs tshark")
    tcp = struct.pack(">HHIIBBHHH", 1, 2, 0, 0, 0x50, 0x10, 100, 0, 0)

    def ipv4(length):
        return (
            b"\x08\x00"
            + struct.pack(">BBHHHBBH4s4s", 0x45, 0, length, 0, 0, 64, 6, 0, b"\x0a\0\0\1", b"\x0a\0\0\2")
            + tcp
        )

    def ipv6(payload, options=b""):
        header = struct.pack(">IHBB16s16s", 6 << 28, payload, 0 if options else 6, 64, b"\xfd" * 16, b"\xfd" * 16)
        return b"\x86\xdd" + header + options + tcp

    jumbo = struct.pack(">BBBBI", 6, 0, 0xC2, 4, 70_000)
    frames = [
        (ipv4(0), 2974),
        (ipv4(0), 180_014),
        (ipv4(1500), 1514),
        (b"\x81\x00\x00\x05" + ipv4(0), 9018),
        (ipv6(60), 114),
        (ipv6(0, jumbo), 70_054),
    ]
    path = tmp_path / "large.pcap"
    with path.open("wb") as file:
        file.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 262144, 1))
        for rest, wire in frames:
            file.write(struct.pack("<IIII", 1, 0, 12 + len(rest), wire) + bytes(12) + rest)
    fields = [argument for name in ("ip.len", "ipv6.plen", "ipv6.opt.jumbo") for argument in ("-e", name)]
    result = subprocess.run(["tshark", "-r", path, "-T", "fields", *fields], capture_output=True, text=True, check=True)
    sizes = []
    for line in result.stdout.splitlines():
        length, payload, jumbo_payload = line.split("\t")
        sizes.append(int(length) if length else 40 + int(jumbo_payload or payload))
    assert len(sizes) == len(frames)
    counts = Counts.from_trace(path)
    assert dict(counts.pairs) == collections.Counter(sizes)
    assert (counts.ledger["ipv4"], counts.ledger["ipv6"], counts.ledger["length_of_frame"]) == (4, 2, 3)
    # Without the option tshark leaves the length of IPv6 at 0. It is the frame's, as that of IPv4.
    with path.open("wb") as file:
        file.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 262144, 1))
        file.write(struct.pack("<IIII", 1, 0, 12 + len(ipv6(0)), 9014) + bytes(12) + ipv6(0))
    assert Counts.from_trace(path).pairs == [(9000, 1)]
