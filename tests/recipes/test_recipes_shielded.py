"""Training under a shield: unsafe actions are replaced, a recipe opens it by its config, no episode ends unsafe."""

from pathlib import Path

import gymnasium
import numpy as np
import pytest

from hone.control.environments.option_wrapper import ActionReplacementWrapper
from hone.core.episodes import Episodes
from hone.core.errors import ConfigError, DataError
from hone.decide.shield.certificate import certify
from hone.decide.shield.model import shield_spec
from hone.decide.simulators.car_following import LATTICE_ROAD
from hone.recipes.off_policy import discrete_sac, dqn
from hone.recipes.on_policy.ppo import ENTRY
from hone.recipes.shielded import make_shielded_env
from hone.run.loop import train


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> str:
    spec = shield_spec(LATTICE_ROAD.shield_tables(), place="lattice")
    path = tmp_path_factory.mktemp("shield") / "shield.json"
    path.write_text(certify(spec).text())
    return str(path)


def test_an_unsafe_action_becomes_the_nearest_safe_one(certificate: str) -> None:
    env = make_shielded_env("hone/CarFollowing-v0", certificate, env_kwargs={"road": "lattice", "numbered": True})
    env.reset(seed=1)
    executed = []
    for _ in range(400):
        _, _, crashed, _, info = env.step(np.int64(2))
        assert not crashed
        assert info["intervened"] == float(info["executed"] != 2)
        executed.append(info["executed"])
    assert set(executed) == {0, 1, 2}


def test_a_recipe_trains_under_the_shield_by_its_config_alone(certificate: str) -> None:
    config = ENTRY.config.model_validate({
        "recipe": "ppo", "name": "car", "steps": 2,
        "env": {
            "id": "hone.recipes.shielded:make_shielded_env", "num_envs": 2, "isolation": "none",
            "max_episode_steps": 50,
            "kwargs": {"env": "hone/CarFollowing-v0", "shield": certificate, "env_kwargs": {"road": "lattice"}},
        },
    })  # fmt: skip
    job = config.open().build(config)
    ended = []
    try:
        train(job.recipe, steps=2, callback=lambda step, episodes, *_: ended.extend(episodes.terminated))
    finally:
        job.close()
    assert ended
    assert not any(ended)


@pytest.mark.parametrize("recipe", ["dqn", "discrete_sac"])
def test_off_policy_recipes_store_what_the_executed_action_did(certificate: str, recipe: str) -> None:
    """A stored transition is that of the shielded world: the chosen action, and the next state that the executed one
    brought. So every action has a value, an unsafe one that of the safe action in its place."""
    entry = {"dqn": dqn, "discrete_sac": discrete_sac}[recipe].ENTRY
    config = entry.config.model_validate({
        "recipe": recipe, "name": "car", "steps": 25, "replay": {"warmup": 40, "batch": 16},
        "env": {
            "id": "hone.recipes.shielded:make_shielded_env", "num_envs": 1, "isolation": "none",
            "max_episode_steps": 30,
            "kwargs": {"env": "hone/CarFollowing-v0", "shield": certificate, "env_kwargs": {"road": "lattice"}},
        },
    })  # fmt: skip
    job = config.open().build(config)
    seen = list[Episodes]()
    try:
        train(job.recipe, steps=25, callback=lambda step, episodes, *_: seen.append(episodes))
    finally:
        job.close()
    rule = make_shielded_env("hone/CarFollowing-v0", certificate, env_kwargs={"road": "lattice"}).replace
    replaced = 0
    for one in seen:
        assert not one.terminated.any()
        assert one.final is not None
        for before, chosen, after in zip(one.observations, one.chosen, one.final, strict=True):
            executed = rule(before.astype(np.float64), int(chosen))
            speeds = [min(max(before[1] + LATTICE_ROAD.accelerations[each], 0.0), LATTICE_ROAD.top)
                      for each in (executed, int(chosen))]  # fmt: skip
            assert after[1] == speeds[0]
            replaced += speeds[0] != speeds[1]
    assert replaced > 0


def test_faults_are_told_before_the_first_step(certificate: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"the shield .* knows 3: full_brake, keep, accelerate"):
        make_shielded_env("hone/CarFollowing-v0", certificate)
    with pytest.raises(ConfigError, match="sensor speed is none of the features"):
        make_shielded_env(
            "hone/CarFollowing-v0", certificate, features=["gap", "pace", "lead"], env_kwargs={"road": "lattice"}
        )
    with pytest.raises(DataError, match=r"no\.json"):
        make_shielded_env("hone/CarFollowing-v0", str(tmp_path / "no.json"))
    with pytest.raises(ConfigError, match="numbered actions"):
        ActionReplacementWrapper(gymnasium.make("Pendulum-v1"), lambda context, action: action)
    taxi = ActionReplacementWrapper(gymnasium.make("FrozenLake-v1"), lambda context, action: action)
    with pytest.raises(ConfigError, match="give the context of other observations"):
        taxi.reset()
