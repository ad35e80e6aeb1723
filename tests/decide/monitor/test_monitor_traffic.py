"""Traffic between versions: estimates by hand, bounded weights, shares that follow the better version, a resume."""

import math

import numpy as np
import pytest

from hone.core.decisions import Choice, decision_key
from hone.core.errors import ConfigError
from hone.decide.bandits.greedy import EpsilonGreedyPolicy
from hone.decide.bandits.models import ArmMeans
from hone.decide.bandits.policy import BanditPolicy, numbered_actions
from hone.decide.monitor.continual import VersionTraffic

ARMS, X = numbered_actions(2), np.zeros(1)


def version(best: int, epsilon: float = 0.2) -> BanditPolicy:
    """A policy that takes an arm with the probability 1 - epsilon / 2."""
    model = ArmMeans(2)
    model.observe(X[None], np.array([best]), np.array([1.0]), np.ones(1), ARMS)
    return EpsilonGreedyPolicy(model, epsilon)


def test_one_reward_by_hand() -> None:
    traffic = VersionTraffic({"a": version(0), "b": version(1)})
    assert traffic.shares == {"a": pytest.approx(0.5), "b": pytest.approx(0.5)}
    # Arm 0 has .9 under a and .1 under b, .5 under the mixture: weights 1.8 and .2
    traffic.learn(X, ARMS, Choice(action=0, logp=math.log(0.5)), 2.0)
    mean, error = traffic.values()
    np.testing.assert_allclose(mean, [3.6 / 2.8, 0.4 / 1.2], rtol=1e-12)
    noise = np.array([1.8**2 * (2 - 3.6 / 2.8) ** 2, 0.2**2 * (2 - 0.4 / 1.2) ** 2])
    np.testing.assert_allclose(error, np.sqrt(noise + 1) / np.array([2.8, 1.2]), rtol=1e-12)
    z = float((mean[0] - mean[1]) / math.hypot(*error))
    better = 0.5 * math.erfc(-z / math.sqrt(2))
    assert traffic.shares["a"] == pytest.approx(0.9 * better + 0.05, abs=2e-3)  # the quadrature's error
    assert sum(traffic.shares.values()) == pytest.approx(1, abs=1e-12)


def served(floor: float, rounds: int, seed: int) -> tuple[VersionTraffic, float, float]:
    """Traffic after rounds in which arm 1 pays .6 and arm 0 .4; the mean pay, and the largest weight."""
    traffic, largest, paid = VersionTraffic({"a": version(0), "b": version(1)}, floor=floor), 0.0, 0.0
    draws = np.random.default_rng(seed).random(rounds)
    for t in range(rounds):
        choice = traffic.served.act(X, ARMS, decision_key(seed, "t", str(t)))
        reward = float(draws[t] < (0.4, 0.6)[choice.action])
        before = traffic.sums[0].copy()
        traffic.learn(X, ARMS, choice, reward)
        largest, paid = max(largest, float((traffic.sums[0] - before).max())), paid + (0.4, 0.6)[choice.action]
    return traffic, paid / rounds, largest


def test_the_better_version_gets_the_traffic_and_the_floor_bounds_the_weights() -> None:
    traffic, paid, largest = served(0.1, 250, 5)
    assert traffic.shares["b"] > 0.85 and min(traffic.shares.values()) >= 0.05
    assert largest <= 2 / 0.1 + 1e-9
    mean, error = traffic.values()  # both versions' values are known, although one was hardly asked
    np.testing.assert_allclose(mean, [0.42, 0.58], atol=3.5 * float(error.max()))
    _, equal, _ = served(1.0, 250, 5)  # negative control: a floor of 1 is an equal split for good
    assert paid > equal + 0.03


def test_resumed_traffic_is_the_same() -> None:
    traffic, _, _ = served(0.1, 40, 6)
    resumed = VersionTraffic(traffic.versions)
    resumed.restore(traffic.state())
    assert resumed.shares == traffic.shares


def test_settings_that_are_none_are_refused() -> None:
    for versions, floor, spread in (({}, 0.1, 1.0), ({"a": version(0)}, 0.0, 1.0), ({"a": version(0)}, 0.1, 0.0)):
        with pytest.raises(ConfigError, match="traffic needs versions"):
            VersionTraffic(versions, floor=floor, spread=spread)
    assert VersionTraffic({"a": version(0)}).shares == {"a": pytest.approx(1.0)}
