"""Rollouts: what is written comes back, old files are read, damaged ones are named, and a budget thins them."""

import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from hone.core.errors import DataError
from hone.run.store.rollouts import (
    COLUMNS,
    GROUP_ROWS,
    AnswerRollouts,
    AnswerTimes,
    EpisodeTable,
    SampleRow,
    TokenColumns,
    read_episodes,
    read_samples,
    read_times,
    read_tokens,
    remove_after,
    rollout_bytes,
    rollout_files,
    rollout_kind,
    rollout_path,
    thin,
    write_rollouts,
)

INTS = st.integers(0, 2**40)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
NUMBERS = st.none() | st.floats(allow_nan=False)
ROWS = st.builds(
    SampleRow,
    step=INTS,
    group=INTS,
    sample=INTS,
    prompt=TEXT,
    completion=TEXT,
    score=NUMBERS,
    status=TEXT,
    advantage=NUMBERS,
    tokens=INTS,
    finish=TEXT,
    version=INTS,
    turns=st.lists(st.tuples(st.sampled_from(["policy", "environment"]), TEXT), max_size=3).map(tuple),
    reference=st.none() | TEXT,
    components=st.dictionaries(TEXT, NUMBERS, max_size=3),
    tool_calls=st.none() | INTS,
    log_ratio=NUMBERS,
)


def row(**changes: Any) -> SampleRow:
    values: dict[str, Any] = {
        "step": 1, "group": 0, "sample": 0, "tokens": 3, "version": 0,
        "prompt": "p", "completion": "c", "score": None, "status": "error", "advantage": None, "finish": "stop",
    }  # fmt: skip
    return SampleRow(**(values | changes))


def tokens(lengths: list[int], seed: int = 0) -> TokenColumns:
    """Answers of these lengths: some tokens sampled, some of their figures known."""
    draws, count = np.random.default_rng(seed), sum(lengths)
    mask = draws.random(count) < 0.7

    def floats() -> np.ndarray:
        known = mask & (draws.random(count) < 0.8)
        return np.where(known, draws.standard_normal(count), np.nan).astype(np.float32)

    return TokenColumns(
        offsets=np.cumsum([0, *lengths]),
        ids=draws.integers(0, 50_000, count).astype(np.int32),
        mask=mask,
        logp=floats(),
        logp_now=floats(),
        logp_last=floats(),
        entropy=floats(),
        clipped=np.where(mask, draws.integers(-1, 2, count), -1).astype(np.int8),
        versions=np.where(mask, draws.integers(0, 9, count), -1).astype(np.int32),
        advantages=floats(),
        values=np.full(count, np.nan, np.float32),
    )


def assert_equal(one: Any, other: Any) -> None:
    left, right = asdict(one), asdict(other)
    assert left.keys() == right.keys()
    for name, column in left.items():
        assert (column is None) == (right[name] is None), name
        if column is not None:
            np.testing.assert_array_equal(column, right[name], err_msg=name)


@examples(30)
@given(st.lists(ROWS, max_size=5))
def test_answers_come_back(tmp_path_factory: pytest.TempPathFactory, rows: list[SampleRow]) -> None:
    path = tmp_path_factory.mktemp("rollouts") / "deep" / "step_00000001.parquet"
    write_rollouts(path, AnswerRollouts(rows=rows))
    assert read_samples(path) == rows
    assert read_tokens(path) is None
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_columns_are_those_of_the_contract() -> None:
    text = "step group sample prompt completion score status advantage tokens finish version turns"
    assert list(COLUMNS) == [*text.split(), "reference", "components", "tool_calls", "log_ratio"]


def test_columns_of_which_nothing_is_known_are_left_out(tmp_path: Path) -> None:
    path, written = tmp_path / "step_00000001.parquet", tokens([3, 4])
    nothing = np.full(7, np.nan, np.float32)
    for entropy, known in ((nothing, False), (written.entropy, True)):
        write_rollouts(path, AnswerRollouts(rows=[row()] * 2, tokens=replace(written, entropy=entropy)))
        names = pq.read_schema(path).names
        assert ("entropy" in names) is known
        assert not {"turns", "reference", "components", "tool_calls", "log_ratio", "values"} & {*names}
        read = read_tokens(path)
        assert read is not None
        np.testing.assert_array_equal(read.entropy, entropy)
    write_rollouts(path, AnswerRollouts(rows=[row(), row(tool_calls=2, reference="4")]))
    assert [(one.tool_calls, one.reference) for one in read_samples(path)] == [(None, None), (2, "4")]


def test_seconds_stand_beside_their_file_and_go_with_it(tmp_path: Path) -> None:
    times = AnswerTimes(seconds=(1.5, None), world_seconds=(0.5, None))
    plain = rollout_path(tmp_path / "plain", 1)
    write_rollouts(plain, AnswerRollouts(rows=[row(), row()]))
    assert read_times(plain, 2) == AnswerTimes(seconds=(None, None), world_seconds=(None, None))
    assert rollout_bytes(plain) == plain.stat().st_size
    paths = [rollout_path(tmp_path, step) for step in (1, 2, 3)]
    for path in paths:
        write_rollouts(path, AnswerRollouts(rows=[row(), row()], times=times))
        assert path.read_bytes() == plain.read_bytes(), "equal runs have equal rollouts, whatever they took"
        assert read_times(path, 2) == times
        assert read_times(path, 3).seconds == (None, None, None), "of another writing of the step"
    beside = sorted((tmp_path / "time").iterdir())
    assert rollout_bytes(paths[0]) == paths[0].stat().st_size + beside[0].stat().st_size
    assert thin(tmp_path, sum(map(rollout_bytes, paths)) - 1) == 1
    assert [one.name for one in (tmp_path / "time").iterdir() if one not in beside[1:]] == []
    assert remove_after(tmp_path, 2) == 1
    assert [*(tmp_path / "time").iterdir()] == [beside[1]]
    beside[1].write_text('{"seconds": ["long"]}', encoding="utf-8")
    with pytest.raises(DataError, match=r"step_00000002\.json"):
        read_times(paths[1], 2)


@examples(20)
@given(st.lists(st.integers(0, 7), max_size=6), st.integers(0, 99))
def test_tokens_come_back(tmp_path_factory: pytest.TempPathFactory, lengths: list[int], seed: int) -> None:
    path = tmp_path_factory.mktemp("tokens") / "step_00000001.parquet"
    written = tokens(lengths, seed)
    write_rollouts(path, AnswerRollouts(rows=[row()] * len(lengths), tokens=written))
    read = read_tokens(path)
    assert read is not None
    assert_equal(read, written)
    assert len(read_samples(path)) == len(lengths)


def test_one_answer_is_read_from_its_row_group_alone(tmp_path: Path) -> None:
    path, lengths = tmp_path / "step_00000001.parquet", [1 + place % 5 for place in range(2 * GROUP_ROWS + 9)]
    written = tokens(lengths)
    write_rollouts(path, AnswerRollouts(rows=[row(sample=place) for place in range(len(lengths))], tokens=written))
    assert pq.ParquetFile(path).num_row_groups == 3
    for first, count in ((0, 1), (GROUP_ROWS - 1, 3), (2 * GROUP_ROWS + 8, 1), (2 * GROUP_ROWS + 8, 9)):
        part = read_tokens(path, first, count)
        assert part is not None
        last = min(first + count, len(lengths))
        begin, end = written.offsets[first], written.offsets[last]
        np.testing.assert_array_equal(part.ids, written.ids[begin:end])
        np.testing.assert_array_equal(part.offsets, written.offsets[first : last + 1] - begin)
        np.testing.assert_array_equal(part.logp, written.logp[begin:end])


def test_a_token_takes_about_ten_bytes(tmp_path: Path) -> None:
    """As the design counts on: ids, two log-probabilities that are near each other, and flags."""
    path, lengths = tmp_path / "step_00000001.parquet", [200] * 100
    known = tokens(lengths)
    logp = known.logp
    kept = replace(
        known, mask=np.ones_like(known.mask), logp_now=logp, logp_last=np.full_like(logp, np.nan),
        entropy=np.full_like(logp, np.nan), advantages=np.full_like(logp, np.nan),
        clipped=np.zeros_like(known.clipped), versions=np.zeros_like(known.versions),
    )  # fmt: skip
    write_rollouts(path, AnswerRollouts(rows=[row()] * 100, tokens=kept))
    assert path.stat().st_size / 20_000 < 13


def episodes(**changes: Any) -> EpisodeTable:
    values: dict[str, Any] = {
        "step": 4,
        "offsets": np.array([0, 2, 5]),
        "id": np.array([7, -1]),
        "group": np.array([0, 1]),
        "score": np.array([1.5, math.nan]),
        "status": np.array([0, 3], np.uint8),
        "end": np.array([0, 2], np.uint8),
        "version": np.array([3, 3]),
        "actions": np.arange(10, dtype=np.float32).reshape(5, 2),
        "rewards": np.arange(5, dtype=np.float32),
        "logp": np.array([-1, -2, np.nan, -4, -5], np.float32),
        "advantages": np.arange(5, dtype=np.float32) - 2,
        "values": np.arange(5, dtype=np.float32) / 3,
        "observations": np.arange(15, dtype=np.float32).reshape(5, 3),
    }
    return EpisodeTable(**(values | changes))


@pytest.mark.parametrize("changes", [{}, {"values": None, "observations": None}, {"actions": np.zeros((5, 1), "f4")}])
def test_episodes_come_back(tmp_path: Path, changes: dict[str, Any]) -> None:
    path = tmp_path / "step_00000004.parquet"
    write_rollouts(path, episodes(**changes))
    assert rollout_kind(path) == "episodes"
    assert_equal(read_episodes(path), episodes(**changes))
    shown = pq.read_table(path).to_pylist()[1]
    assert (shown["status"], shown["end"], shown["score"], shown["decisions"]) == ("timeout", "open", None, 3)
    with pytest.raises(DataError, match="lacks the columns"):
        read_samples(path)


def test_half_a_character_does_not_stop_a_run(tmp_path: Path) -> None:
    write_rollouts(tmp_path / "s.parquet", AnswerRollouts(rows=[row(completion="a\ud83d", reference="\ud83d")]))
    assert read_samples(tmp_path / "s.parquet")[0].completion == "a?"


def test_answers_of_earlier_versions_are_read(tmp_path: Path) -> None:
    """Those from before conversations, and those from before tokens; `samples/` of a run stands for `rollouts/`."""
    turns = (("policy", "a"), ("environment", "b"))
    path = tmp_path / "samples" / "step_00000007.parquet"
    write_rollouts(path, AnswerRollouts(rows=[row(), row(turns=turns, tool_calls=2)], tokens=tokens([2, 3])))
    first = [name for name in pq.read_table(path).column_names if name in COLUMNS[:11]]
    pq.write_table(pq.read_table(path).select([*first, "turns"]), tmp_path / "old.parquet")
    assert read_samples(tmp_path / "old.parquet") == [row(), row(turns=turns)]
    pq.write_table(pq.read_table(path).select(first), tmp_path / "older.parquet")
    assert read_samples(tmp_path / "older.parquet") == [row(), row()]
    assert read_tokens(tmp_path / "older.parquet") is None
    assert rollout_kind(tmp_path / "older.parquet") == "answers"
    write_rollouts(rollout_path(tmp_path, 9), AnswerRollouts(rows=[row()]))
    assert list(rollout_files(tmp_path)) == [7, 9]


def test_damaged_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "s.parquet"
    write_rollouts(path, AnswerRollouts(rows=[row()]))
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match=r"s\.parquet.*still being written"):
        read_samples(path)
    pq.write_table(pa.table({"step": [1]}), path)
    with pytest.raises(DataError, match=r"lacks the columns group"):
        read_samples(path)
    with pytest.raises(DataError, match="read_samples"):
        read_episodes(path)
    with pytest.raises(DataError, match="absent"):
        read_samples(tmp_path / "absent.parquet")


def fill(run: Path, steps: list[int]) -> int:
    """Files of equal size; returns it."""
    for step in steps:
        write_rollouts(rollout_path(run, step), AnswerRollouts(rows=[row(step=1)]))
    return rollout_path(run, steps[0]).stat().st_size


def test_a_budget_thins_the_oldest_files(tmp_path: Path) -> None:
    size = fill(tmp_path, list(range(1, 9)))
    assert thin(tmp_path, 8 * size) == 0
    assert thin(tmp_path, 6 * size) == 2
    assert list(rollout_files(tmp_path)) == [2, 4, 5, 6, 7, 8], "every second one, from the oldest on"
    assert thin(tmp_path, 3 * size) == 3
    assert list(rollout_files(tmp_path)) == [4, 6, 8]
    thin(tmp_path, 0)
    assert list(rollout_files(tmp_path)) == [8], "the newest stays"


def test_steps_that_are_done_again_lose_their_files(tmp_path: Path) -> None:
    fill(tmp_path, [10, 20, 30])
    assert remove_after(tmp_path, 20) == 1
    assert list(rollout_files(tmp_path)) == [10, 20]
