"""The table `[shield]` of a service, and drills: a shielded policy on the road with everything failing at times."""

from pathlib import Path

import numpy as np
import pytest
from manual_clock import ManualClock
from pydantic import ValidationError
from shield_cars import ACTIONS, FEATURES, car_certificate

from hone.core.decisions import ActionSet, Choice, draw_action, logp_each
from hone.core.errors import ConfigError, DataError
from hone.core.random import key
from hone.decide.bandits.wrappers import Shielded
from hone.decide.shield.guard import GuardedShield
from hone.decide.shield.service import ShieldConfig
from hone.decide.simulators.car_following import CarFollowingEnv

RULES = {
    "kind": "rules", "sensors": ["gap"], "actions": ["full_brake", "keep"], "fallback": "full_brake",
    "rules": [{"actions": ["keep"], "only_if": "gap >= 5"}],
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "car.json").write_text(car_certificate().text())
    return tmp_path


def test_a_service_opens_the_certificate_that_was_approved(folder: Path) -> None:
    approved = car_certificate().sha256
    config = ShieldConfig(certificate="car.json", sha256=approved, deadline_s=0.005)
    shield = config.open(folder, FEATURES, ManualClock())
    assert (shield.certificate, shield.deadline_s) == (approved, 0.005)
    assert shield.allowed(np.array([60.0, 0.0, 0.0]), ACTIONS).any()
    other = ShieldConfig(certificate="car.json", sha256="0" * 64)
    with pytest.raises(DataError, match=r"car\.json: the certificate has sha256"):
        other.open(folder, FEATURES, ManualClock())
    missing = ShieldConfig(certificate="none.json")
    with pytest.raises(DataError, match=r"none\.json.*hone shield"):
        missing.open(folder, FEATURES, ManualClock())
    with pytest.raises(ConfigError, match="the fallback full_brake is none of the actions"):
        config.open(folder, FEATURES, ManualClock(), actions=ActionSet(names=("brake", "keep")))
    with pytest.raises(ConfigError, match="sensor lead"):
        config.open(folder, ("gap", "speed"), ManualClock())


def test_a_service_takes_rules_or_a_certificate_and_not_both(folder: Path) -> None:
    shield = ShieldConfig.model_validate({"rules": RULES}).open(folder, ("gap",), ManualClock())
    assert shield.allowed(np.array([4.0]), ActionSet(names=("full_brake", "keep"))).tolist() == [True, False]
    for wrong in ({}, {"certificate": "car.json", "rules": RULES}, {"certificate": "car.json", "sha256": "abc"}):
        with pytest.raises(ValidationError):
            ShieldConfig.model_validate(wrong)


class RushingPolicy:
    """Accelerates in 7 of 10 decisions."""

    mass = np.log([0.05, 0.05, 0.1, 0.1, 0.7])

    def logp(self, context: np.ndarray, actions: ActionSet) -> np.ndarray:
        return self.mass

    def logp_rows(self, contexts: np.ndarray, actions: ActionSet) -> np.ndarray:
        return logp_each(self, contexts, actions)

    def act(self, context: np.ndarray, actions: ActionSet, draw_key: int) -> Choice:
        action = draw_action(self.mass, draw_key)
        return Choice(action=action, logp=float(self.mass[action]))


class StallingShield:
    """A shield that takes 20 ms in every ninth call."""

    def __init__(self, clock: ManualClock) -> None:
        self.inner, self.clock, self.calls = car_certificate().open(FEATURES), clock, 0
        self.certificate = self.inner.certificate

    def allowed(self, context: np.ndarray, actions: ActionSet) -> np.ndarray:
        self.calls += 1
        self.clock.advance(0.020 if self.calls % 9 == 0 else 0.0)
        return self.inner.allowed(context, actions)

    def fallback(self, context: np.ndarray, actions: ActionSet) -> int:
        return self.inner.fallback(context, actions)


def test_drill_a_reckless_policy_stays_safe_while_sensors_drop_out_and_the_shield_stalls() -> None:
    clock, draws = ManualClock(), np.random.default_rng(100)
    policy = Shielded(RushingPolicy(), GuardedShield(inner=StallingShield(clock), clock=clock))
    env = CarFollowingEnv()
    context, _ = env.reset(seed=100)
    fell_back = 0
    for step in range(1_500):
        seen = np.where(draws.random(3) < 0.03, np.nan, context)
        choice = policy.act(seen, ACTIONS, key(100, "drill", step))
        assert np.isfinite(choice.logp)
        if choice.logp == 0.0:
            fell_back += choice.intervention == "shield"
        context, _, crashed, _, _ = env.step(np.int64(choice.action))
        assert not crashed
    assert fell_back > 100
