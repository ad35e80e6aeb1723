"""The value-based family: resumed runs are the uninterrupted ones, losses do not depend on the cut, schedules."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from certificate_worlds import CONTROL, built, checked
from control_runs import StepRecorder
from recipe_runs import restored, saved

from hone.certify.check import build_certificate
from hone.certify.job import job_gradient_probes
from hone.cli.main import main
from hone.control.environments.world import GymConfig
from hone.control.networks.checkpoint import load_policy
from hone.control.networks.numpy_policies import NumpyCategoricalPolicy, NumpyGreedyPolicy
from hone.control.networks.q_networks import DqnPolicy, NumpyNoisyPolicy
from hone.control.off_policy import IterationReplayConfig
from hone.control.value_based import (
    LinearBoltzmann,
    LinearEpsilon,
    ValueNetworkConfig,
    ValueRunConfig,
    exploration_level,
)
from hone.core.errors import ConfigError
from hone.learner.config import ReplayLearnerConfig, learning_rate_schedule
from hone.recipes.off_policy import c51, dqn, noisy_dqn
from hone.recipes.registry import load_recipe
from hone.run.job import TrainingJob
from hone.run.loop import train

VALUES = (
    "dqn",
    "double_dqn",
    "dueling_dqn",
    "prioritized_dqn",
    "n_step_dqn",
    "c51",
    "qr_dqn",
    "noisy_dqn",
    "rainbow",
)
FAMILY = (*VALUES, "discrete_sac", "r2d2")
SMALL = {
    "env": {"id": "CartPole-v1", "num_envs": 2},
    "network": {"hidden": [16]},
    "learner": {"updates_per_iteration": 3},
    "replay": {"collect": 7, "batch": 8, "capacity": 60, "warmup": 20},
    "evaluation": {"episodes": 3},
}
"""The memory overflows within the run."""
CARTPOLE = GymConfig(id="CartPole-v1", num_envs=2)


def make(recipe: str, steps: int, **changes: Any) -> TrainingJob[Any]:
    entry = load_recipe(recipe)
    config = entry.config.model_validate(
        {"recipe": recipe, "name": "x", "seed": 3, "steps": steps, **{**SMALL, **changes}}
    )
    return entry.build(config)


def small(**changes: Any) -> dqn.DqnConfig:
    return dqn.DqnConfig.model_validate({"recipe": "dqn", "name": "x", "seed": 3, "steps": 5, **SMALL, **changes})


@pytest.mark.parametrize("recipe", FAMILY)
def test_a_resumed_run_is_the_uninterrupted_one(recipe: str, tmp_path: Path) -> None:
    straight, whole = make(recipe, 8), StepRecorder()
    train(straight.recipe, steps=8, callback=whole)
    first, begun = make(recipe, 8), StepRecorder()
    train(first.recipe, steps=5, callback=begun)
    saved(first, tmp_path / "state")
    second = restored(make(recipe, 8), tmp_path / "state")
    train(second.recipe, steps=8, callback=begun, first_step=6)
    assert begun.lines == whole.lines
    straight.save_policy(tmp_path / "one")
    second.save_policy(tmp_path / "two")
    for file in (tmp_path / "one").iterdir():
        assert file.read_bytes() == (tmp_path / "two" / file.name).read_bytes(), file.name
    assert straight.evaluate is not None and second.evaluate is not None
    assert straight.evaluate().metrics == second.evaluate().metrics


@pytest.mark.parametrize("recipe", FAMILY)
def test_a_batch_may_be_cut_up(recipe: str, tmp_path: Path) -> None:
    """Also where the credit is asked of a memory that handed out other transitions."""
    path = tmp_path / "run.toml"
    path.write_text('name = "x"\n' + CONTROL[recipe], encoding="utf-8")
    config = checked(path)
    job = built(config)
    for own_credit in (True, False):
        found = job_gradient_probes(job, config, own_credit=own_credit)
        kept = build_certificate(found, recipe=recipe, config_hash="")
        assert kept.passed, [check.name for check in kept.checks if not check.passed]
    assert [trial.name for trial in found] == (["critic", "actor"] if recipe == "discrete_sac" else ["values"])
    job.close()


@pytest.mark.parametrize("recipe", FAMILY)
def test_a_saved_policy_acts_as_the_trained_one(recipe: str, tmp_path: Path) -> None:
    job = make(recipe, 2)
    policy = train(job.recipe, steps=2, callback=StepRecorder())
    job.save_policy(tmp_path / "policy")
    again = load_policy(tmp_path / "policy")
    seen = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    np.testing.assert_array_equal(again.numpy_policy().best(seen), policy.numpy_policy().best(seen))
    assert again.extras() == policy.extras()


@pytest.mark.parametrize("recipe", ["dqn", "rainbow"])
def test_the_same_seed_is_the_same_run_and_another_is_not(recipe: str) -> None:
    diaries = [StepRecorder() for _ in range(3)]
    for diary, seed in zip(diaries, (3, 3, 4), strict=True):
        train(make(recipe, 3, seed=seed).recipe, steps=3, callback=diary)
    assert diaries[0].lines == diaries[1].lines != diaries[2].lines


EXAMPLES = sorted(
    path
    for recipe in FAMILY
    for path in (Path(__file__).resolve().parents[3] / "examples" / "control").glob(f"{recipe}_*.toml")
)


def test_every_recipe_has_an_example() -> None:
    assert len(EXAMPLES) == len(FAMILY)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_trained_shown_and_judged(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", str(path), "--dry-run"]) == 0, capsys.readouterr().err
    said = capsys.readouterr().out
    assert "updates" in said and "warning" not in said
    shorter = [
        "steps=2",
        "replay.warmup=64",
        "replay.collect=16",
        "learner.updates_per_iteration=2",
        "evaluation.episodes=2",
    ]
    assert main(["train", str(path), *shorter, "name=short"]) == 0, capsys.readouterr().err
    assert main(["show", "runs/short"]) == 0
    assert main(["eval", "short", "--problems", "2"]) == 0, capsys.readouterr().err


# ------------------------------------------------------------------------------------------------- exploring


def test_epsilon_falls_evenly_over_decisions() -> None:
    """By hand: warm-up 20, turns of 14, from 1 to 0.04 over 100."""
    chosen = LinearEpsilon(start=1.0, end=0.04, decay_env_steps=100)
    assert exploration_level(chosen, 0) == 1.0
    assert exploration_level(chosen, 50) == pytest.approx(0.52)
    assert exploration_level(chosen, 100) == exploration_level(chosen, 10_000) == pytest.approx(0.04)
    config = small(exploration={"kind": "epsilon_greedy", "decay_env_steps": 100})
    policy = dqn.ENTRY.build(config).recipe.learner.policy
    levels = [config.exploration_policy(policy, version) for version in range(8)]
    assert all(isinstance(acting, NumpyGreedyPolicy) for acting in levels)
    wanted = [1.0, *(1 - 0.96 * (20 + 14 * version) / 100 for version in range(1, 6)), 0.04, 0.04]
    assert [acting.epsilon for acting in levels] == pytest.approx(wanted)  # type: ignore[union-attr]


def test_a_boltzmann_policy_is_a_softmax_of_the_values() -> None:
    config = small(exploration={"kind": "boltzmann", "start": 0.5, "end": 0.5})
    policy = dqn.ENTRY.build(config).recipe.learner.policy
    acting = config.exploration_policy(policy, 3)
    assert isinstance(acting, NumpyCategoricalPolicy) and isinstance(config.exploration, LinearBoltzmann)
    seen = np.random.default_rng(0).normal(size=(200, 4)).astype(np.float32)
    chosen, logp = acting.decide(seen, acting.noise(np.random.default_rng(1), (200,)))
    with torch.no_grad():
        wanted = torch.log_softmax(policy.q_values(policy.return_outputs(torch.from_numpy(seen))) / 0.5, dim=1)
    np.testing.assert_allclose(logp, wanted.numpy()[np.arange(200), chosen], atol=1e-5)
    assert 0 < chosen.mean() < 1


def test_the_warm_up_acts_at_random_and_knows_its_propensities() -> None:
    for recipe in ("dqn", "noisy_dqn"):
        job = make(recipe, 1)
        job.recipe.source.publish(job.recipe.learner.policy)
        episodes = job.recipe.source.collect()
        np.testing.assert_allclose(episodes.logp, np.log(0.5), rtol=1e-6)
        assert (episodes.version == 0).all()


def test_noise_explores_and_the_mode_does_not() -> None:
    config = noisy_dqn.NoisyDqnConfig.model_validate({"recipe": "noisy_dqn", "name": "x", "steps": 1, **SMALL})
    policy = noisy_dqn.ENTRY.build(config).recipe.learner.policy
    acting = config.exploration_policy(policy, 1)
    assert isinstance(acting, NumpyNoisyPolicy)
    seen = np.random.default_rng(0).normal(size=(1, 4)).astype(np.float32).repeat(500, axis=0)
    draws = np.concatenate([acting.noise(np.random.default_rng(k), (1,)) for k in range(500)])
    chosen, logp = acting.decide(seen, draws)
    assert 0.02 < chosen.mean() < 0.98
    assert np.isnan(logp).all()
    assert len(set(acting.best(seen).tolist())) == 1
    rollout = acting.noise(np.random.default_rng(0), (16, 2))
    assert rollout.shape == (16, 2, acting.noise_size)
    assert (rollout == rollout[0, 0]).all(), "one draw of the weights for a turn"


# ------------------------------------------------------------------------------------------------- the target network


def test_the_slow_copy_follows_after_whole_turns() -> None:
    job = make("dqn", 4, algorithm={"target_every": 2})
    policy: DqnPolicy = job.recipe.learner.policy
    apart: list[bool] = []

    def report(*_: object) -> None:
        pairs = zip(policy.values.parameters(), policy.target.parameters(), strict=True)
        apart.append(any(not torch.equal(fast, slow) for fast, slow in pairs))

    train(job.recipe, steps=4, callback=report)
    assert apart == [True, False, True, False]


def test_the_slow_copy_may_follow_softly() -> None:
    job = make("dqn", 1, algorithm={"tau": 0.25})
    policy: DqnPolicy = job.recipe.learner.policy
    before = [parameter.clone() for parameter in policy.values.parameters()]
    train(job.recipe, steps=1, callback=StepRecorder())
    for old, slow, fast in zip(before, policy.target.parameters(), policy.values.parameters(), strict=True):
        torch.testing.assert_close(slow, 0.75 * old + 0.25 * fast)


# ------------------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize("recipe", FAMILY)
def test_a_box_of_actions_is_refused(recipe: str) -> None:
    entry = load_recipe(recipe)
    config = entry.config.model_validate(
        {"recipe": recipe, "name": "x", "steps": 1, "env": {"id": "Pendulum-v1", "clip_actions": True}}
    )
    for door in (entry.check, entry.build):
        with pytest.raises(ConfigError, match="finite set of actions"):
            door(config)


def test_dead_exploration_is_told_of() -> None:
    config = small(exploration={"kind": "epsilon_greedy", "decay_env_steps": 20})
    (told,) = dqn.ENTRY.check(config)
    assert "exploration.decay_env_steps = 20" in told and "replay.warmup = 20" in told
    assert list(dqn.ENTRY.check(small())) == []


def test_a_support_has_a_width() -> None:
    with pytest.raises(ValueError, match=r"algorithm.low = 5.0 must be below algorithm.high = 5.0"):
        c51.CategoricalAlgorithm(low=5.0, high=5.0)


# ------------------------------------------------------------------------------------------------- learning


LAKE: dict[str, Any] = {
    "env": {"id": "FrozenLake-v1", "num_envs": 4, "kwargs": {"is_slippery": False}},
    "network": {"hidden": [32], "activation": "relu", "layer_norm": False},  # each state has weights of its own
    "learner": {"lr": 5e-3, "updates_per_iteration": 16},
    "replay": {"collect": 16, "batch": 64, "warmup": 4000},
    "evaluation": {"episodes": 2},
}


@pytest.mark.parametrize(
    "recipe", [pytest.param(one, marks=pytest.mark.slow if one == "rainbow" else ()) for one in VALUES]
)
def test_it_crosses_the_lake(recipe: str) -> None:
    """Found by chance once in seventy episodes, the goal is six steps away: the best policy scores 1."""
    algorithm: dict[str, Any] = {"discount": 0.9, "target_every": 1}
    if recipe in {"c51", "rainbow"}:
        algorithm |= {"low": 0.0, "high": 1.0, "atoms": 21}
    job = make(recipe, 40, **LAKE, algorithm=algorithm)
    policy = train(job.recipe, steps=40, callback=StepRecorder())
    assert job.evaluate is not None
    assert job.evaluate().metrics["eval/score"] == 1.0
    if recipe in {"dqn", "double_dqn"}:  # the values are those of dynamic programming
        with torch.no_grad():
            table = policy.q_values(policy.return_outputs(torch.tensor([0, 14])))
        assert table[1, 2].item() == pytest.approx(1.0, abs=0.05)
        assert table[0].max().item() == pytest.approx(0.9**5, abs=0.1)


@pytest.mark.slow
def test_discrete_sac_learns() -> None:
    """A tenth of the budget: well above the 22 of a random policy."""
    job = make(
        "discrete_sac",
        60,
        env={"id": "CartPole-v1"},
        network={"hidden": [32], "activation": "relu"},
        learner={"lr": 3e-3, "updates_per_iteration": 32},
        replay={"collect": 64, "batch": 64, "warmup": 500},
        evaluation={"episodes": 10},
    )
    train(job.recipe, steps=60, callback=StepRecorder())
    assert job.evaluate is not None
    assert job.evaluate().metrics["eval/score"] > 80


def test_defaults_of_a_partial_table_are_the_familys() -> None:
    config = dqn.DqnConfig.model_validate({"recipe": "dqn", "name": "x", "steps": 1, "env": {"id": "CartPole-v1"}})
    partly = dqn.DqnConfig.model_validate(
        {"recipe": "dqn", "name": "x", "steps": 1, "env": {"id": "CartPole-v1"}, "learner": {"lr": 1e-3}}
    )
    assert partly.learner == ReplayLearnerConfig(lr=1e-3, max_grad_norm=10.0, updates_per_iteration=8)
    assert config.learner.updates_per_iteration == partly.learner.updates_per_iteration == 8
    assert (config.replay, config.algorithm) == (
        IterationReplayConfig(),
        dqn.DqnAlgorithm(),
    )
    partly = dqn.DqnConfig.model_validate(
        {"recipe": "dqn", "name": "x", "steps": 1, "env": {"id": "CartPole-v1"}, "network": {"hidden": [16]}}
    )
    assert config.network == ValueNetworkConfig(hidden=[256, 256], activation="relu", layer_norm=True)
    assert partly.network == ValueNetworkConfig(hidden=[16], activation="relu", layer_norm=True)


@pytest.mark.parametrize("recipe", VALUES)
def test_by_default_the_rate_stays_and_the_support_is_wide_enough(recipe: str) -> None:
    """The average of weights that stand still is no average."""
    entry = load_recipe(recipe)
    config = entry.config.model_validate({"recipe": recipe, "name": "x", "steps": 1, "env": {"id": "CartPole-v1"}})
    assert isinstance(config, ValueRunConfig)
    assert config.learner.lr_decay == "constant"
    assert learning_rate_schedule(config.learner, 100)(100) == config.learner.lr
    algorithm = config.model_dump()["algorithm"]
    if "high" in algorithm:  # the support ends where the return of a world that pays 1 a step does
        assert algorithm["high"] == pytest.approx(1 / (1 - algorithm["discount"]))


@pytest.mark.parametrize("normed", [False, True])
def test_layer_normalisation_keeps_values_from_growing(normed: bool) -> None:
    """A copy after every four updates is too soon for a plain network: its values leave the 50 that there can be."""
    job = make(
        "dqn", 120, env={"id": "CartPole-v1"}, network={"hidden": [128, 128], "layer_norm": normed},
        learner={"lr": 1e-3, "updates_per_iteration": 4}, replay={"collect": 8, "batch": 64, "warmup": 200},
        algorithm={"discount": 0.98, "normalise_observations": normed},
    )  # fmt: skip
    told = StepRecorder()
    train(job.recipe, steps=120, callback=told)
    policy: DqnPolicy = job.recipe.learner.policy
    with torch.no_grad():
        worth = policy.q_values(policy.return_outputs(torch.zeros(1, 4))).max().item()
    assert (worth < 60) if normed else (worth > 200)


def test_what_is_seen_is_normalised_by_what_was_seen(tmp_path: Path) -> None:
    job = make("dqn", 4)
    train(job.recipe, steps=4, callback=StepRecorder())
    inputs = job.recipe.learner.policy.spaces.inputs
    assert len(inputs.mean) == len(inputs.scale) == 4
    assert inputs.scale[2] < inputs.scale[3], "a pole's angle varies less than its speed"
    job.save_policy(tmp_path)
    assert load_policy(tmp_path).spaces.inputs == inputs
    plain = make("dqn", 1, algorithm={"normalise_observations": False})
    train(plain.recipe, steps=1, callback=StepRecorder())
    assert plain.recipe.learner.policy.spaces.inputs.mean == ()
    lake = make("dqn", 1, env={"id": "FrozenLake-v1"})  # numbered states: there is nothing to normalise
    train(lake.recipe, steps=1, callback=StepRecorder())
    assert lake.recipe.learner.policy.spaces.inputs.mean == ()
