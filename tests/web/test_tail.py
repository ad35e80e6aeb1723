"""Whole lines after an offset, as columns: fast tables equal the reader of reports, whatever the lines look like."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hone.run.store.metrics import metrics_line, read_metrics
from hone.web.columns import BLOCK, RunColumns
from hone.web.tail import FilePlace, parse_lines, read_new_lines


def columns_of(path: Path, tmp_path: Path) -> RunColumns:
    columns = RunColumns(path, tmp_path / "cache")
    columns.refresh()
    return columns


def assert_same(columns: RunColumns, path: Path) -> None:
    """The columns are those that the reports read, bit for bit."""
    expected = read_metrics(path)
    assert columns.steps.tolist() == expected.steps.tolist()
    assert set(columns.names) == set(expected.values)
    for name, values in expected.values.items():
        np.testing.assert_array_equal(columns.column(name), values)


def test_a_half_line_waits_for_its_end(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "a": 0.5}\n{"step": 2, "a"', encoding="utf-8")
    columns = columns_of(path, tmp_path)
    assert columns.rows == 1
    assert not columns.refresh()
    with path.open("a") as file:
        file.write(": 1.5}\n")
    assert columns.refresh()
    assert columns.column("a").tolist() == [0.5, 1.5]


def test_a_late_metric_is_nan_in_front_and_a_missing_one_behind(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(metrics_line(1, {"a": 1.0}) + metrics_line(2, {"b": math.inf}), encoding="utf-8")
    columns = columns_of(path, tmp_path)
    with path.open("a") as file:
        file.write(metrics_line(3, {"c": 3.0}))
    columns.refresh()
    assert_same(columns, path)
    assert np.isnan(columns.column("c")[:2]).all()


@pytest.mark.parametrize("grown", [False, True])
def test_a_resume_that_cuts_lines_drops_what_was_known(tmp_path: Path, grown: bool) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(metrics_line(step, {"a": float(step)}) for step in range(1, 41)), encoding="utf-8")
    columns = columns_of(path, tmp_path)
    # A resume from step 10 that does its steps again, to fewer lines than before or to more.
    again = range(11, 80 if grown else 20)
    lines = [metrics_line(step, {"a": float(step)}) for step in range(1, 11)]
    path.write_text("".join([*lines, *(metrics_line(step, {"a": -1.0}) for step in again)]), encoding="utf-8")
    assert columns.refresh()
    assert columns.generation == 1
    assert_same(columns, path)
    assert len(set(columns.steps.tolist())) == columns.rows  # no step twice


def test_a_replaced_and_a_removed_file_begin_anew(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(metrics_line(1, {"a": 1.0}), encoding="utf-8")
    columns = columns_of(path, tmp_path)
    fresh = tmp_path / "fresh"
    fresh.write_text(metrics_line(1, {"b": 1.0}), encoding="utf-8")
    fresh.replace(path)
    columns.refresh()
    assert columns.names == ["b"]
    path.unlink()
    assert columns.refresh()
    assert (columns.rows, columns.names) == (0, [])
    assert not columns.refresh()


def test_damaged_lines_and_steps_that_do_not_increase_are_left_out() -> None:
    lines = [
        b'{"step": 1, "a": 1}',
        b"{",
        b"[1]",
        b'{"a": 2}',
        b'{"step": true}',
        b'{"step": 1, "a": 3}',
        b'{"step": 2}',
    ]
    rows = parse_lines(b"\n".join([*lines, b""]))
    assert rows.steps.tolist() == [1, 2]
    assert rows.damaged == 5
    assert rows.values["a"][0] == 1.0
    assert np.isnan(rows.values["a"][1])


def test_a_table_equals_the_lines_read_one_by_one(tmp_path: Path) -> None:
    """A thousand lines with evaluations, infinities, odd names, damage and spaces: the table gives what JSON gives."""
    random = np.random.default_rng(0)
    lines: list[str] = []
    for step in range(1, 1500):
        metrics = {"a": float(random.standard_normal()), 'odd "name"': step, "d/e": float(random.exponential()) * 1e-30}
        if step % 7 == 0:
            metrics |= {"eval/score": 0.5, "comma, inside": 1.0}
        if step % 50 == 0:
            metrics["a"] = math.nan
        lines.append(metrics_line(step, metrics))
        if step % 101 == 0:
            lines.append('{"step": oops}\n')
        if step % 103 == 0:
            lines[-1] = json.dumps({"step": step, "a": 1.5}, separators=(",", ":")) + "\n"
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(lines), encoding="utf-8")
    columns = columns_of(path, tmp_path)
    assert_same(columns, path)
    assert columns.damaged == len(read_metrics(path).faults)


@given(st.lists(st.floats(width=64), min_size=1, max_size=30), st.integers(0, 5), st.integers(1, 60))
def test_every_cut_of_the_reading_gives_the_same_columns(values: list[float], missing: int, size: int) -> None:
    """Reading in pieces of any size, at any offsets, gives the columns of the whole."""
    text = "".join(
        metrics_line(step, {"a": one} if step % 6 != missing else {"b": one})
        for step, one in enumerate(values, start=1)
    ).encode()
    whole = parse_lines(text)
    steps: list[int] = []
    seen: dict[str, list[float]] = {"a": [], "b": []}
    for begin in range(0, len(text), size):
        head, tail = text[:begin].rfind(b"\n") + 1, text[: begin + size].rfind(b"\n") + 1
        rows = parse_lines(text[head:tail], after_step=steps[-1] if steps else 0)
        steps += rows.steps.tolist()
        for name, column in seen.items():
            column += rows.values.get(name, np.full(len(rows.steps), np.nan)).tolist()
    assert steps == whole.steps.tolist()
    for name, column in whole.values.items():
        np.testing.assert_array_equal(column, seen[name])


def test_chunks_are_read_until_the_file_ends_and_a_long_line_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    long = {f"m{number}": 1.0 for number in range(50)}
    path.write_text("".join(metrics_line(step, long) for step in range(1, 6)), encoding="utf-8")
    place, rows = FilePlace(), 0
    while (new := read_new_lines(path, place, limit=100)) is not None:
        rows += len(parse_lines(new.data).steps)
        place = new.place
    assert rows == 5


def test_the_cache_on_disk_goes_on_and_ignores_what_was_not_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hone.web.columns.CACHED_BYTES", 1)
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(metrics_line(step, {"a": float(step)}) for step in range(1, 200)), encoding="utf-8")
    before = path.read_bytes()
    first = columns_of(path, tmp_path)
    assert_same(first, path)
    # While one process has the cache, another keeps its own columns in memory.
    second = columns_of(path, tmp_path)
    assert_same(second, path)
    first.close()
    folder = next((tmp_path / "cache").iterdir())
    with (folder / "0.f64").open("ab") as file:
        file.write(b"torn")  # killed between the column and its meta.json
    with path.open("a") as file:
        file.write(metrics_line(200, {"b": 1.0}))
    third = columns_of(path, tmp_path)
    assert third.rows == 200
    assert_same(third, path)
    third.close()
    (folder / "meta.json").write_text("{", encoding="utf-8")
    fourth = columns_of(path, tmp_path)
    assert_same(fourth, path)
    fourth.close()
    assert path.read_bytes().startswith(before)


def test_blocks_grow_with_the_column(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    values = np.random.default_rng(1).standard_normal(3 * BLOCK + 5)
    values[BLOCK : 2 * BLOCK] = np.nan
    columns = RunColumns(path, tmp_path / "cache")
    for stop in (10, BLOCK + 1, len(values)):
        text = "".join(metrics_line(step, {"a": float(one)}) for step, one in enumerate(values[:stop], start=1))
        path.write_text(text, encoding="utf-8")
        columns.refresh()
        blocks = columns.blocks("a")
        assert len(blocks.least) == stop // BLOCK
    assert blocks.least[0] == values[:BLOCK].min()
    assert blocks.greatest[2] == values[2 * BLOCK : 3 * BLOCK].max()
    assert blocks.total[0] == pytest.approx(values[:BLOCK].sum())
    assert blocks.count.tolist() == [BLOCK, 0, BLOCK]
    assert np.isnan(blocks.least[1])
