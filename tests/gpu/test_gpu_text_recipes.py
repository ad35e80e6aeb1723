"""Text recipes on a CUDA device: the steps of the CPU to rounding, and a resume that goes on from the same weights."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from recipe_runs import MODEL, job_of, lay_out, restored, saved, scores_of, settings, text_recipes

from hone.run.job import TrainingJob

pytestmark = pytest.mark.gpu
RECIPES = text_recipes()
CHOOSING = {"high_entropy_grpo"}
"""Rounding decides which tokens these choose: their weights are compared with those of the same device only."""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    lay_out(tmp_path, monkeypatch)
    return tmp_path


def on(device: str, name: str, *, steps: int, **changes: Any) -> TrainingJob[Any]:
    return job_of(name, settings(name, steps=steps, run={"device": device}, **changes))


def weights(job: TrainingJob[Any]) -> np.ndarray:
    parameters = job.recipe.learner.policy.decoder.parameters()
    return np.concatenate([one.detach().float().cpu().numpy().ravel() for one in parameters])


@pytest.mark.parametrize("name", RECIPES)
def test_steps_on_cuda_are_those_of_the_cpu_and_a_resume_goes_on(name: str, place: Path) -> None:
    """Draws are keyed, so that both devices sample the same tokens; a step moves no weight further than lr."""
    if name == "on_policy_distillation":
        (place / "teacher").mkdir()
        teacher = on("cpu", "grpo", steps=3)
        scores_of(teacher, steps=3)
        teacher.save_policy(place / "teacher")
    here, there = on("cpu", name, steps=3), on("cuda", name, steps=3)
    scores = [scores_of(job, steps=3) for job in (here, there)]
    if name not in CHOOSING:
        np.testing.assert_allclose(scores[1], scores[0], atol=1e-5)
        np.testing.assert_allclose(weights(there), weights(here), atol=2e-3)
    half = on("cuda", name, steps=3)
    scores_of(half, steps=2)
    saved(half, place / "half")
    resumed = restored(on("cuda", name, steps=3), place / "half")
    np.testing.assert_array_equal(weights(resumed), weights(half))
    scores_of(resumed, steps=3, first=3)
    np.testing.assert_allclose(weights(resumed), weights(there), atol=2e-3)


@pytest.mark.parametrize("compute", ["bfloat16", "float32"])
@pytest.mark.parametrize("runner", ["auto", "torch_compiled"])
def test_it_learns_in_every_arithmetic(compute: str, runner: str, place: Path) -> None:
    tables = settings(
        "grpo", steps=25, full=False, run={"device": "cuda"}, rollout={"runner": runner}, model={"compute": compute}
    )
    scores = scores_of(job_of("grpo", tables), steps=25)
    assert np.mean(scores[-5:]) > np.mean(scores[:5]) + 0.25


@pytest.mark.parametrize("changes", [{"lora": {"rank": 2}}, {}], ids=["adapter", "all weights"])
def test_a_saved_policy_goes_on_training_on_cuda(changes: dict[str, Any], place: Path) -> None:
    base = on("cpu", "grpo", steps=1)
    (place / "base").mkdir()
    base.save_policy(place / "base")
    tables = settings("grpo", steps=2, run={"device": "cuda"})
    job = job_of("grpo", tables | {"model": {"compute": "float32", "path": "base", **changes}})
    before = weights(job).copy()
    scores_of(job, steps=2)
    assert np.abs(weights(job) - before).max() > 1e-4


def test_the_model_is_where_it_should_be(place: Path) -> None:
    job = on("cuda", "grpo", steps=1)
    assert job.recipe.learner.policy.decoder.device == torch.device("cuda", 0)
    assert MODEL["compute"] == "float32"
