"""Defaults of PPO and A2C against a late fall: what moves a policy once every episode reaches the time limit."""

import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hone.control.networks.actor_critic import ActorCritic
from hone.control.networks.intrinsic_reward import CuriousActorCritic
from hone.core.config import fill_defaults
from hone.core.episodes import Episodes
from hone.learner.gradient import GradientLearner
from hone.recipes.registry import load_recipe
from hone.run.loop import train


def trained(recipe: str, *, steps: int, of: int, seed: int) -> ActorCritic:
    """The policy after `steps` iterations of a run of `of`."""
    entry = load_recipe(recipe)
    env: dict[str, Any] = {"id": "CartPole-v1", "num_envs": 8}
    config = entry.config.model_validate({"recipe": recipe, "name": "x", "seed": seed, "steps": of, "env": env})
    job = entry.build(config)
    train(job.recipe, steps=steps, callback=lambda *_: None)
    job.close()
    policy = job.recipe.learner.policy
    assert isinstance(policy, ActorCritic)
    return policy


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1004])
def test_the_critic_of_a2c_tells_the_edge_from_the_middle(seed: int) -> None:
    """Of raw returns it did not: at a value of 87 all places were the same to 0.1%, so nothing held the cart."""
    policy = trained("a2c", steps=1000, of=12_500, seed=seed)
    places = torch.zeros(9, 4)
    places[:, 0] = torch.linspace(-2.2, 2.2, 9)
    with torch.no_grad():
        value = policy.value(places).numpy()
    assert np.ptp(value) > 0.1 * np.abs(value).max()


@pytest.mark.parametrize(
    ("learner", "asked", "falls"),
    [
        ({}, {}, True),
        ({"lr_decay": "constant"}, {}, False),
        ({"lr_decay": "cosine"}, {}, False),
        ({}, {"clip_decay": "constant"}, False),
        ({"lr_decay": "constant"}, {"clip_decay": "linear"}, True),
    ],
)
def test_the_clip_width_falls_where_the_learning_rate_does_or_where_it_was_asked_to(
    learner: dict[str, Any], asked: dict[str, Any], falls: bool
) -> None:
    entry = load_recipe("ppo")
    env = {"id": "CartPole-v1", "num_envs": 2}
    tables = {"recipe": "ppo", "name": "x", "steps": 2, "env": env, "learner": learner, "algorithm": asked}
    job = entry.build(entry.config.model_validate(fill_defaults(entry.config, tables)))
    train(job.recipe, steps=2, callback=lambda *_: None)
    job.close()
    learned = job.recipe.learner
    assert isinstance(learned, GradientLearner)
    clip = learned.phases[0].objective.keywords["clip_schedule"].clip_factor
    assert clip == (pytest.approx(1 / 40) if falls else 1.0)


@pytest.mark.parametrize("steps", [1, 7, 50])
def test_the_last_steps_of_ppo_hardly_move_the_policy(steps: int) -> None:
    """Both the learning rate and the clip width fall to 0, whatever the length of the run."""
    entry = load_recipe("ppo")
    env = {"id": "CartPole-v1", "num_envs": 2}
    config = entry.config.model_validate({"recipe": "ppo", "name": "x", "steps": steps, "env": env})
    job = entry.build(config)
    train(job.recipe, steps=steps, callback=lambda *_: None)
    job.close()
    learner = job.recipe.learner
    assert isinstance(learner, GradientLearner)
    clip, rate = (
        learner.phases[0].objective.keywords["clip_schedule"].clip_factor,
        learner.learning_rate(20 * steps - 1),
    )
    assert clip == pytest.approx(1 / (20 * steps)), "one optimizer step before 0"
    assert rate == pytest.approx(1e-3 / (20 * steps))


class GoalFound(Exception):  # noqa: N818 - ends a run on purpose
    """An episode was paid."""


@pytest.mark.slow  # 40 iterations, four CPU seconds
@pytest.mark.parametrize("asked", [{"entropy_weight": 0.03, "novelty_scale_decay": 0.7}])
def test_random_network_distillation_does_not_lose_the_edge_of_the_known_states(asked: dict[str, float]) -> None:
    """With an entropy bonus of 0.03 alone this seed left the edge, and did not come back in 300 iterations."""
    path = Path(__file__).resolve().parents[3] / "examples" / "control" / "ppo_rnd_maze.toml"
    tables = tomllib.loads(path.read_text(encoding="utf-8"))
    entry = load_recipe("ppo_rnd")
    config = entry.config.model_validate(fill_defaults(entry.config, {**tables, "seed": 1009, "algorithm": asked}))
    job = entry.build(config)

    def stop_at_the_goal(_: int, episodes: Episodes, *__: object) -> None:
        if episodes.score[episodes.terminated].any():
            raise GoalFound

    with pytest.raises(GoalFound):
        train(job.recipe, steps=200, callback=stop_at_the_goal)
    job.close()


@pytest.mark.parametrize("recipe", ["ppo_rnd", "ppo_icm", "ppo_counts"])
@pytest.mark.parametrize(
    ("asked", "decay"), [({}, 0.9), ({"novelty_scale_decay": 0.5}, 0.5), ({"novelty_scale_decay": 1.0}, 1.0)]
)
def test_the_scale_of_novelty_forgets_as_fast_as_it_is_told(recipe: str, asked: dict[str, float], decay: float) -> None:
    """N returns an iteration, each iteration's weighted by a power of the decay."""
    entry = load_recipe(recipe)
    env = {"id": "hone/Maze-v0", "num_envs": 2}
    tables = {"recipe": recipe, "name": "x", "steps": 3, "env": env, "algorithm": asked}
    config = entry.config.model_validate(fill_defaults(entry.config, tables))
    job = entry.build(config)
    train(job.recipe, steps=3, callback=lambda *_: None)
    job.close()
    weights = sum(128 * decay**age for age in range(3))
    policy = job.recipe.learner.policy
    assert isinstance(policy, CuriousActorCritic)
    assert float(policy.returns.get_buffer("count")) == pytest.approx(weights)


@pytest.mark.slow  # 200 iterations, ten CPU seconds
def test_random_network_distillation_reaches_the_goal_where_it_once_did_not() -> None:
    """With an entropy bonus of 0.01 this seed never saw the goal."""
    path = Path(__file__).resolve().parents[3] / "examples" / "control" / "ppo_rnd_maze.toml"
    tables = tomllib.loads(path.read_text(encoding="utf-8"))
    entry = load_recipe("ppo_rnd")
    job = entry.build(entry.config.model_validate({**tables, "seed": 1000}))
    train(job.recipe, steps=tables["steps"], callback=lambda *_: None)
    assert job.evaluate is not None
    assert job.evaluate().metrics["eval/score"] == 1.0
    job.close()
