"""What `show` prints above its table."""

from typing import Any

import pytest

from parshall.cli.show import _account_lines

ACCOUNT: dict[str, Any] = {
    "seen": 1_100,
    "filtered": 100,
    "thinned": 0,
    "logged": 950,
    "lost": {"overwritten": 0, "failed": 50},
    "reader_cpu_share": 0.013,
    "hooks_ns": [200.4, 899.6],
}


@pytest.mark.parametrize(("seen", "rest"), [(1_100, ""), (1_180, " + under way 80")])
def test_the_account_is_an_equation_also_while_a_log_is_written(seen: int, rest: str) -> None:
    (line,) = _account_lines(ACCOUNT | {"seen": seen})
    lost = "lost 50 (50 failed)"
    cost = "cost: reader 1.3% of a CPU, hooks 200 to 900 ns"
    assert line == f"seen {seen:,} = filtered 100 + thinned 0 + logged 950 + {lost}{rest}; {cost}"


def test_one_time_of_hooks_is_no_range() -> None:
    (line,) = _account_lines(ACCOUNT | {"hooks_ns": [581.2, 580.9]})
    assert line.endswith(", hooks 581 ns")


def test_before_the_first_account_there_is_none() -> None:
    assert list(_account_lines(None)) == ["no account yet"]
