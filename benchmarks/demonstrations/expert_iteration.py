"""Expert iteration against GRPO and imitation: chains of sums after a teacher who mostly stops too early.

The base imitates the hurried teacher, so that it can do every step and leaves most chains unfinished. Expert iteration
samples 8 answers to each of 500 problems in a round and imitates the right ones, from the base each time; GRPO learns
from the same problems, from the same base. Right is a whole right chain, in training and on 512 held-out problems. All
policies answer these at temperature 1, once each, with the same random numbers.
"""

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from demonstrations import Bar
from hone import api
from hone.lab.tasks.chain_of_sums import ALPHABET, SumProblem, make_problems

TITLE = "Expert iteration after a hurried teacher"
SEEDS = (100, 101, 102, 103, 104)
BARS = (
    Bar(figure="base, right chains", at_most=0.45),
    Bar(figure="expert iteration, round 1", at_least=0.80),
    Bar(figure="expert iteration, sampled tokens of round 1", at_most=60_000),
    Bar(figure="expert iteration after 3 rounds minus GRPO", at_least=-0.03),
    Bar(figure="expert iteration, round 3", at_least=0.88, over="mean"),
)
ROUNDS, PROBLEMS, SAMPLES, MAX_TOKENS = 3, 500, 8, 40
TEACHER = "hone.lab.tasks.chain_of_sums:hurried"
RIGHT = {"functions": [{"use": "hone.lab.tasks.chain_of_sums:right_chain"}]}
MODEL = {
    "hidden_size": 64, "layers": 4, "heads": 4, "kv_heads": 2, "head_dim": 16, "intermediate_size": 192,
    "max_positions": 64, "alphabet": ALPHABET,
}  # fmt: skip


def figures(seed: int, *, quick: bool) -> dict[str, float]:
    """Figures of one seed: of its problems, base and runs."""
    with tempfile.TemporaryDirectory() as place:
        return _figures(Path(place), seed, quick=quick)


def _figures(place: Path, seed: int, *, quick: bool) -> dict[str, float]:
    count = 40 if quick else PROBLEMS
    taught, asked, held = 200 if quick else 8000, count, 32 if quick else 512
    problems = make_problems(taught + asked + held, seed=seed)
    files = {
        "taught": _write(place / "taught.jsonl", problems[:taught]),
        "asked": _write(place / "asked.jsonl", problems[taught : taught + asked]),
        "held": _write(place / "held.jsonl", problems[taught + asked :]),
    }
    shared: dict[str, Any] = {
        "seed": seed,
        "run": {"threads": 1, "rollouts_every": 0, "certify": False},
        "evaluation": {
            "task": {"source": files["held"]}, "rewards": RIGHT, "max_tokens": MAX_TOKENS, "temperature": 1.0,
        },
    }  # fmt: skip
    base = _train(place, shared | _base(files["taught"], steps=60 if quick else 1500))
    start = {"path": str(place / "base")}
    expert = _train(place, shared | _expert(files["asked"], start, count, quick=quick))
    grpo = _train(place, shared | _grpo(files["asked"], start, steps=2 if quick else 30))
    tokens = _sampled_tokens(place / "expert")
    length = len(tokens) // ROUNDS
    rounds = {f"expert iteration, round {n + 1}": expert[n] for n in range(ROUNDS)}
    return {
        "base, right chains": base[-1],
        **rounds,
        "expert iteration, sampled tokens of round 1": float(sum(tokens[:length])),
        "expert iteration, sampled tokens of 3 rounds": float(sum(tokens)),
        "GRPO, right chains": grpo[-1],
        "GRPO, sampled tokens": float(sum(_sampled_tokens(place / "grpo"))),
        "expert iteration after 3 rounds minus GRPO": expert[-1] - grpo[-1],
    }


def _base(source: str, *, steps: int) -> dict[str, Any]:
    return {
        "recipe": "sft", "name": "base", "steps": steps, "batch": 64, "model": {"new": MODEL},
        "task": {"source": source}, "solution": {"use": TEACHER},
        "learner": {"lr": 2e-3, "lr_decay": "cosine", "warmup_steps": 20},
    }  # fmt: skip


def _expert(source: str, start: dict[str, str], problems: int, *, quick: bool) -> dict[str, Any]:
    """`quick`: a base that is hardly trained has no right answer, and every answer is imitated."""
    collect_steps, per_step, learn_steps = 10, problems // 10, 4 if quick else 120
    filtered = {"min_score": 0.0} if quick else {}
    return {
        "recipe": "expert_iteration", "name": "expert", "steps": ROUNDS * (collect_steps + learn_steps),
        "model": start, "task": {"source": source}, "rewards": RIGHT, "user_code": {"workers": 1},
        "rollout": _rollout(per_step),
        "algorithm": {"collect_steps": collect_steps, "learn_steps": learn_steps, "batch": 64} | filtered,
        "learner": {"lr": 1e-3, "lr_decay": "linear"}, "every": collect_steps + learn_steps,
    }  # fmt: skip


def _grpo(source: str, start: dict[str, str], *, steps: int) -> dict[str, Any]:
    return {
        "recipe": "grpo", "name": "grpo", "steps": steps, "model": start, "task": {"source": source},
        "rewards": RIGHT, "user_code": {"workers": 1}, "rollout": _rollout(24), "learner": {"lr": 3e-4},
    }  # fmt: skip


def _rollout(prompts: int) -> dict[str, int]:
    return {"prompts_per_step": prompts, "samples_per_prompt": SAMPLES, "max_tokens": MAX_TOKENS}


def _train(place: Path, config: dict[str, Any]) -> list[float]:
    """Train into `place`; accuracies of the evaluations, in their order."""
    every = config.pop("every", 0)
    evaluation = config["evaluation"] | {"every": every}
    scores: list[float] = []
    api.train(config | {"evaluation": evaluation}, runs=place, on_evaluation=lambda event: scores.append(event.score))
    return scores


def _sampled_tokens(run: Path) -> list[float]:
    """Sampled tokens of each step; 0 for a step that samples nothing."""
    lines: list[Mapping[str, float]] = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line.get("rollout/tokens", 0.0) for line in lines]


def _write(path: Path, problems: list[SumProblem]) -> str:
    path.write_text("".join(json.dumps({"prompt": one.prompt, "answer": str(one.answer)}) + "\n" for one in problems))
    return str(path)
