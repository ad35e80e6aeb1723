"""Recipes learn a target in a box of actions far from [-1, 1]: (750, -800) in +-1000, and boxes of other places."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from hone.control.environments.world import GymConfig, open_world
from hone.control.logs.parquet import BehaviourLog, write_log
from hone.control.networks.mlp import BoxActions, ObservationInputs, PolicySpaces
from hone.control.spaces import gaussian_spaces
from hone.core.errors import ConfigError
from hone.recipes.registry import load_recipe
from hone.run.loop import train

FILE = Path(__file__).parents[1] / "support" / "target_box.py"
OFF_CENTRE = {"middle": 5000.0, "reach": 10.0}
ROLLOUT = {"rollout_steps": 16, "learner": {"lr": 1e-2, "epochs": 4, "minibatches": 2}}
SHORT = {"rollout_steps": 4, "learner": {"lr": 3e-3}}
REPLAY = {"replay": {"batch": 64, "warmup": 50}, "learner": {"lr": 3e-3}}
SEEN = np.zeros((1, 1), np.float32)


def ignore(step: int, episodes: object, credits: object, metrics: object) -> None:
    """Watch nothing of a training."""


def learned(recipe: str, steps: int, more: dict[str, Any], box: dict[str, Any]) -> tuple[np.ndarray, float]:
    """The action that a short training ends with, on the scale [-1, 1], and its reward."""
    entry = load_recipe(recipe)
    env = {
        "id": f"{FILE}:TargetBox", "num_envs": 8, "check": False, "isolation": "none", "clip_actions": True,
        "kwargs": box,
    }  # fmt: skip
    network = {"hidden": [16], **more.get("network", {})}
    config = entry.config.model_validate(
        {"recipe": recipe, "name": "x", "steps": steps, "seed": 1, "env": env, "evaluation": {"episodes": 1}}
        | more | {"network": network}
    )  # fmt: skip
    job = entry.build(config)
    try:
        policy = train(job.recipe, steps=steps, callback=ignore)
        assert job.evaluate is not None
        best = policy.numpy_policy().best(SEEN)[0]
        return (best - box.get("middle", 0.0)) / box.get("reach", 1000.0), job.evaluate().estimate.mean
    finally:
        job.close()


SQUASHED = {"network": {"gaussian": "squashed"}}


@pytest.mark.parametrize(
    ("recipe", "steps", "more", "box"),
    [
        ("ppo", 25, ROLLOUT, {}),
        ("ppo", 25, {**ROLLOUT, **SQUASHED}, OFF_CENTRE),
        ("a2c", 120, SHORT, {}),
        ("a2c", 120, {**SHORT, **SQUASHED}, {}),
        ("trpo", 20, {**ROLLOUT, "learner": {"lr": 1e-2, "epochs": 1, "minibatches": 1}}, OFF_CENTRE),
        ("reinforce_control", 120, SHORT, OFF_CENTRE),
        ("ppo_kl", 25, ROLLOUT, {}),
        ("ppo_icm", 25, {**ROLLOUT, "learner": {"lr": 1e-2, "minibatches": 1}}, {}),
        ("sac", 300, REPLAY, OFF_CENTRE),
        pytest.param("td3", 800, REPLAY, {}, marks=pytest.mark.slow),
        pytest.param("ddpg", 800, REPLAY, OFF_CENTRE, marks=pytest.mark.slow),
    ],
)
def test_the_target_is_learned_wherever_the_box_is(
    recipe: str, steps: int, more: dict[str, Any], box: dict[str, Any]
) -> None:
    """The reward begins at -1.2, and was about that at the end when actions near 0 were all that was tried."""
    action, reward = learned(recipe, steps, more, box)
    assert reward > -0.2
    assert action[0] > 0.4
    assert action[1] < -0.4


def test_an_unscaled_gaussian_is_what_it_was() -> None:
    action, reward = learned("ppo", 10, {**ROLLOUT, "network": {"gaussian": "unscaled"}}, {})
    assert np.abs(action).max() < 0.01
    assert reward < -1.1


def test_squashed_actions_need_bounds_and_no_clipping() -> None:
    entry = load_recipe("ppo")

    def config(**env: Any) -> Any:
        network = {"gaussian": "squashed"}
        return entry.config.model_validate({"recipe": "ppo", "name": "x", "steps": 1, "env": env, "network": network})

    entry.check(config(id="Pendulum-v1", check=False))
    endless = BoxActions(low=(0.0,), high=(float("inf"),), shape=(1,))
    with pytest.raises(ConfigError, match=r"squashed.*finite bounds"):
        gaussian_spaces(PolicySpaces(inputs=ObservationInputs(size=1), actions=endless), config(id="x").network)


@pytest.mark.parametrize("box", [{}, OFF_CENTRE])
def test_behaviour_cloning_learns_a_target_wherever_the_box_is(box: dict[str, float], tmp_path: Path) -> None:
    env = GymConfig(id=f"{FILE}:TargetBox", num_envs=4, check=False, isolation="none", kwargs=dict(box))
    world = open_world(env, steps=50, seed=0)
    space = world.envs.single_action_space
    target = box.get("middle", 0.0) + box.get("reach", 1000.0) * np.array([0.75, -0.8])
    assert isinstance(space, spaces.Box)

    class Expert:
        version = 0

        def noise(self, draws: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
            return np.zeros(shape, np.float32)

        def decide(self, seen: np.ndarray, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            return np.tile(target.astype(np.float32), (len(seen), 1)), np.zeros(len(seen), np.float32)

    log = BehaviourLog(
        episodes=world.rollout(Expert()),
        observation_space=world.envs.single_observation_space,
        action_space=space,
    )
    write_log(tmp_path / "log.parquet", log)
    more = {"log": str(tmp_path / "log.parquet"), "learner": {"lr": 1e-2}, "batch": 32}
    assert learned("bc", 150, more, dict(box))[1] > -0.02
