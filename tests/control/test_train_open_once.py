"""A run opens its environments once: those that the check opened are those that it steps."""

from collections import Counter
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import tiny_runs
import torch

from hone.cli.commands import train as train_command
from hone.control import tabular
from hone.control.environments import make
from hone.control.environments.world import GymWorld
from hone.core.errors import ConfigError
from hone.recipes.bandits import thompson
from hone.recipes.registry import load_recipe

ENVS, EPISODES = 3, 2
RUN = f"""
recipe = "ppo"
steps = 2
rollout_steps = 8
run.certify = false
env = {{ id = "Acrobot-v1", num_envs = {ENVS} }}
evaluation.episodes = {EPISODES}
"""


@pytest.fixture
def counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Calls of `gymnasium.make` by id, vector environments by size, and worlds closed, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ppo.toml").write_text(RUN, encoding="utf-8")
    counted: Counter[str] = Counter()
    single, many, close = gymnasium.make, make.sync_vector_env, GymWorld.close

    def make_one(spec: str, **settings: Any) -> Any:
        counted["made"] += 1
        return single(spec, **settings)

    def make_many(makers: Any, *mode: Any, **settings: Any) -> Any:
        counted[f"vectors of {len(makers)}"] += 1
        return many(makers, *mode, **settings)

    def close_world(world: GymWorld) -> None:
        counted["closed"] += not world.envs.closed
        close(world)

    monkeypatch.setattr(gymnasium, "make", make_one)
    monkeypatch.setattr(make, "sync_vector_env", make_many)
    monkeypatch.setattr(GymWorld, "close", close_world)
    monkeypatch.setattr(train_command, "write_policy_pictures", lambda _: False)
    return counted


def test_training_opens_each_environment_once(counts: Counter[str]) -> None:
    assert tiny_runs.hone("train", "ppo.toml", "env.check=false") == 0
    assert counts == {"made": ENVS + EPISODES, f"vectors of {ENVS}": 1, f"vectors of {EPISODES}": 1, "closed": 1}


def test_the_check_of_an_environment_is_made_once(counts: Counter[str]) -> None:
    """Two single environments are tried, and two pairs for the exactness of a resume."""
    assert tiny_runs.hone("train", "ppo.toml", "evaluation.episodes=5") == 0
    assert counts == {
        "made": 2 + 4 + ENVS + 5,
        "vectors of 2": 2,
        f"vectors of {ENVS}": 1,
        "vectors of 5": 1,
        "closed": 1,
    }


TABLES = [
    ("tile_sarsa", "MountainCar-v0", ENVS, 1),
    ("q_learning", "hone/FourRooms-v0", ENVS, 1),
    # One environment tells the spaces and one the options; the memory of the options is made around the rest.
    ("option_q_learning", "hone/FourRooms-v0", 2 + 2 * ENVS, 1),
]


@pytest.mark.parametrize(("recipe", "env", "made", "closed"), TABLES)
def test_a_table_opens_each_environment_once(
    recipe: str, env: str, made: int, closed: int, counts: Counter[str]
) -> None:
    entry = load_recipe(recipe)
    worlds = {"id": env, "num_envs": ENVS, "check": False}
    config = entry.config.model_validate({"recipe": recipe, "name": "x", "steps": 1, "env": worlds})
    config.open().build(config).close()
    assert counts == {"made": made, f"vectors of {ENVS}": 1, "closed": closed}


def test_a_table_that_does_not_fit_leaves_nothing_open(counts: Counter[str]) -> None:
    for recipe in ("tile_sarsa", "q_learning"):
        entry = load_recipe(recipe)
        env = {"id": "Acrobot-v1" if recipe == "q_learning" else "Pendulum-v1", "check": False}
        config = entry.config.model_validate({"recipe": recipe, "name": "x", "steps": 1, "env": env})
        with pytest.raises(ConfigError, match="numbered"):
            entry.check(config)
    assert counts["vectors of 1"] == counts["closed"] == 2


@pytest.mark.parametrize(
    ("recipe", "settings"),
    [
        ("thompson", {"arms": {"kind": "bernoulli", "rates": [0.1, 0.9]}}),
        ("td_prediction", {"finite": {"world": {"kind": "chain"}}}),
        ("gradient_td", {}),
        ("q_learning", {"finite": {"world": {"kind": "chain"}}}),
    ],
)
def test_known_worlds_and_priors_are_made_once(
    recipe: str, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: Counter[str] = Counter()

    def count(module: Any, name: str) -> None:
        plain = module.__dict__[name]

        def counting(*arguments: Any, **keys: Any) -> Any:
            counted["made"] += 1
            return plain(*arguments, **keys)

        monkeypatch.setattr(module, name, counting)

    count(thompson, "make_posterior")
    count(tabular, "build_finite_mdp")
    entry = load_recipe(recipe)
    config = entry.config.model_validate({"recipe": recipe, "name": "x", "steps": 1, **settings})
    config.open().build(config).close()
    assert counted["made"] == 1


def test_a_plan_closes_what_it_opened(counts: Counter[str]) -> None:
    assert tiny_runs.hone("plan", "ppo.toml", "env.check=false") == 0
    assert counts == {"made": ENVS, f"vectors of {ENVS}": 1, "closed": 1}


@pytest.mark.parametrize("recipe", ["ppo", "ppo_rnd", "rl2"])
def test_a_refused_run_leaves_nothing_open(recipe: str, counts: Counter[str]) -> None:
    """Actions of a box that shall not be clipped; a recurrent unit of two layers."""
    entry = load_recipe(recipe)
    network = {"hidden": [8, 8]} if recipe == "rl2" else {}
    config = entry.config.model_validate(
        {
            "recipe": recipe,
            "name": "x",
            "steps": 1,
            "env": {"id": "Pendulum-v1", "clip_actions": False},
            "network": network,
        }
    )
    for door in (entry.check, entry.build):
        with pytest.raises(ConfigError):
            door(config)
    assert counts["vectors of 1"] == counts["closed"] == 2


def _fails(*_: object, **__: object) -> None:
    raise RuntimeError("no such device")


def test_a_build_that_fails_closes_what_the_check_opened(counts: Counter[str], monkeypatch: pytest.MonkeyPatch) -> None:
    entry = load_recipe("ppo")
    config = entry.config.model_validate({"recipe": "ppo", "name": "x", "steps": 1, "env": {"id": "Acrobot-v1"}})
    opened = config.open()
    monkeypatch.setattr(torch.nn.Module, "to", _fails)
    with pytest.raises(RuntimeError, match="no such device"):
        opened.build(config)
    opened.close()
    assert counts["closed"] == 1
