"""Every memory behind the source that the recipes use: it samples, and a resumed run is the same run."""

from collections.abc import Callable

import numpy as np
import pytest
from test_replay_ring import single

from hone.control.finite.build import grid_mdp
from hone.control.finite.world import FiniteWorld
from hone.control.replay.hindsight import GoalSpec, HindsightBuffer
from hone.control.replay.mixed import DemonstrationMixer, ReplayBuffer, ReplaySource
from hone.control.replay.priority import PrioritizedSampler
from hone.control.replay.ring import RingBuffer
from hone.control.replay.steps import StepBuffer
from hone.control.replay.store import EpisodeStore
from hone.core.episodes import Episodes
from hone.sources.live import LiveSource


class Wanderer:
    """Goes anywhere."""

    version = 0

    def publish(self, policy: None, version: int) -> None:
        self.version = version

    def noise(self, draws, shape):
        return draws.random(shape)

    def decide(self, seen, noise):
        return (noise * 4).astype(np.int64), np.full(len(seen), -np.log(4), np.float32)


class Pairs:
    """The states of a table as rows (state, state, 7): reached and wanted."""

    def __init__(self, world: FiniteWorld) -> None:
        self.world = world

    def rollout(self, actor):
        from dataclasses import replace

        episodes = self.world.rollout(actor)
        return replace(episodes, seen=pairs(episodes.observations), final=pairs(episodes.final))

    def state(self):
        return self.world.state()

    def restore(self, state):
        self.world.restore(state)


def pairs(states: np.ndarray) -> np.ndarray:
    return np.stack([states, np.full(len(states), 7)], axis=1).astype(np.float32)


def hindsight() -> HindsightBuffer:
    goals = GoalSpec(achieved=slice(0, 1), desired=slice(1, 2), reward=lambda here, there: (here == there)[:, 0] - 1.0)
    return HindsightBuffer(EpisodeStore(60), goals)


MEMORIES: dict[str, Callable[[], ReplayBuffer]] = {
    "ring": lambda: RingBuffer(50),
    "steps": lambda: StepBuffer(50, n_steps=3, discount=0.9, frames=2),
    "prioritised": lambda: PrioritizedSampler(StepBuffer(50, n_steps=3, discount=0.9)),
    "episodes": lambda: EpisodeStore(60),
    "hindsight": hindsight,
    "mixed": lambda: DemonstrationMixer(RingBuffer(50), RingBuffer(10), share=0.0),
}


def source(name: str, memory: ReplayBuffer) -> ReplaySource[None]:
    walk = grid_mdp(["S..", "..G"], discount=0.9, slip=0.2, limit=9)
    world = FiniteWorld(mdp=walk, steps=2, copies=3, seed=4)
    live = LiveSource(Pairs(world) if name == "hindsight" else world, Wanderer())
    return ReplaySource(live, buffer=memory, sample_size=16, warmup=12, seed=8)


def step(name: str, replay: ReplaySource[None], memory: ReplayBuffer) -> Episodes:
    sample = replay.collect()
    if isinstance(memory, PrioritizedSampler):
        memory.update_priorities(np.abs(sample.reward) + 0.01)
    replay.publish(None)
    return sample


@pytest.mark.parametrize("name", list(MEMORIES))
def test_a_resumed_source_hands_out_the_same(name: str) -> None:
    memory, again = MEMORIES[name](), MEMORIES[name]()
    replay, resumed = source(name, memory), source(name, again)
    replay.publish(None)
    for _ in range(20):
        step(name, replay, memory)
    resumed.restore(replay.state())
    resumed.publish(None)
    for _ in range(20):
        here, there = step(name, replay, memory), step(name, resumed, again)
        assert len(here) == 16
        for column in Episodes.__dataclass_fields__:
            np.testing.assert_array_equal(
                object.__getattribute__(here, column), object.__getattribute__(there, column), err_msg=column
            )
    assert len(memory) == len(again) >= 12


def test_what_is_warmed_up_counts_decisions() -> None:
    ring = RingBuffer(50)
    replay = source("ring", ring)
    replay.publish(None)
    replay.collect()
    assert len(ring) == 12
    ring.add(single(np.arange(0)))
    assert len(ring) == 12
