"""No replay buffer drops a column: every declared one comes back, by step, by episode, from disk and from state."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hone.control.replay.ring import RingBuffer
from hone.control.replay.spill import ParquetSpill, read_spilled
from hone.control.replay.steps import StepBuffer
from hone.control.replay.store import EpisodeStore
from hone.core.episodes import Episodes, column_table, concatenate
from hone.core.errors import DataError
from hone.core.ragged import offsets_of
from hone.sources.live import _join_pieces

OPTIONAL = [name for name, column in column_table().items() if column.optional and name != "final"]


def full_table(lengths: list[int], *, seed: int = 0) -> Episodes:
    """Ended episodes with every declared column."""
    offsets, rng = offsets_of(np.array(lengths)), np.random.default_rng(seed)
    sizes = {"decision": int(offsets[-1]), "episode": len(lengths)}
    columns: dict[str, Any] = {
        name: rng.integers(0, 99, (sizes[column.unit], *[2] * (not column.scalar))).astype(column.dtype or np.float32)
        for name, column in column_table().items()
        if name not in {"status", "terminated", "truncated", "group"}
    }
    ended = np.ones(len(lengths), dtype=np.bool_)
    return Episodes.from_columns(
        offsets, {**columns, "terminated": ended, "truncated": ~ended, "group": 10 * seed + np.arange(len(lengths))}
    )


def same(one: Episodes, other: Episodes, *, absent: frozenset[str] = frozenset()) -> None:
    known = [name for name in column_table() if name not in absent]
    assert list(one.columns()) == list(other.columns()) == known
    np.testing.assert_equal({"offsets": one.offsets, **one.columns()}, {"offsets": other.offsets, **other.columns()})


@pytest.mark.parametrize("make", [RingBuffer, StepBuffer])
def test_transitions_come_back_with_every_column(make: type[RingBuffer | StepBuffer]) -> None:
    episodes, buffer = full_table([2, 3]), make(8)
    rows = buffer.add(episodes)
    left_out = frozenset({"memory"})  # it is known before the first decision of a piece only
    if make is StepBuffer:
        left_out |= {"state", "final_state"}  # a critic that sees everything learns from rollouts
    expected = replace(episodes, state=None, final_state=None) if make is StepBuffer else episodes
    same(buffer.take(rows), expected.transitions(), absent=left_out)
    again = make(8)
    again.restore(buffer.state())
    same(again.take(rows), expected.transitions(), absent=left_out)


def test_a_cut_episode_s_mask_follows_from_the_piece_that_goes_on() -> None:
    """The mask after a step is the next decision's once it is known, and the piece's `final_mask` until then."""
    episodes = full_table([2, 1])
    piece, rest = (
        replace(episodes.take(np.array([number])), terminated=np.zeros(1, np.bool_), truncated=np.zeros(1, np.bool_))
        for number in range(2)
    )
    rest = replace(rest, seen=piece.final, group=piece.group)
    buffer = StepBuffer(8)
    rows = buffer.add(piece)
    np.testing.assert_array_equal(buffer.take(rows).final_mask[-1:], piece.final_mask)
    buffer.add(rest)
    np.testing.assert_array_equal(buffer.take(rows).final_mask, np.concatenate([piece.mask[1:], rest.mask]))
    with pytest.raises(DataError, match="mask and final_mask"):
        StepBuffer(8).add(replace(piece, final_mask=None))


def test_episodes_come_back_with_every_column(tmp_path: Path) -> None:
    episodes, store = full_table([2, 3]), EpisodeStore(5, spill=ParquetSpill(tmp_path))
    store.add(episodes)
    same(concatenate([store.view(number) for number in range(2)]), episodes)
    again = EpisodeStore(5)
    again.restore(store.state())
    same(concatenate([again.view(number) for number in range(2)]), episodes)
    windows = again.windows(np.arange(2), np.zeros(2, dtype=np.int64), 3)
    same(windows, replace(episodes, memory=None), absent=frozenset({"memory"}))
    cut = again.windows(np.array([1]), np.array([1]), 1)
    np.testing.assert_array_equal(cut.final_mask, episodes.mask[4:5])
    np.testing.assert_array_equal(again.window(1, 1, 1).final_mask, episodes.mask[4:5])
    store.add(full_table([5], seed=1))
    same(concatenate(list(read_spilled(tmp_path))), episodes)


def test_pieces_are_put_together_with_every_column() -> None:
    episodes = full_table([2, 3])
    whole, open_pieces = _join_pieces(episodes)
    assert open_pieces is None
    same(whole, episodes)


@pytest.mark.parametrize("name", OPTIONAL)
def test_a_column_that_later_episodes_lack_is_refused(name: str) -> None:
    later = full_table([2], seed=1)
    columns = {key: values for key, values in later.columns().items() if key != name}
    stores = [EpisodeStore(9)]
    if name != "memory":
        stores += [RingBuffer(9)] if name in {"state", "final_state"} else [RingBuffer(9), StepBuffer(9)]
    for buffer in stores:
        buffer.add(full_table([2]))
        with pytest.raises(DataError, match=name):
            buffer.add(Episodes.from_columns(later.offsets, columns))
