"""Posteriors against arithmetic by hand, and Thompson sampling against the arms' truth."""

import numpy as np
import pytest

from hone.core.credit import Credits
from hone.core.errors import DataError
from hone.core.random import generator
from hone.decide.bandits.greedy import thompson_policy
from hone.decide.bandits.learning import BanditLearner, ThompsonActor
from hone.decide.bandits.models import BetaBernoulliPosterior, LinearGaussianPosterior
from hone.decide.bandits.policy import numbered_actions
from hone.decide.simulators.drifting import ArmsWorld, BernoulliArms, LinearArms

EMPTY = np.zeros((4, 0))
ONES = np.ones(4)


def thompson(
    belief: BetaBernoulliPosterior | LinearGaussianPosterior, arms: int
) -> tuple[ThompsonActor, BanditLearner]:
    policy, actions = thompson_policy(belief), numbered_actions(arms)
    return ThompsonActor(policy, belief, actions), BanditLearner(policy, belief, actions)


def test_beta_counts_successes_and_failures() -> None:
    belief, actions = BetaBernoulliPosterior(3, alpha=1.0, beta=2.0), numbered_actions(3)
    belief.observe(EMPTY, np.array([0, 0, 2, 0]), np.array([1.0, 1.0, 0.0, 0.0]), ONES, actions)
    assert belief.alpha.tolist() == [3, 1, 1]
    assert belief.beta.tolist() == [3, 2, 3]
    mean, variance = belief.estimate(EMPTY[0], actions)
    assert mean.tolist() == [3 / 6, 1 / 3, 1 / 4]
    assert variance[0] == pytest.approx(0.25 / 7)  # ab / ((a+b)^2 (a+b+1))
    drawn = belief.draw(np.zeros((20_000, 0)), generator(0, "x"))
    np.testing.assert_allclose(drawn.mean(axis=0), [1 / 2, 1 / 3, 1 / 4], atol=0.01)
    np.testing.assert_allclose(drawn.var(axis=0)[0], 0.25 / 7, atol=0.002)


def test_beta_refuses_other_rewards() -> None:
    with pytest.raises(DataError, match=r"reward 0.5 of decision 1.*0 and 1 only"):
        rewards = np.array([1.0, 0.5, 0.0, 1.0])
        BetaBernoulliPosterior(2).observe(EMPTY, np.array([0, 1, 1, 1]), rewards, ONES, numbered_actions(2))


def test_linear_is_ridge_regression() -> None:
    rng = np.random.default_rng(0)
    context, arm, reward = rng.normal(size=(60, 3)), rng.integers(0, 2, 60), rng.normal(size=60)
    belief, actions = LinearGaussianPosterior(2, 3, noise=0.5, prior_precision=2.0), numbered_actions(2)
    for rows in (slice(0, 2), slice(2, 25), slice(25, 26), slice(26, 60)):  # by single rows, and by batches
        belief.observe(context[rows], arm[rows], reward[rows], np.ones(len(arm[rows])), actions)
    mean, variance = belief.estimate_rows(np.eye(3), actions)
    for k in range(2):
        x, r = context[arm == k], reward[arm == k]
        covariance = np.linalg.inv(2.0 * np.eye(3) + x.T @ x / 0.25)
        center = covariance @ (x.T @ r / 0.25)
        np.testing.assert_allclose(mean[:, k], center)
        np.testing.assert_allclose(variance[:, k], np.diag(covariance))
        drawn = belief.draw(np.tile([[1.0, -2.0, 0.5]], (40_000, 1)), generator(0, "x"))[:, k]
        probe = np.array([1.0, -2.0, 0.5])
        np.testing.assert_allclose(drawn.mean(), probe @ center, atol=0.01)
        np.testing.assert_allclose(drawn.var(), probe @ covariance @ probe, rtol=0.05)


@pytest.mark.parametrize(
    ("arms", "belief"),
    [
        (BernoulliArms(kind="bernoulli", rates=[0.2, 0.5, 0.7]), BetaBernoulliPosterior(3)),
        (LinearArms(kind="linear", arms=3, features=2), LinearGaussianPosterior(3, 2, noise=0.5)),
    ],
)
def test_thompson_finds_the_best_arm(
    arms: BernoulliArms | LinearArms, belief: BetaBernoulliPosterior | LinearGaussianPosterior
) -> None:
    world, (actor, learner) = ArmsWorld(arms, pulls=10, seed=4), thompson(belief, 3)
    gained, best = [], []
    for _ in range(200):
        episodes = world.rollout(actor)
        assert np.isfinite(episodes.logp).all()
        worth = world.expected_rewards(episodes.observations.astype(np.float64))
        gained.append(worth[np.arange(10), episodes.chosen].mean())
        best.append(worth.max(axis=1).mean())
        learner.update(episodes, Credits(advantage=episodes.reward))
    assert learner.observed == 2000
    assert np.mean(gained[-50:]) >= 0.95 * np.mean(best[-50:])
    assert np.mean(gained[:2]) < np.mean(gained[-50:])


def test_draws_of_the_posterior_come_as_often_as_the_logged_probability_says() -> None:
    rng, actions = np.random.default_rng(5), numbered_actions(4)
    belief = LinearGaussianPosterior(4, 2)
    belief.observe(rng.normal(size=(30, 2)), rng.integers(0, 4, 30), rng.normal(size=30), np.ones(30), actions)
    actor, _ = thompson(belief, 4)
    context = np.array([0.7, -1.1])
    expected = np.exp(actor.policy.logp(context, actions))
    drawn = belief.draw(np.tile(context, (200_000, 1)), rng).argmax(axis=1)
    np.testing.assert_allclose(np.bincount(drawn, minlength=4) / 200_000, expected, atol=0.004)
    chosen, logp = actor.choose(np.tile(context, (50, 1)), rng)
    np.testing.assert_allclose(np.exp(logp), expected[chosen], rtol=1e-6)


def test_the_luck_of_a_pull_does_not_depend_on_what_was_pulled() -> None:
    class Always:
        version = 0

        def __init__(self, arm: int) -> None:
            self.arm = arm

        def choose(self, context, draws):
            return np.full(len(context), self.arm), np.zeros(len(context), np.float32)

    def paid(pattern: list[int]) -> list[float]:
        world = ArmsWorld(BernoulliArms(kind="bernoulli", rates=[0.5, 0.5]), pulls=3, seed=1)
        return [float(reward) for arm in pattern for reward in world.rollout(Always(arm)).reward]

    assert paid([0, 1, 1])[6:] == paid([1, 0, 1])[6:]
    rates = ArmsWorld(BernoulliArms(kind="bernoulli", rates=[0.25, 0.9]), pulls=20_000, seed=1)
    assert abs(rates.rollout(Always(0)).reward.mean() - 0.25) < 0.01


def test_missing_rewards_teach_nothing() -> None:
    belief = BetaBernoulliPosterior(2)
    world, (actor, learner) = ArmsWorld(BernoulliArms(kind="bernoulli", rates=[0.5, 0.5]), 4, 1), thompson(belief, 2)
    episodes = world.rollout(actor)
    episodes.status[:3] = 2
    learner.update(episodes, Credits(advantage=episodes.reward))
    assert belief.alpha.sum() + belief.beta.sum() == 5
