"""A run keeps its certificate, and is the same run without; a stand-in is what it stands for. Ranks that work are tried
in `tests/cli/commands/test_cli_doctor_loss.py`, because they take long to start."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import tiny_runs
from certificate_worlds import built, checked, figures, lay_out, text_config

from hone.certify import job as certified_job
from hone.certify.check import GradientProbe, build_certificate
from hone.core.clock import SystemClock
from hone.core.errors import ResourceError
from hone.recipes.certify import certify, config_of_run, scaled_down_config, with_stage_models
from hone.recipes.data_parallel_check import gradients_over_ranks
from hone.run.job import RunConfig
from hone.run.store.folder import open_run
from hone.run.store.records import GradientCertificate, read_certificate
from hone.text.evaluate.open_policy import ModelSource, NewModelConfig, open_policy


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    lay_out(tmp_path)
    return tmp_path


def model_of(config: RunConfig) -> ModelSource:
    model = vars(config)["model"]
    assert isinstance(model, ModelSource)
    return model


def test_a_run_keeps_its_certificate_and_is_otherwise_the_same(folder: Path) -> None:
    for name, certified in (("with", "true"), ("without", "false")):
        assert tiny_runs.hone("train", "grpo.toml", "--name", name, "steps=2", f"run.certify={certified}") == 0
    assert tiny_runs.differences(folder / "runs" / "with", folder / "runs" / "without", step=2) == []
    assert not (folder / "runs" / "without" / "certificate.json").exists()
    kept = read_certificate(folder / "runs" / "with")
    assert kept is not None and kept.passed and len(kept.checks) == 10
    assert kept.config_hash == open_run(folder / "runs" / "with", clock=SystemClock()).manifest().config_hash
    assert "checked on a smaller copy" in (folder / "runs" / "with" / "report.html").read_text(encoding="utf-8")
    # A resume keeps the certificate that the run began with.
    before = (folder / "runs" / "with" / "certificate.json").read_bytes()
    assert tiny_runs.hone("train", "grpo.toml", "--name", "with", "steps=3", "--resume", "run.certify=true") == 0
    assert (folder / "runs" / "with" / "certificate.json").read_bytes() == before


def test_a_loss_that_fails_is_told_of_and_trained_by(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def spoilt(found: Sequence[GradientProbe], *, recipe: str, config_hash: str) -> GradientCertificate:
        first, *_ = build_certificate(found, recipe=recipe, config_hash=config_hash).checks
        return GradientCertificate(recipe="", config_hash="", batch="", checks=(replace(first, relative=1.0),))

    monkeypatch.setattr(certified_job, "build_certificate", spoilt)
    assert tiny_runs.hone("train", "sft.toml", "steps=1") == 0
    log = (folder / "runs" / "tiny" / "log.txt").read_text(encoding="utf-8")
    assert "WARNING the gradient depends on the split of a batch: prefixes not shared" in log
    assert "prefixes not shared" in "".join(capsys.readouterr())
    assert figures(folder / "runs" / "tiny")["passed"] is False


def test_a_rank_that_fails_says_why(folder: Path) -> None:
    config = checked(folder / "ppo.toml", 'env.id="NoSuchWorld-v0"')
    with pytest.raises(ResourceError, match=r"(?s)rank 0 .*NoSuchWorld"):
        gradients_over_ranks(config, ranks=1)


def test_the_stand_in_of_a_folder_is_a_small_model_of_its_family(folder: Path) -> None:
    new = NewModelConfig(
        family="llama", hidden_size=96, layers=5, heads=6, kv_heads=2, head_dim=16, alphabet="0123456789+="
    )
    open_policy(ModelSource(new=new), seed=1, device="cpu", temperature=1.0).save(_made(folder / "big"))
    config = text_config(folder, "grpo").model_copy(update={"model": ModelSource(path="big")})
    light = scaled_down_config(config, _made(folder / "light"))
    policy = open_policy(model_of(light), seed=0, device="cpu", temperature=1.0)
    shape = policy.decoder.config
    assert (shape.family, shape.layers, shape.hidden_size, shape.heads, shape.kv_heads) == ("llama", 2, 32, 4, 2)
    assert (
        policy.tokenizer.encode("7+5=").tolist()
        == built(config).recipe.learner.policy.tokenizer.encode("7+5=").tolist()
    )
    assert vars(light)["evaluation"] is None and light.run.device == "cpu"
    assert vars(light)["learner"] == vars(config)["learner"] and vars(light)["rewards"] == vars(config)["rewards"]
    small = scaled_down_config(text_config(folder, "grpo"), folder)
    assert model_of(small).new is not None and model_of(small).compute == "float32"


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def test_stages_stand_on_the_model_of_the_stage_that_they_start_from(folder: Path) -> None:
    first = text_config(folder, "grpo").model_copy(update={"name": "a"})
    second = first.model_copy(update={"name": "b", "model": ModelSource(path="stage:a")})
    third = first.model_copy(update={"name": "c", "model": ModelSource(path="stage:b")})
    assert [model_of(config) for config in with_stage_models([first, second, third])] == [model_of(first)] * 3


def test_recipes_that_step_in_their_own_way_have_none(folder: Path) -> None:
    text = 'recipe = "thompson"\nsteps = 2\n[arms]\nkind = "bernoulli"\nrates = [0.1, 0.9]\n'
    (folder / "arms.toml").write_text(text, encoding="utf-8")
    assert certify(checked(folder / "arms.toml"), config_hash="") is None


def test_a_run_is_certified_by_the_config_that_it_was_made_with(folder: Path) -> None:
    settings = ("steps=1", "run.certify=false")
    assert tiny_runs.hone("train", "sft.toml", *settings) == 0
    assert config_of_run(folder / "runs" / "tiny") == checked(folder / "sft.toml", *settings)
