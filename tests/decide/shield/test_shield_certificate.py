"""Certificates: proved at load, refused when changed; a mutant of the brakes gives a counterexample."""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from shield_cars import ACTIONS, FEATURES, car_certificate, car_spec

from hone.core.decisions import ActionSet
from hone.core.errors import ConfigError, DataError
from hone.decide.shield.certificate import (
    ShieldCertificate,
    UnprovedShieldError,
    certify,
    read_certificate,
)
from hone.decide.shield.model import ControlModel, GameShieldConfig, InvariantShieldConfig, control_model

KINDS = ("game", "invariant")


@cache
def _model(kind: str) -> ControlModel:
    return control_model(car_certificate(kind).spec.model)


@pytest.mark.parametrize("kind", KINDS)
def test_a_certificate_is_written_read_and_proved_again(kind: str, tmp_path: Path) -> None:
    made = car_certificate(kind)
    path = tmp_path / "shield.json"
    path.write_text(made.text())
    assert read_certificate(path) == made
    shield = read_certificate(path).open(FEATURES, expected=made.sha256)
    assert shield.certificate == made.sha256
    assert certify(made.spec).sha256 == made.sha256  # the same bytes from the same file
    assert "a is between -8 and 2" in made.assumed[0]


@pytest.mark.parametrize("kind", KINDS)
def test_a_changed_certificate_is_refused_by_its_hash(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "shield.json"
    document = json.loads(car_certificate(kind).text())
    document["spec"]["model"]["constants"]["brake"] = 7.0
    path.write_text(json.dumps(document))
    with pytest.raises(DataError, match="changed after the proof"):
        read_certificate(path).open(FEATURES)


def test_another_certificate_than_the_approved_one_is_refused() -> None:
    with pytest.raises(DataError, match="the service expects 0000"):
        car_certificate().open(FEATURES, expected="0" * 64)


@pytest.mark.parametrize("kind", KINDS)
def test_weaker_brakes_fail_the_proof_with_a_trajectory_into_the_other_car(kind: str) -> None:
    made = car_certificate(kind)
    weak = replace(made, spec=car_spec(kind, brake=4.0))
    forged = replace(weak, sha256=_own_digest(weak))
    with pytest.raises(UnprovedShieldError, match="counterexample: from gap") as refused:
        forged.check()
    found = refused.value.counterexample
    assert found is not None
    assert found.unsafe
    assert found.states[-1, 0] < 0 <= found.states[:-1, 0].min()
    assert set(found.actions) == {"full_brake"}
    model = control_model(weak.spec.model)
    for row, (action, disturbance) in enumerate(zip(found.actions, found.disturbances, strict=True)):
        state = dict(zip(found.variables, found.states[row], strict=True))
        after = model.after(state, model.actions.index(action), disturbance)
        assert np.allclose([after[name] for name in found.variables], found.states[row + 1])
        assert -8 <= disturbance["a"] <= 2  # the other car kept to its bounds


def _own_digest(certificate: ShieldCertificate) -> str:
    with pytest.raises(DataError) as refused:
        replace(certificate, sha256="x").check()
    assert "its content has" in str(refused.value)
    from hone.decide.shield import certificate as module

    return module._digest(certificate)


def test_a_region_that_was_grown_by_hand_is_refused() -> None:
    from hone.decide.shield import certificate as module

    made = car_certificate()
    everything = replace(made, region=module._packed(np.ones(53_361, bool)))
    with pytest.raises(UnprovedShieldError, match="may leave the region"):
        replace(everything, sha256=_own_digest(everything)).check()
    for region, why in (("!", "damaged"), (module._packed(np.ones(8, bool)), "1 bytes, its grid")):
        broken = replace(made, region=region)
        with pytest.raises(DataError, match=why):
            replace(broken, sha256=_own_digest(broken)).check()


@examples(80)
@given(st.sampled_from(KINDS), st.floats(0, 70), st.floats(0, 20), st.floats(0, 25), st.data())
def test_an_allowed_action_leads_to_a_state_with_an_allowed_action_again(
    kind: str, gap: float, speed: float, lead: float, data: st.DataObject
) -> None:
    shield = _opened(kind)
    model = _model(kind)
    state = {"gap": gap, "speed": speed, "lead": lead}
    context = np.array([gap, speed, lead])
    flags = shield.allowed(context, ACTIONS)
    if flags.any():
        assert flags[0]  # the fallback keeps every safe state safe
        action = data.draw(st.sampled_from(np.flatnonzero(flags).tolist()))
        after = model.after(state, action, {"a": data.draw(st.floats(-8, 2))})
        there = np.array([after[name] for name in FEATURES], np.float64)
        assert there[0] >= -1e-9
        there[0] += 1e-9  # the invariant has no margin for the rounding of sums
        assert shield.allowed(there, ACTIONS).any()


def _opened(kind: str):
    if kind not in _SHIELDS:
        _SHIELDS[kind] = car_certificate(kind).open(FEATURES)
    return _SHIELDS[kind]


_SHIELDS: dict = {}


def test_the_grid_forbids_what_the_invariant_forbids() -> None:
    draws = np.random.default_rng(7)
    contexts = np.column_stack([draws.uniform(0, 60, 400), draws.uniform(0, 20, 400), draws.uniform(0, 20, 400)])
    grid, exact = (np.array([_opened(kind).allowed(row, ACTIONS) for row in contexts]) for kind in KINDS)
    assert (exact | ~grid).all()
    assert exact.sum() > grid.sum()


def test_actions_are_found_by_their_names_and_others_are_never_safe() -> None:
    shield = _opened("game")
    here = np.array([60.0, 0.0, 20.0])
    other = ActionSet(names=("accelerate", "honk", "full_brake"))
    assert shield.allowed(here, other).tolist() == [True, False, True]
    assert shield.fallback(here, other) == 2
    with pytest.raises(ConfigError, match="the fallback full_brake is none of the actions"):
        shield.fallback(here, ActionSet(names=("honk",)))


def test_a_shield_reads_its_sensors_by_name_and_refuses_a_service_without_them() -> None:
    shield = car_certificate().open(("weather", "lead", "gap", "speed"))
    assert (shield.allowed(np.array([0, 20, 60, 0.0]), ACTIONS) == [True] * 5).all()
    with pytest.raises(ConfigError, match="sensor lead is none of the features"):
        car_certificate().open(("gap", "speed"))


def test_a_model_that_is_less_dangerous_where_it_is_called_worse_makes_no_grid() -> None:
    spec = car_spec()
    assert isinstance(spec, GameShieldConfig)
    lead = spec.model.variables["lead"].model_copy(update={"worse": "high"})
    turned = spec.model.model_copy(update={"variables": {**spec.model.variables, "lead": lead}})
    with pytest.raises(UnprovedShieldError, match=r"does not cover the model: no state.*mark each variable's side"):
        certify(spec.model_copy(update={"model": turned}))


def test_an_invariant_that_is_too_wide_names_the_claim() -> None:
    spec = car_spec("invariant")
    assert isinstance(spec, InvariantShieldConfig)
    with pytest.raises(UnprovedShieldError, match="full_brake keeps the invariant") as refused:
        certify(spec.model_copy(update={"invariant": ["gap >= 0", "0 <= speed <= top", "lead >= 0"]}))
    assert refused.value.counterexample is not None
    with pytest.raises(ConfigError, match="unknown name 'gasp'"):
        certify(spec.model_copy(update={"invariant": ["gasp > 0"]}))


def test_all_faults_of_a_model_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as refused:
        car_bad = car_spec(dt=1.0)
        model = car_bad.model.model_copy(
            update={"safe": "gap > 0 and danger < 1", "next": {"gap": "gap +", "pace": "1"}}
        )
        control_model(model)
    text = str(refused.value)
    for part in (
        "dt is already the name of",
        "unknown name 'danger'",
        "next.gap",
        "pace is no variable",
        "no expression",
    ):
        assert part in text


def test_a_grid_that_does_not_fit_is_refused_before_it_is_made() -> None:
    spec = car_spec()
    assert isinstance(spec, GameShieldConfig)
    gap = spec.model.variables["gap"].model_copy(update={"step": 0.0005})
    fine = spec.model.model_copy(update={"variables": {**spec.model.variables, "gap": gap}})
    with pytest.raises(ConfigError, match="at most 50000000 are allowed; take larger steps"):
        certify(spec.model_copy(update={"model": fine}))
