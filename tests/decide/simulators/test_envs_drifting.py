"""The drifting world: regimes, blends, common random numbers."""

import numpy as np

from hone.decide.simulators.drifting import DriftingArms, DriftPhase, abrupt_changes


def test_regimes_come_and_come_back() -> None:
    world = DriftingArms(rounds=90, phases=abrupt_changes(90, [0, 1, 0]), seed=1)
    assert [phase.start for phase in world.phases] == [0, 30, 60]
    np.testing.assert_array_equal(world.rates[:30], world.regime_rates(0)[:30])
    np.testing.assert_array_equal(world.rates[30:60], world.regime_rates(1)[30:60])
    np.testing.assert_array_equal(world.rates[60:], world.regime_rates(0)[60:])
    assert np.abs(world.regime_rates(0) - world.regime_rates(1)).max() > 0.2


def test_a_blend_moves_evenly_from_one_regime_to_the_next() -> None:
    phases = (DriftPhase(start=0, regime=0), DriftPhase(start=10, regime=1, blend=3))
    world = DriftingArms(rounds=20, phases=phases, seed=1)
    assert world.shares[9:15, 1].tolist() == [0.0, 0.25, 0.5, 0.75, 1.0, 1.0]
    assert (world.shares.sum(axis=1) == 1.0).all()


def test_rewards_are_drawn_from_the_rates_by_seed_and_round() -> None:
    world = DriftingArms(rounds=20_000, phases=abrupt_changes(20_000, [0]), seed=4)
    assert np.abs(world.rewards.mean(axis=0) - world.rates.mean(axis=0)).max() < 0.015
    again = DriftingArms(rounds=20_000, phases=abrupt_changes(20_000, [0, 1]), seed=4)
    np.testing.assert_array_equal(world.rewards[:10_000], again.rewards[:10_000])
    assert len(world.actions) == 5


def test_the_share_of_the_best() -> None:
    world = DriftingArms(rounds=500, phases=abrupt_changes(500, [0]), seed=2)
    assert world.share_of_best(world.rates.argmax(axis=1)) == 1.0
    assert world.share_of_best(world.rates.argmin(axis=1)) < 0.6
