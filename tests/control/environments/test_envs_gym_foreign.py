"""Environments of other packages and of other forms: each runs as it is, or is refused in words."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import foreign_package
import numpy as np
import pytest

from hone import api
from hone.control.environments.make import describe_envs, env_factory, reset_all
from hone.control.environments.play import play_episodes
from hone.control.environments.world import GymConfig, GymWorld, inspect_world, open_world
from hone.control.evaluate.returns import evaluate_returns
from hone.core.errors import ConfigError
from hone.recipes.on_policy import ppo

HERE = Path(__file__).with_name("foreign_package.py")
worlds: list[GymWorld] = []


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    while worlds:
        worlds.pop().close()


class Ones:
    version = 0

    def noise(self, draws, shape):
        return draws.random(shape, dtype=np.float32)

    def decide(self, seen, noise, mask=None):
        return np.ones(len(seen), np.int64), np.zeros(len(seen), np.float32)


def _ones(seen: np.ndarray) -> np.ndarray:
    return np.ones(len(seen), np.int64)


def opened(name: str, **settings: object) -> GymWorld:
    given = {"id": name, "num_envs": 2, "isolation": "none", **settings}
    worlds.append(open_world(GymConfig.model_validate(given), steps=8, seed=3, masks=True))
    return worlds[-1]


@pytest.mark.parametrize("name", ["Step", "Late"])
def test_ids_of_a_package_are_found_once_it_is_imported(name: str) -> None:
    world = opened(f"foreign_package:Foreign/{name}-v0")
    episodes = world.rollout(Ones())
    assert set(episodes.lengths[episodes.terminated | episodes.truncated]) == {3 if name == "Step" else 2}


def test_ids_that_nothing_registers_name_the_remedy() -> None:
    with pytest.raises(ConfigError, match=r"foreign_package:Foreign/Stop-v0.*no such environment|Stop"):
        opened("foreign_package:Foreign/Stop-v0")
    with pytest.raises(ConfigError, match="name the package that registers it as well: package:Name-v0"):
        opened("Nowhere/Stop-v0")
    with pytest.raises(ConfigError, match="No module named 'no_such_package'"):
        opened("no_such_package:Name-v0")


@pytest.mark.parametrize(
    ("package", "name"),
    [("minigrid", "MiniGrid-Empty-5x5-v0"), ("minatar", "MinAtar/Breakout-v1"), ("ale_py", "ALE/Pong-v5")],
)
def test_installed_packages_are_imported_for_their_ids(package: str, name: str) -> None:
    pytest.importorskip(package)
    ignored = ["mission"] if package == "minigrid" else []  # a text
    factory = env_factory(GymConfig(id=f"{package}:{name}", ignore=ignored))
    env = factory.make_one()
    env.reset(seed=1)
    env.close()
    assert "limit of the id" in describe_envs(GymConfig(id=f"{package}:{name}"))["episodes are truncated"]


def test_ale_s_vector_form_takes_every_seed_and_a_limit() -> None:
    pytest.importorskip("ale_py")
    world = opened("ale_py:ALE/Pong-v5", max_episode_steps=6, check=False)
    assert type(world.envs).__name__ == "AtariVectorEnv"
    assert any("clips rewards" in warning for warning in world.warnings)
    episodes = world.rollout(Ones())
    assert max(episodes.lengths) <= 7
    assert episodes.truncated.any()


def test_seeds_of_foreign_vector_forms_are_small() -> None:
    foreign_package.SEEDS.clear()
    for seed in range(20):
        opened("foreign_package:Steps", check=False)
        reset_all(worlds[-1].envs, seed)
    assert len(set(foreign_package.SEEDS)) > 20
    assert max(foreign_package.SEEDS) < 1 << 30


def test_a_file_runs_once_and_no_module_of_its_name_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "counted.py").write_text(
        "from pathlib import Path\n"
        "with Path('loads').open('a') as file:\n    file.write(__name__ + ' ')\n"
        "from importable_code import ImportableCorridor as Corridor\n"
    )
    env_factory(GymConfig(id="counted.py:Corridor"))
    assert Path("loads").read_text() == "hone_user_counted "


def test_a_class_of_vector_environments_is_stepped_as_one() -> None:
    world = opened("foreign_package:Steps", max_episode_steps=4)
    assert type(world.envs).__name__ == "Steps"
    episodes = world.rollout(Ones())
    assert episodes.score[episodes.terminated].tolist() == [4.0] * 2
    (seen, action), _ = inspect_world(GymConfig(id="foreign_package:Steps", isolation="none"), seed=0)
    assert (seen.shape, action.n) == ((2,), 2)
    played = play_episodes(env_factory(GymConfig(id="foreign_package:Steps")).make_many(3), _ones, seed=0)
    assert played.returns.tolist() == [3.0] * 3


def test_a_vector_form_that_does_not_say_how_it_resets_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"Silent: metadata\['autoreset_mode'\] is None"):
        opened("foreign_package:Silent")


def test_makers_of_other_things_are_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"makes a gymnasium.vector.VectorEnv: name its class"):
        opened("foreign_package:make_vector")
    (tmp_path / "odd.py").write_text("def make():\n    return 3\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"odd.py:make' makes builtins.int, which is no gymnasium.Env"):
        opened(f"{tmp_path / 'odd.py'}:make")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_pettingzoo_environments_are_pointed_to_recipes_of_several_agents() -> None:
    pytest.importorskip("pettingzoo")
    pytest.importorskip("pygame", reason="PettingZoo's classic games draw with pygame")
    with pytest.raises(ConfigError, match=r"makes a PettingZoo environment.*ippo"):
        opened("pettingzoo.classic.tictactoe_v3:env")


@pytest.mark.parametrize("form", ["bool", "np", "0-d", "fraction", "decimal"])
def test_rewards_may_be_bools_exact_numbers_and_arrays_without_axes(form: str) -> None:
    world = opened("foreign_package:Step", kwargs={"reward": form})
    episodes = world.rollout(Ones())
    assert set(episodes.score[episodes.terminated]) == {3.0}


@pytest.mark.parametrize("bound", [2.0, None])
def test_ppo_trains_on_any_box_without_a_key(bound: float | None) -> None:
    """With -|a - 1/2| as the reward, the mode of the policy moves from 0 towards 1/2."""
    env = {"id": "foreign_package:Step", "num_envs": 8, "isolation": "none", "check": False}
    env["kwargs"] = {"reward": "box", "bound": bound}
    config = ppo.PpoConfig.model_validate(
        {"recipe": "ppo", "name": "x", "steps": 12, "env": env, "rollout_steps": 24, "learner": {"lr": 0.01}}
    )
    job = config.open().build(config)
    policy = job.recipe.learner.policy
    before = evaluate_returns(policy, config.env, episodes=1, seed=0)[0]
    job.recipe.source.publish(policy)
    for _ in range(12):
        episodes = job.recipe.source.collect()
        credits = job.recipe.credit(episodes, job.recipe.learner.values(episodes))
        job.recipe.learner.update(episodes, credits)
        job.recipe.source.publish(policy)
    after = evaluate_returns(policy, config.env, episodes=1, seed=0)[0]
    job.close()
    assert before == pytest.approx(-1.5, abs=0.1)
    assert after > before + 0.3


def test_python_users_see_the_warnings(tmp_path: Path) -> None:
    config: dict[str, Any] = {
        "recipe": "ppo", "name": "x", "steps": 1, "rollout_steps": 8, "evaluation": {"episodes": 1},
        "env": {"id": f"{HERE}:Hidden", "num_envs": 2, "isolation": "none"},
    }  # fmt: skip
    with pytest.warns(UserWarning, match="a resume will be approximate"):
        api.train(config, runs=tmp_path)
