"""`hone shield`: proofs, certificates, mutants and the page, from the command line."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from shield_cars import CAR, INVARIANT, car_certificate

from hone.cli.main import main
from hone.decide.bandits.greedy import EpsilonGreedyPolicy
from hone.decide.bandits.models import BetaBernoulliPosterior
from hone.decide.bandits.saving import save_policy
from hone.decide.registry import VersionOrigin, open_registry
from hone.decide.shield.certificate import checked_model
from hone.decide.shield.game import state_grid
from hone.decide.shield.page import safe_counts
from hone.run.store.animation import frame_count


@pytest.fixture
def car(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copy(CAR, tmp_path / "car.toml"))


def test_a_file_becomes_a_certificate_that_is_proved_again(car: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["shield", "car.toml"]) == 0
    said = capsys.readouterr().out
    assert "proved: 46880 of 53361 states are safe forever" in said
    assert "a is between -8 and 2" in said
    assert json.loads(Path("car.json").read_text())["sha256"] == car_certificate().sha256
    assert main(["shield", "car.json", "--with", "brake=7"]) == 0
    assert "with brake = 7: every claim holds, too" in capsys.readouterr().out


def test_weaker_brakes_are_refused_and_the_page_shows_the_crash(car: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("car.json").write_text(_text())
    assert main(["shield", "car.json", "--with", "brake=4", "--html", "weak.html"]) == 3
    assert "with brake = 4: full_brake may leave the region" in capsys.readouterr().err
    page = Path("weak.html").read_text()
    for part in (
        "proved, but not with other constants",
        "Refused: ",
        "Region",
        "Interventions",
        "data:image/png",
        "0 unsafe",
    ):
        assert part in page


def _text() -> str:

    return car_certificate().text()


def test_a_proof_becomes_evidence_of_the_version_under_it(car: Path, capsys: pytest.CaptureFixture[str]) -> None:
    policy = EpsilonGreedyPolicy(BetaBernoulliPosterior(5), epsilon=0.1)
    save_policy(policy, Path("policy"))
    registry = open_registry(Path("registry"), create=True)
    version = registry.add(Path("policy"), VersionOrigin(), at_s=1.0, made_by="a test").id
    Path("car.json").write_text(_text())
    assert main(["shield", "car.json", "--registry", "registry", "--version", version]) == 0
    (found,) = registry.evidence(version)
    assert (found.kind, found.verdict) == ("certificate", "ok")
    assert car_certificate().sha256 in found.words
    assert main(["shield", "car.json", "--registry", "registry"]) == 2
    assert "--registry and --version go together" in capsys.readouterr().err


def test_what_cannot_be_proved_is_refused_with_its_reason(car: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = car.read_text().replace('kind = "game"', f'kind = "invariant"\ninvariant = {INVARIANT[:3]}')
    car.write_text(text)
    assert main(["shield", "car.toml", "--html", "car.html"]) == 3
    assert "not proved: full_brake keeps the invariant" in capsys.readouterr().err
    assert "not proved" in Path("car.html").read_text()
    assert not Path("car.json").exists()


def test_faults_name_the_file_and_the_line(car: Path, capsys: pytest.CaptureFixture[str]) -> None:
    car.write_text(car.read_text().replace("step_s = 0.5", "step_s = -1").replace('worse = "high"', 'worse = "up"'))
    assert main(["shield", "car.toml"]) == 2
    said = capsys.readouterr().err
    assert "car.toml:7" in said
    assert "model.variables.speed.worse" in said
    car.write_text('kind = "gane"\n')
    assert main(["shield", "car.toml"]) == 2
    assert "did you mean game" in capsys.readouterr().err
    Path("car.json").write_text(_text().replace('"brake": 6.0', '"brake": 5.0'))
    assert main(["shield", "car.json"]) == 3
    assert "changed after the proof" in capsys.readouterr().err
    Path("car.json").write_text(_text())
    for given, why in (("breaks=4", "did you mean brake"), ("brake=four", "no number")):
        assert main(["shield", "car.json", "--with", given]) == 2
        assert why in capsys.readouterr().err


def test_rules_are_checked_and_prove_no_more(car: Path, capsys: pytest.CaptureFixture[str]) -> None:
    car.write_text(
        'kind = "rules"\nsensors = ["gap"]\nactions = ["stop", "go"]\nfallback = "stop"\n'
        '[[rules]]\nactions = ["go"]\nonly_if = "gap >= 5"\n'
    )
    assert main(["shield", "car.toml"]) == 0
    assert "stop is never forbidden; rules prove no more" in capsys.readouterr().out


def test_the_map_counts_the_safe_actions_of_each_cell() -> None:
    model = checked_model(car_certificate().spec)
    shield = car_certificate().open(model.variables)
    counts = safe_counts(shield, model, state_grid(model), np.array([10.0]))
    assert counts.shape == (21, 121)
    assert (np.diff(counts, axis=1) >= 0).all()  # more room, more actions
    assert counts[0, -1] == 5
    assert counts[20, 0] == 0


def test_the_animation_has_a_frame_for_each_state() -> None:
    from hone.decide.shield.certificate import Counterexample
    from hone.decide.shield.page import counterexample_png

    model = checked_model(car_certificate().spec)
    found = Counterexample(
        variables=model.variables, states=np.array([[5.0, 10, 0], [-1, 7, 0]]), actions=("full_brake",),
        disturbances=({"a": -8.0},), unsafe=True,
    )  # fmt: skip
    assert frame_count(counterexample_png(found, model)) == 5  # the end stays on
