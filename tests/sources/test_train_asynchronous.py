"""Collecting ahead: a fixed lag, a hard bound on age, an exact resume, with and without a thread."""

import json
import threading
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_episodes import episodes_of
from tiny_runs import hone, lay_out, lines_of

from hone.core.episodes import Episodes, Transcript, pack_episodes, unpack_episodes
from hone.core.errors import DivergedError, UserCodeError
from hone.core.ragged import RaggedArray, offsets_of
from hone.core.state import State, integer
from hone.sources.asynchronous import AsyncSource
from hone.sources.live import LiveSource


@dataclass
class World:
    """One batch of two episodes, numbered on, of lengths that vary with the number."""

    told: int = 0
    threads: set[str] | None = None

    def rollout(self, actor: "Actor") -> Episodes:
        self.told += 1
        if self.threads is not None:
            self.threads.add(threading.current_thread().name)
        return episodes_of([1 + self.told % 3, 2], first=2 * self.told, version=actor.version)

    def state(self) -> State:
        return {"told": self.told}

    def restore(self, state: State) -> None:
        self.told = integer(state, "told")


@dataclass
class Actor:
    version: int = -1

    def publish(self, policy: None, version: int) -> None:
        self.version = version


def ahead_of(most: int, *, overlap: bool = False) -> AsyncSource[None]:
    return AsyncSource[None](LiveSource[None](World(), Actor()), max_staleness=most, in_background=overlap)


def walk(source: AsyncSource[None], steps: int) -> list[tuple[int, int, float]]:
    """Of each step: the batch's number, the version that decided it, and the mean reward told of it."""
    found: list[tuple[int, int, float]] = []
    for _ in range(steps):
        episodes = source.collect()
        source.publish(None)
        found.append((int(episodes.group[0]) // 2, int(episodes.version[0]), source.metrics()["reward/mean"]))
    return found


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("most", [0, 1, 3])
def test_every_batch_is_handed_out_in_order_at_a_fixed_age(most, overlap):
    source = ahead_of(most, overlap=overlap)
    source.publish(None)
    found = walk(source, 8)
    source.close()
    assert [number for number, _, _ in found] == list(range(1, 9))
    assert [version for _, version, _ in found] == [max(0, step - 1 - most) for step in range(1, 9)]
    assert [mean for _, _, mean in found] == [2 * number + 0.5 for number in range(1, 9)], "figures follow their batch"


@given(most=st.integers(0, 3), first=st.integers(0, 5), overlaps=st.tuples(st.booleans(), st.booleans()))
def test_a_resumed_run_is_the_same_run(most, first, overlaps):
    straight = ahead_of(most)
    straight.publish(None)
    expected = walk(straight, 9)
    source = ahead_of(most, overlap=overlaps[0])
    source.publish(None)
    found = walk(source, first)
    state = source.state()
    source.close()
    again = ahead_of(most, overlap=overlaps[1])
    again.restore(state)
    again.publish(None)
    found += walk(again, 9 - first)
    again.close()
    assert found == expected


def test_an_episode_with_a_decision_that_is_too_old_is_dropped_and_its_length_told():
    source = ahead_of(1)
    source.publish(None)
    source.collect()
    (batch,) = source._ready
    version = np.array([0] * 3 + [2] * 2, np.int32)
    mixed = episodes_of([3, 2], version=0)
    source._ready[0] = type(batch)(episodes=type(mixed)(**{**columns(mixed), "version": version}), metrics={})
    source.publish(None)
    source.publish(None)
    kept = source.collect()
    assert kept.lengths.tolist() == [2]
    told = source.metrics()
    assert told["async/dropped"] == 0.5
    assert told["async/length_bias_tokens"] == -0.5
    assert told["async/staleness_max"] == 0


def columns(episodes: Episodes) -> dict:
    return {name: getattr(episodes, name) for name in Episodes.__dataclass_fields__}


def test_batches_that_are_wholly_too_old_are_passed_over():
    source = ahead_of(1)
    source.publish(None)
    source.collect()
    for _ in range(5):
        source.publish(None)
    assert source.collect().version.tolist()[0] == 5
    assert source.metrics()["async/dropped"] > 0


AGES = st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=4), min_size=1, max_size=8)


@given(ages=AGES, rows=st.lists(st.booleans(), min_size=8, max_size=8), most=st.integers(0, 4))
def test_no_decision_beyond_the_bound_is_handed_out_and_a_dialogue_stays_whole(ages, rows, most):
    """Episodes of decisions of any age, some of which are rows of one dialogue, against a loop over them."""
    source = ahead_of(most)
    source.version = 6
    lengths = [len(own) for own in ages]
    plain = episodes_of(lengths)
    number = np.cumsum([0, *(not row for row in rows[1 : len(ages)])])  # a row goes on with the dialogue before it
    part = np.array([int(np.sum(number[:place] == one)) for place, one in enumerate(number)], np.int64)
    version = np.array([6 - age for own in ages for age in own], np.int32)
    episodes = type(plain)(**{**columns(plain), "version": version, "group": number, "id": number, "part": part})
    old = {one for one, own in zip(number.tolist(), ages, strict=True) if max(own) > most}
    expected = [place for place, one in enumerate(number.tolist()) if one not in old]
    assert np.flatnonzero(source._is_fresh(episodes)).tolist() == expected
    if old:
        with pytest.raises(DivergedError, match=f"{len(ages) - len(expected)} of {len(ages)} episodes are up to"):
            source.require_fresh(episodes)
    if expected:
        source.require_fresh(episodes.take(np.array(expected)))


def test_overlap_collects_in_one_thread_of_its_own_and_raises_what_happens_there():
    world = World(threads=set())
    source = AsyncSource[None](LiveSource[None](world, Actor()), max_staleness=1, in_background=True)
    source.publish(None)
    walk(source, 4)
    source.close()
    assert len(world.threads or ()) == 1
    assert threading.current_thread().name not in (world.threads or ())

    class Broken(World):
        def rollout(self, actor: Actor) -> Episodes:
            raise UserCodeError("a reward function failed")

    broken = AsyncSource[None](LiveSource[None](Broken(), Actor()), max_staleness=1, in_background=True)
    broken.publish(None)
    with pytest.raises(UserCodeError, match="a reward function"):
        broken.collect()
    broken.close()


def test_packed_episodes_are_the_same_episodes():
    plain = episodes_of([2, 1])
    tokens = Transcript(
        tokens=np.arange(6, dtype=np.int32),
        offsets=offsets_of(np.array([4, 2])),
        at=np.array([2, 3, 5]),
        kept=RaggedArray(values=np.array([1, 2, 3], np.int32), offsets=np.array([0, 2, 2, 3])),
    )
    told = type(plain)(**{**columns(plain), "seen": tokens, "final": None, "baseline": np.array([0.5, np.nan])})
    for episodes in (plain, told):
        again = unpack_episodes(pack_episodes(episodes))
        for name, column in columns(episodes).items():
            other = columns(again)[name]
            if name == "seen" and isinstance(column, Transcript):
                assert np.array_equal(other.tokens, column.tokens)
                assert column.kept is not None
                assert np.array_equal(other.kept.values, column.kept.values)
                assert np.array_equal(other.kept.offsets, column.kept.offsets)
            elif column is None:
                assert other is None
            else:
                assert np.array_equal(other, column, equal_nan=column.dtype.kind == "f")
                assert other.dtype == column.dtype


AHEAD = ["rollout.max_staleness=1", "learner.epochs=1", "steps=4"]


@pytest.mark.parametrize("runner", ["torch", "auto"])
def test_a_run_that_collects_ahead_is_the_same_run_in_two_goes(tmp_path, monkeypatch, runner):
    """With compiled code it collects in a thread, without it in between: neither changes a figure of a resumed run."""
    monkeypatch.chdir(tmp_path)
    lay_out(tmp_path)
    asked = [*AHEAD, f"rollout.runner={runner}"]
    assert hone("train", "grpo.toml", *asked, "name=whole") == 0
    assert hone("train", "grpo.toml", *asked, "name=parts", "steps=2") == 0
    assert hone("train", "grpo.toml", *asked, "name=parts", "--resume") == 0
    whole, parts = lines_of(tmp_path / "runs" / "whole"), lines_of(tmp_path / "runs" / "parts")
    figures = [json.loads(line) for line in whole]
    assert [line["async/staleness"] for line in figures] == [0.0, 1.0, 1.0, 1.0]
    assert whole[2:] == parts[2:]
    assert figures[-1]["async/dropped"] == 0.0
