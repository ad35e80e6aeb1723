"""Shields of rules, and the guard that fails closed: late, raising, blind."""

from dataclasses import dataclass, field

import numpy as np
import pytest
from manual_clock import ManualClock
from shield_cars import ACTIONS, FEATURES, car_certificate

from hone.core.decisions import ActionSet
from hone.core.errors import ConfigError
from hone.decide.shield.guard import GuardedShield, project_action
from hone.decide.shield.model import RuleShieldConfig, shield_spec
from hone.decide.shield.service import rule_shield

SAFE = np.array([60.0, 5.0, 20.0])
RULES = {
    "kind": "rules", "sensors": ["gap", "speed"], "actions": list(ACTIONS.names), "fallback": "full_brake",
    "constants": {"headway_s": 2.0},
    "rules": [{"actions": ["accelerate", "keep"], "only_if": "gap >= headway_s * speed"},
              {"actions": ["accelerate"], "only_if": "10 / speed > 1"}],
}  # fmt: skip


def _rules(**changes: object) -> RuleShieldConfig:
    spec = shield_spec({**RULES, **changes}, place="service.toml")
    assert isinstance(spec, RuleShieldConfig)
    return spec


@dataclass
class ScriptedShield:
    """A shield that takes its time, or raises, on demand."""

    clock: ManualClock
    takes_s: float = 0.0
    fault: Exception | None = None
    certificate: str = "abc"
    flags: np.ndarray = field(default_factory=lambda: np.ones(5, bool))

    def allowed(self, context: np.ndarray, actions: ActionSet) -> np.ndarray:
        self.clock.advance(self.takes_s)
        if self.fault is not None:
            raise self.fault
        return self.flags

    def fallback(self, context: np.ndarray, actions: ActionSet) -> int:
        return 0


def test_rules_allow_an_action_while_all_of_its_conditions_hold() -> None:
    shield = rule_shield(_rules(), FEATURES)
    assert shield.certificate == ""
    assert shield.allowed(np.array([60.0, 5.0, 0.0]), ACTIONS).tolist() == [True] * 5
    assert shield.allowed(np.array([60.0, 15.0, 0.0]), ACTIONS).tolist() == [True, True, True, True, False]
    assert shield.allowed(np.array([20.0, 15.0, 0.0]), ACTIONS).tolist() == [True, True, True, False, False]
    assert not shield.allowed(np.array([np.nan, 5.0, 0.0]), ACTIONS).any()


def test_rules_are_checked_before_they_are_used_all_faults_at_once() -> None:
    with pytest.raises(ConfigError) as refused:
        rule_shield(_rules(rules=[{"actions": ["full_brake", "fly"], "only_if": "gap > hight"}]), FEATURES)
    for part in ("full_brake is the fallback", "unknown action 'fly'", "unknown name 'hight'"):
        assert part in str(refused.value)
    with pytest.raises(ConfigError, match=r"service\.toml: rules\.0\.only_if"):
        _rules(rules=[{"actions": ["keep"], "only_if": 3}])


def test_a_condition_that_divides_by_zero_is_no_permission() -> None:
    guarded = GuardedShield(inner=rule_shield(_rules(), FEATURES), clock=ManualClock())
    verdict = guarded.judge(np.array([60.0, 0.0, 0.0]), ACTIONS)
    assert not verdict.allowed.any()
    assert verdict.reason.startswith("shield: FloatingPointError: divide by zero")


@pytest.mark.parametrize(
    ("made", "context", "reason"),
    [
        ({"takes_s": 0.020}, SAFE, "shield: late (20.0 ms)"),
        ({"fault": RuntimeError("sensor bus")}, SAFE, "shield: RuntimeError: sensor bus"),
        ({}, np.array([60.0, np.nan, 20.0]), "shield: feature 1 is nan"),
        ({"flags": np.ones(3, bool)}, SAFE, "shield: 5 actions, (3,) verdicts"),
        ({"flags": np.full(5, np.nan)}, SAFE, "shield: 5 actions, (5,) verdicts"),
    ],
)
def test_the_guard_fails_closed_and_says_why(made: dict, context: np.ndarray, reason: str) -> None:
    clock = ManualClock()
    guarded = GuardedShield(inner=ScriptedShield(clock, **made), clock=clock)
    verdict = guarded.judge(context, ACTIONS)
    assert not verdict.allowed.any()
    assert verdict.reason == reason
    assert not guarded.allowed(context, ACTIONS).any()
    assert guarded.fallback(context, ACTIONS) == 0
    assert guarded.certificate == "abc"


def test_a_verdict_in_time_passes_the_guard_unchanged() -> None:
    clock = ManualClock()
    guarded = GuardedShield(inner=ScriptedShield(clock, takes_s=0.009), clock=clock)
    assert guarded.judge(SAFE, ACTIONS).allowed.all()
    assert guarded.judge(SAFE, ACTIONS).reason == ""


def test_a_wanted_action_becomes_the_nearest_safe_one() -> None:
    shield = car_certificate().open(FEATURES)
    pace = np.array([[-6.0], [-4.0], [-2.0], [0.0], [2.0]])
    actions = ActionSet(names=ACTIONS.names, features=pace)
    near = np.array([27.0, 20.0, 16.0])
    flags = shield.allowed(near, actions)
    assert flags.tolist() == [True, True, True, False, False]
    assert project_action(shield, near, actions, np.array([1.7])) == 2
    assert project_action(shield, near, actions, np.array([-4.6])) == 1
    assert project_action(shield, near, actions, 4) == 2
    assert project_action(shield, near, actions, 1) == 1
    assert project_action(shield, near, ACTIONS, 4) == 0  # without features: the fallback
    for wanted in (np.array([np.nan]), 9, -1):
        assert project_action(shield, near, actions, wanted) == 0
    assert project_action(shield, np.array([0.0, 20.0, 0.0]), actions, 4) == 0  # nothing is safe
