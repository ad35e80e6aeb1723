"""Recipes on tables: resumed runs, exact limits, classic experiments, worlds and folders."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hone.control.evaluate.returns import evaluate_control
from hone.control.finite.config import FiniteConfig, GridWorld, build_finite_mdp
from hone.control.finite.world import FiniteWorld
from hone.control.tables.explore import ConstantSchedule, EpsilonGreedy, epsilon_greedy
from hone.core.credit import Credits, Metrics
from hone.core.episodes import Episodes
from hone.core.errors import ConfigError
from hone.core.state import substate
from hone.recipes.registry import load_recipe
from hone.run.job import TrainingJob
from hone.run.loop import train
from hone.run.store.codec import read_state, write_state
from hone.sources.live import LiveSource, WholeEpisodes

LAKE: dict[str, Any] = {"world": {"kind": "gymnasium", "id": "FrozenLake-v1"}, "copies": 4}
CLIFF: dict[str, Any] = {"world": {"kind": "gymnasium", "id": "CliffWalking-v1"}, "copies": 3, "limit": 50}
WALK: dict[str, Any] = {"world": {"kind": "chain"}, "copies": 3}
GYM: dict[str, Any] = {"id": "FrozenLake-v1", "num_envs": 3}
LINE: dict[str, Any] = {"kind": "linear", "start": 1.0, "end": 0.1, "decay_iterations": 6}
SMALL: dict[str, dict[str, Any]] = {
    "q_learning": {"recipe": "q_learning", "env": GYM, "exploration": {"kind": "ucb"}},
    "q_learning_counts": {"recipe": "q_learning", "finite": CLIFF, "exploration": {"kind": "counts"}},
    "double_q_learning": {"recipe": "double_q_learning", "finite": CLIFF},
    "sarsa": {"recipe": "sarsa", "env": GYM, "exploration": {"kind": "epsilon_greedy", "epsilon": LINE}},
    "sarsa_n": {"recipe": "sarsa", "finite": CLIFF, "algorithm": {"steps": 3}},
    "expected_sarsa": {"recipe": "expected_sarsa", "finite": LAKE, "exploration": {"kind": "boltzmann"}},
    "sarsa_lambda": {"recipe": "sarsa_lambda", "env": {**GYM, "num_envs": 2}, "rollout_steps": 3},
    "dyna_q": {"recipe": "dyna_q", "finite": LAKE, "algorithm": {"planning": 3}},
    "prioritized_sweeping": {"recipe": "prioritized_sweeping", "finite": CLIFF},
    "monte_carlo": {"recipe": "monte_carlo", "env": GYM, "algorithm": {"visits": "first"}},
    "monte_carlo_off": {"recipe": "monte_carlo", "finite": LAKE, "algorithm": {"off_policy": True}},
    "td_lambda": {
        "recipe": "td_prediction", "finite": WALK, "algorithm": {"method": {"kind": "lambda"}}, "rollout_steps": 5,
    },
    "gradient_td": {"recipe": "gradient_td", "algorithm": {"method": "target_network", "copy_every": 7}},
    "tile_sarsa": {"recipe": "tile_sarsa", "env": {"id": "MountainCar-v0", "num_envs": 2}},
}  # fmt: skip
JUDGED = {"evaluation": {"episodes": 3}}
ANY = EpsilonGreedy(epsilon=ConstantSchedule(value=1.0))


def config_of(settings: Mapping[str, Any], **more: Any) -> Any:
    entry = load_recipe(settings["recipe"])
    return entry.config.model_validate({"name": "x", "seed": 3, "steps": 8, **JUDGED, **settings, **more})


def job_of(settings: Mapping[str, Any], **more: Any) -> TrainingJob[Any]:
    return load_recipe(settings["recipe"]).build(config_of(settings, **more))


def quiet(*_: object) -> None:
    """A report that says nothing."""


def ran(settings: Mapping[str, Any], steps: int, **more: Any) -> TrainingJob[Any]:
    job = job_of(settings, steps=steps, **more)
    train(job.recipe, steps=steps, callback=quiet)
    job.close()
    return job


class Diary:
    """Everything that a step produced."""

    def __init__(self) -> None:
        self.lines: list[tuple[Any, ...]] = []

    def __call__(self, step: int, episodes: Episodes, credits: Credits, metrics: Metrics) -> None:
        columns = (episodes.observations, episodes.chosen, episodes.version, episodes.reward, episodes.logp)
        self.lines.append((step, *(column.tobytes() for column in columns), credits.advantage.tobytes(), metrics))


@pytest.mark.parametrize("name", SMALL)
def test_a_resumed_run_is_the_uninterrupted_one(name: str, tmp_path: Path) -> None:
    straight, whole = job_of(SMALL[name]), Diary()
    train(straight.recipe, steps=8, callback=whole)
    first, begun = job_of(SMALL[name]), Diary()
    train(first.recipe, steps=5, callback=begun)
    (tmp_path / "state").mkdir()
    write_state(tmp_path / "state", {"source": first.recipe.source.state(), "learner": first.recipe.learner.state()})
    first.save_policy(tmp_path / "policy")
    second, state = job_of(SMALL[name]), read_state(tmp_path / "state")
    second.load_policy(tmp_path / "policy")
    second.recipe.learner.restore(substate(state, "learner"))
    second.recipe.source.restore(substate(state, "source"))
    train(second.recipe, steps=8, callback=begun, first_step=6)
    assert begun.lines == whole.lines
    straight.save_policy(tmp_path / "one")
    second.save_policy(tmp_path / "two")
    for file in (tmp_path / "one").iterdir():
        assert file.read_bytes() == (tmp_path / "two" / file.name).read_bytes(), file.name
    assert straight.evaluate is not None and second.evaluate is not None
    assert straight.evaluate().metrics == second.evaluate().metrics
    for job in (straight, first, second):
        job.close()


@pytest.mark.parametrize("name", SMALL)
def test_a_saved_table_is_judged_as_the_run_judged_it(name: str, tmp_path: Path) -> None:
    settings = SMALL[name]
    job = ran(settings, 4)
    job.save_policy(tmp_path / "policy")
    tree = config_of(settings).model_dump(mode="json")
    found = evaluate_control(tmp_path / "policy", config=tree, episodes=3, seed=3)
    assert job.evaluate is not None
    assert found == job.evaluate().metrics
    assert list(load_recipe(settings["recipe"]).check(config_of(settings))) == []
    assert all(config_of(settings).derive().values())


# ------------------------------------------------------------------------------------------- worlds and faults


def test_whole_episodes_are_the_pieces_put_together() -> None:
    """However the rollout cuts them, the same world gives the same episodes."""
    found = []
    for steps in (1, 3, 40):
        mdp = build_finite_mdp(FiniteConfig(world=GridWorld(kind="grid", rows=["S.G"])), discount=0.9)
        source = WholeEpisodes(
            LiveSource(_Counted(FiniteWorld(mdp=mdp, steps=steps, seed=0, copies=2)), _Walker()), min_episodes=5
        )
        source.publish(None)
        batch = source.collect()
        assert (batch.terminated | batch.truncated).all()
        assert (np.diff(batch.group) > 0).all()
        np.testing.assert_array_equal(batch.score, np.ones(len(batch)))
        assert (batch.observations[batch.offsets[:-1]] == 0).all()
        found.append(batch)
    assert found[0].decisions > len(found[0])


class _Counted:
    """A world, as sources see it."""

    def __init__(self, world: FiniteWorld) -> None:
        self.world = world

    def rollout(self, actor: Any) -> Episodes:
        return self.world.rollout(actor)

    def state(self) -> Any:
        return self.world.state()

    def restore(self, state: Any) -> None:
        self.world.restore(state)


class _Walker:
    """Right, or now and then left."""

    version = 0

    def publish(self, policy: object, version: int) -> None:
        self.version = version

    def noise(self, draws: np.random.Generator, shape: tuple[int, ...]) -> Any:
        return draws.random(shape, dtype=np.float32)

    def decide(self, seen: Any, noise: Any) -> Any:
        return np.where(noise < 0.3, 0, 2), np.zeros(len(seen), np.float32)


def test_faults_come_before_training(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="exactly one of env and finite"):
        config_of({"recipe": "q_learning"})
    with pytest.raises(ConfigError, match="needs numbered states"):
        job_of({"recipe": "q_learning", "env": {"id": "CartPole-v1"}})
    with pytest.raises(ConfigError, match="box of observations"):
        job_of({"recipe": "tile_sarsa", "env": GYM})
    with pytest.raises(ConfigError, match=r"tiles.low and tiles.high have 1"):
        job_of(SMALL["tile_sarsa"], tiles={"low": [0.0], "high": [1.0]})
    with pytest.raises(ConfigError, match=r"one step size for all"):
        job_of({"recipe": "sarsa_lambda", "finite": LAKE, "table": {"rate": {"power": 0.5}}})
    with pytest.raises(ConfigError, match="never takes action 1"):
        job_of({"recipe": "gradient_td", "behave": [1.0, 0.0]})
    with pytest.raises(ConfigError, match="add up to 1"):
        job_of({"recipe": "gradient_td", "behave": [0.5, 0.6]})
    with pytest.raises(ConfigError, match="has no table"):
        job_of({"recipe": "q_learning", "finite": {"world": {"kind": "gymnasium", "id": "CartPole-v1"}}})
    job = ran(SMALL["expected_sarsa"], 1)
    job.save_policy(tmp_path)
    other = config_of(SMALL["prioritized_sweeping"]).model_dump(mode="json")
    with pytest.raises(ConfigError, match="the environment 48 states"):
        evaluate_control(tmp_path, config=other, episodes=1, seed=0)


@pytest.mark.slow
def test_tiles_learn_the_hill() -> None:
    """A fifth of the example's budget: well above the -200 of a policy that never arrives."""
    job = ran({"recipe": "tile_sarsa", "env": {"id": "MountainCar-v0", "num_envs": 4}}, 700, rollout_steps=8)
    assert job.evaluate is not None
    assert job.evaluate().metrics["eval/score"] > -170


def test_exploration_is_the_schedules() -> None:
    """The recorded log-probabilities are of the epsilon of the turn."""
    job, told = job_of(SMALL["sarsa"]), []

    def report(step: int, episodes: Episodes, *_: object) -> None:
        told.append((int(episodes.version[0]), episodes.logp.min()))

    train(job.recipe, steps=8, callback=report)
    assert [turn for turn, _ in told] == list(range(8))
    first = epsilon_greedy(np.zeros((1, 4)), 1.0)
    assert told[0][1] == pytest.approx(np.log(first[0, 0]), rel=1e-6)
