"""Runs of text recipes in this process: four questions with one-letter answers, a one-layer model, a judge without
worker processes."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_collection import write_collection

from hone.core.judging import ScorerInput
from hone.core.state import State, substate
from hone.recipes.registry import load_recipe, recipe_names
from hone.rewards.config import RewardsConfig, UserCodeConfig
from hone.rewards.scores import RewardScores, combine_results, result_from_value
from hone.run.job import TrainingJob
from hone.run.loop import train
from hone.run.store.codec import read_state, write_state
from hone.text import open_text
from hone.text import rl as text_rl

MODEL = {
    "compute": "float32",
    "new": {
        "hidden_size": 16, "layers": 1, "heads": 2, "kv_heads": 1, "head_dim": 8, "intermediate_size": 24,
        "max_positions": 16, "alphabet": "abcde",
    },
}  # fmt: skip
ALGORITHM: dict[str, dict[str, Any]] = {
    "dro": {"beta": 0.1},
    "passk": {"k": 2},
    "pkpo": {"k": 2},
    "self_correction": {"correction": {"nudge": "e", "first_stage_steps": 1}},
    "on_policy_distillation": {"teacher": "teacher"},
    "warm_grpo": {"warm": {"source": "warm", "share": 0.5}},
}
"""What a recipe cannot do without."""
FULL = {"kl": 0.05, "entropy": 0.01, "kl_in_reward": {"kind": "fixed", "weight": 0.05}}
"""Penalties, for the recipes that know them: what is declared is then run."""


def text_recipes() -> list[str]:
    configs = {name: load_recipe(name).config for name in recipe_names()}
    return [
        name
        for name, config in configs.items()
        if issubclass(config, text_rl.TextRunConfig) and config.learns_as_it_answers
    ]


@dataclass
class JudgeHere:
    """Scores in this process: `right` for the next letter of the alphabet as the first of an answer, and `short`."""

    names: tuple[str, ...]
    weights: list[float]
    limits: UserCodeConfig

    def check(self, columns: object, rows: object = None) -> list[str]:
        return []

    def close(self) -> None: ...

    def submit(self, answers: Sequence[ScorerInput]) -> Sequence[ScorerInput]:
        return answers

    def gather(self, tickets: Sequence[Sequence[ScorerInput]]) -> RewardScores:
        answers = [answer for ticket in tickets for answer in ticket]
        found = {
            "right": [float(answer.text[:1] == answer.columns["answer"]) for answer in answers],
            "short": [1.0 - 0.25 * len(answer.text) for answer in answers],
        }
        return combine_results(
            {name: [result_from_value(score) for score in found[name]] for name in self.names}, self.weights
        )

    def notes(self) -> list[str]:
        return []

    def metrics(self) -> dict[str, float]:
        return {}

    def state(self) -> State:
        return {}

    def restore(self, state: State) -> None: ...


def judge_here(config: RewardsConfig, *, limits: UserCodeConfig, load: object, device: str) -> JudgeHere:
    del load, device
    return JudgeHere(config.names, [reward.weight for reward in config.functions], limits)


def lay_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Questions in `folder`, which becomes the working folder; scores without processes."""
    rows = [{"prompt": a, "answer": b} for a, b in ("ab", "bc", "cd", "de")]
    (folder / "letters.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    write_collection(folder / "warm", "abcde", ["ab", "bc", "cd", "de"])
    monkeypatch.chdir(folder)
    monkeypatch.setattr(open_text, "reward_scorer", judge_here)


def settings(name: str, *, steps: int, full: bool = True, **changes: Any) -> dict[str, Any]:
    """A config as a dict; `changes` are tables whose keys are laid over it."""
    config = load_recipe(name).config
    once = text_rl.require_on_policy in config.requires
    tables: dict[str, Any] = {
        "recipe": name,
        "name": name,
        "steps": steps,
        "model": MODEL,
        "task": {"source": "letters.jsonl"},
        "rewards": {"functions": [{"use": "x:right"}]},
        "rollout": {"prompts_per_step": 4, "samples_per_prompt": 8, "max_tokens": 2},
        "run": {"threads": 1},
    }
    if "learner" in config.model_fields:
        tables["learner"] = {"lr": 0.02} | ({} if once else {"minibatches": 2})
    if "algorithm" in config.model_fields:
        known = config.model_fields["algorithm"].annotation.model_fields
        extra = {key: value for key, value in FULL.items() if full and key in known}
        tables["algorithm"] = extra | ALGORITHM.get(name, {})
    for table, keys in changes.items():
        tables[table] = tables.get(table, {}) | keys
    return tables


def job_of(name: str, tables: Mapping[str, Any]) -> TrainingJob[Any]:
    entry = load_recipe(name)
    return entry.build(entry.config.model_validate(tables))


def scores_of(job: TrainingJob[Any], *, steps: int, first: int = 1) -> list[float]:
    """The mean score of all answers of each step, while it trains; every figure must be a number."""
    found: list[float] = []

    def report(step: int, episodes: Any, credits: Any, metrics: Any) -> None:
        told = {**metrics, **job.recipe.source.metrics()}
        assert [name for name, value in told.items() if not np.isfinite(value)] == []
        found.append(told["reward/mean"])

    train(job.recipe, steps=steps, callback=report, first_step=first)
    return found


def saved(job: TrainingJob[Any], folder: Path) -> None:
    (folder / "policy").mkdir(parents=True)
    job.save_policy(folder / "policy")
    recipe = job.recipe
    write_state(folder, {"source": recipe.source.state(), "learner": recipe.learner.state()})


def restored(job: TrainingJob[Any], folder: Path) -> TrainingJob[Any]:
    job.load_policy(folder / "policy")
    state = read_state(folder)
    job.recipe.learner.restore(substate(state, "learner"))
    job.recipe.source.restore(substate(state, "source"))
    return job


def files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
