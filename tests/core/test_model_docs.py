"""The examples of docs/model.md run as they stand."""

import re
from pathlib import Path

import pytest

from parshall.model import MODELS

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "model.md"


# The plan takes nearly all of the time: it is shorter here, and as it stands in the long suite.
PLAN_S = "duration_s=0.3)"


@pytest.mark.parametrize("plan_s", ["duration_s=0.05)", pytest.param(PLAN_S, marks=pytest.mark.long)])
def test_the_examples_run(plan_s: str) -> None:
    page = PAGE.read_text()
    assert page.count(PLAN_S) == 1
    blocks = re.findall(r"```python\n(.*?)```", page.replace(PLAN_S, plan_s), flags=re.DOTALL)
    assert len(blocks) == 3
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)


def test_every_built_in_model_stands_on_the_page() -> None:
    for name in MODELS:
        assert f"`{name}`" in (DOCS / "published-models.md").read_text()
