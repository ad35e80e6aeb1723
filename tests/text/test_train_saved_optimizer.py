"""`model.optimizer = true`: a new run from a checkpoint's weights and its optimizer's state is the old one going on."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from tiny_runs import files_of, hone, lay_out, lines_of

from hone.core.state import State, array, number, substate
from hone.run.store.codec import read_state

STATE = "checkpoints/step_{:08d}/state"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    lay_out(folder)
    before = Path.cwd()
    os.chdir(folder)
    try:
        assert hone("train", "sft.toml", "steps=4", "run.certify=false") == 0
    finally:
        os.chdir(before)
    return folder


@pytest.fixture
def place(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(trained, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    for name in ("sft", "grpo"):
        head, _, rest = Path(f"{name}.toml").read_text(encoding="utf-8").partition("[model]")
        model = '[model]\ncompute = "float32"\npath = "runs/tiny"\noptimizer = true\n'
        text = f"{head}{model}[task]{rest.partition('[task]')[2]}"
        Path(f"{name}_again.toml").write_text(text.replace('name = "tiny"', 'name = "again"'), encoding="utf-8")
    return tmp_path / "copy"


def moments(run: Path, step: int) -> State:
    return substate(substate(substate(read_state(run / STATE.format(step)), "learner"), "phases"), "policy")


def flat(saved: State, name: str) -> np.ndarray:
    named = substate(saved, name)
    return np.concatenate([array(named, key).ravel() for key in named])


def test_moments_and_count_go_on_and_the_first_step_depends_on_them(place: Path) -> None:
    again = ("train", "sft_again.toml", "steps=1", "run.certify=false")
    assert hone(*again) == 0
    assert hone(*again, "model.optimizer=false", "name=fresh") == 0
    steps = {"tiny": 4, "again": 1, "fresh": 1}
    before, after, fresh = (moments(place / "runs" / name, step) for name, step in steps.items())
    updates = number(fresh, "step")
    assert number(after, "step") == number(before, "step") + updates
    assert updates == 2
    assert not np.allclose(flat(after, "exp_avg_sq"), flat(fresh, "exp_avg_sq"))
    assert files_of(place / "runs" / "again", 1) != files_of(place / "runs" / "fresh", 1)
    ours, theirs = (json.loads(lines_of(place / "runs" / name)[0]) for name in ("again", "fresh"))
    assert ours["learner/lr"] == theirs["learner/lr"]


def test_with_the_same_batch_it_is_the_run_that_went_on(place: Path) -> None:
    """All 24 examples in one update: whatever their order, the sum of the gradient is that of the longer run."""
    whole = ("steps=2", "batch=24", "learner.minibatches=1", "run.certify=false", "run.checkpoint_every=1")
    assert hone("train", "sft.toml", *whole, "name=whole", "run.keep_last=9") == 0
    source = f'model.path="{place}/runs/whole/checkpoints/step_00000001"'
    assert hone("train", "sft_again.toml", *whole[1:], "steps=1", source) == 0
    before, after = moments(place / "runs" / "whole", 2), moments(place / "runs" / "again", 1)
    assert number(after, "step") == number(before, "step") == 2
    for name in ("exp_avg", "exp_avg_sq"):
        np.testing.assert_allclose(flat(after, name), flat(before, name), rtol=2e-3, atol=1e-7)


def test_another_recipe_with_the_same_optimizer_takes_it_over(place: Path) -> None:
    assert hone("train", "grpo_again.toml", "steps=1", "run.certify=false") == 0
    assert number(moments(place / "runs" / "again", 1), "step") > number(moments(place / "runs" / "tiny", 4), "step")


def test_what_has_no_optimizer_is_refused_before_the_run(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(place / "runs/tiny/checkpoints/step_00000004/policy", place / "shipped")
    again = ("train", "sft_again.toml", "run.certify=false")
    assert hone(*again, "model.path=shipped") == 3
    assert "model.optimizer = true" in capsys.readouterr().err
    assert hone("train", "sft.toml", "name=new", "model.optimizer=true") == 2
    assert "model.optimizer = true needs model.path" in capsys.readouterr().err
    weights = place / "runs/tiny/checkpoints/step_00000004/state/state.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")
    assert hone(*again, "model.path=runs/tiny/checkpoints/step_00000004") == 3
    assert "state.safetensors" in capsys.readouterr().err
    assert not (place / "runs" / "again").exists()
