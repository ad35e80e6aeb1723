"""A small config for every recipe that takes a gradient, built as a run would build it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import tiny_runs
from small_collection import write_collection

from hone.cli.commands.train import planned_runs
from hone.config.resolve import read_document
from hone.core.errors import ConfigError
from hone.recipes.registry import load_recipe
from hone.rewards.config import RewardsConfig
from hone.run.job import RunConfig, TrainingJob
from hone.text.evaluate.open_policy import ModelSource, NewModelConfig, open_policy
from hone.text.tasks.task import TaskConfig

VALUES = (
    'recipe = "{}"\nsteps = 2\n[env]\nid = "CartPole-v1"\n[network]\nhidden = [16]\n'
    "[learner]\nupdates_per_iteration = 2\n[replay]\ncollect = 8\nbatch = 16\nwarmup = 20\n"
)
GAME = "hone.control.seats.matrix_games:TwoStepGame"
CONTROL = {
    "ppo": 'recipe = "ppo"\nsteps = 2\n[env]\nid = "CartPole-v1"\nnum_envs = 1\n',
    "sac": 'recipe = "sac"\nsteps = 2\n[env]\nid = "Pendulum-v1"\n',
    "a2c": 'recipe = "a2c"\nsteps = 2\n[env]\nid = "CartPole-v1"\n',
    "ppo_kl": 'recipe = "ppo_kl"\nsteps = 2\n[env]\nid = "CartPole-v1"\n',
    "reinforce_control": 'recipe = "reinforce_control"\nsteps = 2\n[env]\nid = "CartPole-v1"\n',
    "ddpg": 'recipe = "ddpg"\nsteps = 2\n[env]\nid = "Pendulum-v1"\n',
    "td3": 'recipe = "td3"\nsteps = 2\n[env]\nid = "Pendulum-v1"\n',
    "pets": 'recipe = "pets"\nsteps = 2\n[env]\nid = "Pendulum-v1"\n',
    "rl2": 'recipe = "rl2"\nsteps = 2\n[env]\nid = "hone/BanditTrials-v0"\nnum_envs = 4\n',
    "reptile": 'recipe = "reptile"\nsteps = 2\n[env]\nid = "hone/SineTrials-v0"\nnum_envs = 2\n',
    "multitask_ppo": 'recipe = "multitask_ppo"\nsteps = 2\n' + 2 * '[[tasks]]\nid = "CartPole-v1"\n',
    "dagger": 'recipe = "dagger"\nsteps = 2\n[env]\nid = "CartPole-v1"\n[expert]\nkind = "policy"\npolicy = "x"\n',
    "gail": 'recipe = "gail"\nsteps = 2\nlog = "log.parquet"\n[env]\nid = "CartPole-v1"\n',
    "her_dqn": 'recipe = "her_dqn"\nsteps = 2\n[env]\nid = "hone/BitFlip-v0"\n',
    "her_sac": 'recipe = "her_sac"\nsteps = 2\n[env]\nid = "hone/Reach-v0"\n',
    "ppo_rnd": 'recipe = "ppo_rnd"\nsteps = 2\n[env]\nid = "hone/Maze-v0"\n',
    "ppo_icm": 'recipe = "ppo_icm"\nsteps = 2\n[env]\nid = "CartPole-v1"\n',
    "ppo_counts": 'recipe = "ppo_counts"\nsteps = 2\n[env]\nid = "CartPole-v1"\n',
    "ppo_shaped": 'recipe = "ppo_shaped"\nsteps = 2\n[env]\nid = "CartPole-v1"\n'
    '[hints.potential]\nkind = "linear"\nweights = [0, 0, 1, 0]\n',
    "ppo_curriculum": 'recipe = "ppo_curriculum"\nsteps = 2\n[env]\nid = "hone/Maze-v0"\n'
    "[curriculum]\nstages = [{ distance = 4 }]\n",
    "dispatch": 'recipe = "dispatch"\nsteps = 2\n[env]\nid = "hone/Warehouse-v0"\nkwargs = { limit = 60 }\n',
    "option_critic": 'recipe = "option_critic"\nsteps = 2\n[env]\nid = "CartPole-v1"\n',
    "bc": 'recipe = "bc"\nsteps = 2\nlog = "log.parquet"\n',
    "cql": 'recipe = "cql"\nsteps = 2\nlog = "log.parquet"\n',
    "iql": 'recipe = "iql"\nsteps = 2\nlog = "log.parquet"\n',
    "bcq": 'recipe = "bcq"\nsteps = 2\nlog = "log.parquet"\n',
    "bear": 'recipe = "bear"\nsteps = 2\nlog = "log.parquet"\n',
    "td3_bc": 'recipe = "td3_bc"\nsteps = 2\nlog = "log.parquet"\n',
    **{
        name: f'recipe = "{name}"\nsteps = 2\n[env]\nid = "{GAME}"\n'
        for name in ("ippo", "ia2c", "mappo", "vdn", "qmix")
    },
    "alphazero": 'recipe = "alphazero"\nsteps = 2\n[env]\nid = "compiled:connect_four"\nnum_envs = 4\n'
    "[search]\nsimulations = 4\n",
    "league": 'recipe = "league"\nsteps = 2\n[env]\nid = "compiled:kuhn_poker"\nnum_envs = 8\n',
    "dqn": VALUES.format("dqn"),
    "double_dqn": VALUES.format("double_dqn"),
    "dueling_dqn": VALUES.format("dueling_dqn"),
    "prioritized_dqn": VALUES.format("prioritized_dqn"),
    "n_step_dqn": VALUES.format("n_step_dqn"),
    "r2d2": VALUES.format("r2d2"),
    "c51": VALUES.format("c51"),
    "qr_dqn": VALUES.format("qr_dqn"),
    "noisy_dqn": VALUES.format("noisy_dqn"),
    "rainbow": VALUES.format("rainbow"),
    "discrete_sac": VALUES.format("discrete_sac"),
}
PREFERENCES = ("cpo", "dpo", "kto", "orpo", "rpo", "simpo")
"""They learn from a dataset of pairs or of labelled answers."""
TABLES = (
    "cfr_plus",
    "double_oracle",
    "double_q_learning",
    "dyna_q",
    "expected_sarsa",
    "gradient_td",
    "monte_carlo",
    "prioritized_sweeping",
    "q_learning",
    "sarsa",
    "sarsa_lambda",
    "td_prediction",
    "tile_sarsa",
)
"""They learn in closed form."""
BANDITS = ("boltzmann", "epsilon_greedy", "linucb", "squarecb", "thompson")
NO_GRADIENT = (*BANDITS, "collect", "trpo", "trpo_text", "option_q_learning", *TABLES)
"""They step in their own way, not by the gradient learner."""
SCORERS = ("implicit_prm", "reward_outcome", "reward_pairs", "reward_steps")
"""Certified by the runs of `tests/recipes/reward_models`."""
TWO_UPDATES = ("learner.epochs=2", "learner.minibatches=1")
REQUIRED = {
    "expert_iteration": ("algorithm.collect_steps=1", "algorithm.learn_steps=1", "algorithm.batch=4"),
    "dro": ("algorithm.beta=0.1",),
    "gdpo": ('rewards.functions=[{use = "rewards.py:close"}, {use = "rewards.py:right"}]',),
    "on_policy_distillation": ('algorithm.teacher="teacher"',),
    "self_correction": ('algorithm.correction.nudge="+"',),
    "passk": ("algorithm.k=2",),
    "pkpo": ("algorithm.k=2",),
    "warm_grpo": ('algorithm.warm.source="warm"',),
}
"""Settings that a recipe has no default for, or needs to be itself."""
ONE_UPDATE = ("learner.epochs=1", "learner.minibatches=1")


def preference_file(folder: Path, recipe: str) -> Path:
    """A config of a recipe that learns from preferences, with its data."""
    kind = load_recipe(recipe).config.answers
    answers = {"preference": {"chosen": "2", "rejected": "3"}, "unpaired": {"completion": "2", "label": True}}
    rows = [{"prompt": f"{number}+1=", **answers[kind]} for number in range(4)]
    (folder / f"{kind}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    path = folder / f"{recipe}.toml"
    data = f'[task]\nsource = "{kind}.jsonl"\n[learner]\nlr = 1e-3\n'
    path.write_text(f'recipe = "{recipe}"\nsteps = 2\nbatch = 4\n{tiny_runs.MODEL}{data}', encoding="utf-8")
    return path


def lay_out(folder: Path) -> None:
    tiny_runs.lay_out(folder)
    for name, text in CONTROL.items():
        (folder / f"{name}.toml").write_text(text, encoding="utf-8")
    new = NewModelConfig(hidden_size=16, layers=1, heads=2, kv_heads=1, head_dim=8, alphabet="0123456789+=")
    teacher = open_policy(ModelSource(new=new), seed=7, device="cpu", temperature=1.0)
    (folder / "teacher").mkdir()
    teacher.save(folder / "teacher")
    write_collection(folder / "warm", "0123456789+=", ["1+1=2", "1+2=3", "2+2=4"])


def learns_from_answers(recipe: str) -> bool:
    """Whether its config has the tables of a recipe on scored answers, and a learner that takes gradients."""
    fields = load_recipe(recipe).config.model_fields
    kinds = [fields[name].annotation for name in ("rewards", "task") if name in fields]
    if kinds[:1] != [RewardsConfig] or "learner" not in fields:
        return False
    return isinstance(kinds[-1], type) and issubclass(kinds[-1], TaskConfig)


def text_file(folder: Path, recipe: str) -> Path:
    """GRPO's tiny run under another recipe's name, with that recipe's own numbers."""
    path = folder / f"{recipe}.toml"
    text = tiny_runs.GRPO.replace('recipe = "grpo"', f'recipe = "{recipe}"')
    begin = text.index("[algorithm]")
    path.write_text(text[:begin] + text[text.index("[run]") :], encoding="utf-8")
    return path


def checked(path: Path, *overrides: str) -> RunConfig:
    (stage,) = planned_runs(read_document(path, overrides))
    return stage.resolved.config


def text_config(folder: Path, recipe: str, *overrides: str) -> RunConfig:
    """Two updates a rollout, so that ratios are taken; one, for recipes that refuse more."""
    path, overrides = text_file(folder, recipe), (*REQUIRED.get(recipe, ()), *overrides)
    try:
        return checked(path, *TWO_UPDATES, *overrides)
    except ConfigError:
        return checked(path, *ONE_UPDATE, *overrides)


def built(config: RunConfig) -> TrainingJob[Any]:
    return load_recipe(config.recipe).build(config)


def figures(folder: Path) -> dict[str, object]:
    return json.loads((folder / "certificate.json").read_text(encoding="utf-8"))


def finite(values: np.ndarray) -> bool:
    return bool(np.isfinite(values).all())
