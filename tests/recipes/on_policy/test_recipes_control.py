"""Recipes for control: a resumed run is the uninterrupted one, bitwise; each learns; faults come before training."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from control_runs import StepRecorder, write_short_log

from hone.control.environments.world import GymConfig
from hone.control.job import ControlEvaluationConfig
from hone.control.networks.checkpoint import load_policy
from hone.control.networks.mlp import MlpConfig
from hone.control.off_policy import ReplayConfig
from hone.control.rows import StepRows, split_decision_rows
from hone.core.credit import Credits
from hone.core.errors import ConfigError, DataError
from hone.core.random import generator
from hone.core.state import substate
from hone.learner.config import LearnerConfig, ReplayLearnerConfig
from hone.learner.gradient import split_by_rows
from hone.recipes.bandits import thompson
from hone.recipes.off_policy import sac
from hone.recipes.offline import bc, cql
from hone.recipes.on_policy import ppo
from hone.run.job import RecipeSpec, TrainingJob
from hone.run.loop import train
from hone.run.store.codec import read_state, write_state

SMALL = MlpConfig(hidden=[16])
CARTPOLE = GymConfig(id="CartPole-v1", num_envs=4)
JUDGE = ControlEvaluationConfig(episodes=3)


def make_ppo(folder: Path, steps: int) -> TrainingJob[Any]:
    learner = LearnerConfig(lr=1e-3, epochs=2, minibatches=3, lr_decay="linear", warmup_steps=2)
    return ppo.ENTRY.build(
        ppo.PpoConfig(
            recipe="ppo", name="x", seed=3, steps=steps, env=CARTPOLE, rollout_steps=21, network=SMALL,
            learner=learner, evaluation=JUDGE, algorithm=ppo.PpoAlgorithm(entropy_weight=0.01),
        )
    )  # fmt: skip


def make_ppo_box(folder: Path, steps: int) -> TrainingJob[Any]:
    env = GymConfig(id="Pendulum-v1", num_envs=3, clip_actions=True)
    learner = LearnerConfig(lr=1e-3, epochs=2)
    return ppo.ENTRY.build(
        ppo.PpoConfig(
            recipe="ppo", name="x", seed=3, steps=steps, env=env, rollout_steps=90, network=SMALL, learner=learner,
            evaluation=JUDGE,
        )
    )  # fmt: skip


def make_sac(folder: Path, steps: int) -> TrainingJob[Any]:
    return sac.ENTRY.build(
        sac.SacConfig(
            recipe="sac", name="x", seed=3, steps=steps, env=GymConfig(id="Pendulum-v1", num_envs=2), network=SMALL,
            learner=ReplayLearnerConfig(lr=1e-3, updates_per_iteration=2, max_grad_norm=None), evaluation=JUDGE,
            replay=ReplayConfig(batch=16, capacity=70, warmup=30),
        )
    )  # fmt: skip


def make_cql(folder: Path, steps: int) -> TrainingJob[Any]:
    return cql.ENTRY.build(
        cql.CqlConfig(
            recipe="cql", name="x", seed=3, steps=steps, log=write_short_log(folder, "CartPole-v1"), env=CARTPOLE,
            network=SMALL, batch=32, evaluation=JUDGE,
        )
    )  # fmt: skip


def make_cql_box(folder: Path, steps: int) -> TrainingJob[Any]:
    return cql.ENTRY.build(
        cql.CqlConfig(
            recipe="cql", name="x", seed=3, steps=steps, log=write_short_log(folder, "Pendulum-v1"),
            env=GymConfig(id="Pendulum-v1"), network=SMALL, batch=32, evaluation=JUDGE,
            algorithm=cql.CqlAlgorithm(samples=3),
        )
    )  # fmt: skip


def make_bc(folder: Path, steps: int) -> TrainingJob[Any]:
    return bc.ENTRY.build(
        bc.BcConfig(
            recipe="bc",
            name="x",
            seed=3,
            steps=steps,
            log=write_short_log(folder, "CartPole-v1"),
            network=SMALL,
            batch=32,
        )
    )


def make_thompson(folder: Path, steps: int) -> TrainingJob[Any]:
    config = {"recipe": "thompson", "name": "x", "seed": 3, "steps": steps, "pulls": 3}
    arms, model = {"kind": "linear", "arms": 3, "features": 2}, {"kind": "linear"}
    return thompson.ENTRY.build(thompson.ThompsonConfig.model_validate({**config, "arms": arms, "model": model}))


MAKERS = [make_ppo, make_ppo_box, make_sac, make_cql, make_cql_box, make_bc, make_thompson]


@pytest.mark.parametrize("make", MAKERS, ids=[make.__name__.removeprefix("make_") for make in MAKERS])
def test_a_resumed_run_is_the_uninterrupted_one(make: Callable[[Path, int], TrainingJob[Any]], tmp_path: Path) -> None:
    steps = 8
    straight, whole = make(tmp_path, steps), StepRecorder()
    train(straight.recipe, steps=steps, callback=whole)

    first, begun = make(tmp_path, steps), StepRecorder()
    train(first.recipe, steps=5, callback=begun)
    (tmp_path / "state").mkdir()
    (tmp_path / "policy").mkdir()
    write_state(tmp_path / "state", {"source": first.recipe.source.state(), "learner": first.recipe.learner.state()})
    first.save_policy(tmp_path / "policy")

    second = make(tmp_path, steps)
    state = read_state(tmp_path / "state")
    second.load_policy(tmp_path / "policy")
    second.recipe.learner.restore(substate(state, "learner"))
    second.recipe.source.restore(substate(state, "source"))
    train(second.recipe, steps=steps, callback=begun, first_step=6)

    assert begun.lines == whole.lines
    straight.save_policy(tmp_path / "one")
    second.save_policy(tmp_path / "two")
    for file in (tmp_path / "one").iterdir():
        assert file.read_bytes() == (tmp_path / "two" / file.name).read_bytes(), file.name
    if straight.evaluate is not None and second.evaluate is not None:
        assert straight.evaluate().metrics == second.evaluate().metrics
    for job in (straight, first, second):
        job.close()


@pytest.mark.parametrize("make", MAKERS[:3], ids=["ppo", "ppo_box", "sac"])
def test_a_fresh_policy_explores(make: Callable[[Path, int], TrainingJob[Any]], tmp_path: Path) -> None:
    job = make(tmp_path, 1)
    episodes = job.recipe.source.collect()
    assert len(np.unique(episodes.observations, axis=0)) > 3
    assert episodes.chosen.std() > 0


def test_recorded_log_probabilities_are_the_learners(tmp_path: Path) -> None:
    """So the first ratio of PPO is 1."""
    for make in (make_ppo, make_ppo_box):
        job = make(tmp_path, 1)
        job.recipe.source.publish(job.recipe.learner.policy)
        episodes = job.recipe.source.collect()
        policy = job.recipe.learner.policy
        with torch.no_grad():
            now = policy.evaluate_actions(torch.from_numpy(episodes.observations), torch.from_numpy(episodes.chosen))
        np.testing.assert_allclose(now.logp.numpy(), episodes.logp, atol=1e-5)
        assert (episodes.version == 0).all()


def test_shipped_policies_play_without_the_recipe(tmp_path: Path) -> None:
    job = make_ppo(tmp_path, 1)
    job.save_policy(tmp_path / "policy")
    policy = load_policy(tmp_path / "policy")
    assert policy.numpy_policy().best(np.zeros((2, 4), np.float32)).shape == (2,)


@pytest.mark.parametrize("entry", [ppo.ENTRY, sac.ENTRY, cql.ENTRY, bc.ENTRY, thompson.ENTRY])
def test_entries_derive_without_work(entry: RecipeSpec, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"recipe": "x", "name": "x", "steps": 10}
    fields = entry.config.model_fields
    logged = "log" in fields and "arms" not in fields
    if logged:
        settings["log"] = str(tmp_path / "missing.parquet")
    elif "env" in fields:
        settings["env"] = {"id": "Pendulum-v1", "clip_actions": True}
    else:
        settings["arms"] = {"kind": "bernoulli", "rates": [0.1, 0.9]}
    config = entry.config.model_validate(settings)
    assert all(isinstance(value, str) for value in config.derive().values())
    if logged:
        with pytest.raises(DataError, match=r"missing.parquet: there is no such file"):
            entry.check(config)
    else:
        assert list(entry.check(config)) == []


def test_ppo_on_a_box_that_nobody_may_clip_is_refused() -> None:
    env = GymConfig(id="Pendulum-v1", clip_actions=False)
    config = ppo.PpoConfig(recipe="ppo", name="x", steps=1, env=env)
    for door in (ppo.ENTRY.check, ppo.ENTRY.build):
        with pytest.raises(ConfigError, match=r"env.clip_actions = false"):
            door(config)


def test_sac_needs_a_box() -> None:
    config = sac.SacConfig(recipe="sac", name="x", steps=1, env=CARTPOLE)
    with pytest.raises(ConfigError, match="box of actions"):
        sac.ENTRY.build(config)


def test_a_bandit_refuses_a_belief_that_does_not_fit() -> None:
    config = thompson.ThompsonConfig.model_validate(
        {"recipe": "x", "name": "x", "steps": 1, "arms": {"kind": "linear"}, "model": {"kind": "beta"}}
    )
    with pytest.raises(ConfigError, match='use "linear"'):
        thompson.ENTRY.check(config)


def test_ppo_learns_cartpole() -> None:
    """A fifth of the budget of the benchmark: well above the 22 of a random policy."""
    learner = LearnerConfig(lr=2e-3, lr_decay="linear", epochs=10, minibatches=2, max_grad_norm=0.5)
    job = ppo.ENTRY.build(
        ppo.PpoConfig(
            recipe="ppo", name="x", steps=60, env=GymConfig(id="CartPole-v1", num_envs=8), learner=learner,
            network=MlpConfig(hidden=[32, 32]),
        )
    )  # fmt: skip
    train(job.recipe, steps=60, callback=StepRecorder())
    assert job.evaluate is not None
    assert job.evaluate().metrics["eval/score"] > 100


def test_cloning_recovers_the_logged_choice(tmp_path: Path) -> None:
    job = make_bc(tmp_path, 300)
    diary = StepRecorder()
    episodes = job.recipe.source.collect()
    episodes.chosen[:] = 0
    before = job.recipe.learner.update(episodes, Credits(advantage=episodes.reward))
    for _ in range(200):
        after = job.recipe.learner.update(episodes, Credits(advantage=episodes.reward))
    assert after["policy/nll_nats"] < 0.3 * before["policy/nll_nats"]
    assert not diary.lines


def test_columns_are_cut_as_rows_are() -> None:
    def column(draws: np.random.Generator, *shape: int) -> torch.Tensor:
        return torch.from_numpy(draws.standard_normal(shape))

    draws = generator(1, "rows")
    rows = StepRows(
        weight=torch.full((1,), 0.125, dtype=torch.float64).expand(8), seen=column(draws, 8, 3),
        chosen=torch.from_numpy(draws.integers(5, 8, 8)), logp=column(draws, 8), advantage=column(draws, 8),
        target=column(draws, 8),
    )  # fmt: skip
    order = np.array([3, 0, 7, 1, 6, 2, 5, 4])
    for one, other in zip(split_decision_rows(rows, order, 4), split_by_rows(rows, order, 4), strict=True):
        for name, values in vars(one).items():
            theirs = vars(other)[name]
            assert theirs is None if values is None else torch.equal(values, theirs), name
