"""PPO with observations and actions of several parts: learned to the optimum, judged, saved and resumed."""

from pathlib import Path
from typing import Any

import pytest
from control_runs import StepRecorder

from hone.control.networks.checkpoint import load_policy
from hone.core.errors import ConfigError
from hone.recipes.on_policy import ppo
from hone.recipes.tabular import tile_sarsa
from hone.run.job import TrainingJob
from hone.run.loop import train

PARTS = f"{Path(__file__).parents[2] / 'control' / 'environments' / 'parts_envs.py'}:Parts"
OPTIMUM = 4.0


def job_of(kind: str, *, steps: int, masked: bool = False, **settings: Any) -> TrainingJob[Any]:
    env = {"id": PARTS, "num_envs": 8, "isolation": "none", "kwargs": {"action": kind, "masked": masked}}
    given = {"recipe": "ppo", "name": "x", "steps": steps, "env": env, "rollout_steps": 16}
    learner = {"lr": 0.01, "epochs": 4, "minibatches": 2}
    config = ppo.PpoConfig.model_validate({**given, "learner": learner, "evaluation": {"episodes": 8}, **settings})
    return config.open().build(config)


@pytest.mark.parametrize(
    ("kind", "masked"),
    [
        pytest.param("multi_discrete", False, marks=pytest.mark.slow),
        ("multi_discrete", True),
        ("multi_binary", False),
        pytest.param("dict", False, marks=pytest.mark.slow),
        pytest.param("tuple", False, marks=pytest.mark.slow),
    ],
)
def test_ppo_reaches_the_optimum_of_every_kind_of_action(kind: str, masked: bool, tmp_path: Path) -> None:
    job = job_of(kind, steps=25, masked=masked, algorithm={"normalise": {"observations": kind == "tuple"}})
    train(job.recipe, steps=25, callback=StepRecorder())
    assert job.evaluate is not None
    assert job.evaluate().metrics["eval/score"] == pytest.approx(OPTIMUM)
    job.save_policy(tmp_path)
    assert load_policy(tmp_path).spaces == job.recipe.learner.policy.spaces
    job.close()


@pytest.mark.parametrize("kind", ["dict", "multi_discrete"])
def test_a_resumed_run_is_the_uninterrupted_one(kind: str, tmp_path: Path) -> None:
    normalise = {"algorithm": {"normalise": {"observations": True}}}
    whole, first, second = (job_of(kind, steps=5, **normalise) for _ in range(3))
    here, there = StepRecorder(), StepRecorder()
    train(whole.recipe, steps=5, callback=here)
    train(first.recipe, steps=2, callback=there)
    first.save_policy(tmp_path)
    second.load_policy(tmp_path)
    second.recipe.learner.restore(first.recipe.learner.state())
    second.recipe.source.restore(first.recipe.source.state())
    train(second.recipe, steps=5, callback=there, first_step=3)
    assert here.lines == there.lines
    for job in (whole, first, second):
        job.close()


def test_recipes_that_read_no_parts_refuse_them_by_name() -> None:
    env = {"id": PARTS, "isolation": "none", "kwargs": {"action": "tuple"}}
    config = tile_sarsa.TileSarsaConfig.model_validate({"recipe": "tile_sarsa", "name": "x", "steps": 1, "env": env})
    with pytest.raises(ConfigError) as told:
        config.open()
    assert "observations have several parts (hint.0, hint.1, image, level, pair)" in told.value.messages[0]
    assert "actions have several factors" in told.value.messages[1]
