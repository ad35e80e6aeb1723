"""Low-rank adapters in reinforcement learning: rank 1 keeps up with all weights, at the rate that the rule gives.

A model of width 96 imitates a hurried teacher on chains of sums, who mostly writes the first step only. GRPO then makes
it write whole chains, once with all weights and once with an adapter of rank 1, from the same model, with the same
questions and steps, each at its own rate: the adapter's is the full one times max(1, sqrt(width) / 6). Both answer the
same 512 held-out problems.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

from demonstrations import Bar
from hone.lab.tasks.chain_of_sums import ALPHABET, SumProblem, hurried_solution, make_problems
from hone.models.language.lora import suggested_rate_factor
from hone.recipes.registry import load_recipe
from hone.run.job import TrainingJob
from hone.run.loop import train

TITLE = "LoRA of rank 1 against all weights, GRPO"
SEEDS = tuple(range(100, 105))
BARS = (
    Bar(figure="difference", at_least=-0.05, at_most=0.05, over="mean"),
    Bar(figure="adapter, share of the policy's bytes", at_most=0.03),
)
WIDTH, RATE, MAX_TOKENS = 96, 3e-4, 32
HELD_OUT = 512


def figures(seed: int, *, quick: bool) -> dict[str, float]:
    """Accuracies on held-out problems of one seed, and the size of the adapter's file."""
    steps, imitation = (2, 20) if quick else (90, 800)
    with tempfile.TemporaryDirectory(prefix="hone-lora-") as name:
        folder = Path(name)
        held_out = make_problems(64 if quick else HELD_OUT, seed=10_000, terms=(3, 4))
        _write(folder / "held.jsonl", held_out)
        _write(folder / "train.jsonl", make_problems(8000, seed=seed, terms=(3, 4), exclude=held_out))
        start = _run(_job("sft", seed, imitation, folder, {"new": _model()}), imitation, folder / "base")
        path, lora = {"path": str(folder / "base")}, {"lora": {"rank": 1}}
        full = _run(_job("grpo", seed, steps, folder, path), steps, folder / "full")
        adapted = _run(_job("grpo", seed, steps, folder, path | lora), steps, folder / "adapter")
        size, whole = (
            (folder / file).stat().st_size for file in ("adapter/adapter_model.safetensors", "full/model.safetensors")
        )
    return {
        "before": start,
        "all weights": full,
        "rank 1": adapted,
        "difference": adapted - full,
        "adapter, share of the policy's bytes": size / whole,
    }


def _model() -> dict[str, Any]:
    return {
        "hidden_size": WIDTH, "layers": 2, "heads": 4, "kv_heads": 2, "head_dim": 24, "intermediate_size": 3 * WIDTH,
        "max_positions": 64, "alphabet": ALPHABET,
    }  # fmt: skip


def _write(file: Path, problems: list[SumProblem]) -> None:
    rows = [{"prompt": one.prompt, "completion": hurried_solution(one)} for one in problems]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def _job(recipe: str, seed: int, steps: int, folder: Path, model: dict[str, Any]) -> TrainingJob[Any]:
    rewards = {"functions": [{"use": "hone.lab.tasks.chain_of_sums:right_chain"}]}
    tables: dict[str, Any] = {
        "recipe": recipe, "name": recipe, "seed": seed, "steps": steps, "run": {"threads": 1},
        "model": {"compute": "float32", **model}, "task": {"source": str(folder / "train.jsonl")},
        "evaluation": {
            "max_tokens": MAX_TOKENS, "rewards": rewards,
            "task": {"source": str(folder / "held.jsonl")},
        },
    }  # fmt: skip
    if recipe == "sft":
        tables |= {"batch": 64, "learner": {"lr": 3e-3, "lr_decay": "linear"}}
    else:
        rate = RATE * (suggested_rate_factor(WIDTH) if "lora" in model else 1.0)
        tables |= {
            "rewards": rewards, "user_code": {"workers": 1}, "learner": {"lr": rate},
            "rollout": {"prompts_per_step": 32, "samples_per_prompt": 8, "max_tokens": MAX_TOKENS},
        }  # fmt: skip
    entry = load_recipe(recipe)
    return entry.build(entry.config.model_validate(tables))


def _run(job: TrainingJob[Any], steps: int, folder: Path) -> float:
    """Train, save the policy, and return its accuracy."""
    try:
        train(job.recipe, steps=steps, callback=lambda *_: None)
        folder.mkdir()
        job.save_policy(folder)
        assert job.evaluate is not None
        return job.evaluate().estimate.mean
    finally:
        job.close()
