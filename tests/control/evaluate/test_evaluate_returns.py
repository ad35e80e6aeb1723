"""A control policy is judged by the episodes that came to an end; what did not is told."""

from pathlib import Path

import numpy as np
import pytest

from hone.control.environments.make import env_seeds
from hone.control.environments.world import GymConfig
from hone.control.evaluate.returns import evaluate_returns
from hone.control.networks.actor_critic import ActorCritic
from hone.control.networks.mlp import DiscreteActions, MlpConfig, ObservationInputs, PolicySpaces
from hone.core.errors import ResourceError, UserCodeError
from hone.core.random import key

WALK = f"{Path(__file__).parents[1] / 'environments' / 'hostile_envs.py'}:Walk"
POLICY = ActorCritic(
    PolicySpaces(inputs=ObservationInputs(size=3), actions=DiscreteActions(count=2)), MlpConfig(hidden=[4]), seed=0
)
SEEDS = env_seeds(key(5, "judge") & 0xFFFFFFFF, 4)


def test_episodes_that_were_lost_are_left_out_and_told_of() -> None:
    told: list[str] = []
    config = GymConfig(id=WALK, workers=4, kwargs={"act": "_exit", "at": 1, "seed": SEEDS[2]})
    scores = evaluate_returns(POLICY, config, episodes=4, seed=5, warn=told.append)
    fine = evaluate_returns(POLICY, GymConfig(id=WALK), episodes=4, seed=5)
    assert scores.tolist() == np.delete(fine, 2).tolist()
    assert told == ["1 of 4 episodes of an evaluation were lost with their environments and are left out"]


def test_a_judgement_without_an_episode_is_none() -> None:
    config = GymConfig(id=WALK, kwargs={"act": "_exit", "at": 1}, workers=1)
    with pytest.raises(ResourceError, match="all 2 episodes of an evaluation were lost"):
        evaluate_returns(POLICY, config, episodes=2, seed=5)


def test_episodes_without_an_end_are_cut_and_told_of() -> None:
    told: list[str] = []
    evaluate_returns(POLICY, GymConfig(id=WALK, isolation="none", step_limit=3), episodes=4, seed=5, warn=told.append)
    assert "did not end within 3 steps and were cut there; set env.max_episode_steps" in told[0]


@pytest.mark.parametrize("isolation", ["none", "process"])
def test_an_exception_is_the_users_to_mend(isolation: str) -> None:
    config = GymConfig(id=WALK, isolation=isolation, kwargs={"act": "raise", "at": 1})
    with pytest.raises(UserCodeError, match="the gripper is stuck"):
        evaluate_returns(POLICY, config, episodes=2, seed=5)


def test_a_time_limit_is_an_end_whatever_the_step_limit() -> None:
    told: list[str] = []
    config = GymConfig(id=WALK, isolation="none", max_episode_steps=3, step_limit=3)
    evaluate_returns(POLICY, config, episodes=4, seed=5, warn=told.append)
    assert told == []
