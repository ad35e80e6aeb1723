"""Figures of a plan: what `env.num_envs` does to the number of updates, and when an episode is truncated."""

from typing import Any

import pytest

from hone.recipes.registry import load_recipe

UPDATES, LIMIT = "updates per environment step", "episodes are truncated"


def figures(recipe: str, env: dict[str, Any], **more: Any) -> dict[str, str]:
    entry = load_recipe(recipe)
    config = entry.config.model_validate({"recipe": recipe, "name": "x", "steps": 3, "env": env, **more})
    return dict(config.derive())


@pytest.mark.parametrize(
    ("recipe", "more", "updates", "steps"),
    [
        ("ppo", {"rollout_steps": 16, "learner": {"epochs": 2, "minibatches": 4}}, 8, 16),
        ("a2c", {"rollout_steps": 5}, 1, 5),
        ("dqn", {"replay": {"collect": 4}, "learner": {"updates_per_iteration": 2}}, 2, 4),
        ("sac", {}, 1, 1),
    ],
)
def test_twice_the_environments_are_half_the_updates_per_step(
    recipe: str, more: dict[str, Any], updates: int, steps: int
) -> None:
    for count in (1, 4, 8):
        told = figures(recipe, {"id": "Pendulum-v1", "num_envs": count}, **more)[UPDATES]
        assert told.startswith(f"{updates} / {count * steps} = {updates / (count * steps):.4g} ")


@pytest.mark.parametrize("recipe", ["ppo", "sac", "dqn", "tile_sarsa"])
def test_the_limit_of_an_episode_is_named(recipe: str) -> None:
    assert "after 200 steps (the id's limit)" in figures(recipe, {"id": "Pendulum-v1"})[LIMIT]
    told = figures(recipe, {"id": "Pendulum-v1", "max_episode_steps": 30, "step_limit": 9})[LIMIT]
    assert "after 30 steps (env.max_episode_steps)" in told
    endless = figures(recipe, {"id": "mine.py:Endless", "step_limit": 77})[LIMIT]
    assert "after 77 steps (env.step_limit); a recording shows at most" in endless
