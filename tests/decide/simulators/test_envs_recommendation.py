"""The shop's world: rates, clicks and deliveries by (seed, round) alone."""

import numpy as np

from hone.decide.simulators.recommendation import DeliveryConfig, RecommendationWorld, SimulatedClock

LATE = DeliveryConfig(mean_delay_s=200.0, lost=0.1, twice=0.05)


def test_clicks_follow_the_rates_and_are_common_to_all_policies() -> None:
    world = RecommendationWorld(rounds=20_000, seed=4)
    assert np.abs(world.clicks.mean(axis=0) - world.rates.mean(axis=0)).max() < 0.015
    assert world.oracle == world.rates.max(axis=1).mean()
    np.testing.assert_array_equal(world.clicks, RecommendationWorld(rounds=20_000, seed=4, delivery=LATE).clicks)
    assert (world.contexts[:, 0] == 1.0).all()
    assert list(world.visitor(7)) == ["constant", *(f"x{number}" for number in range(1, 8))]


def test_deliveries_are_late_lost_and_repeated_as_often_as_asked() -> None:
    world = RecommendationWorld(rounds=20_000, seed=4, delivery=LATE)
    sent = world.deliveries()
    first = [one for one in sent if not one.copy]
    assert [one.at_s for one in sent] == sorted(one.at_s for one in sent)
    assert abs(len(first) / world.rounds - 0.9) < 0.01
    assert abs((len(sent) - len(first)) / len(first) - 0.05) < 0.01
    delays = np.array([one.at_s - one.round for one in first])
    assert abs(delays.mean() - 200.0) < 6.0
    assert abs((delays <= 400.0).sum() / world.rounds - world.delivered_share(400.0)) < 0.01
    times = {one.round: one.happened_s for one in first}
    assert all(times[one.round] == one.happened_s and one.at_s >= one.happened_s for one in sent if one.copy)


def test_at_once_is_at_once() -> None:
    world = RecommendationWorld(rounds=10, seed=4)
    assert [(one.at_s, one.round, one.copy) for one in world.deliveries()] == [(float(n), n, 0) for n in range(10)]
    assert world.delivered_share(1.0) == 1.0
    clock = SimulatedClock(time_s=5.0)
    assert clock.now_s() == clock.monotonic_s() == 5.0
