"""The examples of docs/model.md run as they stand."""

import re
from pathlib import Path

from parshall.model import MODELS

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "model.md"


def test_the_examples_run() -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    assert len(blocks) == 3
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)


def test_every_built_in_model_stands_on_the_page() -> None:
    for name in MODELS:
        assert f"`{name}`" in (DOCS / "published-models.md").read_text()
