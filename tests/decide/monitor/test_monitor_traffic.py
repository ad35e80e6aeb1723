"""Traffic between versions: estimates by hand, bounded weights, shares that follow the better version, a resume."""

import math
from dataclasses import replace

import numpy as np
import pytest
from decision_records import decision

from hone.core.decisions import decision_key
from hone.core.errors import ConfigError, DataError
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


def teach(traffic: VersionTraffic, action: int, logp: float, reward: float, intervention: str = "") -> None:
    made = decision("d", 0.0, seq=0, executed=action, p=math.exp(logp), context=X, actions=ARMS)
    traffic.learn(replace(made, choice=replace(made.choice, intervention=intervention)), reward)


def test_one_reward_by_hand() -> None:
    traffic = VersionTraffic({"a": version(0), "b": version(1)}, ARMS)
    assert traffic.shares == {"a": pytest.approx(0.5), "b": pytest.approx(0.5)}
    # Arm 0 has .9 under a and .1 under b, .5 under the mixture: weights 1.8 and .2
    teach(traffic, 0, math.log(0.5), 2.0)
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
    traffic, largest, paid = VersionTraffic({"a": version(0), "b": version(1)}, ARMS, floor=floor), 0.0, 0.0
    draws = np.random.default_rng(seed).random(rounds)
    for t in range(rounds):
        choice = traffic.snapshot().act(X, ARMS, decision_key(seed, "t", str(t)))
        reward = float(draws[t] < (0.4, 0.6)[choice.action])
        before = traffic.sums[0].copy()
        teach(traffic, choice.action, choice.logp, reward)
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
    resumed = VersionTraffic(traffic.versions, ARMS)
    resumed.restore(traffic.state())
    assert resumed.shares == traffic.shares


def test_settings_that_are_none_are_refused() -> None:
    for versions, floor, spread in (({}, 0.1, 1.0), ({"a": version(0)}, 0.0, 1.0), ({"a": version(0)}, 0.1, 0.0)):
        with pytest.raises(ConfigError, match="traffic needs versions"):
            VersionTraffic(versions, ARMS, floor=floor, spread=spread)
    assert VersionTraffic({"a": version(0)}, ARMS).shares == {"a": pytest.approx(1.0)}


def test_a_fallback_teaches_nothing_and_weights_of_others_are_cut_off_at_the_bound_of_the_mixtures_own() -> None:
    traffic = VersionTraffic({"a": version(0), "b": version(1)}, ARMS, floor=0.5)
    teach(traffic, 0, 0.0, 1.0, "fallback: timeout")
    assert not traffic.sums.any()
    teach(traffic, 0, 0.0, 1.0, "shield")  # its probability is that of the whole distribution
    np.testing.assert_allclose(traffic.sums[0], [0.9, 0.1], rtol=1e-12)
    # K / floor = 4: the mixture's own decisions have at most that; .9 / .225 is 4, and .9 / .01 is cut off there
    for logp in (math.log(0.225), math.log(0.01)):
        before = traffic.sums[0].copy()
        teach(traffic, 0, logp, 1.0)
        assert traffic.sums[0, 0] - before[0] == pytest.approx(4.0, rel=1e-12)
    assert traffic.sums[0, 1] - before[1] == pytest.approx(4.0, rel=1e-12)  # .1 / .01 = 10, too


def test_a_state_of_other_versions_is_refused() -> None:
    three = VersionTraffic({"a": version(0), "b": version(1), "c": version(1)}, ARMS)
    with pytest.raises(DataError, match="the saved traffic is of 3 versions, not 1"):
        VersionTraffic({"a": version(0)}, ARMS).restore(three.state())
