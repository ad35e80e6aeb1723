"""What ended with a lost environment is counted, and not learned from."""

from dataclasses import dataclass, field

import numpy as np
import pytest
from plain_episodes import plain_episodes

from hone.control.acting import DropFailedEpisodes
from hone.control.environments.world import GymConfig, GymWorld, open_world
from hone.control.replay.mixed import ReplaySource
from hone.control.replay.ring import RingBuffer
from hone.core.credit import Metrics
from hone.core.episodes import Episodes, ScoreStatus
from hone.core.state import State


def pieces(*statuses: ScoreStatus) -> Episodes:
    """Two decisions each; the observation says which piece it is of."""
    count = len(statuses)
    return plain_episodes(
        np.arange(0, 2 * count + 1, 2),
        seen=np.repeat(np.arange(count, dtype=np.float32), 2)[:, None],
        reward=np.ones(2 * count, np.float32),
        terminated=np.zeros(count, np.bool_),
        truncated=np.array([status != ScoreStatus.SCORED for status in statuses]),
        final=np.zeros((count, 1), np.float32),
        score=np.array([1.0 if status == ScoreStatus.SCORED else np.nan for status in statuses]),
        status=np.array(statuses, np.uint8),
    )


@dataclass
class Script:
    """Hands out what it was given, one after another."""

    given: list[Episodes]
    heard: list[str] = field(default_factory=list)

    def collect(self) -> Episodes:
        return self.given.pop(0)

    def publish(self, policy: str) -> None:
        self.heard.append(policy)

    def metrics(self) -> Metrics:
        return {"episodes/ended": 2.0}

    def state(self) -> State:
        return {"left": len(self.given)}

    def restore(self, state: State) -> None:
        self.heard.append(f"left {state['left']}")


@pytest.fixture(scope="module")
def world() -> GymWorld:
    return open_world(GymConfig(id="CartPole-v1", num_envs=2, check=False), steps=3, seed=0)


def test_what_all_was_scored_is_handed_on_as_it_is(world: GymWorld) -> None:
    whole = pieces(ScoreStatus.SCORED, ScoreStatus.SCORED)
    assert DropFailedEpisodes(Script([whole]), world).collect() is whole


def test_what_was_lost_is_left_out(world: GymWorld) -> None:
    given = pieces(ScoreStatus.SCORED, ScoreStatus.ERROR, ScoreStatus.SCORED, ScoreStatus.TIMEOUT)
    found = DropFailedEpisodes(Script([given]), world).collect()
    assert found.observations[:, 0].tolist() == [0, 0, 2, 2]
    assert found.scored.all()


def test_a_turn_of_which_nothing_is_left_is_made_again(world: GymWorld) -> None:
    script = Script([pieces(ScoreStatus.ERROR, ScoreStatus.TIMEOUT), pieces(ScoreStatus.SCORED)])
    assert DropFailedEpisodes(script, world).collect().decisions == 2
    assert script.given == []


def test_nothing_lost_reaches_a_replay_memory(world: GymWorld) -> None:
    given = pieces(ScoreStatus.ERROR, ScoreStatus.SCORED)
    replay = ReplaySource(
        DropFailedEpisodes(Script([given]), world), buffer=RingBuffer(10), sample_size=8, warmup=1, seed=0
    )
    assert set(replay.collect().observations[:, 0].tolist()) == {1.0}
    assert len(replay.buffer) == 2


def test_the_rest_is_the_sources(world: GymWorld) -> None:
    script = Script([])
    source = DropFailedEpisodes(script, world)
    source.publish("policy")
    source.restore(replace_left(source.state(), 7))
    assert script.heard == ["policy", "left 7"]
    assert source.metrics() == {"episodes/ended": 2.0, "env/faults": 0.0}


def replace_left(state: State, left: int) -> State:
    return {**state, "left": left}
