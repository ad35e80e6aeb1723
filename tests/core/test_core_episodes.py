"""Episodes against slow versions that handle one episode at a time."""

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hone.core.episodes import Episodes, ScoreStatus, Transcript, concatenate
from hone.core.ragged import RaggedArray, offsets_of

shapes = st.lists(st.integers(0, 4), min_size=1, max_size=6)


def episodes_of(lengths: list[int], *, seed: int = 0, transcript: bool = False) -> Episodes:
    rng = np.random.default_rng(seed)
    count, total = len(lengths), sum(lengths)
    offsets = offsets_of(np.array(lengths, dtype=np.int64))
    terminated = rng.random(count) < 0.4
    seen: np.ndarray | Transcript = rng.normal(size=(total, 2)).astype(np.float32)
    chosen = rng.integers(0, 9, total)
    if transcript:
        seen = talk(rng, lengths)
        chosen = seen.tokens[seen.at]
    return Episodes(
        offsets=offsets,
        seen=seen,
        chosen=chosen,
        logp=rng.normal(size=total).astype(np.float32),
        version=rng.integers(0, 3, total).astype(np.int32),
        reward=rng.normal(size=total).astype(np.float32),
        group=rng.integers(0, 3, count),
        terminated=terminated,
        truncated=~terminated & (rng.random(count) < 0.5),
        final=None if transcript else rng.normal(size=(count, 2)).astype(np.float32),
        score=rng.normal(size=count),
        status=rng.integers(0, 4, count).astype(np.uint8),
    )


def talk(rng: np.random.Generator, lengths: list[int]) -> Transcript:
    """Each decision after one to three tokens of the world, and up to two tokens of the world at the end."""
    tokens: list[int] = []
    starts, at = [0], []
    for length in lengths:
        for _ in range(length):
            tokens.extend(rng.integers(10, 20, rng.integers(1, 4)).tolist())
            at.append(len(tokens))
            tokens.append(int(rng.integers(0, 10)))
        tokens.extend(rng.integers(10, 20, rng.integers(0, 3)).tolist())
        starts.append(len(tokens))
    return Transcript(
        tokens=np.array(tokens, dtype=np.int32),
        offsets=np.array(starts, dtype=np.int64),
        at=np.array(at, dtype=np.int64),
        kept=kept_of(rng, len(at)) if rng.random() < 0.5 else None,
    )


def kept_of(rng: np.random.Generator, count: int) -> RaggedArray:
    lengths = rng.integers(0, 4, count)
    return RaggedArray(values=rng.integers(0, 9, int(lengths.sum())).astype(np.int32), offsets=offsets_of(lengths))


def story(episodes: Episodes, number: int) -> dict[str, object]:
    """Everything of one episode as plain lists: what two implementations must agree on."""
    begin, end = int(episodes.offsets[number]), int(episodes.offsets[number + 1])
    told: dict[str, object] = {
        name: column[begin:end].tolist()
        for name, column in (
            ("chosen", episodes.chosen),
            ("logp", episodes.logp),
            ("version", episodes.version),
            ("reward", episodes.reward),
        )
    }
    for name in ("group", "terminated", "truncated", "score", "status"):
        told[name] = {field.name: column_of(episodes, field.name) for field in fields(episodes)}[name][number]
    if isinstance(episodes.seen, Transcript):
        first, last = int(episodes.seen.offsets[number]), int(episodes.seen.offsets[number + 1])
        told["tokens"] = episodes.seen.tokens[first:last].tolist()
        told["at"] = (episodes.seen.at[begin:end] - first).tolist()
        kept = episodes.seen.kept
        told["kept"] = [
            [] if kept is None else kept.values[kept.offsets[n] : kept.offsets[n + 1]].tolist()
            for n in range(begin, end)
        ]
    else:
        told["seen"] = episodes.seen[begin:end].tolist()
        told["final"] = None if episodes.final is None else episodes.final[number].tolist()
    return told


def column_of(episodes: Episodes, name: str) -> list[object]:
    columns = {
        "group": episodes.group,
        "terminated": episodes.terminated,
        "truncated": episodes.truncated,
        "score": episodes.score,
        "status": episodes.status,
    }
    return columns[name].tolist() if name in columns else []


@given(shapes, st.data(), st.booleans())
def test_take_is_each_episode_by_itself(lengths: list[int], data: st.DataObject, transcript: bool) -> None:
    episodes = episodes_of(lengths, seed=len(lengths), transcript=transcript)
    index = data.draw(st.lists(st.integers(0, len(lengths) - 1), max_size=8))
    taken = episodes.take(np.array(index, dtype=np.int64))
    assert [story(taken, place) for place in range(len(taken))] == [story(episodes, number) for number in index]
    assert taken.decisions == sum(lengths[number] for number in index)


@given(st.lists(shapes, min_size=1, max_size=4), st.booleans())
def test_concatenate_is_one_after_another(pieces: list[list[int]], transcript: bool) -> None:
    parts = [episodes_of(lengths, seed=place, transcript=transcript) for place, lengths in enumerate(pieces)]
    whole = concatenate(parts)
    assert [story(whole, number) for number in range(len(whole))] == [
        story(part, number) for part in parts for number in range(len(part))
    ]


@given(shapes, st.booleans())
def test_a_split_put_together_again_is_the_whole(lengths: list[int], transcript: bool) -> None:
    episodes = episodes_of(lengths, transcript=transcript)
    again = concatenate([episodes.take(np.array([number])) for number in range(len(episodes))])
    assert [story(again, n) for n in range(len(again))] == [story(episodes, n) for n in range(len(episodes))]


@given(shapes)
def test_transitions_are_those_of_a_loop(lengths: list[int]) -> None:
    episodes = episodes_of(lengths, seed=3)
    single = episodes.transitions()
    assert len(single) == single.decisions == sum(lengths)
    assert single.final is not None
    assert episodes.final is not None
    place = 0
    for number, length in enumerate(lengths):
        for step in range(length):
            last = step == length - 1
            row = int(episodes.offsets[number]) + step
            following = episodes.final[number] if last else episodes.observations[row + 1]
            assert single.final[place].tolist() == following.tolist()
            assert single.observations[place].tolist() == episodes.observations[row].tolist()
            assert bool(single.terminated[place]) == (last and bool(episodes.terminated[number]))
            assert bool(single.truncated[place]) == (last and bool(episodes.truncated[number]))
            assert single.reward[place] == episodes.reward[row]
            assert single.score[place] == episodes.score[number]
            assert single.group[place] == episodes.group[number]
            place += 1


def test_properties_of_a_hand_made_batch() -> None:
    episodes = replace(episodes_of([2, 0, 1]), status=np.array([0, 3, 1], dtype=np.uint8))
    assert len(episodes) == 3
    assert episodes.decisions == 3
    assert episodes.lengths.tolist() == [2, 0, 1]
    assert episodes.owner.tolist() == [0, 0, 2]
    assert episodes.scored.tolist() == [True, False, False]
    assert [status.name for status in ScoreStatus] == ["SCORED", "UNSCORABLE", "ERROR", "TIMEOUT"]


@pytest.mark.parametrize("name", ["group", "terminated", "truncated", "logp", "version", "reward", "score", "status"])
def test_columns_of_another_length_are_refused(name: str) -> None:
    episodes = episodes_of([2, 1])
    with pytest.raises(AssertionError, match=name):
        replace(episodes, **{name: np.zeros(7)})


def test_transcripts_and_observations_are_not_mistaken_for_each_other() -> None:
    with pytest.raises(AssertionError, match="transcript"):
        _ = episodes_of([1], transcript=True).observations
    with pytest.raises(AssertionError, match="observations"):
        _ = episodes_of([1]).transcript
