"""PPO with a critic and one answer per prompt against GRPO with groups of eight, at equal sampled tokens.

Chains of seven numbers in six steps. The base imitates a teacher who stops after each step with probability 0.15, so
an answer can go wrong early: a wrong step, or the end. Each right step pays 1 as it ends, the whole chain pays 2 at the
end. Scores are means over 512 held-out problems; tokens of the critic's warm-up count.
"""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from text_runs import MODEL, run_recipe, sample_answers, write_rows

from demonstrations import Bar
from hone.core.random import uniforms
from hone.lab.tasks.chain_of_sums import ALPHABET, SumProblem, make_problems, split_steps, step_labels
from hone.models.language.token_policy import TokenPolicy

TITLE = "PPO with a critic, groups of one, against GRPO at equal tokens"
SEEDS = (100, 101, 102, 103, 104)
BARS = (
    Bar(figure="explained variance after the warm-up", at_least=0.3),
    Bar(figure="PPO above GRPO, right steps", at_least=0.0, over="mean"),
    Bar(figure="PPO above GRPO, whole chains", at_least=0.0, over="mean"),
)
STOPS = 0.15
"""Probability that the teacher ends an answer after a step that is not the last one."""
MAX_TOKENS = 80


def stopping_solution(problem: SumProblem) -> str:
    """The teacher's answer, always the same for a problem."""
    draws = uniforms(0, "stopping teacher", problem.prompt, count=len(problem.steps)) < STOPS
    kept = next((place + 1 for place, ends in enumerate(draws) if ends), len(problem.steps))
    return "".join(f"{step};" for step in problem.steps[:kept])


def scores(policy: TokenPolicy, held_out: list[SumProblem]) -> tuple[float, float]:
    """Share of right steps, and of whole chains."""
    answers = sample_answers(policy, [one.prompt for one in held_out], max_tokens=MAX_TOKENS, seed=0)
    pairs = list(zip(held_out, answers, strict=True))
    steps = [sum(step_labels(problem, answer)) / len(problem.steps) for problem, answer in pairs]
    return float(np.mean(steps)), float(np.mean([split_steps(answer) == problem.steps for problem, answer in pairs]))


def figures(seed: int, *, quick: bool) -> dict[str, float]:
    """Scores of the base, of PPO and of GRPO, and the variance of returns that the critic explains."""
    count, steps = (300, 6) if quick else (6000, 60)
    problems = make_problems(count + 2012, seed=seed, terms=(7, 7), largest=5)
    held_out, practice, taught = problems[:512], problems[512:2012], problems[2012:]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = [{"prompt": one.prompt, "completion": stopping_solution(one)} for one in taught]
        imitation = {
            "steps": 20 if quick else 500, "seed": seed, "model": {"new": {**MODEL, "alphabet": ALPHABET}},
            "task": {"source": write_rows(folder / "taught.jsonl", rows)}, "batch": 48,
            "learner": {"lr": 3e-3, "lr_decay": "cosine"},
        }  # fmt: skip
        base = scores(run_recipe("sft", imitation, folder / "base"), held_out)
        shared = {
            "steps": steps, "seed": seed, "model": {"path": str(folder / "base")},
            "task": {"source": write_rows(folder / "practice.jsonl", [{"prompt": one.prompt} for one in practice])},
            "user_code": {"workers": 1},
            "rewards": {"step_end": ";", "functions": [
                {"use": "hone.lab.tasks.chain_of_sums:right_steps"},
                {"use": "hone.lab.tasks.chain_of_sums:right_chain", "weight": 2.0},
            ]},
            "learner": {"lr": 2e-4, "warmup_steps": 5},
        }  # fmt: skip
        ppo, grpo, explained, tokens = _compared(shared, folder, held_out)
    return {
        "explained variance after the warm-up": explained,
        "PPO above GRPO, right steps": ppo[0] - grpo[0],
        "PPO above GRPO, whole chains": ppo[1] - grpo[1],
        "right steps, base": base[0], "right steps, PPO": ppo[0], "right steps, GRPO": grpo[0],
        "whole chains, base": base[1], "whole chains, PPO": ppo[1], "whole chains, GRPO": grpo[1],
        "sampled tokens of each": tokens,
    }  # fmt: skip


def _compared(
    shared: dict[str, Any], folder: Path, held_out: list[SumProblem]
) -> tuple[tuple[float, float], tuple[float, float], float, float]:
    """Scores of PPO and of GRPO, mean explained variance of the steps after the warm-up, and sampled tokens."""
    told: list[dict[str, float]] = []
    warmup = shared["steps"] // 8
    critic = {
        "warmup_steps": warmup,
        "epochs": 4,
        "lr": 1e-3,
        "loss": {"kind": "bins", "low": 0, "high": 8, "size": 33},
    }
    ones = {"prompts_per_step": 64, "samples_per_prompt": 1, "max_tokens": MAX_TOKENS}
    ppo = run_recipe(
        "ppo_text", {**shared, "rollout": ones, "algorithm": {"critic": critic}}, folder / "ppo", after_step=told.append
    )
    tokens = sum(step["rollout/tokens"] for step in told)
    groups = {"prompts_per_step": 8, "samples_per_prompt": 8, "max_tokens": MAX_TOKENS}
    longer = {**shared, "steps": 2 * shared["steps"], "rollout": groups}
    grpo = run_recipe("grpo", longer, folder / "grpo", tokens=tokens)
    explained = np.mean([step.get("critic/explained_variance", 0.0) for step in told[warmup:]])
    return scores(ppo, held_out), scores(grpo, held_out), float(explained), tokens
