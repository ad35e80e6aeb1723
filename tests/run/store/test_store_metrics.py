"""metrics.jsonl: strict JSON, healed, cut, read back, and comparable byte for byte."""

import json
import math
import os
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hone.core.errors import ResourceError
from hone.run.store import durable
from hone.run.store.metrics import (
    metric_catalogue,
    metrics_line,
    open_metrics,
    read_metrics,
    repair_last_line,
    truncate_after,
    without_clock_metrics,
)


def write(path, steps):
    writer = open_metrics(path).writer
    for step in steps:
        writer.append(step, {"reward/mean": step / 3, "time/step_s": 0.5})
    writer.close()


def test_a_line_by_hand(tmp_path):
    assert metrics_line(3, {"b": 0.1, "a": 2}) == '{"step": 3, "b": 0.1, "a": 2}\n'


def test_non_finite_is_null_and_named():
    line = metrics_line(1, {"loss": math.nan, "kl": -math.inf, "lr": np.float32(0.5)})
    assert line == '{"step": 1, "loss": null, "kl": null, "lr": 0.5, "non_finite": ["loss", "kl"]}\n'


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_floats_come_back_with_the_same_bits(value):
    back = json.loads(metrics_line(1, {"x": value}))["x"]
    assert float(back).hex() == value.hex()


@pytest.mark.parametrize("name", ["step", "non_finite"])
def test_names_of_the_format_are_refused(name):
    with pytest.raises(ValueError, match=name):
        metrics_line(1, {name: 1.0})


def test_steps_must_grow(tmp_path):
    writer = open_metrics(tmp_path / "m").writer
    writer.append(2, {})
    with pytest.raises(ValueError, match="step 2"):
        writer.append(2, {})
    writer.close()
    writer.close()


def test_a_line_is_out_of_the_process_before_close(tmp_path):
    writer = open_metrics(tmp_path / "m").writer
    writer.append(1, {"x": 1})
    assert (tmp_path / "m").read_text() == '{"step": 1, "x": 1}\n'
    writer.close()


def test_every_cut_of_the_last_line_heals_to_the_lines_before(tmp_path):
    path = tmp_path / "metrics.jsonl"
    write(path, [1, 2])
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    for length in range(first, len(whole)):
        path.write_bytes(whole[:length])
        message = repair_last_line(path)
        assert path.read_bytes() == whole[:first]
        assert (message is None) == (length == first)
    path.write_bytes(whole)
    assert repair_last_line(path) is None
    assert path.read_bytes() == whole


def test_resume_cuts_torn_and_later_lines_and_says_so(tmp_path):
    path = tmp_path / "metrics.jsonl"
    write(path, [1, 2, 3, 4, 5])
    straight = path.read_bytes()
    with path.open("ab") as file:
        file.write(b'{"step": 6, "rew')
    opened = open_metrics(path, after_step=3)
    assert len(opened.repairs) == 2
    assert "torn" in opened.repairs[0]
    assert "2 lines after step 3" in opened.repairs[1]
    for step in (4, 5):
        opened.writer.append(step, {"reward/mean": step / 3, "time/step_s": 0.5})
    opened.writer.close()
    assert path.read_bytes() == straight


def test_cut_after_the_end_changes_nothing(tmp_path):
    path = tmp_path / "m"
    write(path, [1, 2])
    assert truncate_after(path, 2) == 0
    assert truncate_after(path, 0) == 2
    assert path.read_bytes() == b""


DAMAGE = [
    b'{"ste', b"", b"\xff\xfe\x00garbage", b"\0" * 40, b"[1, 2]", b'{"loss": 1}', b'{"step": 2.5}', b'{"step": true}',
    b'{"step": 2, "loss": NaN}', b'{"step": 99999999999999999999999}', b'{"step": -4}', b'{"step": 2, "lo{"step": 3}',
    b'{"step": 1}', b'{"step": 900}', b"[" * 100_000,
]  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE, ids=range(len(DAMAGE)))
def test_a_damaged_line_in_the_middle_is_left_out_named_and_healed(tmp_path, damage):
    path = tmp_path / "metrics.jsonl"
    write(path, [1, 2, 3, 4, 5])
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:1], damage + b"\n", *lines[2:]]))
    found = read_metrics(path)
    assert found.steps.tolist() == [1, 3, 4, 5]
    (fault,) = found.faults
    assert f"{path}:2" in fault
    assert len(fault) < 400
    opened = open_metrics(path, after_step=4)
    opened.writer.append(5, {"reward/mean": 5 / 3, "time/step_s": 0.5})
    opened.writer.close()
    assert path.read_bytes() == b"".join([*lines[:1], *lines[2:]])
    assert f"{path}:2" in opened.repairs[0]
    assert "3 others" in opened.repairs[0] or "4 others" in opened.repairs[0]
    assert "1 lines after step 4" in opened.repairs[1]


@given(st.lists(st.integers(1, 12), max_size=9))
def test_the_fewest_lines_are_taken_for_damaged(steps):
    """The slow version: try every subset."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "m"
        path.write_text("".join(f'{{"step": {step}}}\n' for step in steps))
        found = read_metrics(path)
    kept = found.steps.tolist()
    assert kept == sorted(set(kept))
    assert len(found.faults) == len(steps) - len(kept)
    best = max(
        sum(mask)
        for mask in product((0, 1), repeat=len(steps))
        if (chosen := [step for step, taken in zip(steps, mask, strict=True) if taken]) == sorted(set(chosen))
    )
    assert len(kept) == best


def test_columns(tmp_path):
    path = tmp_path / "m"
    path.write_text('{"step": 1, "a": 1}\n{"step": 2, "b": 2.5, "a": null, "non_finite": ["a"]}\n{"step": 3, "a"')
    steps, values, faults = read_metrics(path)
    assert faults == ()
    np.testing.assert_array_equal(steps, [1, 2])
    assert list(values) == ["a", "b"]
    np.testing.assert_array_equal(values["a"], [1, np.nan])
    np.testing.assert_array_equal(values["b"], [np.nan, 2.5])
    assert len(read_metrics(tmp_path / "absent").steps) == 0


def test_comparable_drops_what_depends_on_the_clock():
    one = [metrics_line(1, {"a": 1.5, "time/step_s": 0.1}), metrics_line(2, {"a": math.nan, "time/x": math.inf})]
    other = [metrics_line(1, {"a": 1.5, "time/step_s": 9.0}), metrics_line(2, {"a": math.nan, "time/x": 1})]
    assert without_clock_metrics(one) == without_clock_metrics(other)
    assert without_clock_metrics(one) == ['{"step": 1, "a": 1.5}\n', '{"step": 2, "a": null, "non_finite": ["a"]}\n']
    assert without_clock_metrics(one) != without_clock_metrics([metrics_line(1, {"a": 1.6}), other[1]])


def test_a_full_disk_leaves_whole_lines_only(tmp_path, monkeypatch):
    path = tmp_path / "metrics.jsonl"
    writer = open_metrics(path).writer
    writer.append(1, {"a": 1})
    real = os.write

    def half(descriptor, data):
        if len(data) < 5:
            raise OSError(28, "No space left on device")
        return real(descriptor, data[: len(data) // 2])

    monkeypatch.setattr(durable.os, "write", half)
    with pytest.raises(ResourceError, match=r"no space left for .*metrics\.jsonl"):
        writer.append(2, {"a": 1})
    monkeypatch.undo()
    assert path.read_text() == '{"step": 1, "a": 1}\n'
    writer.append(2, {"a": 2})
    writer.close()
    assert path.read_text() == '{"step": 1, "a": 1}\n{"step": 2, "a": 2}\n'


@pytest.mark.parametrize(
    ("name", "evaluates", "why"),
    [
        ("reward/mean", False, ""),
        ("rewards/format", False, ""),  # a reward's name is the user's
        ("world/treasure", False, ""),
        ("eval/score", True, ""),
        ("eval/score", False, "the config has no [evaluation]"),
        ("eval/scroe", True, "did you mean eval/score?"),
        ("nope", True, "is no metric that a run writes"),
        ("reward", True, "is no metric that a run writes"),
        ("", True, "is no metric that a run writes"),
        ("Reward/Mean", True, "did you mean reward/mean?"),
    ],
)
def test_names_that_no_recipe_writes(name: str, evaluates: bool, why: str) -> None:
    told = " ".join(metric_catalogue().absence(name, evaluates=evaluates))
    assert why in told
    assert bool(why) == bool(told)


@pytest.mark.parametrize(
    ("steps", "after", "every", "says"),
    [
        (None, 7, 1, "metrics.jsonl is gone: the metrics of steps 1 to 7 are lost"),
        (None, 7, 10, ""),  # the first line would be at step 10
        (None, 0, 1, ""),
        ([], 3, 1, "metrics.jsonl is empty: the metrics of steps 1 to 3 are lost"),
        ([1, 2, 3, 4], 7, 1, "metrics.jsonl ends at step 4: the metrics of steps 5 to 7 are lost"),
        ([1, 2, 3, 4, 5, 6, 7], 7, 1, ""),
        ([1, 2, 3, 4, 5, 6, 7, 8], 7, 1, "1 lines after step 7 cut"),
        ([5, 10], 14, 5, ""),
        ([5, 10], 15, 5, "ends at step 10: the metrics of steps 11 to 15 are lost"),
        ([5, 10], 14, 1, ""),  # the run wrote a line for five steps until now
    ],
)
def test_metrics_that_a_resume_lacks_are_named(steps, after, every, says, tmp_path) -> None:
    path = tmp_path / "metrics.jsonl"
    if steps is not None:
        path.touch()
        write(path, steps)
    writer, repairs = open_metrics(path, after_step=after, every=every)
    writer.append(after + 1, {})
    writer.close()
    assert len(repairs) == bool(says)
    assert says in " ".join(repairs)
