"""Hindsight: which goals, from where, what they pay; and demonstrations at a ratio."""

import numpy as np
import pytest
from plain_episodes import plain_episodes
from test_replay_ring import single

from hone.control.replay.hindsight import GoalSpec, HindsightBuffer, Strategy
from hone.control.replay.mixed import DemonstrationMixer
from hone.control.replay.ring import RingBuffer
from hone.control.replay.store import EpisodeStore
from hone.core.episodes import Episodes, concatenate
from hone.core.errors import ConfigError, DataError
from hone.core.random import generator


def walk(episode: int, length: int, *, terminated: bool = False) -> Episodes:
    """Observations (episode, reached, wanted): step t has reached 10 * episode + t and wants -1 - episode."""
    steps = np.arange(length)
    seen = np.stack([np.full(length, episode), 10 * episode + steps, np.full(length, -1 - episode)], axis=1)
    return plain_episodes(
        np.array([0, length]),
        seen=seen.astype(np.float32),
        reward=np.full(length, -1.0, np.float32),
        group=np.array([episode]),
        terminated=np.array([terminated]),
        truncated=np.array([not terminated]),
        final=np.array([[episode, 10 * episode + length, -1 - episode]], np.float32),
    )


def met(reached: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    return (reached == wanted).all(axis=1)


def pays(reached: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    return np.where(met(reached, wanted), 0.0, -1.0)


def memory(strategy: Strategy, *, share: float = 1.0, ends: bool = False) -> HindsightBuffer:
    goals = GoalSpec(achieved=slice(1, 2), desired=slice(2, 3), reward=pays, terminates=met if ends else None)
    hindsight = HindsightBuffer(EpisodeStore(100), goals, strategy=strategy, share=share)
    hindsight.add(concatenate([walk(0, 5), walk(1, 3), walk(2, 7, terminated=True)]))
    return hindsight


LENGTH = {0: 5, 1: 3, 2: 7}


@pytest.mark.parametrize("strategy", ["future", "final", "episode"])
def test_goals_come_from_the_same_episode_and_are_paid(strategy: Strategy) -> None:
    drawn = memory(strategy).sample(3000, generator(0, "x"))
    assert drawn.final is not None
    seen, after = drawn.observations, drawn.final
    episode, place = seen[:, 0].astype(int), (seen[:, 1] % 10).astype(int)
    np.testing.assert_array_equal(seen[:, 2], after[:, 2])  # the goal is the same before and after the step
    goal = seen[:, 2].astype(int) - 10 * episode  # reached after step goal - 1
    length = np.array([LENGTH[number] for number in episode])
    assert ((goal >= 1) & (goal <= length)).all()
    np.testing.assert_array_equal(drawn.reward, np.where(goal == place + 1, 0.0, -1.0))
    if strategy == "future":
        assert (goal > place).all()
        first = goal[(episode == 2) & (place == 3)] - 4  # 4, 5, 6 or 7, evenly
        counts = np.bincount(first, minlength=4)
        assert ((counts - counts.mean()) ** 2 / counts.mean()).sum() < 16.3
    elif strategy == "final":
        assert (goal == length).all()
    else:
        assert (goal <= place).any()
    np.testing.assert_array_equal(seen[:, 1] + 1, after[:, 1])  # nothing else was changed


def test_a_share_is_relabelled() -> None:
    drawn = memory("future", share=0.8).sample(4000, generator(1, "x"))
    relabelled = (drawn.observations[:, 2] >= 0).mean()
    assert abs(relabelled - 0.8) < 4 * np.sqrt(0.16 / 4000)
    untouched = drawn.observations[:, 2] < 0
    assert (drawn.reward[untouched] == -1).all()


def test_ends_are_judged_by_the_new_goal() -> None:
    drawn = memory("final", ends=True).sample(2000, generator(2, "x"))
    last = (drawn.observations[:, 1] % 10 + 1) == np.array([LENGTH[int(e)] for e in drawn.observations[:, 0]])
    np.testing.assert_array_equal(drawn.terminated, last)  # meeting the goal ends; episode 2 had ended by itself
    kept = memory("final").sample(2000, generator(2, "x"))
    np.testing.assert_array_equal(kept.terminated, last & (kept.observations[:, 0] == 2))


def test_what_is_stored_is_not_changed() -> None:
    hindsight = memory("future")
    hindsight.sample(500, generator(0, "x"))
    assert (hindsight.store.view(0).observations[:, 2] == -1).all()
    again = memory("future")
    again.restore(hindsight.state())
    here, there = hindsight.sample(64, generator(3, "x")), again.sample(64, generator(3, "x"))
    np.testing.assert_array_equal(here.observations, there.observations)
    np.testing.assert_array_equal(here.reward, there.reward)


def test_goals_of_another_width_are_refused() -> None:
    goals = GoalSpec(achieved=slice(0, 2), desired=slice(2, 3), reward=pays)
    hindsight = HindsightBuffer(EpisodeStore(100), goals)
    hindsight.add(walk(0, 5))
    with pytest.raises(DataError, match="2 columns say what is reached, 1 what is wanted"):
        hindsight.sample(50, generator(0, "x"))


def rings(share: float) -> DemonstrationMixer:
    lived, shown = RingBuffer(50), RingBuffer(50)
    shown.add(single(np.arange(1000, 1020)))
    mixed = DemonstrationMixer(lived, shown, share=share)
    mixed.add(single(np.arange(30)))
    return mixed


def test_demonstrations_come_at_their_ratio_exactly() -> None:
    mixed = rings(0.1)
    counts = [int((mixed.sample(32, generator(k, "x")).group >= 1000).sum()) for k in range(50)]
    assert set(counts) == {3, 4}
    assert sum(counts) == 160
    assert len(mixed) == 30
    for share, expected in ((0.0, 0), (1.0, 32), (0.5, 16)):
        assert (rings(share).sample(32, generator(0, "x")).group >= 1000).sum() == expected
    with pytest.raises(ConfigError, match=r"is 1\.5"):
        rings(1.5).sample(3, generator(0, "x"))


def test_a_restored_mixture_goes_on_as_before() -> None:
    mixed, again = rings(0.3), rings(0.3)
    mixed.sample(5, generator(0, "x"))
    again.restore(mixed.state())
    for k in range(4):
        here, there = mixed.sample(5, generator(k, "y")), again.sample(5, generator(k, "y"))
        np.testing.assert_array_equal(here.group, there.group)
    other = DemonstrationMixer(RingBuffer(50), RingBuffer(50), share=0.3)
    with pytest.raises(DataError, match="had 20 demonstrations, there are 0 now"):
        other.restore(mixed.state())
