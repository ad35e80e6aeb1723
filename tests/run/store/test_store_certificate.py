"""`certificate.json`: written and read back, damaged, and shown in the report."""

from pathlib import Path

import pytest
from manual_clock import ManualClock

from hone.core.config import ConfigSetting
from hone.core.errors import DataError, HoneError
from hone.run.report.run_page import write_report
from hone.run.store.folder import create_run
from hone.run.store.manifest import RunMetadata
from hone.run.store.records import (
    CERTIFICATE,
    TOLERANCE,
    GradientCertificate,
    GradientCheck,
    read_certificate,
    write_certificate,
)

GOOD = GradientCheck(name="another order", detail="5 rows shuffled", difference=3e-17, relative=2e-16)
BAD = GradientCheck(name="two shards, summed", detail="every other row", difference=0.5, relative=0.25)
LOST = GradientCheck(
    name="NaN where nothing was decided", detail="prompts", difference=float("nan"), relative=float("nan")
)


def of(*checks: GradientCheck) -> GradientCertificate:
    return GradientCertificate(
        recipe="grpo", config_hash="abc", batch="20 sequences", checks=checks, versions={"hone": "0.1.0"}
    )  # fmt: skip


def test_what_is_written_is_read(tmp_path: Path) -> None:
    assert read_certificate(tmp_path) is None
    write_certificate(tmp_path, of(GOOD, BAD))
    assert read_certificate(tmp_path) == of(GOOD, BAD)
    write_certificate(tmp_path, of(LOST))
    found = read_certificate(tmp_path)
    assert found is not None and not found.passed and found.checks[0].name == LOST.name


def test_rounding_passes_and_nothing_else_does() -> None:
    assert GradientCheck(name="", detail="", difference=1.0, relative=TOLERANCE).passed
    assert not GradientCheck(name="", detail="", difference=1.0, relative=1.01 * TOLERANCE).passed
    assert not LOST.passed
    assert of(GOOD).passed and not of(GOOD, BAD).passed and not of(GOOD, LOST).passed
    assert not of().passed, "nothing was tried"


def test_the_line_names_what_failed() -> None:
    assert (
        of(GOOD).summary().startswith("the gradient does not depend on the split of a batch: 1 splits agree to 2.0e-16")
    )
    line = of(GOOD, BAD, LOST).summary()
    assert "two shards, summed (relative difference 2.5e-01)" in line and "NaN where" in line and "another" not in line


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"recipe": "x", "config_hash": "", "batch": "", "checks": [1], '
                                  '"versions": {}}'])  # fmt: skip
def test_damaged(tmp_path: Path, text: str) -> None:
    (tmp_path / CERTIFICATE).write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=CERTIFICATE):
        read_certificate(tmp_path)


def test_the_report_says_it_in_a_line(tmp_path: Path) -> None:
    config = {"lr": ConfigSetting(value=0.5)}
    with create_run(
        tmp_path, "r", config=config, metadata=RunMetadata(hone_version="1"), clock=ManualClock()
    ) as folder:
        assert "checked on a smaller copy" not in write_report(folder.path).read_text(encoding="utf-8")
        write_certificate(folder.path, of(GOOD))
        assert "1 splits agree to 2.0e-16" in write_report(folder.path).read_text(encoding="utf-8")
        (folder.path / CERTIFICATE).write_text("{", encoding="utf-8")
        assert "Could not be read" in write_report(folder.path).read_text(encoding="utf-8")


def test_a_certificate_alone_does_not_keep_a_run_that_failed(tmp_path: Path) -> None:
    folder = create_run(tmp_path, "r", config={}, metadata=RunMetadata(hone_version="1"), clock=ManualClock())
    write_certificate(folder.path, of(GOOD))
    folder.discard_unused()
    folder.close()
    assert not folder.path.exists()


def test_there_is_no_certificate_of_a_fault() -> None:
    assert HoneError.exit_code == 1, "what `hone doctor loss` ends with where a gradient depends on the cut"
