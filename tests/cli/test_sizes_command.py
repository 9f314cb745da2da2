"""``parshall sizes`` as a command."""

import json

import pytest

import in_process


def run(*arguments, stdin=""):
    return in_process.parshall("sizes", *arguments, stdin=stdin)


def test_every_conversion_between_formats(tmp_path):
    dist = run("--from", "sizes", "--to", "dist", stdin="40 40 40 1500\n52\n")
    assert dist.stdout == "40 3\n52 1\n1500 1\n"
    procfs = run("-s", stdin=dist.stdout)
    assert procfs.stdout.splitlines()[0] == 'pgset "dist 1000 20 1500 3 0"'
    assert 'pgset "outl 40 600"' in procfs.stdout
    sizes = run("-I", "procfs", "-O", "sizes", "-n", "1000", stdin=procfs.stdout)
    drawn = sizes.stdout.split()
    assert len(drawn) == 1000 and set(drawn) == {"40", "52", "1500"}
    back = run("--from", "procfs", "--to", "dist", "-n", "5", stdin=procfs.stdout)
    assert back.stdout == dist.stdout
    (tmp_path / "a").write_text(dist.stdout)
    both = run(str(tmp_path / "a"), str(tmp_path / "a"), "--to", "dist", "--separator", " ")
    assert both.stdout.startswith("40 6\n")


def test_verify_reports_as_text_and_json():
    result = run("thesis", "--verify", "-n", "100000", "--json")
    report = json.loads(result.stderr)
    assert report["comparison"]["draws"] == 100_000
    assert 0 < report["comparison"]["bins_distance"] < report["comparison"]["drawn_distance"] < 0.1
    assert "distance (total variation)" in run("thesis", "--verify", "-n", "1000").stderr


@pytest.mark.parametrize("suffix", [".html", ".png", ".svg"])
def test_it_plots(tmp_path, suffix):
    path = tmp_path / f"plot{suffix}"
    assert run("thesis", "--to", "plot", "-o", str(path)).returncode == 0
    assert path.stat().st_size > 10_000


def test_wrong_requests_are_one_line(tmp_path):
    bad = tmp_path / "bad"
    bad.write_text("40\n")
    for arguments, status in [
        (("--from", "nothing"), 2),
        (("--to", "nothing"), 2),
        (("--separator", "ab"), 2),
        (("-n", "-1"), 2),
        (("--precision", "0", "thesis"), 2),
        (("--outlier", "0", "thesis"), 2),
        (("--from", "live"), 2),
        (("--from", "procfs", "a", "b"), 2),
        (("thesis", "--to", "plot", "-o", "plot.txt"), 2),
        ((str(bad),), 1),
        (("--from", "sizes", str(tmp_path / "none")), 2),
        (("--from", "dist", "-"), 1),
        (("--from", "live", "-i", "nosuchif", "--duration", "1"), 2),
    ]:
        result = run(*arguments)
        assert result.returncode == status, (arguments, result)
        assert result.stderr.startswith("parshall: sizes: ") and result.stderr.count("\n") == 1, result.stderr


def test_sizes_above_the_maximum_are_reported():
    result = run("--from", "sizes", stdin="40 1600 9000\n")
    assert "2 of 3 packets are above 1500 bytes, and the distribution leaves them out" in result.stderr
    assert result.returncode == 0


def test_counts_have_sizes_above_the_maximum_too():
    result = run("--from", "sizes", "--to", "dist", stdin="40 1600 9000\n")
    assert (result.returncode, result.stdout, result.stderr) == (0, "40 1\n1600 1\n9000 1\n", "")
