"""Logs with masks of legal actions: written, read, and imitated by a policy that acts with masks."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from control_runs import StepRecorder

from hone.control.environments.world import GymConfig, open_world
from hone.control.logs.parquet import BehaviourLog, read_log, write_log
from hone.core.episodes import Episodes, concatenate
from hone.recipes.offline import bc
from hone.recipes.registry import load_recipe
from hone.run.loop import train

LADDER = f"{Path(__file__).parents[2] / 'control' / 'environments' / 'masked_envs.py'}:Ladder"


class Right:
    """The paid action, which is always legal."""

    version = 0

    def noise(self, draws, shape):
        return draws.random(shape, dtype=np.float32)

    def decide(self, seen, noise, mask=None):
        return np.rint(seen[:, 0] * 4).astype(np.int64), np.zeros(len(seen), np.float32)


def logged(path: Path) -> Episodes:
    world = open_world(GymConfig(id=LADDER, num_envs=4, isolation="none"), steps=40, seed=1, masks=True)
    episodes = concatenate([world.rollout(Right())])
    spaces = (world.envs.single_observation_space, world.envs.single_action_space)
    write_log(path, BehaviourLog(episodes=episodes, observation_space=spaces[0], action_space=spaces[1]))
    world.close()
    return episodes


def test_masks_are_columns_of_a_log_and_of_what_is_learned_from_it(tmp_path: Path) -> None:
    """An illegal action would raise an error in the environment of the evaluation."""
    path = tmp_path / "log.parquet"
    episodes = logged(path)
    again = read_log(path).episodes
    np.testing.assert_array_equal(again.mask, episodes.mask)
    np.testing.assert_array_equal(again.final_mask, episodes.final_mask)
    given: dict[str, Any] = {"recipe": "bc", "name": "x", "steps": 60, "log": str(path), "evaluation": {"episodes": 2}}
    given |= {"env": {"id": LADDER, "isolation": "none"}, "learner": {"lr": 0.02}}
    config = load_recipe("bc").config.model_validate(given)
    assert isinstance(config, bc.BcConfig)
    job, recorder = config.open().build(config), StepRecorder()
    train(job.recipe, steps=60, callback=recorder)
    assert job.evaluate is not None
    assert job.evaluate().metrics["eval/score"] == pytest.approx(4.0)
    assert job.recipe.learner.policy.spaces.choices.masked
    assert 0.0 <= recorder.lines[-1][-1]["policy/entropy_share"] < 0.9
    job.close()
