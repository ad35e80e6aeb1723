"""Logs that are made here: mixtures say how likely they were, stages lie in order, parts are as long as asked for."""

import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from hone.core.errors import ConfigError
from hone.envs.gym.make import GymConfig
from hone.envs.logs.parquet import read_log, write_log
from hone.models.control.actor_critic import ActorCritic, SoftActorCritic
from hone.models.control.mlp import Bounds, Choices, Inputs, MlpConfig, Spaces
from hone.models.control.numpy_policies import ActCategorical, ActGaussian, ActGreedy, Acting, ActSquashed
from hone.recipes.on_policy import ppo
from hone.train.control.behaviour_logs import (
    Mixture,
    Part,
    Stages,
    log_density,
    log_volume,
    parts_of,
    record,
    returned,
    stages,
)

INPUTS = Inputs(size=2)
CHOICES, BOX = Choices(count=3, start=5), Bounds(low=(-1.0, 0.0), high=(3.0, 2.0), shape=(2,))
SMALL = MlpConfig(hidden=[4])
SEEN = np.random.default_rng(0).normal(size=(7, 2)).astype(np.float32)


@dataclass(frozen=True)
class Fixed:
    """The same outputs everywhere."""

    row: tuple[float, ...]

    def __call__(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        return np.tile(np.array(self.row, np.float32), (len(x), 1))


ACTINGS: list[tuple[Acting, Spaces]] = [
    (ActCategorical(network=Fixed((0.2, -1.0, 0.7)), inputs=INPUTS, actions=CHOICES), Spaces(inputs=INPUTS, actions=CHOICES)),  # noqa: E501
    (ActGreedy(network=Fixed((0.2, -1.0, 0.7)), inputs=INPUTS, actions=CHOICES, epsilon=0.3), Spaces(inputs=INPUTS, actions=CHOICES)),  # noqa: E501
    (ActSquashed(network=Fixed((0.2, -0.4, -0.5, -1.0)), inputs=INPUTS, actions=BOX), Spaces(inputs=INPUTS, actions=BOX)),  # noqa: E501
    (ActGaussian(network=Fixed((0.2, 0.4)), inputs=INPUTS, actions=BOX, log_std=np.array([-1.0, 0.5], np.float32)), Spaces(inputs=INPUTS, actions=BOX)),  # noqa: E501
]  # fmt: skip


@pytest.mark.parametrize(("acting", "spaces"), ACTINGS, ids=["categorical", "greedy", "squashed", "gaussian"])
def test_a_density_is_the_one_that_the_policy_tells(acting: Acting, spaces: Spaces) -> None:
    noise = acting.noise(np.random.default_rng(1), (7,))
    chosen, logp = acting.decide(SEEN, noise)
    np.testing.assert_allclose(log_density(acting, SEEN, chosen), logp, atol=2e-4)  # the world's float32 actions


@pytest.mark.parametrize(("acting", "spaces"), ACTINGS[:2], ids=["categorical", "greedy"])
def test_probabilities_of_a_mixture_add_up_and_are_met(acting: Acting, spaces: Spaces) -> None:
    seen = np.zeros((20_000, 2), np.float32)
    actor = Mixture(acting, spaces, 0.25)
    chosen, logp = actor.decide(seen, actor.noise(np.random.default_rng(2), (len(seen),)))
    told = {int(action): float(np.exp(logp[chosen == action][0])) for action in (5, 6, 7)}
    met = {action: float((chosen == action).mean()) for action in told}
    assert sum(told.values()) == pytest.approx(1.0, abs=1e-5)
    assert met == pytest.approx(told, abs=0.015)


def test_the_density_of_a_mixture_over_a_box_integrates_to_one() -> None:
    bounds = Bounds(low=(-2.0,), high=(2.0,), shape=(1,))
    acting = ActSquashed(network=Fixed((0.3, -0.7)), inputs=INPUTS, actions=bounds)
    grid = np.linspace(-2, 2, 4001)[1:-1].astype(np.float32)[:, None]
    density = np.logaddexp(
        np.log(0.2) - log_volume(bounds), np.log(0.8) + log_density(acting, np.zeros((3999, 2)), grid)
    )
    assert float(np.exp(density).sum() * 4 / 4000) == pytest.approx(1.0, abs=2e-3)
    actor = Mixture(acting, Spaces(inputs=INPUTS, actions=bounds), 0.2)
    chosen, logp = actor.decide(np.zeros((5, 2)), actor.noise(np.random.default_rng(3), (5,)))
    where = np.abs(grid - chosen.astype(np.float32).T).argmin(axis=0)
    np.testing.assert_allclose(logp, density[where], atol=0.01)


def test_chance_alone_is_uniform_whatever_the_policy() -> None:
    spaces = Spaces(inputs=INPUTS, actions=BOX)
    actor = Mixture(ACTINGS[2][0], spaces, 1.0)
    chosen, logp = actor.decide(np.zeros((4000, 2)), actor.noise(np.random.default_rng(4), (4000,)))
    np.testing.assert_allclose(logp, -math.log(4.0 * 2.0), rtol=1e-6)
    np.testing.assert_allclose(chosen.mean(axis=0), [1.0, 1.0], atol=0.08)
    with pytest.raises(ConfigError, match="without bounds"):
        log_volume(Bounds(low=(-math.inf,), high=(1.0,), shape=(1,)))


def test_a_log_has_the_parts_that_were_asked_for(tmp_path: Path) -> None:
    spaces = Spaces(inputs=Inputs(size=4), actions=Choices(count=2))
    policies = [ActorCritic(spaces, SMALL, seed=seed, critic=False) for seed in range(3)]
    early = (policies[1], policies[0])
    found = Stages(random=policies[0], medium=policies[1], expert=policies[2], scores=(0, 1, 2), early=early)
    parts = parts_of(found, "mixed", decisions=300, epsilon=0.1)
    deciding = [(policies[0], 1.0, 75), (policies[1], 0.1, 90), (policies[0], 0.1, 90), (policies[2], 0.1, 45)]
    assert [(part.policy, part.epsilon, part.decisions) for part in parts] == deciding
    alone = parts_of(replace(found, early=()), "mixed", decisions=300, epsilon=0.1)
    assert [(part.policy, part.decisions) for part in alone] == [
        (policies[0], 75), (policies[1], 180), (policies[2], 45)
    ]  # fmt: skip
    (expert,) = parts_of(found, "expert", decisions=300, epsilon=0.1)
    assert (expert.policy, expert.decisions) == (policies[2], 300)
    log = record(parts, GymConfig(id="CartPole-v1", num_envs=4), seed=1)
    recorded = np.bincount(log.episodes.version)
    assert all(part.decisions <= found < part.decisions + 4 for part, found in zip(parts, recorded, strict=True))
    assert len(np.unique(log.episodes.group[log.episodes.terminated])) == int(log.episodes.terminated.sum())
    assert np.isfinite(log.episodes.logp).all()
    write_log(tmp_path / "log.parquet", log)
    again = record(parts, GymConfig(id="CartPole-v1", num_envs=4), seed=1)
    np.testing.assert_array_equal(read_log(tmp_path / "log.parquet").episodes.chosen, again.episodes.chosen)


def test_actions_of_a_box_stay_inside_it() -> None:
    spaces = Spaces(inputs=Inputs(size=3), actions=Bounds(low=(-2.0,), high=(2.0,), shape=(1,)))
    part = Part(policy=SoftActorCritic(spaces, SMALL, seed=0), decisions=50, epsilon=0.5)
    log = record([part], GymConfig(id="Pendulum-v1", num_envs=2), seed=1)
    assert np.abs(log.episodes.chosen).max() <= 2.0
    assert log.episodes.chosen.dtype == np.float32


def test_stages_lie_in_the_order_of_their_scores() -> None:
    env = GymConfig(id="CartPole-v1", num_envs=8)
    job = ppo.build(ppo.PpoConfig(recipe="ppo", name="x", steps=160, env=env, network=MlpConfig(hidden=[32, 32])))
    found = stages(job, env, steps=160, every=4, epsilon=0.1)
    low, middle, high = found.scores
    assert low < 40
    assert low < middle < high
    assert abs(middle - 0.5 * (low + high)) < 0.45 * (high - low)
    assert high >= returned(Mixture(job.recipe.learner.policy.acting(), found.expert.spaces, 0.1), env, seed=0)
