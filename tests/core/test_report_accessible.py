"""Reports for those who use a keyboard, or hear a page: no violation that axe knows."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from axe_playwright_python.sync_playwright import Axe
from made_log import log_of, many_flows
from test_lab import study_of, write_bundle

from parshall.lab import evaluate
from parshall.lab.report import write_report as write_study
from parshall.report import write_report
from suites import long_except

if TYPE_CHECKING:
    from playwright.sync_api import Browser

SIZES = {"wide": (1300, 900), "middle": (800, 900), "phone": (390, 800)}


def of_logs(directory: Path) -> Path:
    logs = {name: log_of(many_flows(flows, 50, np.random.default_rng(flows))) for name, flows in (("a", 2), ("b", 30))}
    return write_report(logs, directory, "Two logs", images=False)


def of_a_study(directory: Path) -> Path:
    study = study_of()
    bundle = write_bundle(directory / "b", study, {1: [1.0, 2.0, 1.5], 2: [2.0, 3.0, 2.5], 3: [9.0, 8.0, 8.5]})
    evaluate(bundle, study)
    return write_study([bundle.directory])


@pytest.mark.parametrize(
    ("size", "scheme"), long_except([("phone", "dark")], list(itertools.product(SIZES, ("light", "dark"))))
)
@pytest.mark.parametrize("made", [of_logs, of_a_study])
def test_a_report_is_accessible(
    made: Callable[[Path], Path], size: str, scheme: Any, tmp_path: Path, browser: "Browser"
) -> None:
    path = made(tmp_path)
    width, height = SIZES[size]
    # The page allows no script but its own.
    with browser.new_context(
        viewport={"width": width, "height": height}, color_scheme=scheme, bypass_csp=True
    ) as context:
        page = context.new_page()
        page.goto(path.as_uri())
        page.wait_for_function(
            "[...document.querySelectorAll('.chart')].every((each) => each.querySelector('svg.marks, canvas'))"
        )
        found = Axe().run(page)
        assert found.violations_count == 0, found.generate_report()
