"""Events and histograms of a run: what is written comes back, and a resume cuts what is done again."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from manual_clock import ManualClock

from hone.core.errors import DataError
from hone.run.store.events import EventLog, RunEvent, parse_event, read_events
from hone.run.store.histograms import BUCKETS, HISTOGRAMS, HistogramLog, histogram, histograms, read_histograms


def written(folder: Path) -> EventLog:
    log = EventLog(folder / "events.jsonl", ManualClock())
    log.append(0, "start", "begins", {"steps": 9})
    log.append(4, "checkpoint", "checkpoint of step 4", {"score": math.nan, "folder": "checkpoints/step_00000004"})
    log.append(6, "alarm", "entropy fell")
    log.append(7, "stop", "stopped by SIGTERM")
    return log


def test_events_come_back(tmp_path: Path) -> None:
    log = written(tmp_path)
    read, faults = read_events(tmp_path)
    assert faults == []
    now = log.clock.now_s()
    assert read[0] == RunEvent(step=0, at_s=now, kind="start", words="begins", data={"steps": 9})
    assert read[1].data == {"score": None, "folder": "checkpoints/step_00000004"}, "a NaN is null"
    assert [one.kind for one in read] == ["start", "checkpoint", "alarm", "stop"]
    assert read_events(tmp_path / "elsewhere").events == []


def test_a_resume_cuts_the_events_of_steps_that_are_done_again(tmp_path: Path) -> None:
    log = written(tmp_path)
    with log.path.open("ab") as file:
        file.write(b'{"step": 8, "at_s"')  # a kill in the middle of a line
    assert log.cut_after(4) == 2
    assert [(one.step, one.kind) for one in read_events(tmp_path).events] == [
        (0, "start"), (4, "checkpoint"), (7, "stop"),
    ], "the end of the process did happen"  # fmt: skip
    before = log.path.read_bytes()
    assert log.cut_after(4) == 0
    assert log.path.read_bytes() == before
    assert EventLog(tmp_path / "absent.jsonl", ManualClock()).cut_after(1) == 0


def test_damaged_and_younger_lines_are_told(tmp_path: Path) -> None:
    log = written(tmp_path)
    with log.path.open("ab") as file:
        file.write(b'{"step": 8}\nnonsense\n{"step": 9, "at_s": 1, "kind": "eclipse", "words": "dark"}\n{"st')
    read, faults = read_events(tmp_path)
    assert [(one.step, one.kind) for one in read[4:]] == [(9, "notice")], "a kind of a later version is shown"
    assert [str(tmp_path / "events.jsonl:5") in faults[0], "is not JSON" in faults[1]] == [True, True]
    with pytest.raises(DataError, match="here is no event"):
        parse_event(b"[1]", "here")


FLOATS = st.floats(-1e9, 1e9, allow_subnormal=False)


@given(st.lists(FLOATS | st.just(math.nan) | st.just(math.inf), max_size=50))
def test_a_histogram_counts_every_finite_value_once(values: list[float]) -> None:
    """The slow version: each value by itself, and the last bucket holds its upper edge."""
    made, known = histogram(np.array(values)), [value for value in values if math.isfinite(value)]
    if not known:
        assert made is None
        return
    assert made is not None
    assert (made.low, made.high, made.counts.sum()) == (min(known), max(known), len(known))
    slow = [0] * BUCKETS
    for value in known:
        width = (made.high - made.low) / BUCKETS
        slow[0 if not width > 0 else min(BUCKETS - 1, int((value - made.low) / width))] += 1
    assert made.counts.tolist() == slow


def test_a_histogram_by_hand() -> None:
    made = histogram(np.array([0, 1, 31, 32, 16.5, 16.5]))
    assert made is not None
    assert np.flatnonzero(made.counts).tolist() == [0, 1, 16, 31]
    assert made.counts[[0, 1, 16, 31]].tolist() == [1, 1, 2, 2]
    assert made.edges.tolist() == list(range(33))


@given(st.lists(st.lists(st.floats(width=32), max_size=12), max_size=6))
def test_histograms_of_many_columns_are_those_of_each(columns: list[list[float]]) -> None:
    made = histograms([np.array(column, np.float32) for column in columns])
    for column, one in zip(columns, made, strict=True):
        alone = histogram(np.array(column, np.float32))
        assert (one is None) == (alone is None)
        if one is not None and alone is not None:
            assert (one.low, one.high, one.counts.tolist()) == (alone.low, alone.high, alone.counts.tolist())


def test_histograms_come_back_and_are_cut(tmp_path: Path) -> None:
    log = HistogramLog(path=tmp_path / HISTOGRAMS)
    for step in (1, 2, 3):
        log.append(step, {"reward": np.arange(step + 1), "ratio": np.full(3, np.nan)})
    log.write()
    with log.path.open("ab") as file:
        file.write(b'{"step": 4, "rew')
    log.cut_after(2)
    assert [json.loads(line)["step"] for line in log.path.read_text().splitlines()] == [1, 2]
    read = read_histograms(tmp_path)
    assert list(read) == ["reward"], "nothing is known of the ratio"
    steps, made = read["reward"]
    assert (steps.tolist(), made[1].high, made[1].counts.sum()) == ([1, 2], 2.0, 3)
    assert read_histograms(tmp_path / "elsewhere") == {}


def test_histograms_are_written_together_and_as_they_were(tmp_path: Path) -> None:
    log = HistogramLog(path=tmp_path / HISTOGRAMS)
    scores = np.zeros(2)
    for step in (1, 2, 3):
        scores[:] = step
        log.append(step, {"reward": scores})
        scores[:] = -1  # a buffer that is used again
    assert not log.path.exists()
    log.write()
    log.write()
    steps, made = read_histograms(tmp_path)["reward"]
    assert (steps.tolist(), [one.low for one in made]) == ([1, 2, 3], [1.0, 2.0, 3.0])
