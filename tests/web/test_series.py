"""Buckets: nothing is lost in them, blocks change no figure, and an answer can be read back."""

import json
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from hone.run.store.metrics import metrics_line
from hone.web.columns import BLOCK, BlockSummary, RunColumns
from hone.web.series import bucket_edges, bucketed, series_answer


def slow_buckets(values: NDArray[np.float64], edges: NDArray[np.int64]) -> list[tuple[float, float, float]]:
    """Least, greatest and mean of each bucket, one value at a time."""
    result: list[tuple[float, float, float]] = []
    for begin, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        known = [one for one in values[begin:end].tolist() if np.isfinite(one)]
        result.append((min(known), max(known), sum(known) / len(known)) if known else (np.nan,) * 3)
    return result


def test_a_bucket_by_hand() -> None:
    found = bucketed(np.array([1.0, 3.0, np.nan, -1.0, np.nan]), np.array([0, 2, 4, 5]))
    assert found.least.tolist()[:2] == [1.0, -1.0]
    assert found.greatest.tolist()[:2] == [3.0, -1.0]
    assert found.mean.tolist()[:2] == [2.0, -1.0]
    assert np.isnan([found.least[2], found.greatest[2], found.mean[2]]).all()


@given(st.integers(0, 3000), st.integers(1, 300), st.integers(0, 2**32 - 1), st.integers(0, 500))
def test_buckets_equal_the_slow_version_with_and_without_blocks(rows: int, pixels: int, seed: int, first: int) -> None:
    random = np.random.default_rng(seed)
    values = random.standard_normal(rows)
    values[random.random(rows) < 0.2] = np.nan
    first = min(first, rows)
    edges = bucket_edges(first, rows, pixels)
    assert len(edges) - 1 <= max(pixels, 1)
    assert rows == first or (edges[0] == first and edges[-1] == rows and (np.diff(edges) > 0).all())
    blocks = BlockSummary()
    blocks.extend(values)
    expected = np.array(slow_buckets(values, edges)).reshape(-1, 3)
    for found in (bucketed(values, edges), bucketed(values, edges, blocks)):
        np.testing.assert_array_equal(found.least, expected[:, 0])
        np.testing.assert_array_equal(found.greatest, expected[:, 1])
        np.testing.assert_allclose(found.mean, expected[:, 2], rtol=1e-9, atol=1e-12)


def test_a_spike_of_one_row_in_a_hundred_thousand_is_in_the_answer() -> None:
    values = np.zeros(100_000)
    values[61_803] = 7.0
    blocks = BlockSummary()
    blocks.extend(values)
    assert bucketed(values, bucket_edges(0, len(values), 500), blocks).greatest.max() == 7.0


def read_answer(
    data: bytes,
) -> tuple[dict[str, object], dict[str, NDArray[np.float64]], dict[str, list[NDArray[np.float32]]]]:
    """The header, the axes and the metrics of an answer, as the browser reads it."""
    size = struct.unpack("<I", data[:4])[0]
    header = json.loads(data[4 : 4 + size])
    at = 4 + size + (-(4 + size) % 8)
    axes: dict[str, NDArray[np.float64]] = {}
    for name in header["axes"]:
        axes[name] = np.frombuffer(data, "<f8", header["count"], at)
        at += 8 * header["count"]
    metrics: dict[str, list[NDArray[np.float32]]] = {}
    for name in header["metrics"]:
        metrics[name] = []
        for _ in range(1 if header["exact"] else 3):
            metrics[name].append(np.frombuffer(data, "<f4", header["count"], at))
            at += 4 * header["count"]
    assert at == len(data)
    return header, axes, metrics


@pytest.fixture
def columns(tmp_path: Path) -> RunColumns:
    path = tmp_path / "metrics.jsonl"
    lines = [
        metrics_line(5 * step, {"a": float(step), "time/step_s": 2.0, "rollout/tokens": 10.0, "b": float("nan")})
        for step in range(1, 101)
    ]
    path.write_text("".join(lines), encoding="utf-8")
    columns = RunColumns(path, tmp_path / "cache")
    columns.refresh()
    return columns


def test_an_exact_answer_has_every_row_and_three_axes(columns: RunColumns) -> None:
    header, axes, metrics = read_answer(series_answer(columns, ["a", "no"], first_step=0, last_step=1e9, pixels=700))
    assert (header["exact"], header["count"], header["metrics"], header["amount"]) == (
        True,
        100,
        ["a"],
        "rollout/tokens",
    )
    assert axes["steps"].tolist() == [5.0 * step for step in range(1, 101)]
    assert axes["seconds"][-1] == 200.0
    assert axes["amount"][-1] == 10.0 * 500  # a line's value is a mean over the steps since the one before
    assert metrics["a"][0].tolist() == list(range(1, 101))


def test_a_range_of_steps_and_few_pixels(columns: RunColumns) -> None:
    header, axes, metrics = read_answer(series_answer(columns, ["a"], first_step=51, last_step=250, pixels=10))
    assert (header["exact"], header["count"]) == (False, 10)
    assert axes["steps"][-1] == 250.0
    assert metrics["a"][1].min() == 11.0
    assert metrics["a"][2].max() == 50.0
    empty, _, _ = read_answer(series_answer(columns, ["a"], first_step=600, last_step=700, pixels=10))
    assert (empty["count"], empty["axes"]) == (0, [])


def test_edges_lie_between_blocks_where_buckets_are_wide() -> None:
    edges = bucket_edges(100, 100_000, 50)
    assert (edges[1:-1] % BLOCK == 0).all()
    assert (edges[0], edges[-1]) == (100, 100_000)
