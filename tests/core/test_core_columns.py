"""The column table of episodes: every operation keeps every declared column, and a new one needs one line."""

from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any

import numpy as np
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from hone.core.episodes import (
    ABSENT,
    Column,
    Episodes,
    Transcript,
    column_table,
    concatenate,
    pack_episodes,
    unpack_episodes,
)
from hone.core.errors import DataError
from hone.core.ragged import RaggedArray, offsets_of


@dataclass(frozen=True, slots=True, kw_only=True)
class WiderEpisodes(Episodes):
    """A table with one more column by decision and one by episode."""

    cost: Annotated[NDArray[np.float64] | None, Column("decision", np.float64, optional=True)] = None
    tag: Annotated[NDArray[np.int64], Column("episode", np.int64, scalar=False, default=7)] = field(
        default_factory=lambda: ABSENT
    )


lengths_of = st.lists(st.integers(0, 3), min_size=1, max_size=5)
OPTIONAL = [name for name, column in column_table(WiderEpisodes).items() if column.optional]


@st.composite
def tables(draw: st.DrawFn, absent: frozenset[str] = frozenset(), cls: type[Episodes] = WiderEpisodes) -> Episodes:
    """Episodes whose columns are made from their declarations, without the columns `absent`."""
    lengths = np.array(draw(lengths_of), dtype=np.int64)
    offsets, rng = offsets_of(lengths), np.random.default_rng(draw(st.integers(0, 99)))
    sizes = {"decision": int(offsets[-1]), "episode": len(lengths)}
    columns: dict[str, Any] = {
        name: rng.integers(0, 2 if column.dtype is np.bool_ else 9, (sizes[column.unit], *[2] * (not column.scalar)))
        .astype(column.dtype or np.float32)
        for name, column in column_table(cls).items()
        if name not in absent
    }  # fmt: skip
    return cls.from_columns(offsets, columns)


def transcript_of(episodes: Episodes) -> Episodes:
    """The same episodes as token sequences: one token of the prompt before each decision."""
    count = episodes.decisions
    seen = Transcript(
        tokens=np.arange(2 * count, dtype=np.int32),
        offsets=2 * episodes.offsets,
        at=2 * np.arange(count) + 1,
        kept=RaggedArray(values=np.arange(count, dtype=np.int32), offsets=np.arange(count + 1)),
    )
    return replace(episodes, seen=seen, final=None)


def same(one: Episodes, other: Episodes) -> None:
    """Raises AssertionError where two tables differ in a column, or in which columns they have."""
    assert type(one) is type(other)
    here, there = (pack_episodes(episodes) for episodes in (one, other))
    assert here.keys() == there.keys()
    np.testing.assert_equal(here, there)
    for name, values in one.columns().items():
        assert values.dtype == other.columns()[name].dtype, name


def test_every_field_but_the_offsets_is_a_declared_column() -> None:
    assert ["offsets", *column_table()] == [field.name for field in fields(Episodes)]
    assert list(column_table(WiderEpisodes)) == [*column_table(), "cost", "tag"]


@examples(50)
@given(tables(), st.data())
def test_taking_twice_is_taking_once(episodes: Episodes, data: st.DataObject) -> None:
    first = np.array(data.draw(st.lists(st.integers(0, len(episodes) - 1), min_size=1, max_size=6)))
    second = np.array(data.draw(st.lists(st.integers(0, len(first) - 1), max_size=6)), dtype=np.int64)
    for table in (episodes, transcript_of(episodes)):
        same(table.take(first).take(second), table.take(first[second]))
        same(table.take(np.arange(len(table))), table)


@given(
    st.sets(st.sampled_from(OPTIONAL)).flatmap(lambda gone: st.lists(tables(frozenset(gone)), min_size=2, max_size=4))
)
def test_parts_are_taken_from_a_concatenation_as_they_were(parts: list[Episodes]) -> None:
    for pieces in (parts, [transcript_of(part) for part in parts]):
        whole, begin = concatenate(pieces), 0
        for piece in pieces:
            same(whole.take(np.arange(begin, begin + len(piece))), piece)
            begin += len(piece)
        same(concatenate([pieces[0], concatenate(pieces[1:])]), whole)


@given(tables())
def test_transitions_and_joined_pieces_have_every_column(episodes: Episodes) -> None:
    steps = episodes.transitions()
    assert steps.columns().keys() == episodes.columns().keys() - {"memory"}  # known before the first decision only
    last = np.zeros(len(steps), dtype=np.bool_)
    last[episodes.offsets[1:][episodes.lengths > 0] - 1] = True
    whole = replace(episodes, memory=None)
    same(steps.join_pieces(last), whole.take(np.flatnonzero(episodes.lengths > 0)))


def test_the_mask_of_a_transition_s_next_observation_is_that_of_the_next_decision() -> None:
    mask = np.array([[True, False], [False, True], [True, True]])
    ends = np.array([[False, True], [True, False]])
    episodes = Episodes.from_columns(
        np.array([0, 2, 3]),
        {
            **{name: np.zeros(3, kind) for name, kind in (("seen", "f4"), ("chosen", "i8"), ("logp", "f4"))},
            **{name: np.zeros(3, kind) for name, kind in (("version", "i4"), ("reward", "f4"))},
            **{name: np.zeros(2, np.bool_) for name in ("terminated", "truncated")},
            **{"final": np.zeros(2, "f4"), "score": np.zeros(2), "group": np.arange(2)},
            **{"mask": mask, "final_mask": ends},
        },
    )
    steps = episodes.transitions()
    assert steps.final_mask is not None
    assert steps.final_mask.tolist() == [mask[1].tolist(), ends[0].tolist(), ends[1].tolist()]


def test_joined_pieces_have_the_memory_before_the_first_of_them() -> None:
    lengths = np.array([1, 2, 1])
    pieces = WiderEpisodes.from_columns(
        offsets_of(lengths),
        {
            name: np.zeros((4 if column.unit == "decision" else 3, *[2] * (not column.scalar)), column.dtype or "f4")
            for name, column in column_table(WiderEpisodes).items()
        }
        | {"memory": np.array([[1, 1], [2, 2], [3, 3]], np.float32)},
    )
    joined = pieces.join_pieces(np.array([False, True, True]))
    assert joined.memory is not None
    assert joined.memory[:, 0].tolist() == [1, 3]


@given(st.sets(st.sampled_from([name for name in OPTIONAL if name != "cost"])).flatmap(
    lambda gone: tables(frozenset(gone), Episodes)
))  # fmt: skip
def test_saved_episodes_are_the_same_episodes(episodes: Episodes) -> None:
    for table in (episodes, transcript_of(episodes)):
        same(unpack_episodes(pack_episodes(table)), table)


@given(tables(frozenset({"components", "baseline", "id", "time"}), Episodes))
def test_layouts_of_older_versions_are_read(episodes: Episodes) -> None:
    episodes = replace(episodes, status=np.zeros(len(episodes), dtype=np.uint8))
    state = pack_episodes(episodes)
    same(unpack_episodes({**state, "components": None, "baseline": None}), episodes)
    del state["offsets"], state["status"]
    same(unpack_episodes({**state, "lengths": episodes.lengths}), episodes)


@pytest.mark.parametrize("name", [name for name, column in column_table().items() if column.required])
@examples(5)
@given(episodes=tables(cls=Episodes))
def test_a_state_without_a_column_or_with_an_unknown_one_is_refused(name: str, episodes: Episodes) -> None:
    state = pack_episodes(episodes)
    with pytest.raises(DataError, match="price"):
        unpack_episodes({**state, "price": np.zeros(1)})
    del state[name]
    with pytest.raises(DataError, match=name):
        unpack_episodes(state)


@pytest.mark.parametrize("name", OPTIONAL)
@examples(5)
@given(one=tables(), other=tables())
def test_a_column_of_some_pieces_only_is_refused(name: str, one: Episodes, other: Episodes) -> None:
    with pytest.raises(AssertionError, match=f"1 of 2 pieces have {name}"):
        concatenate([one, replace(other, **{name: None})])


@given(tables(frozenset({"tag", "cost"})))
def test_absent_columns_have_their_default(episodes: Episodes) -> None:
    assert isinstance(episodes, WiderEpisodes)
    assert episodes.cost is None
    assert episodes.tag is not None
    assert episodes.tag.tolist() == [7] * len(episodes)
