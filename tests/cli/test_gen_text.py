"""The summary of the generator as lines of text."""

from parshall.cli.gen_text import account_lines


def account(gap_ns: int) -> dict[str, object]:
    """Return the account of two packets with one gap."""
    rate_pps = 1e9 / gap_ns
    quantiles = [float(gap_ns)] * 7
    return {
        "requested": 2, "sent": 2, "not_sent": 0, "backend": "xdp", "transmitted": 2, "arrived": 2, "lost": 0,
        "lost_counted": 0, "carrier_losses": 0, "rate_pps": rate_pps, "rate_bps": rate_pps * 480,
        "elapsed_ns": gap_ns, "senders": [{}], "sizes": None, "digest": "d", "seed": 1, "sender_cpu_s": 0.0,
        "feeder_cpu_s": 0.0, "starved_runs": 0, "gap_distribution": "constant",
        "gaps": {
            "is_shape_kept": True, "mean_ns": gap_ns, "requested_mean_ns": gap_ns, "mean_spread": 0.0,
            "ks_distance": None, "error_p99": None, "quantiles_ns": quantiles, "requested_quantiles_ns": quantiles,
            "late_quantiles_ns": [0.0] * 7, "late_mean_ns": 0.0, "late_max_ns": 0,
        },
    }  # fmt: skip


def test_long_numbers_stand_apart():
    lines = list(account_lines(account(47_983_948_933)))
    (sent,) = (line for line in lines if line.split()[0] == "sent")
    assert sent.split() == ["sent", *["47,983,948,933"] * 7]
    heads = lines[lines.index(sent) - 1]
    assert len(heads) == len(sent) and heads.endswith("99 %")


def test_a_slow_rate_is_no_rate_of_0():
    lines = list(account_lines(account(48_000_000_000)))
    (rate,) = (line for line in lines if line.startswith("rate"))
    assert "0.0208 packets/s, 10 bit/s of frames" in rate
    (rate,) = (line for line in account_lines(account(1000)) if line.startswith("rate"))
    assert "1,000,000 packets/s, 480.0 Mbit/s of frames" in rate


def test_packets_that_several_cpus_lose_have_a_remedy():
    sender = {"cpu": 0, "sent": 1, "elapsed_ns": 1000, "cpu_s": 0.0, "error": None}
    lossy = account(1000) | {"arrived": 1, "lost": 1, "lost_counted": 1}
    remedy = "ethtool -L IF rx 2 tx 2 at both"
    assert not any(remedy in line for line in account_lines(lossy | {"senders": [sender]}))
    (line,) = (line for line in account_lines(lossy | {"senders": [sender, sender]}) if remedy in line)
    assert "fewer than 2 queues, here or at the other end" in line
    assert not any(remedy in line for line in account_lines(account(1000) | {"senders": [sender, sender]}))
