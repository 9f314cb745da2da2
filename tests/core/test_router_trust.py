"""For how long a calibration may be trusted: what validations left in its file, and what is said of it."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from made_calibration import known
from parshall.cli import model_calibration
from parshall.errors import ParshallError, UsageError
from parshall.router import validation
from parshall.router.calibration import Calibration
from parshall.router.calibration import machine as this_machine
from parshall.router.trust import checks_of, trusted
from parshall.router.validation import Validation

HOUR_S = 3600.0


def check(hours: float, inside: int, of: int = 108) -> dict[str, Any]:
    """Of a validation with three quantiles of each run."""
    return {"age_s": hours * HOUR_S, "runs": of // 3, "inside": inside, "of": of}


def made(hours: float, *checks: dict[str, Any]) -> Calibration:
    """A calibration of this machine that is so old."""
    created = datetime.now(UTC) - timedelta(hours=hours)
    return known(created=created.isoformat(timespec="seconds"), checks=list(checks), machine=this_machine())


def said(capsys: pytest.CaptureFixture[str], calibration: Calibration) -> str:
    model_calibration._warn(calibration, "plan")
    return capsys.readouterr().err


def test_it_is_trusted_until_the_first_validation_that_surely_lacks_nine_of_ten() -> None:
    held, failed = trusted(made(9, check(8, 104), check(1, 100), check(5, 70)))
    assert (held.age_s, failed.age_s) == (HOUR_S, 5 * HOUR_S)
    assert failed.high < 0.9 < held.high
    # 93 of 108 are fewer than nine of ten, but 31 of 36 runs say little.
    held, failed = trusted(made(9, check(1, 93)))
    assert held.low < 93 / 108 < held.high and failed is None
    assert trusted(made(9)) == (None, None)
    assert [each.inside for each in checks_of(made(9, check(2, 5), check(1, 6)))] == [6, 5]


def test_what_is_said_of_an_old_calibration_is_what_was_found(capsys: pytest.CaptureFixture[str]) -> None:
    held, failed = check(1, 100), check(5, 70)
    assert said(capsys, made(0.5, held, failed)) == ""
    between = said(capsys, made(3, held, failed))
    assert (
        "3 h 0 min old; when it was 60 min old, 100 of 108 measured values lay within its 90 % intervals (" in between
    )
    assert "when it was 5 h 0 min old, 70 of 108" in between
    assert between.endswith("; `parshall model validate FILE --keep` tries it at this age\n")
    later = said(capsys, made(6, held, failed))
    assert "when it was 5 h 0 min old, 70 of 108" in later and "100 of 108" not in later
    assert later.endswith("with 95 % confidence): calibrate again\n")
    assert "--beside --keep" in said(capsys, made(6))
    # Where none failed, the last one stands for twice its age.
    assert said(capsys, made(1.9, held)) == ""
    assert "100 of 108" in said(capsys, made(2.1, held))


def found(inside: int, of: int) -> Validation:
    """Runs whose forecasts say 1 to 3 us."""
    same: dict[str, Any] = {
        **{"traffic": "poisson", "load": 0.3, "low_us": 1.0, "network_us": 2.0, "high_us": 3.0, "queue_us": 1.0},
        **{"lost": 0.0, "network_lost": 0.0},
    }
    measured = [2.0] * inside + [9.0] * (of - inside)
    runs = pl.DataFrame({"measured_us": measured, "quantile": ["p50", "p90", "p99"] * (of // 3)})
    return Validation(runs.with_columns(**{name: pl.lit(value) for name, value in same.items()}))


def test_a_validation_keeps_what_it_found_beside_what_others_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "here.toml"
    made(2).write(path)
    monkeypatch.setattr(model_calibration.privileges, "require_bpf", lambda _: None)

    def measured(*_: Any, **__: Any) -> Validation:
        # Another one ends meanwhile.
        now = Calibration.read(path)
        replace(now, checks=[*now.checks, check(1, 99)]).write(path)
        return found(24, 30)

    monkeypatch.setattr(validation, "validate", measured)
    model_calibration.validate(path, "poisson", "0.3", {}, keep=False, quiet=True)
    assert len(Calibration.read(path).checks) == 1
    model_calibration.validate(path, "poisson", "0.3", {}, keep=True, quiet=False)
    *others, own = Calibration.read(path).checks
    assert [each["inside"] for each in others] == [99, 99]
    assert own | {"age_s": 0.0} == {"age_s": 0.0, "runs": 10, "inside": 24, "of": 30}
    assert own["age_s"] == pytest.approx(2 * HOUR_S, abs=60)
    assert "24 of 30 measured values lie within" in capsys.readouterr().err
    # Neither a new calibration nor a full disk takes the table that was measured.
    monkeypatch.setattr(validation, "validate", lambda *_, **__: made(0).write(path) or found(24, 30))
    assert model_calibration.validate(path, "poisson", "0.3", {}, keep=True, quiet=True).height == 3
    assert "nothing was added: " in (text := capsys.readouterr().err) and "was calibrated anew meanwhile" in text
    assert Calibration.read(path).checks == []
    monkeypatch.setattr(validation, "validate", lambda *_, **__: path.unlink() or found(24, 30))
    assert model_calibration.validate(path, "poisson", "0.3", {}, keep=True, quiet=True).height == 3
    assert "nothing was added: " in capsys.readouterr().err
    made(0).write(path)
    replace(Calibration.read(path), machine=this_machine() | {"cpus": 64}).write(path)
    with pytest.raises(UsageError, match=r"--keep: .*here.toml is of another machine"):
        model_calibration.validate(path, "poisson", "0.3", {}, keep=True, quiet=True)


def test_a_file_without_validations_is_read_and_a_wrong_one_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "here.toml"
    made(1).write(path)
    text = path.read_text()
    path.write_text(text.replace("checks = []\n", ""))
    assert Calibration.read(path).checks == []
    for wrong in (check(-1, 3), check(1, 109), check(1, 3) | {"runs": 0}, check(1, 3) | {"of": 5}):
        with pytest.raises(ParshallError, match="checks: expected an age_s from 0 to"):
            made(1, wrong).check()
    made(1, check(1, 3)).write(path)
    path.write_text(path.read_text().replace("inside = 3", 'inside = "3"'))
    with pytest.raises(ParshallError, match=r"checks.inside: '3'; expected int"):
        Calibration.read(path)
