"""Whole episodes: views that share memory, windows against the episodes, eviction, spill, resume."""

from pathlib import Path

import numpy as np
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from replay_streams import piece, stream

from hone.control.replay.spill import ParquetSpill, read_spilled
from hone.control.replay.store import EpisodeStore
from hone.core.episodes import Episodes, concatenate
from hone.core.errors import DataError
from hone.core.random import generator


def same(one: Episodes, other: Episodes) -> None:
    for name in Episodes.__dataclass_fields__:
        here, there = object.__getattribute__(one, name), object.__getattribute__(other, name)
        np.testing.assert_array_equal(here, there, err_msg=name)
        if here is not None:
            assert here.dtype == there.dtype, name


@examples(50)
@given(
    seed=st.integers(0, 10_000),
    envs=st.integers(1, 4),
    steps=st.integers(1, 6),
    capacity=st.sampled_from([9, 30, 1000]),
    length=st.integers(1, 5),
)
def test_episodes_and_windows_are_those_that_were_lived(
    seed: int, envs: int, steps: int, capacity: int, length: int
) -> None:
    gone: list[Episodes] = []
    store = EpisodeStore(capacity, spill=lambda first, episodes: gone.append(episodes))
    rollouts, told = stream(seed, envs=envs, rollouts=12, steps=steps)
    completed = sum(store.add(episodes) for episodes in rollouts)
    ended = {episode for episode, (_, kind) in told.items() if kind != "open"}
    assert completed == store.added == len(ended)
    if not ended:
        with pytest.raises(DataError, match="no episode has ended yet"):
            store.sample(1, generator(0, "x"))
        return
    kept = [store.view(number) for number in range(len(store.index))]
    assert len(store) == sum(episode.decisions for episode in kept) <= capacity
    assert {int(episode.group[0]) for episode in kept} | {int(g) for some in gone for g in some.group} == ended
    for episode in kept:
        group = int(episode.group[0])
        last, kind = told[group]
        same(episode, piece(group, 0, last, terminated=kind == "terminated", truncated=kind == "truncated"))
    drawn = store.sample_sequences(50, length, generator(0, "x"))
    for k in range(50):
        window = drawn.take(np.array([k]))
        group, first = (int(number) for number in window.observations[0])
        last, kind = told[group]
        whole = first + window.decisions == last
        assert window.decisions == min(length, last - first)
        same(
            window,
            piece(
                group, first, window.decisions, terminated=whole and kind == "terminated",
                truncated=whole and kind == "truncated",
            ),
        )  # fmt: skip


def test_views_are_no_copies() -> None:
    store = EpisodeStore(100)
    store.add(piece(0, 0, 6, truncated=True))
    memory = store._columns
    for view in (store.view(0), store.window(0, 2, 3)):
        for name, column in (("seen", view.observations), ("reward", view.reward), ("chosen", view.chosen)):
            assert np.shares_memory(column, memory[name])
    inner = store.window(0, 2, 3)
    assert inner.final is not None
    assert inner.final.tolist() == [[0, 5]]
    assert np.shares_memory(inner.final, memory["seen"])
    assert not inner.truncated[0]
    with pytest.raises(DataError, match=r"decisions 4 \.\. 6 of an episode of 6"):
        store.window(0, 4, 3)


def test_decisions_are_drawn_evenly() -> None:
    store = EpisodeStore(100)
    store.add(concatenate([piece(0, 0, 2, terminated=True), piece(1, 0, 6, truncated=True)]))
    drawn = store.sample(8000, generator(0, "x"))
    cells = drawn.observations[:, 0] * 6 + drawn.observations[:, 1]
    counts = np.bincount(cells.astype(int), minlength=12)[[0, 1, 6, 7, 8, 9, 10, 11]]
    assert ((counts - 1000) ** 2 / 1000).sum() < 24.3  # the 99.9% point with 7 degrees of freedom


def test_the_oldest_episodes_give_way_and_are_spilled(tmp_path: Path) -> None:
    store = EpisodeStore(20, spill=ParquetSpill(tmp_path / "old"))
    rollouts, told = stream(3, envs=2, rollouts=30, steps=4)
    for episodes in rollouts:
        store.add(episodes)
    read = concatenate(list(read_spilled(tmp_path / "old")))
    kept = concatenate([store.view(number) for number in range(len(store.index))])
    assert len(read) + len(kept) == store.added
    for number in range(len(read)):
        group = int(read.group[number])
        last, kind = told[group]
        expected = piece(group, 0, last, terminated=kind == "terminated", truncated=kind == "truncated")
        same(read.take(np.array([number])), expected)
    assert not list((tmp_path / "old").glob("*.partial"))


def test_a_resumed_run_spills_the_same_files(tmp_path: Path) -> None:
    rollouts, _ = stream(5, envs=2, rollouts=40, steps=4)
    store, again = (EpisodeStore(20, spill=ParquetSpill(tmp_path / name)) for name in ("one", "other"))
    for k, episodes in enumerate(rollouts):
        store.add(episodes)
        if k == 20:  # from here on two runs go on, and one of them is killed and begun again
            saved = store.state()
            for path in (tmp_path / "one").iterdir():
                (tmp_path / "other").mkdir(exist_ok=True)
                (tmp_path / "other" / path.name).write_bytes(path.read_bytes())
    for length in (30, 40):
        again.restore(saved)
        for episodes in rollouts[21:length]:
            again.add(episodes)
    one, other = (sorted((tmp_path / name).iterdir()) for name in ("one", "other"))
    assert [path.name for path in one] == [path.name for path in other]
    for here, there in zip(read_spilled(tmp_path / "one"), read_spilled(tmp_path / "other"), strict=True):
        same(here, there)


def test_files_that_are_no_spill_are_named(tmp_path: Path) -> None:
    (tmp_path / "episodes_00000000.parquet").write_bytes(b"PAR1 but no more")
    with pytest.raises(DataError, match=r"episodes_00000000\.parquet: not a whole parquet file"):
        list(read_spilled(tmp_path))


@examples(20)
@given(seed=st.integers(0, 1000))
def test_a_restored_store_goes_on_as_before(seed: int) -> None:
    rollouts, _ = stream(seed, envs=3, rollouts=14, steps=3)
    store, again = EpisodeStore(25), EpisodeStore(25)
    for episodes in rollouts[:9]:
        store.add(episodes)
    again.restore(store.state())
    for k, episodes in enumerate(rollouts[9:]):
        assert store.add(episodes) == again.add(episodes)
        if len(store):
            same(*(one.sample_sequences(30, 4, generator(k, "x")) for one in (store, again)))
            np.testing.assert_array_equal(store.index.start, again.index.start)
    with pytest.raises(DataError, match="holds 25 decisions, this one 5"):
        EpisodeStore(5).restore(store.state())


def test_an_episode_that_is_too_long_is_refused() -> None:
    with pytest.raises(DataError, match="an episode of 6 decisions does not fit a store of 5"):
        EpisodeStore(5).add(piece(0, 0, 6, terminated=True))
