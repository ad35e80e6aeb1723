"""`hone doctor loss`: the table, the exit code, and the certificate of a run."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from hone.cli.commands import doctor_loss as loss
from hone.cli.main import main
from hone.core.clock import listening
from hone.recipes.certify import certify as really_certify
from hone.run.job import RunConfig
from hone.run.store.records import GradientCertificate, GradientCheck

PPO = """recipe = "ppo"
steps = 1
rollout_steps = 8
[env]
id = "CartPole-v1"
num_envs = 1
[evaluation]
episodes = 1
"""


@pytest.fixture
def somewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ppo.toml").write_text(PPO, encoding="utf-8")
    return tmp_path


def answering(relative: float) -> Callable[..., GradientCertificate | None]:
    def certify(config: RunConfig, *, config_hash: str) -> GradientCertificate | None:
        check = GradientCheck(name="another order", detail="2 rows", difference=relative, relative=relative)
        return GradientCertificate(recipe=config.recipe, config_hash=config_hash, batch="2 rows", checks=(check,))

    return certify


def test_a_config_and_then_its_run(somewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The real thing, once: with ranks."""
    assert main(["train", "ppo.toml", "run.certify=false"]) == 0
    assert main(["doctor", "loss", "ppo"]) == 0
    out = capsys.readouterr().out
    assert "2 ranks over gloo" in out and "fail" not in out
    kept = json.loads((somewhere / "runs" / "ppo" / "certificate.json").read_text(encoding="utf-8"))
    manifest = json.loads((somewhere / "runs" / "ppo" / "manifest.json").read_text(encoding="utf-8"))
    assert kept["passed"] and kept["config_hash"] == manifest["config_hash"]
    assert "checked on a smaller copy" in (somewhere / "runs" / "ppo" / "report.html").read_text(encoding="utf-8")
    assert main(["doctor", "loss", "ppo", "steps=2"]) == 2
    assert "runs/ppo is a run" in capsys.readouterr().err


def test_it_tells_how_many_splits_were_compared(somewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[tuple[str, int, int | None]] = []

    def certify(config: RunConfig, *, config_hash: str) -> GradientCertificate | None:
        with listening(lambda work: heard.append((work.title, work.done, work.total))):
            return really_certify(config, config_hash=config_hash)

    monkeypatch.setattr(loss, "certify", certify)
    assert main(["doctor", "loss", "ppo.toml"]) == 0
    splits = [(done, total) for title, done, total in heard if title == "splits of the batch compared"]
    counts = [*dict.fromkeys(done for done, _ in splits)]
    assert counts == [*range(len(counts))] and len(counts) > 3
    assert {total for _, total in splits} in ({None}, {counts[-1]})


def test_a_gradient_that_depends_on_the_cut(
    somewhere: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(loss, "certify", answering(0.5))
    assert main(["doctor", "loss", "ppo.toml", "learner.epochs=2"]) == 1
    out = capsys.readouterr().out
    assert "another order" in out and "5.0e-01" in out and "fail" in out
    assert "the gradient depends on the split of a batch: another order" in out
    assert not (somewhere / "runs").exists(), "a config alone has nowhere to keep it"
    monkeypatch.setattr(loss, "certify", lambda config, config_hash: None)
    assert main(["doctor", "loss", "ppo.toml"]) == 0
    assert "nothing to check" in capsys.readouterr().out


def test_stages_are_certified_one_after_another(
    somewhere: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stage = "[[stage]]\n" + PPO.replace("[env]", "[stage.env]").replace("[evaluation]", "[stage.evaluation]")
    (somewhere / "two.toml").write_text(stage + stage.replace('"ppo"', '"ppo"\nname = "again"'), encoding="utf-8")
    monkeypatch.setattr(loss, "certify", answering(1e-16))
    assert main(["doctor", "loss", "two.toml"]) == 0
    out = capsys.readouterr().out
    assert "ppo: ppo" in out and "again: ppo" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["loss"], "needs a config or a run"),
        (["los", "ppo.toml"], "did you mean loss?"),
        (["a.b=2"], "is for hone doctor loss FILE"),
        (["loss", "nowhere.toml"], "nowhere.toml"),
        (["loss", "ppo.toml", "learner.lrr=1"], "did you mean learner.lr?"),
    ],
)
def test_what_it_cannot_do(words: list[str], said: str, somewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", *words]) == 2
    assert said in capsys.readouterr().err
