"""Recipes on tables: exact limits, and the classic experiments."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from hone.control.finite.build import mdp_from_table
from hone.control.finite.config import FiniteConfig, build_finite_mdp
from hone.control.finite.solve import evaluate_policy, finite_horizon_value, policy_iteration, start_value
from hone.control.finite.world import FiniteWorld
from hone.control.tables.explore import ConstantSchedule, EpsilonGreedy
from hone.control.tables.learn import DoubleQLearning, QLearningRule, RateConfig, TabularLearner
from hone.control.tables.tables import ActionTable, StateFeatures
from hone.core.credit import Credits
from hone.core.episodes import Episodes
from hone.core.errors import ConfigError
from hone.recipes.registry import load_recipe
from hone.run.job import TrainingJob
from hone.run.loop import train

LAKE: dict[str, Any] = {"world": {"kind": "gymnasium", "id": "FrozenLake-v1"}, "copies": 4}
CLIFF: dict[str, Any] = {"world": {"kind": "gymnasium", "id": "CliffWalking-v1"}, "copies": 3, "limit": 50}
WALK: dict[str, Any] = {"world": {"kind": "chain"}, "copies": 3}
GYM: dict[str, Any] = {"id": "FrozenLake-v1", "num_envs": 3}
LINE: dict[str, Any] = {"kind": "linear", "start": 1.0, "end": 0.1, "decay_iterations": 6}
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


# ------------------------------------------------------------------------------------------------- exact limits


def test_prediction_on_the_random_walk_comes_to_the_exact_values() -> None:
    """Sutton & Barto's walk of 19 states: the values are -0.9, -0.8 ... 0.9. Methods that can be said exactly are in
    `test_recipes_tabular_exact.py`."""
    mdp = build_finite_mdp(FiniteConfig.model_validate(WALK), discount=1.0)
    truth = evaluate_policy(mdp, np.full((19, 2), 0.5))
    np.testing.assert_allclose(truth, np.linspace(-0.9, 0.9, 19), atol=1e-12)
    falling = {"table": {"rate": {"rate": 1.0, "power": 0.8}}}
    world = {"finite": {**WALK, "copies": 16}, "rollout_steps": 32}
    for method, settings, bound in (
        ({"kind": "n_step", "steps": 8}, falling, 0.05),
        ({"kind": "lambda", "trace_lambda": 0.8, "trace": "dutch"}, {"table": {"rate": {"rate": 0.003}}}, 0.08),
    ):
        job = ran({"recipe": "td_prediction"}, 250, algorithm={"method": method}, **world, **settings)
        assert job.evaluate is not None
        error = job.evaluate().metrics["eval/error"]
        assert error < bound, f"{method}: {error}"
        assert error == pytest.approx(np.sqrt(np.mean((job.recipe.learner.policy.v - truth) ** 2)))


def test_returns_off_policy_need_a_method_that_learns_of_another_policy() -> None:
    settings = {"recipe": "td_prediction", "finite": WALK, "follow": {"epsilon": 0.5}, "behave": {"epsilon": 1.0}}
    with pytest.raises(ConfigError, match="learns of another policy"):
        job_of({**settings, "algorithm": {"method": {"kind": "td"}}})


def test_off_policy_control_finds_the_best_policy() -> None:
    settings = {
        "recipe": "monte_carlo", "finite": {"world": {"kind": "chain", "length": 5}, "copies": 8},
        "algorithm": {"off_policy": True, "discount": 0.9},
        "exploration": {"kind": "epsilon_greedy", "epsilon": {"kind": "constant", "value": 0.5}},
    }  # fmt: skip
    job = ran(settings, 400)
    mdp = build_finite_mdp(FiniteConfig.model_validate(settings["finite"]), discount=0.9)
    best = policy_iteration(mdp)
    assert (job.recipe.learner.policy.q.argmax(axis=1) == best.policy).all()


def transitions_end(episodes: Episodes) -> np.ndarray:
    return episodes.transitions().terminated


def test_a_truncated_episode_bootstraps_and_a_terminated_one_does_not() -> None:
    """A world of one state that pays 1 for ever and is cut every two steps is worth 1 / (1 - discount)."""
    world = {
        "finite": {"world": {"kind": "grid", "rows": ["S"], "step_reward": 1.0, "rewards": {}}, "limit": 2, "copies": 2}
    }
    for recipe, more in (("q_learning", {}), ("sarsa", {}), ("sarsa", {"steps": 2}), ("monte_carlo", {})):
        job = ran({"recipe": recipe, **world}, 400, algorithm={"discount": 0.5, **more}, table={"rate": {"rate": 0.3}})
        np.testing.assert_allclose(job.recipe.learner.policy.q, 2.0, atol=1e-3)
    ended = {"finite": {"world": {"kind": "grid", "rows": ["SG"], "rewards": {"G": 3.0}}}}
    job = ran({"recipe": "q_learning", **ended}, 200, table={"rate": {"rate": 0.5}})
    assert job.recipe.learner.policy.q[0, 2] == pytest.approx(3.0)


# ------------------------------------------------------------------------------------------ classic experiments


def two_states() -> Any:
    """Sutton & Barto, example 6.7: left pays nothing and leads to ten actions that pay N(-0.1, 1); right ends with 0.

    Normal rewards are stood in for by two outcomes of the same mean and deviation.
    """
    second = {a: [(0.5, 1, 0.9, True), (0.5, 1, -1.1, True)] for a in range(10)}
    first = {a: [(1.0, 1, 0.0, False)] if a == 0 else [(1.0, 0, 0.0, True)] for a in range(10)}
    return mdp_from_table({0: first, 1: second}, start=np.array([1.0, 0.0]), discount=1.0)


def test_double_q_does_not_believe_in_luck() -> None:
    """Q-learning thinks the bad state better than nothing for long; double Q does not: its value is near or below 0."""
    believed: dict[str, list[float]] = {"q": [], "double": []}
    for seed in range(12):
        for name, tables, rule in (
            ("q", 1, QLearningRule(actions=10)),
            ("double", 2, DoubleQLearning(actions=10, seed=seed)),
        ):
            world = FiniteWorld(mdp=two_states(), steps=1, seed=seed)
            learner = TabularLearner(ActionTable(StateFeatures(count=2, actions=10), tables=tables), rule, RateConfig())
            for turn in range(300):
                episodes = world.rollout(_Uniform(turn))
                discount = (~transitions_end(episodes)).astype(np.float32)
                learner.update(episodes, Credits(advantage=episodes.reward, discount=discount))
            believed[name].append(float(learner.policy.q[0, 0]))
    assert np.mean(believed["q"]) > 0.15
    assert abs(np.mean(believed["double"]) + 0.1) < 0.12
    assert np.mean(believed["double"]) < np.mean(believed["q"]) - 0.15


class _Uniform:
    """Any of ten actions."""

    def __init__(self, version: int) -> None:
        self.version = version

    def noise(self, draws: np.random.Generator, shape: tuple[int, ...]) -> Any:
        return draws.random(shape, dtype=np.float32)

    def decide(self, seen: Any, noise: Any) -> Any:
        return np.minimum((noise * 10).astype(np.int64), 9), np.full(len(seen), np.log(0.1), np.float32)


def steps_of_episodes(settings: Mapping[str, Any], episodes: int, seed: int) -> tuple[list[int], int]:
    """Lengths of the first episodes, and the backups that they took."""
    job = job_of(settings, seed=seed)
    lengths, running = [], 0

    class Enough(Exception):  # noqa: N818 - ends a run on purpose
        """As many as asked."""

    def report(step: int, batch: Episodes, *_: object) -> None:
        nonlocal running
        running += batch.decisions
        if batch.terminated[0]:
            lengths.append(running)
            running = 0
            if len(lengths) == episodes:
                raise Enough

    with pytest.raises(Enough):
        train(job.recipe, steps=1_000_000, callback=report)
    return lengths, job.recipe.learner.rule.backups


@pytest.mark.slow  # the rules of planning are worked out by hand elsewhere
def test_planning_finds_the_way_through_the_maze_in_a_few_episodes() -> None:
    """Sutton (1990): after five episodes with 50 imagined steps the way is near the shortest, 14; without, far from."""
    maze = {"finite": {"world": {"kind": "grid"}}}
    planned, bare, swept, counts = [], [], [], []
    for seed in range(2):
        settings = {"recipe": "dyna_q", **maze, "table": {"rate": {"rate": 0.1}}}
        lengths, dyna = steps_of_episodes({**settings, "algorithm": {"planning": 50}}, 6, seed)
        planned.append(lengths[-1])
        if seed == 0:
            bare.append(steps_of_episodes({**settings, "algorithm": {"planning": 0}}, 6, seed)[0][-1])
        lengths, sweeping = steps_of_episodes({"recipe": "prioritized_sweeping", **maze}, 6, seed)
        swept.append(lengths[-1])
        counts.append(dyna / sweeping)
    assert np.mean(planned) < 30
    assert np.mean(bare) > 100
    assert np.mean(swept) < 30
    assert min(counts) > 10, "prioritised sweeping needs a tenth of the backups"


def test_sarsa_takes_the_safe_way_and_q_learning_the_shortest() -> None:
    """Sutton & Barto, example 6.6, judged exactly."""
    world = {"finite": {**CLIFF, "copies": 32, "limit": 200}, "rollout_steps": 16}
    scores: dict[str, float] = {}
    for recipe, rate in (("sarsa", {"rate": 1.0, "power": 0.3, "minimum": 0.05}), ("q_learning", {"rate": 0.5})):
        job = ran({"recipe": recipe, **world}, 400, table={"rate": rate})
        assert job.evaluate is not None
        scores[recipe] = job.evaluate().metrics["eval/score"]
    assert scores["q_learning"] == -13.0
    assert -25 <= scores["sarsa"] <= -15


@pytest.mark.parametrize(
    ("name", "steps", "bar"), [("FrozenLake-v1", 250, 0.98), ("CliffWalking-v1", 250, 1.0), ("Taxi-v4", 700, 0.98)]
)
def test_q_learning_comes_to_the_best_policy(name: str, steps: int, bar: float) -> None:
    frozen = name.startswith("Frozen")
    settings = {
        "recipe": "q_learning", "finite": {"world": {"kind": "gymnasium", "id": name}, "copies": 64, "limit": 200},
        "rollout_steps": 16,
        "table": {"rate": {"rate": 1.0, "power": 0.7} if frozen else {"rate": 0.5}},
        "exploration": {"kind": "epsilon_greedy", "epsilon": {"kind": "constant", "value": 0.5 if frozen else 0.2}},
    }  # fmt: skip
    if frozen:
        settings["finite"].pop("limit")
    job = ran(settings, steps)
    assert job.evaluate is not None
    metrics = job.evaluate().metrics
    assert metrics["eval/of_best"] >= bar
    mdp = build_finite_mdp(FiniteConfig.model_validate(settings["finite"]), discount=1.0)
    greedy = job.recipe.learner.policy.q.argmax(axis=1)
    assert metrics["eval/score"] == pytest.approx(
        start_value(mdp, finite_horizon_value(mdp, greedy, mdp.step_limit or 500))
    )
