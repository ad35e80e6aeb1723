"""An ensemble over time windows: weights by hand, the mixture's probabilities, a window that comes back, a resume."""

import math

import numpy as np
import pytest
from decision_records import decision

from hone.core.decisions import ActionSet
from hone.core.errors import ConfigError, DataError
from hone.decide.bandits.greedy import EpsilonGreedyPolicy
from hone.decide.bandits.learning import BanditLearner
from hone.decide.bandits.models import LinearGaussianPosterior
from hone.decide.bandits.policy import numbered_actions
from hone.decide.monitor.continual import WindowEnsemble

ARMS = numbered_actions(2)
X = np.ones(1)


def learner(discount: float) -> BanditLearner:
    model = LinearGaussianPosterior(2, 1, discount=discount)
    return BanditLearner(EpsilonGreedyPolicy(model, 0.2), model, ARMS)


def windows(*discounts: float) -> dict[str, BanditLearner]:
    return {str(one): learner(one) for one in discounts}


def teach(ensemble: WindowEnsemble, action: int, reward: float) -> None:
    ensemble.learn(decision("d", 0.0, seq=0, executed=action, context=X, actions=ARMS), reward)


def scores_of(one: BanditLearner) -> list[float]:
    scores = one.policy.distribution(X, ARMS).scores
    assert scores is not None
    return scores.tolist()


def test_weights_by_hand_and_the_mixture_of_the_policies() -> None:
    ensemble = WindowEnsemble(windows(0.5, 1.0), rate=2.0, share=0.1)
    for reward in (1.0, 0.0, 1.0):
        before = ensemble.weights.copy()
        losses = [math.exp(-2.0 * (reward - scores_of(one)[0]) ** 2) for one in ensemble.learners.values()]
        weighed = before * losses
        teach(ensemble, 0, reward)
        np.testing.assert_allclose(ensemble.weights, 0.9 * weighed / weighed.sum() + 0.05, rtol=1e-12)
    assert ensemble.weights[0] != ensemble.weights[1]
    masses = [np.exp(one.policy.logp(X, ARMS)) for one in ensemble.learners.values()]
    np.testing.assert_allclose(np.exp(ensemble.served.logp(X, ARMS)), ensemble.weights @ np.array(masses), rtol=1e-12)


def test_the_short_window_leads_after_a_change_and_the_long_one_comes_back() -> None:
    ensemble, noise = WindowEnsemble(windows(0.8, 1.0)), np.random.default_rng(3).normal(size=1200) * 0.5
    leads: list[float] = []
    for t in range(1200):
        teach(ensemble, 0, float((1.0 if t < 600 else -1.0) + noise[t]))
        leads.append(float(ensemble.weights[0]))
    assert np.mean(leads[200:600]) < 0.3  # the long memory is less noisy while nothing changes
    assert np.mean(leads[610:800]) > 0.9
    assert min(leads) > 0.004 and max(leads) < 0.996  # the share keeps both in the game
    teach(ensemble, 0, 1e6)  # a reward beyond all reason leaves a distribution
    assert np.isfinite(ensemble.weights).all() and ensemble.weights.sum() == pytest.approx(1)


def test_a_resumed_ensemble_is_the_same() -> None:
    whole, first = (WindowEnsemble(windows(0.8, 1.0)) for _ in range(2))
    for t in range(20):
        teach(whole, t % 2, t / 20)
        if t < 9:
            teach(first, t % 2, t / 20)
    resumed = WindowEnsemble(windows(0.8, 1.0))
    resumed.restore(first.state())
    for t in range(9, 20):
        teach(resumed, t % 2, t / 20)
    assert resumed.weights.tolist() == whole.weights.tolist()
    assert resumed.served.logp(X, ARMS).tolist() == whole.served.logp(X, ARMS).tolist()


def test_settings_that_are_none_are_refused() -> None:
    for learners, rate, share in (({}, 1.0, 0.0), (windows(1.0), 0.0, 0.0), (windows(1.0), 1.0, 1.0)):
        with pytest.raises(ConfigError, match="an ensemble needs learners"):
            WindowEnsemble(learners, rate=rate, share=share)


def test_a_snapshot_stays_while_the_windows_learn_and_an_action_is_found_by_its_name() -> None:
    ensemble, plain = WindowEnsemble(windows(0.8, 1.0)), WindowEnsemble(windows(0.8, 1.0))
    snapshot = ensemble.snapshot()
    before = snapshot.logp(X, ARMS).tolist()
    offered = ActionSet(names=("1",))  # one of the two is on offer: it is number 0 there, and 1 of the model
    for _ in range(5):
        ensemble.learn(decision("d", 0.0, seq=0, executed=0, context=X, actions=offered), 1.0)
        teach(plain, 1, 1.0)
    assert snapshot.logp(X, ARMS).tolist() == before != ensemble.served.logp(X, ARMS).tolist()
    assert ensemble.served.logp(X, ARMS).tolist() == plain.served.logp(X, ARMS).tolist()
    assert ensemble.shares == plain.shares and list(ensemble.shares) == ["0.8", "1.0"]
    weights = ensemble.weights.tolist()
    with pytest.raises(DataError, match="the action '7' is not declared"):
        ensemble.learn(decision("d", 0.0, seq=0, context=X, actions=ActionSet(names=("7",))), 1.0)
    assert ensemble.weights.tolist() == weights  # nothing was learnt from it
