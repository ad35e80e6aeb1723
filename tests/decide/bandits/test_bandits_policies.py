"""Each rule against arithmetic by hand, and models against an independent slow version."""

import numpy as np
import pytest
from bandit_policies import ACTIONS, ARMS, FEATURES, learnt_model
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from hone.core.decisions import ActionSet
from hone.core.errors import ConfigError, DataError
from hone.decide.bandits.greedy import (
    BoltzmannPolicy,
    EpsilonGreedyPolicy,
    LinUcbPolicy,
    SquareCbPolicy,
    Ucb1Policy,
    thompson_policy,
)
from hone.decide.bandits.models import (
    REFRESH,
    ArmMeans,
    BanditModel,
    BetaBernoulliPosterior,
    GaussianPosterior,
    JointLinearPosterior,
    LinearGaussianPosterior,
)
from hone.decide.bandits.policy import numbered_actions
from hone.decide.bandits.wrappers import ActionRange, Clipped, Fallback

NONE = np.zeros(0)


def means(*values: float) -> ArmMeans:
    """Arms with these means, each pulled four times."""
    model = ArmMeans(len(values))
    model.count, model.total = np.full(len(values), 4.0), 4.0 * np.array(values)
    return model


def mass(policy, arms: int, context=NONE) -> np.ndarray:
    return np.exp(policy.logp(context, numbered_actions(arms)))


def test_greedy_rules_by_hand() -> None:
    model = means(0.2, 0.7, 0.1)
    np.testing.assert_allclose(mass(EpsilonGreedyPolicy(model, 0.3), 3), [0.1, 0.8, 0.1])
    weights = np.exp([2.0, 7.0, 1.0])
    np.testing.assert_allclose(mass(BoltzmannPolicy(model, 0.1), 3), weights / weights.sum())
    # gamma = 2 * 12^0.5, and p_k = 1 / (3 + gamma gap).
    gamma = 2 * np.sqrt(12)
    first, last = 1 / (3 + gamma * 0.5), 1 / (3 + gamma * 0.6)
    np.testing.assert_allclose(mass(SquareCbPolicy(model, 2.0), 3), [first, 1 - first - last, last])


def test_ucb1_by_hand() -> None:
    model = means(0.2, 0.7, 0.1)
    assert mass(Ucb1Policy(model), 3).tolist() == [0, 1, 0]
    model.count[2], model.total[2] = 1.0, 0.1  # bonus sqrt(2 ln 9 / 1) = 2.10 against sqrt(2 ln 9 / 4) = 1.05
    assert mass(Ucb1Policy(model), 3).tolist() == [0, 0, 1]
    model.count[0] = 0.0
    assert mass(Ucb1Policy(model), 3).tolist() == [1, 0, 0]


def test_linucb_by_hand() -> None:
    """One row x = 2 with reward 3: A = 1 + 4, theta = 6 / 5, and the other arm is as its prior."""
    model, actions = LinearGaussianPosterior(2, 1), numbered_actions(2)
    model.observe(np.array([[2.0]]), np.array([0]), np.array([3.0]), np.ones(1), actions)
    mean, variance = model.estimate(np.array([1.0]), actions)
    np.testing.assert_allclose([mean, variance], [[1.2, 0.0], [0.2, 1.0]])
    assert mass(LinUcbPolicy(model, 1.0), 2, np.ones(1)).tolist() == [1, 0]  # 1.2 + 0.447 against 1
    assert mass(LinUcbPolicy(model, 3.0), 2, np.ones(1)).tolist() == [0, 1]  # 1.2 + 1.342 against 3
    assert mass(LinUcbPolicy(model, 1.0), 2, np.zeros(1)).tolist() == [1, 0]  # the first of equals


def slow_ridge(x: np.ndarray, rewards: np.ndarray, weights: np.ndarray, prior: float, noise: float):
    """Mean and covariance of a ridge regression, solved at once."""
    precision = prior * np.eye(x.shape[1]) + (x * weights[:, None]).T @ x / noise**2
    covariance = np.linalg.inv(precision)
    return covariance @ (x * weights[:, None]).T @ rewards / noise**2, covariance


@examples(25)
@given(
    seed=st.integers(0, 10_000), rows=st.integers(1, 40), discount=st.sampled_from([1.0, 0.9]), batch=st.integers(1, 9)
)
def test_rank_one_updates_are_the_regression(seed: int, rows: int, discount: float, batch: int) -> None:
    rng = np.random.default_rng(seed)
    x, chosen = rng.normal(size=(rows, FEATURES)), rng.integers(0, ARMS, rows)
    rewards, weights = rng.normal(size=rows), rng.uniform(0, 2, rows)
    model = LinearGaussianPosterior(ARMS, FEATURES, noise=0.7, prior_precision=1.5, discount=discount, intercept=True)
    for begin in range(0, rows, batch):
        part = slice(begin, begin + batch)
        model.observe(x[part], chosen[part], rewards[part], weights[part], ACTIONS)
    forgotten = discount ** (rows - 1 - np.arange(rows))
    probe = rng.normal(size=FEATURES)
    mean, variance = model.estimate(probe, ACTIONS)
    full, asked = np.column_stack([np.ones(rows), x]), np.concatenate([[1.0], probe])
    for arm in range(ARMS):
        mine = chosen == arm
        theta, covariance = slow_ridge(full[mine], rewards[mine], (weights * forgotten)[mine], 1.5, 0.7)
        np.testing.assert_allclose(mean[arm], asked @ theta, atol=1e-8)
        np.testing.assert_allclose(variance[arm], asked @ covariance @ asked, rtol=1e-7)
    rows_mean, rows_variance = model.estimate_rows(np.stack([probe, -probe]), ACTIONS)
    np.testing.assert_allclose([rows_mean[0], rows_variance[0]], [mean, variance], rtol=1e-9)
    np.testing.assert_allclose(model.mean_rows(probe[None], ACTIONS)[0], model.mean(probe, ACTIONS), rtol=1e-9)


def test_rounding_does_not_grow_over_many_updates() -> None:
    model, actions, rng = LinearGaussianPosterior(1, 4), numbered_actions(1), np.random.default_rng(0)
    x = rng.normal(size=(REFRESH + 500, 4)) * np.array([1e-3, 1.0, 1.0, 1e3])
    for row in x:
        model.observe(row[None], np.zeros(1, np.int64), np.ones(1), np.ones(1), actions)
    exact = np.linalg.inv(np.eye(4) + x.T @ x)
    np.testing.assert_allclose(model.tables.inverse[0], exact, rtol=1e-6, atol=1e-12)


def test_joint_features_are_one_regression_over_products() -> None:
    rng = np.random.default_rng(2)
    actions = ActionSet(names=("a", "b", "c"), features=rng.normal(size=(3, 2)))
    x, chosen, rewards = rng.normal(size=(30, 3)), rng.integers(0, 3, 30), rng.normal(size=30)
    model = JointLinearPosterior(3, 2)
    model.observe(x, chosen, rewards, np.ones(30), actions)

    def products(context: np.ndarray, action: np.ndarray) -> np.ndarray:
        return np.outer(np.concatenate([[1.0], context]), np.concatenate([[1.0], action])).ravel()

    assert actions.features is not None
    phi = np.array([products(one, actions.features[arm]) for one, arm in zip(x, chosen, strict=True)])
    theta, covariance = slow_ridge(phi, rewards, np.ones(30), 1.0, 1.0)
    new = ActionSet(names=("d", "e"), features=rng.normal(size=(2, 2)))  # actions that nobody has tried
    assert new.features is not None
    probe = rng.normal(size=3)
    asked = np.array([products(probe, action) for action in new.features])
    mean, variance = model.estimate(probe, new)
    np.testing.assert_allclose(mean, asked @ theta)
    np.testing.assert_allclose(variance, np.einsum("kd,de,ke->k", asked, covariance, asked))
    np.testing.assert_allclose(model.estimate_rows(probe[None], new).variance[0], variance)
    np.testing.assert_allclose(model.mean_rows(probe[None], new)[0], mean)
    np.testing.assert_allclose(model.mean(probe, new), mean)
    with pytest.raises(DataError, match="the actions have no features, and the model has learnt from 2"):
        model.mean(probe, numbered_actions(2))


def test_gaussian_arms_by_hand() -> None:
    """Prior N(0, 1 / 2), noise 0.5, rewards 1 and 2 of arm 0: precision 2 + 2 * 4 = 10, mean (1 + 2) * 4 / 10."""
    model = GaussianPosterior(2, noise=0.5, prior_precision=2.0)
    model.observe(np.zeros((2, 0)), np.zeros(2, np.int64), np.array([1.0, 2.0]), np.ones(2), numbered_actions(2))
    mean, variance = model.estimate(NONE, numbered_actions(2))
    np.testing.assert_allclose([mean, variance], [[1.2, 0.0], [0.1, 0.5]])
    assert mass(thompson_policy(model), 2)[0] > 0.9


def test_discounted_counts_return_to_the_prior() -> None:
    beta = BetaBernoulliPosterior(2, alpha=2.0, discount=0.5)
    rows = (np.zeros((1, 0)), np.array([0]), np.ones(1), np.ones(1), numbered_actions(2))
    beta.observe(*rows)
    beta.observe(*rows)
    assert beta.alpha.tolist() == [2.0 + 0.5 + 1.0, 2.0]
    counts = ArmMeans(2, discount=0.5)
    counts.observe(*rows)
    counts.observe(*rows)
    assert (counts.count.tolist(), counts.total.tolist()) == ([1.5, 0.0], [1.5, 0.0])


def test_a_batch_forgets_its_own_older_rows() -> None:
    """Rewards 1, 0, 1 of one arm at a discount of 1/2: weights 1/4, 1/2 and 1, in one batch as row by row."""
    rows = (np.zeros((3, 0)), np.zeros(3, np.int64), np.array([1.0, 0.0, 1.0]), np.ones(3), numbered_actions(2))
    beta, counts = BetaBernoulliPosterior(2, discount=0.5), ArmMeans(2, discount=0.5)
    beta.observe(*rows)
    counts.observe(*rows)
    assert (beta.alpha.tolist(), beta.beta.tolist()) == ([1 + 1.25, 1.0], [1 + 0.5, 1.0])
    assert (counts.count.tolist(), counts.total.tolist()) == ([1.75, 0.0], [1.25, 0.0])


FEATURED = ActionSet(names=ACTIONS.names, features=np.random.default_rng(3).normal(size=(ARMS, 2)))
FORGETTING = [
    lambda g: BetaBernoulliPosterior(ARMS, alpha=2.0, beta=0.5, discount=g),
    lambda g: GaussianPosterior(ARMS, noise=0.4, prior_precision=2.0, discount=g),
    lambda g: ArmMeans(ARMS, discount=g),
    lambda g: LinearGaussianPosterior(ARMS, FEATURES, noise=0.6, discount=g, intercept=True),
    lambda g: JointLinearPosterior(FEATURES, 2, prior_precision=0.5, discount=g),
]


@pytest.mark.parametrize("make", FORGETTING, ids=[make(1.0).kind for make in FORGETTING])
@examples(15)
@given(
    seed=st.integers(0, 10_000), rows=st.integers(1, 60), discount=st.sampled_from([1.0, 0.999, 0.9, 0.3]),
    cuts=st.lists(st.integers(0, 60), max_size=8),
)  # fmt: skip
def test_any_split_of_a_log_gives_the_same_posterior(make, seed, rows, discount, cuts) -> None:
    rng = np.random.default_rng(seed)
    log = (
        rng.normal(size=(rows, FEATURES)), rng.integers(0, ARMS, rows), rng.integers(0, 2, rows) * 1.0,
        rng.uniform(0.1, 2, rows),
    )  # fmt: skip
    models = [make(discount) for _ in range(3)]
    models[0].observe(*log, FEATURED)
    for part in np.split(np.arange(rows), sorted(cuts)):  # empty parts too
        models[1].observe(*(column[part] for column in log), FEATURED)
    for row in range(rows):
        models[2].observe(*(column[[row]] for column in log), FEATURED)
    whole, split, single = (model.contents().arrays for model in models)
    for name, values in whole.items():
        np.testing.assert_allclose(split[name], values, rtol=1e-9, atol=1e-11, err_msg=name)
        np.testing.assert_allclose(single[name], values, rtol=1e-9, atol=1e-11, err_msg=name)


MODELS = [
    BetaBernoulliPosterior(ARMS), GaussianPosterior(ARMS), ArmMeans(ARMS), LinearGaussianPosterior(ARMS, FEATURES),
]  # fmt: skip


@pytest.mark.parametrize("model", MODELS, ids=[model.kind for model in MODELS])
def test_rows_that_no_model_can_learn_are_refused_whole(model: BanditModel) -> None:
    before = {name: values.copy() for name, values in model.contents().arrays.items()}
    good = {"contexts": np.zeros((2, FEATURES)), "chosen": np.array([0, 1]), "rewards": np.array([0.0, 1.0]),
            "weights": np.ones(2), "actions": ACTIONS}  # fmt: skip
    for change, message in (
        ({"chosen": np.array([0, 4])}, "action 4 of decision 1: there are 4 actions"),
        ({"rewards": np.array([0.0, np.nan])}, "reward nan of decision 1 is not finite"),
        ({"weights": np.array([-1.0, 1.0])}, "weight -1.0 of decision 0"),
        ({"actions": numbered_actions(3)}, "3 actions, and the model has learnt about 4"),
    ):
        with pytest.raises(DataError, match=message):
            model.observe(**{**good, **change})
    after = model.contents().arrays
    assert all((after[name] == values).all() for name, values in before.items())
    assert model.observed == 0


RULES = [lambda model: LinUcbPolicy(model, 1.0), lambda model: EpsilonGreedyPolicy(model, 0.1)]


@pytest.mark.parametrize("rule", RULES)
def test_a_context_without_a_number_is_refused_and_falls_back(rule) -> None:
    policy, context = rule(learnt_model(0)), np.array([0.0, np.nan, 1.0])
    with pytest.raises(DataError, match=r"the score of action 0 is not a number; look for NaN among the context"):
        policy.logp(context, ACTIONS)
    failed = Fallback(policy, Clipped(EpsilonGreedyPolicy(ArmMeans(ARMS), 0.0), ActionRange(2, 3)))
    assert np.exp(failed.logp(context, ACTIONS)).tolist() == [0, 0, 1, 0]


def test_settings_that_make_no_sense_are_refused() -> None:
    model = learnt_model(0)
    for make, message in (
        (lambda: EpsilonGreedyPolicy(model, 1.5), "epsilon must be from 0 to 1, got 1.5"),
        (lambda: BoltzmannPolicy(model, 0.0), "temperature must be above 0"),
        (lambda: SquareCbPolicy(model, -1.0), "gamma_scale must be above 0"),
        (lambda: LinUcbPolicy(model, -1.0), "alpha must be at least 0"),
        (lambda: Ucb1Policy(ArmMeans(2), -1.0), "width must be at least 0"),
        (lambda: LinearGaussianPosterior(2, 2, noise=0.0), "must be above 0"),
        (lambda: BetaBernoulliPosterior(2, alpha=0.0), "alpha and beta must be above 0"),
        (lambda: ArmMeans(2, discount=0.0), "discount must be above 0"),
    ):
        with pytest.raises(ConfigError, match=message):
            make()
    with pytest.raises(DataError, match=r"a context of 2 features; the model has learnt from 3"):
        model.mean(np.zeros(2), ACTIONS)
    with pytest.raises(DataError, match="feature 1 of decision 0 is nan"):
        model.observe(np.array([[0.0, np.nan, 0.0]]), np.array([0]), np.ones(1), np.ones(1), ACTIONS)
