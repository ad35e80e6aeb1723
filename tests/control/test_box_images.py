"""Recipes for boxes of actions that read images: one encoder, trained by the critics, with a target network."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from control_runs import StepRecorder
from recipe_runs import restored, saved

from hone.control.export_onnx import export_onnx
from hone.control.networks.actor_critic import DeterministicActorCritic, SoftActorCritic
from hone.control.networks.checkpoint import load_policy, save_policy
from hone.core.random import generator
from hone.learner.gradient import GradientLearner
from hone.recipes.registry import load_recipe
from hone.run.job import TrainingJob
from hone.run.loop import train

ENV = """
import gymnasium
import numpy as np
from gymnasium import spaces


class Column(gymnasium.Env):
    \"\"\"Five steps; each costs the squared distance of the action from the bright column of the picture.\"\"\"

    observation_space = spaces.Box(0, 255, (5, 5, 1), np.uint8)
    action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return self._seen(), {}

    def step(self, action):
        self.time += 1
        cost = float((action[0] - (self.place - 2) / 2) ** 2)
        return self._seen(), -cost, False, self.time == 5, {}

    def _seen(self):
        self.place = int(self.np_random.integers(5))
        picture = np.zeros((5, 5, 1), np.uint8)
        picture[:, self.place] = 255
        return picture
"""
RECIPES = ("sac", "td3", "ddpg")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "column.py").write_text(ENV)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def made(recipe: str, steps: int, **more: Any) -> TrainingJob[Any]:
    tables = {
        "recipe": recipe, "name": "x", "seed": 3, "steps": steps, "network": {"hidden": [16], "activation": "relu"},
        "env": {"id": "column.py:Column", "num_envs": 2, "isolation": "none"}, "evaluation": {"episodes": 3},
        "replay": {"batch": 8, "capacity": 60, "warmup": 20}, **more,
    }  # fmt: skip
    config = load_recipe(recipe).config.model_validate(tables)
    return config.open().build(config)


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_resumed_run_is_the_uninterrupted_one(recipe: str, place: Path) -> None:
    straight, whole = made(recipe, 8), StepRecorder()
    train(straight.recipe, steps=8, callback=whole)
    first, begun = made(recipe, 8), StepRecorder()
    train(first.recipe, steps=5, callback=begun)
    saved(first, place / "state")
    second = restored(made(recipe, 8), place / "state")
    train(second.recipe, steps=8, callback=begun, first_step=6)
    assert begun.lines == whole.lines
    for job in (straight, first, second):
        job.close()


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_critics_train_the_encoder_and_the_actor_does_not(recipe: str, place: Path) -> None:
    job = made(recipe, 4, learner={"lr": 1e-2})
    policy, learner = job.recipe.learner.policy, job.recipe.learner
    assert isinstance(policy, SoftActorCritic | DeterministicActorCritic)
    assert isinstance(learner, GradientLearner)
    ((target, encoder),) = policy.target_encoders()
    before = copy.deepcopy(encoder.state_dict())
    critic, actor = learner.phases
    own = {id(parameter) for parameter in encoder.parameters()}
    assert own <= {id(parameter) for parameter in critic.parameters.parameters}
    assert not own & {id(parameter) for parameter in actor.parameters.parameters}
    seen = torch.from_numpy(generator(0, "x").integers(0, 256, (6, 5, 5, 1)).astype(np.uint8))
    if isinstance(policy, SoftActorCritic):
        actions, _ = policy.sample_actions(seen, torch.zeros(6, 1))
    else:
        actions = policy.actions_of(seen)
    slope = torch.autograd.grad(actions.sum(), list(policy.actor.parameters()), retain_graph=True)
    assert any(part.any() for part in slope)
    unused = torch.autograd.grad(actions.sum(), list(encoder.parameters()), allow_unused=True)
    assert all(part is None for part in unused)
    train(job.recipe, steps=4, callback=StepRecorder())
    for name, value in encoder.state_dict().items():
        followed = dict(target.state_dict())[name]
        assert not torch.equal(value, before[name]), name
        assert not torch.equal(followed, value) and not torch.equal(followed, before[name]), name
        between = (followed - before[name]).abs().max() < (value - before[name]).abs().max()
        assert bool(between), "the target follows slowly"
    job.close()


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_saved_policy_acts_as_the_trained_one_and_so_does_its_onnx_file(recipe: str, place: Path) -> None:
    job = made(recipe, 2)
    policy = train(job.recipe, steps=2, callback=StepRecorder())
    save_policy(policy, place / "policy")
    seen = generator(0, "x").integers(0, 256, (20, 5, 5, 1)).astype(np.uint8)
    again = load_policy(place / "policy")
    np.testing.assert_array_equal(again.numpy_policy().best(seen), policy.numpy_policy().best(seen))
    pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")
    written = export_onnx(place / "policy", place / "policy.onnx")
    assert written.equal == written.rows == 1000
    job.close()


def test_an_image_may_be_flattened(place: Path) -> None:
    job = made("sac", 2, network={"hidden": [16], "encoder": "mlp"})
    policy = job.recipe.learner.policy
    assert isinstance(policy, SoftActorCritic)
    assert policy.target_encoders() == []
    assert policy.spaces.inputs.size == 25
    train(job.recipe, steps=2, callback=StepRecorder())
    job.close()


@pytest.mark.slow  # 20 CPU seconds
@pytest.mark.parametrize("recipe", ["sac", "td3"])
def test_it_reads_the_picture(recipe: str, place: Path) -> None:
    """Random actions cost 5 * (1/3 + 1/2) = 4.2 an episode; what the picture says costs nothing."""
    job = made(recipe, 800, network={"hidden": [64], "activation": "relu"}, algorithm={"discount": 0.0},
               replay={"batch": 64, "capacity": 5000, "warmup": 200}, evaluation={"episodes": 50})  # fmt: skip
    train(job.recipe, steps=800, callback=StepRecorder())
    assert job.evaluate is not None
    assert job.evaluate().metrics["eval/score"] > -0.5
    job.close()
