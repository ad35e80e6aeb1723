"""A small config for every recipe that takes a gradient, built as a run would build it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import tiny_runs

from hone.cli.configs import read_document
from hone.cli.training import stages_of
from hone.core.errors import ConfigError
from hone.envs.text_task import TaskConfig
from hone.evaluate.policies import ModelSource, NewModel, open_policy
from hone.rewards.config import RewardsConfig
from hone.train.config import RunConfig
from hone.train.job import Job
from hone.train.registry import load_recipe

CONTROL = {
    "ppo": 'recipe = "ppo"\nsteps = 2\n[env]\nid = "CartPole-v1"\nnum_envs = 1\n',
    "sac": 'recipe = "sac"\nsteps = 2\n[env]\nid = "Pendulum-v1"\n',
    "bc": 'recipe = "bc"\nsteps = 2\nlog = "log.parquet"\n',
    "cql": 'recipe = "cql"\nsteps = 2\nlog = "log.parquet"\n',
}
NO_GRADIENT = ("thompson", "trpo", "trpo_text")
"""They step in their own way, not by the gradient learner."""
TWO_UPDATES = ("learner.epochs=2", "learner.minibatches=1")
REQUIRED = {
    "dro": ("algorithm.beta=0.1",),
    "gdpo": ('rewards.functions=[{use = "rewards.py:close"}, {use = "rewards.py:right"}]',),
    "on_policy_distillation": ('algorithm.teacher="teacher"',),
    "passk": ("algorithm.k=2",),
    "pkpo": ("algorithm.k=2",),
}
"""Settings that a recipe has no default for, or needs to be itself."""
ONE_UPDATE = ("learner.epochs=1", "learner.minibatches=1")


def lay_out(folder: Path) -> None:
    tiny_runs.lay_out(folder)
    for name, text in CONTROL.items():
        (folder / f"{name}.toml").write_text(text, encoding="utf-8")
    new = NewModel(hidden_size=16, layers=1, heads=2, kv_heads=1, head_dim=8, alphabet="0123456789+=")
    teacher = open_policy(ModelSource(new=new), seed=7, device="cpu", temperature=1.0)
    (folder / "teacher").mkdir()
    teacher.save(folder / "teacher")


def learns_from_answers(recipe: str) -> bool:
    """Whether its config has the tables of a recipe on scored answers, and a learner that takes gradients."""
    fields = load_recipe(recipe).config.model_fields
    kinds = [fields[name].annotation for name in ("rewards", "task") if name in fields]
    return kinds == [RewardsConfig, TaskConfig] and "learner" in fields


def text_file(folder: Path, recipe: str) -> Path:
    """GRPO's tiny run under another recipe's name, with that recipe's own numbers."""
    path = folder / f"{recipe}.toml"
    text = tiny_runs.GRPO.replace('recipe = "grpo"', f'recipe = "{recipe}"')
    begin = text.index("[algorithm]")
    path.write_text(text[:begin] + text[text.index("[run]") :], encoding="utf-8")
    return path


def checked(path: Path, *overrides: str) -> RunConfig:
    (stage,) = stages_of(read_document(path, overrides))
    return stage.resolved.config


def text_config(folder: Path, recipe: str, *overrides: str) -> RunConfig:
    """Two updates a rollout, so that ratios are taken; one, for recipes that refuse more."""
    path, overrides = text_file(folder, recipe), (*REQUIRED.get(recipe, ()), *overrides)
    try:
        return checked(path, *TWO_UPDATES, *overrides)
    except ConfigError:
        return checked(path, *ONE_UPDATE, *overrides)


def built(config: RunConfig) -> Job[Any]:
    return load_recipe(config.recipe).build(config)


def figures(folder: Path) -> dict[str, object]:
    return json.loads((folder / "certificate.json").read_text(encoding="utf-8"))


def finite(values: np.ndarray) -> bool:
    return bool(np.isfinite(values).all())
