"""Posteriors against arithmetic by hand, and Thompson sampling against the arms' truth."""

import numpy as np
import pytest

from hone.bandits.posteriors import BetaBernoulliPosterior, LinearGaussianPosterior, load_posterior, save_posterior
from hone.bandits.thompson import PosteriorLearner, ThompsonActor
from hone.core.credit import Credits
from hone.core.errors import DataError
from hone.core.random import generator
from hone.envs.bandit_arms import ArmsWorld, BernoulliArms, LinearArms

EMPTY = np.zeros((4, 0))


def test_beta_counts_successes_and_failures() -> None:
    belief = BetaBernoulliPosterior(3, alpha=1.0, beta=2.0)
    belief.observe(EMPTY, np.array([0, 0, 2, 0]), np.array([1.0, 1.0, 0.0, 0.0]))
    assert belief.alpha.tolist() == [3, 1, 1]
    assert belief.beta.tolist() == [3, 2, 3]
    assert belief.mean(EMPTY)[0].tolist() == [3 / 6, 1 / 3, 1 / 4]
    drawn = belief.draw(np.zeros((20_000, 0)), generator(0, "x"))
    np.testing.assert_allclose(drawn.mean(axis=0), [1 / 2, 1 / 3, 1 / 4], atol=0.01)
    np.testing.assert_allclose(drawn.var(axis=0)[0], 0.25 / 7, atol=0.002)  # ab / ((a+b)^2 (a+b+1))


def test_beta_refuses_other_rewards() -> None:
    with pytest.raises(DataError, match=r"reward 0.5 of decision 1.*0 and 1 only"):
        BetaBernoulliPosterior(2).observe(EMPTY, np.array([0, 1, 1, 1]), np.array([1.0, 0.5, 0.0, 1.0]))


def test_linear_is_ridge_regression() -> None:
    rng = np.random.default_rng(0)
    context, arm, reward = rng.normal(size=(60, 3)), rng.integers(0, 2, 60), rng.normal(size=60)
    belief = LinearGaussianPosterior(2, 3, noise=0.5, prior_precision=2.0)
    belief.observe(context[:25], arm[:25], reward[:25])
    belief.observe(context[25:], arm[25:], reward[25:])
    for k in range(2):
        x, r = context[arm == k], reward[arm == k]
        covariance = np.linalg.inv(2.0 * np.eye(3) + x.T @ x / 0.25)
        center = covariance @ (x.T @ r / 0.25)
        np.testing.assert_allclose(belief.mean(np.eye(3))[:, k], center)
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
    world, actor, learner = ArmsWorld(arms, pulls=10, seed=4), ThompsonActor(belief), PosteriorLearner(belief)
    gained, best = [], []
    for _ in range(200):
        episodes = world.rollout(actor)
        worth = world.expected_rewards(episodes.observations.astype(np.float64))
        gained.append(worth[np.arange(10), episodes.chosen].mean())
        best.append(worth.max(axis=1).mean())
        learner.update(episodes, Credits(advantage=episodes.reward))
    assert learner.observed == 2000
    assert np.mean(gained[-50:]) >= 0.95 * np.mean(best[-50:])
    assert np.mean(gained[:2]) < np.mean(gained[-50:])


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
    world = ArmsWorld(BernoulliArms(kind="bernoulli", rates=[0.5, 0.5]), pulls=4, seed=1)
    episodes = world.rollout(ThompsonActor(belief))
    episodes.status[:3] = 2
    PosteriorLearner(belief).update(episodes, Credits(advantage=episodes.reward))
    assert belief.alpha.sum() + belief.beta.sum() == 5


def test_a_posterior_survives_the_disk_exactly(tmp_path) -> None:
    belief = LinearGaussianPosterior(2, 3, noise=0.3)
    rng = np.random.default_rng(1)
    belief.observe(rng.normal(size=(9, 3)), rng.integers(0, 2, 9), rng.normal(size=9))
    save_posterior(belief, tmp_path)
    again = LinearGaussianPosterior(2, 3)
    load_posterior(again, tmp_path)
    assert again.precision.tobytes() == belief.precision.tobytes()
    assert again.information.tobytes() == belief.information.tobytes()
    with pytest.raises(DataError, match="saved posterior has"):
        load_posterior(LinearGaussianPosterior(2, 4), tmp_path)
    with pytest.raises(DataError, match="linear_gaussian posterior; this run's is beta_bernoulli"):
        load_posterior(BetaBernoulliPosterior(2), tmp_path)
