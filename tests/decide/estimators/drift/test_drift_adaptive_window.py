"""ADWIN: golden alarms of River, a slow version that keeps every value, and its false alarms."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from drift_streams import bernoulli, golden_streams, normal

from hone.core.errors import DataError
from hone.decide.estimators.drift.detector import AdaptiveWindow

GOLDEN = Path(__file__).resolve().parents[3] / "fixtures" / "adwin_alarms.json"


def alarms_of(stream: np.ndarray) -> list[list[int]]:
    detector = AdaptiveWindow()
    return [[place, detector.kept] for place, value in enumerate(stream.tolist()) if detector.update(value)]


def slow_alarms(stream: np.ndarray, *, delta: float = 0.002, every: int = 32) -> list[list[int]]:
    """ADWIN on buckets that hold their values, with sums taken anew each time."""
    rows: list[list[np.ndarray]] = [[]]
    found: list[list[int]] = []
    seen = 0

    def cut() -> bool:
        window = np.concatenate([bucket for row in reversed(rows) for bucket in row])
        borders = np.cumsum([len(bucket) for row in reversed(rows) for bucket in row])[:-1]
        log = math.log(2 * math.log(len(window)) / delta)
        for border in borders:
            older, newer = window[:border], window[border:]
            if min(len(older), len(newer)) < 5:
                continue
            m = 1 / (len(older) - 4) + 1 / (len(newer) - 4)
            if abs(older.mean() - newer.mean()) > math.sqrt(2 * m * window.var() * log) + 2 / 3 * log * m:
                return True
        return False

    for place, value in enumerate(stream):
        rows[0].append(np.array([value]))
        for row in range(len(rows)):
            if len(rows[row]) == 6:
                rows += [[]] if row + 1 == len(rows) else []
                rows[row + 1].append(np.concatenate(rows[row][:2]))
                del rows[row][:2]
        seen += 1
        if seen % every == 0 and cut():
            while cut():
                oldest = max(row for row in range(len(rows)) if rows[row])
                del rows[oldest][0]
            found.append([place, sum(len(bucket) for row in rows for bucket in row)])
            rows, seen = [[]], 0
    return found


def test_alarms_are_those_of_river() -> None:
    expected = json.loads(GOLDEN.read_text(encoding="utf-8"))["alarms"]
    assert [alarms_of(stream) for stream in golden_streams()] == expected


@pytest.mark.parametrize("seed", [1, 2])
def test_alarms_are_those_of_a_window_that_keeps_every_value(seed: int) -> None:
    stream = np.concatenate([normal([0.0, 1.0], 300, seed), bernoulli([0.2, 0.9], 250, seed)])
    assert alarms_of(stream) == slow_alarms(stream) != []


def test_memory_grows_with_the_logarithm_of_the_window() -> None:
    detector = AdaptiveWindow()
    for value in normal([0.0], 20_000, 3).tolist():
        detector.update(value)
    assert detector.width == 20_000
    assert sum(detector.state()["lengths"]) < 5 * 14  # type: ignore[arg-type]


def test_the_declared_run_length_holds() -> None:
    detector = AdaptiveWindow(delta=0.02)
    count = sum(map(detector.update, bernoulli([0.3], 30_000, 11).tolist()))
    assert detector.budget.value == 32 / 0.02
    assert count <= 30_000 / detector.budget.value


def test_a_restart_in_the_middle_changes_nothing() -> None:
    stream = bernoulli([0.3, 0.5], 700, 5).tolist()
    whole, first, second = AdaptiveWindow(), AdaptiveWindow(), AdaptiveWindow()
    expected = [whole.update(value) for value in stream]
    found = [first.update(value) for value in stream[:777]]
    second.restore(first.state())
    assert found + [second.update(value) for value in stream[777:]] == expected
    assert (second.width, second.mean, second.recent) == (whole.width, whole.mean, whole.recent)
    with pytest.raises(DataError, match=r"delta = 0\.002, this one 0\.1"):
        AdaptiveWindow(delta=0.1).restore(first.state())


def test_settings_that_make_no_detector_are_refused() -> None:
    with pytest.raises(ValueError, match="delta = 0"):
        AdaptiveWindow(delta=0.0)
