"""Logs that are made here: mixtures say how likely they were, stages lie in order, parts are as long as asked for."""

import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from hone.control.behaviour_logs import (
    EpsilonMixture,
    LogShare,
    PolicySnapshots,
    log_density,
    log_shares,
    mean_return,
    record_log,
    train_snapshots,
)
from hone.control.environments.make import GymConfig
from hone.control.logs.parquet import read_log, write_log
from hone.control.networks.actor_critic import ActorCritic, SoftActorCritic
from hone.control.networks.mlp import BoxActions, DiscreteActions, MlpConfig, ObservationInputs, PolicySpaces
from hone.control.networks.numpy_policies import (
    NumpyCategoricalPolicy,
    NumpyGaussianPolicy,
    NumpyGreedyPolicy,
    NumpyPolicy,
    NumpySquashedGaussianPolicy,
)
from hone.core.errors import ConfigError
from hone.recipes.offline import cql
from hone.recipes.on_policy import ppo

INPUTS = ObservationInputs(size=2)
CHOICES, BOX = DiscreteActions(count=3, start=5), BoxActions(low=(-1.0, 0.0), high=(3.0, 2.0), shape=(2,))
SMALL = MlpConfig(hidden=[4])
SEEN = np.random.default_rng(0).normal(size=(7, 2)).astype(np.float32)


@dataclass(frozen=True)
class Fixed:
    """The same outputs everywhere."""

    row: tuple[float, ...]

    def __call__(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        return np.tile(np.array(self.row, np.float32), (len(x), 1))


ACTINGS: list[tuple[NumpyPolicy, PolicySpaces]] = [
    (NumpyCategoricalPolicy(network=Fixed((0.2, -1.0, 0.7)), inputs=INPUTS, actions=CHOICES), PolicySpaces(inputs=INPUTS, actions=CHOICES)),  # noqa: E501
    (NumpyGreedyPolicy(network=Fixed((0.2, -1.0, 0.7)), inputs=INPUTS, actions=CHOICES, epsilon=0.3), PolicySpaces(inputs=INPUTS, actions=CHOICES)),  # noqa: E501
    (NumpySquashedGaussianPolicy(network=Fixed((0.2, -0.4, -0.5, -1.0)), inputs=INPUTS, actions=BOX), PolicySpaces(inputs=INPUTS, actions=BOX)),  # noqa: E501
    (NumpyGaussianPolicy(network=Fixed((0.2, 0.4)), inputs=INPUTS, actions=BOX, log_std=np.array([-1.0, 0.5], np.float32)), PolicySpaces(inputs=INPUTS, actions=BOX)),  # noqa: E501
]  # fmt: skip


@pytest.mark.parametrize(("acting", "spaces"), ACTINGS, ids=["categorical", "greedy", "squashed", "gaussian"])
def test_a_density_is_the_one_that_the_policy_tells(acting: NumpyPolicy, spaces: PolicySpaces) -> None:
    noise = acting.noise(np.random.default_rng(1), (7,))
    chosen, logp = acting.decide(SEEN, noise)
    np.testing.assert_allclose(log_density(acting, SEEN, chosen), logp, atol=2e-4)  # the world's float32 actions


@pytest.mark.parametrize(("acting", "spaces"), ACTINGS[:2], ids=["categorical", "greedy"])
def test_probabilities_of_a_mixture_add_up_and_are_met(acting: NumpyPolicy, spaces: PolicySpaces) -> None:
    seen = np.zeros((20_000, 2), np.float32)
    actor = EpsilonMixture(acting, spaces, 0.25)
    chosen, logp = actor.decide(seen, actor.noise(np.random.default_rng(2), (len(seen),)))
    told = {int(action): float(np.exp(logp[chosen == action][0])) for action in (5, 6, 7)}
    met = {action: float((chosen == action).mean()) for action in told}
    assert sum(told.values()) == pytest.approx(1.0, abs=1e-5)
    assert met == pytest.approx(told, abs=0.015)


def test_the_density_of_a_mixture_over_a_box_integrates_to_one() -> None:
    bounds = BoxActions(low=(-2.0,), high=(2.0,), shape=(1,))
    acting = NumpySquashedGaussianPolicy(network=Fixed((0.3, -0.7)), inputs=INPUTS, actions=bounds)
    grid = np.linspace(-2, 2, 4001)[1:-1].astype(np.float32)[:, None]
    density = np.logaddexp(np.log(0.2) - math.log(4.0), np.log(0.8) + log_density(acting, np.zeros((3999, 2)), grid))
    assert float(np.exp(density).sum() * 4 / 4000) == pytest.approx(1.0, abs=2e-3)
    actor = EpsilonMixture(acting, PolicySpaces(inputs=INPUTS, actions=bounds), 0.2)
    chosen, logp = actor.decide(np.zeros((5, 2)), actor.noise(np.random.default_rng(3), (5,)))
    where = np.abs(grid - chosen.astype(np.float32).T).argmin(axis=0)
    np.testing.assert_allclose(logp, density[where], atol=0.01)


def test_chance_alone_is_uniform_whatever_the_policy() -> None:
    spaces = PolicySpaces(inputs=INPUTS, actions=BOX)
    actor = EpsilonMixture(ACTINGS[2][0], spaces, 1.0)
    chosen, logp = actor.decide(np.zeros((4000, 2)), actor.noise(np.random.default_rng(4), (4000,)))
    np.testing.assert_allclose(logp, -math.log(4.0 * 2.0), rtol=1e-6)
    np.testing.assert_allclose(chosen.mean(axis=0), [1.0, 1.0], atol=0.08)
    unbounded = BoxActions(low=(-math.inf,), high=(1.0,), shape=(1,))
    deviation = np.zeros(1, np.float32)
    own = NumpyGaussianPolicy(network=Fixed((0.3,)), inputs=INPUTS, actions=unbounded, log_std=deviation)
    endless = EpsilonMixture(own, PolicySpaces(inputs=INPUTS, actions=unbounded), 1.0)
    with pytest.raises(ConfigError, match="without bounds"):
        endless.decide(np.zeros((1, 2)), endless.noise(np.random.default_rng(4), (1,)))


def test_a_log_has_the_parts_that_were_asked_for(tmp_path: Path) -> None:
    spaces = PolicySpaces(inputs=ObservationInputs(size=4), actions=DiscreteActions(count=2))
    policies = [ActorCritic(spaces, SMALL, seed=seed, critic=False) for seed in range(3)]
    early = (policies[1], policies[0])
    found = PolicySnapshots(random=policies[0], medium=policies[1], expert=policies[2], scores=(0, 1, 2), early=early)
    parts = log_shares(found, "mixed", decisions=300, epsilon=0.1)
    deciding = [(policies[0], 1.0, 75), (policies[1], 0.1, 90), (policies[0], 0.1, 90), (policies[2], 0.1, 45)]
    assert [(part.policy, part.epsilon, part.min_decisions) for part in parts] == deciding
    alone = log_shares(replace(found, early=()), "mixed", decisions=300, epsilon=0.1)
    assert [(part.policy, part.min_decisions) for part in alone] == [
        (policies[0], 75), (policies[1], 180), (policies[2], 45)
    ]  # fmt: skip
    (expert,) = log_shares(found, "expert", decisions=300, epsilon=0.1)
    assert (expert.policy, expert.min_decisions) == (policies[2], 300)
    log = record_log(parts, GymConfig(id="CartPole-v1", num_envs=4), seed=1)
    recorded = np.bincount(log.episodes.version)
    assert all(
        part.min_decisions <= found < part.min_decisions + 4 for part, found in zip(parts, recorded, strict=True)
    )
    assert len(np.unique(log.episodes.group[log.episodes.terminated])) == int(log.episodes.terminated.sum())
    assert np.isfinite(log.episodes.logp).all()
    write_log(tmp_path / "log.parquet", log)
    again = record_log(parts, GymConfig(id="CartPole-v1", num_envs=4), seed=1)
    np.testing.assert_array_equal(read_log(tmp_path / "log.parquet").episodes.chosen, again.episodes.chosen)


def test_actions_of_a_box_stay_inside_it() -> None:
    spaces = PolicySpaces(inputs=ObservationInputs(size=3), actions=BoxActions(low=(-2.0,), high=(2.0,), shape=(1,)))
    part = LogShare(policy=SoftActorCritic(spaces, SMALL, seed=0), min_decisions=50, epsilon=0.5)
    log = record_log([part], GymConfig(id="Pendulum-v1", num_envs=2), seed=1)
    assert np.abs(log.episodes.chosen).max() <= 2.0
    assert log.episodes.chosen.dtype == np.float32


@pytest.mark.slow
def test_stages_lie_in_the_order_of_their_scores() -> None:
    env = GymConfig(id="CartPole-v1", num_envs=8)
    job = ppo.ENTRY.build(ppo.PpoConfig(recipe="ppo", name="x", steps=160, env=env, network=MlpConfig(hidden=[32, 32])))
    found = train_snapshots(job, env, steps=160, every=4, epsilon=0.1)
    low, middle, high = found.scores
    assert low < 40
    assert low < middle < high
    assert abs(middle - 0.5 * (low + high)) < 0.45 * (high - low)
    assert high >= mean_return(
        EpsilonMixture(job.recipe.learner.policy.numpy_policy(), found.expert.spaces, 0.1), env, seed=0
    )


# ------------------------------------------------------------------------------------------------------- legal actions

LADDER = f"{Path(__file__).with_name('environments') / 'masked_envs.py'}:Ladder"


@pytest.mark.parametrize(("acting", "spaces"), ACTINGS[:2], ids=["categorical", "greedy"])
@pytest.mark.parametrize("epsilon", [0.25, 1.0])
def test_a_mixture_takes_legal_actions_alone_and_tells_their_probability(
    acting: NumpyPolicy, spaces: PolicySpaces, epsilon: float
) -> None:
    """Of three choices 5 and 6 are legal: by hand, chance gives each 1/2; the softmax of 0.2 and -1 gives 5 0.7685, the
    greedy policy 0.85."""
    seen, mask = np.zeros((20_000, 2), np.float32), np.tile([True, True, False], (20_000, 1))
    actor = EpsilonMixture(acting, spaces, epsilon)
    chosen, logp = actor.decide(seen, actor.noise(np.random.default_rng(2), (len(seen),)), mask)
    own = 1.0 / (1.0 + math.exp(-1.2)) if isinstance(acting, NumpyCategoricalPolicy) else 0.85
    expected = epsilon * 0.5 + (1.0 - epsilon) * own
    assert set(chosen.tolist()) == {5, 6}
    assert float(np.exp(logp[chosen == 5][0])) == pytest.approx(expected, abs=1e-6)
    assert float(np.exp(logp[chosen == 6][0])) == pytest.approx(1.0 - expected, abs=1e-6)
    assert float((chosen == 5).mean()) == pytest.approx(expected, abs=0.015)


def test_where_all_choices_are_legal_a_mask_changes_nothing() -> None:
    for acting, spaces in ACTINGS[:2]:
        actor = EpsilonMixture(acting, spaces, 0.3)
        noise = actor.noise(np.random.default_rng(5), (len(SEEN),))
        plain, masked = actor.decide(SEEN, noise), actor.decide(SEEN, noise, np.ones((len(SEEN), 3), np.bool_))
        np.testing.assert_array_equal(plain[0], masked[0])
        np.testing.assert_allclose(plain[1], masked[1], rtol=1e-6)


@pytest.mark.parametrize("masked", [True, False])
def test_a_log_of_masked_environments_has_their_masks_and_learns_from_the_file(masked: bool, tmp_path: Path) -> None:
    """An illegal action would raise in the environment. The policy may have been trained with masks or without."""
    actions = DiscreteActions(count=5, masked=masked)
    policy = ActorCritic(PolicySpaces(inputs=ObservationInputs(size=2), actions=actions), SMALL, seed=1, critic=False)
    env = GymConfig(id=LADDER, num_envs=4, isolation="none")
    shares = [LogShare(policy=policy, min_decisions=40, epsilon=epsilon) for epsilon in (1.0, 0.3)]
    log = record_log(shares, env, seed=3)
    episodes = log.episodes
    assert episodes.mask is not None
    assert np.take_along_axis(episodes.mask, episodes.chosen.astype(np.int64)[:, None], axis=1).all()
    assert (episodes.mask.sum(axis=1) == 2).all()
    np.testing.assert_allclose(episodes.logp[episodes.version == 0], -math.log(2.0), rtol=1e-6)
    write_log(tmp_path / "log.parquet", log)
    read = read_log(tmp_path / "log.parquet").episodes
    np.testing.assert_array_equal(read.mask, episodes.mask)
    np.testing.assert_array_equal(read.final_mask, episodes.final_mask)
    assert math.isfinite(mean_return(EpsilonMixture(policy.numpy_policy(), policy.spaces, 0.5), env, seed=0))


@pytest.mark.parametrize("has_mask", [True, False])
def test_a_log_without_the_masks_of_its_environment_is_warned_of(has_mask: bool, tmp_path: Path) -> None:
    actions = DiscreteActions(count=5, masked=True)
    policy = ActorCritic(PolicySpaces(inputs=ObservationInputs(size=2), actions=actions), SMALL, seed=1, critic=False)
    env = {"id": LADDER, "num_envs": 2, "isolation": "none"}
    log = record_log([LogShare(policy=policy, min_decisions=20, epsilon=1.0)], GymConfig.model_validate(env), seed=3)
    if not has_mask:
        log = replace(log, episodes=replace(log.episodes, mask=None, final_mask=None))
    write_log(tmp_path / "log.parquet", log)
    given = {"recipe": "cql", "name": "x", "steps": 1, "log": str(tmp_path / "log.parquet"), "env": env}
    opened = cql.CqlConfig.model_validate(given).open()
    told = [line for line in opened.warnings if "masks of legal actions, and the log has none" in line]
    assert len(told) == (0 if has_mask else 1)
    assert has_mask or 'env.mask = "off"' in told[0]
    off = cql.CqlConfig.model_validate({**given, "env": {**env, "mask": "off", "check": False}}).open()
    assert not any("masks of legal actions" in line for line in off.warnings)
