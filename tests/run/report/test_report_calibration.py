"""The report's section about a scorer: its plots and its words, and no section for other runs."""

import math
from dataclasses import replace

from hone.run.report.run_page import calibration_section
from hone.run.store.records import CALIBRATION, CalibrationBin, CalibrationRecord, SelectionRow

RECORD = CalibrationRecord(
    step=6,
    kind="outcomes",
    bins=(
        CalibrationBin(low=0.0, high=0.5, predicted=0.2, observed=0.25, n=40),
        CalibrationBin(low=0.5, high=1.0, predicted=math.nan, observed=math.nan, n=0),
    ),
    figures={"score": 0.75, "auc": math.nan, "temperature": 1.5},
    selection=tuple(
        SelectionRow(n=n, best=0.5, low=0.4, high=0.6, vote=0.45, weighted_vote=0.5, oracle=0.9) for n in (1, 2, 4)
    ),
    warnings=("told",),
)


def test_a_scorer_has_two_plots_and_its_figures() -> None:
    page = calibration_section(RECORD, "h2")
    assert page.count("<svg") == 2
    assert "Observed share of 40 answers by the chance that it gives" in page
    assert "fitted temperature" in page
    assert "AUC" not in page
    assert "vote weighted by the scorer" in page
    assert calibration_section(replace(RECORD, selection=()), "h2").count("<svg") == 1


def test_a_run_without_a_scorer_has_no_section() -> None:
    assert calibration_section(None, "h2") == ""


def test_the_record_is_read_back(tmp_path) -> None:
    assert CALIBRATION.read(tmp_path) is None
    CALIBRATION.write(tmp_path, RECORD)
    found = CALIBRATION.read(tmp_path)
    assert found is not None
    assert replace(found, bins=(), figures={}) == replace(RECORD, bins=(), figures={})
    assert math.isnan(found.bins[1].predicted)
    assert found.figures["score"] == 0.75
