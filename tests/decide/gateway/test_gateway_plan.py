"""The plan of a service with a shield: what is proved, assumed and ruled, and what does not hold."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from manual_clock import ManualClock
from shield_cars import car_certificate, car_spec

from hone.core.errors import ConfigError, DataError
from hone.decide.gateway.plan import plan_lines
from hone.decide.shield import certificate

CARS = """
[service]
features = ["gap", "speed", "lead"]
actions = ["full_brake", "brake_hard", "ease", "keep", "accelerate"]

[shield]
certificate = "car.json"
"""
RULES = """
[service]
features = ["gap", "speed"]
actions = ["full_brake", "keep", "accelerate"]

[shield.rules]
kind = "rules"
sensors = ["gap", "speed"]
actions = ["full_brake", "keep", "accelerate"]
fallback = "full_brake"

[[shield.rules.rules]]
actions = ["keep", "accelerate"]
only_if = "gap >= 2 * speed"
"""


def plan(folder: Path, text: str) -> list[str]:
    (folder / "drive.toml").write_text(text)
    return [line for line in plan_lines(folder / "drive.toml", clock=ManualClock()) if line[:7] in WORDS]


WORDS = ("shield ", "rule   ", "proved ", "assumed", "missing")


def test_the_plan_tells_rules_and_that_nothing_is_proved(tmp_path: Path) -> None:
    told = plan(tmp_path, RULES)
    assert told[:3] == [
        "shield     one rule, not proved; after 10 ms, or blind: full_brake",
        "rule       keep, accelerate: only if gap >= 2 * speed",
        "rule       full_brake: always",
    ]
    assert not any("[shield]" in line for line in told)


def test_the_plan_proves_a_certificate_again_and_tells_its_claims(tmp_path: Path) -> None:
    (tmp_path / "car.json").write_text(car_certificate().text())
    told = plan(tmp_path, CARS)
    assert told[0] == (
        f"shield     car.json, {car_certificate().sha256[:8]}, a game; any whose proof holds is taken: give its sha256"
    )
    assert "proved     46880 of 53361 states are safe forever, whatever others do within their bounds" in told
    assert "assumed    a is between -8 and 2, chosen by others as they like" in told


def test_a_claim_that_does_not_hold_comes_with_its_counterexample(tmp_path: Path) -> None:
    weak = replace(car_certificate(), spec=car_spec("game", brake=4.0))
    (tmp_path / "car.json").write_text(replace(weak, sha256=certificate._digest(weak)).text())
    with pytest.raises(DataError, match="counterexample: from gap"):
        plan(tmp_path, CARS)


def test_a_shield_that_does_not_hold_is_refused_with_the_other_faults(tmp_path: Path) -> None:
    document = json.loads(car_certificate().text())
    document["assumed"] = []
    (tmp_path / "car.json").write_text(json.dumps(document))
    with pytest.raises(DataError, match=r"car\.json"):
        plan(tmp_path, CARS)
    with pytest.raises(ConfigError) as caught:
        plan(tmp_path, CARS + '[[service.clients]]\nname = "web"\ntoken_env = "NO_SUCH_TOKEN"\n')
    assert "NO_SUCH_TOKEN" in str(caught.value)
    assert "car.json" in str(caught.value)
