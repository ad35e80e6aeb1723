"""The learning rate of LoRA by width: the best one, over the best one of all weights, grows like sqrt(width).

A model of each width imitates a hurried teacher on chains of sums, and then, for 25 steps, one who writes every step:
with all weights, and with an adapter of rank 4 and alpha 32, at rates half a decade apart. The best rate of each is the
minimum of a parabola through the three points around the lowest loss, the mean of the last five steps on new examples.
The rule of `hone plan`, max(1, sqrt(width) / 6), is the cautious end: the constant here is told beside it.
"""

import json
import math
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from demonstrations import Bar
from hone.lab.tasks.chain_of_sums import ALPHABET, hurried_solution, make_problems
from hone.models.language.lora import suggested_rate_factor
from hone.recipes.registry import load_recipe
from hone.run.loop import train

TITLE = "LoRA's learning rate by width, imitation"
SEEDS = tuple(range(100, 103))
WIDTHS = (64, 160)
GROWTH = "growth of the factor from width 64 to 160, over its square root"
BARS = (
    Bar(figure=GROWTH, at_least=0.5, at_most=2.0, over="mean"),
    Bar(figure="least factor over the rule's", at_least=0.8, over="mean"),
)
BATCH, FULL_RATES, LORA_STEPS = 32, (-3.5, -3.0, -2.5, -2.0), (-0.5, 0.0, 0.5, 1.0)


def figures(seed: int, *, quick: bool) -> dict[str, float]:
    """Best rates of one seed by width: over those of all weights, and over the rule's."""
    widths, found, factors = WIDTHS, dict[str, float](), list[float]()
    for width in widths:
        full, lora = best_rates(width, seed, pretraining=3 if quick else 150, steps=5 if quick else 25)
        factors.append(lora / full)
        found |= {
            f"width {width}: best rate of all weights": full,
            f"width {width}: factor to LoRA's": factors[-1],
            f"width {width}: constant, sqrt(width) / factor": math.sqrt(width) / factors[-1],
        }
    growth = factors[-1] / factors[0] / math.sqrt(widths[-1] / widths[0])
    least = min(factor / suggested_rate_factor(width) for width, factor in zip(widths, factors, strict=True))
    return {
        **found,
        GROWTH: growth,
        "least factor over the rule's": least,
    }


def best_rates(width: int, seed: int, *, pretraining: int, steps: int) -> tuple[float, float]:
    """The best learning rates of all weights, and of an adapter."""
    with tempfile.TemporaryDirectory(prefix="hone-rates-") as name:
        folder = Path(name)
        problems = make_problems(BATCH * (pretraining + steps), seed=seed, terms=(3, 4))
        first, then = problems[: BATCH * pretraining], problems[BATCH * pretraining :]
        _write(folder / "hurried.jsonl", {one.prompt: hurried_solution(one) for one in first})
        _write(folder / "whole.jsonl", {one.prompt: one.solution for one in then})
        _imitate(
            folder / "hurried.jsonl",
            pretraining,
            3e-3 / math.sqrt(width / 64),
            {"new": _model(width)},
            seed,
            folder / "base",
        )

        def losses(rates: list[float], model: dict[str, Any]) -> list[float]:
            base = {"path": str(folder / "base"), **model}
            return [_imitate(folder / "whole.jsonl", steps, 10**rate, base, seed) for rate in rates]

        shift = math.log10(64 / width) / 2
        full_rates = [rate + shift for rate in FULL_RATES]
        full = parabola_minimum(full_rates, losses(full_rates, {}))
        lora_rates = [full + math.log10(suggested_rate_factor(width)) + step for step in LORA_STEPS]
        return 10**full, 10 ** parabola_minimum(lora_rates, losses(lora_rates, {"lora": {"rank": 4}}))


def parabola_minimum(x: list[float], y: list[float]) -> float:
    """Where the parabola through the lowest of points at equal distances and its neighbours is lowest; an end of the
    range where that point is an end."""
    place = int(np.argmin(y))
    if place in {0, len(x) - 1}:
        return x[place]
    below, here, above = np.log(y[place - 1 : place + 2])
    return x[place] + (x[1] - x[0]) * 0.5 * float((below - above) / (below - 2 * here + above))


def _model(width: int) -> dict[str, Any]:
    heads = width // 32
    return {
        "hidden_size": width, "layers": 1, "heads": heads, "kv_heads": heads, "head_dim": 32,
        "intermediate_size": 2 * width, "max_positions": 64, "alphabet": ALPHABET,
    }  # fmt: skip


def _write(file: Path, solutions: dict[str, str]) -> None:
    rows = [{"prompt": prompt, "completion": solution} for prompt, solution in solutions.items()]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def _imitate(
    data: Path, steps: int, rate: float, model: dict[str, Any], seed: int, target: Path | None = None
) -> float:
    """Train on each example once, save the model in `target`, and return the mean loss of the last five steps."""
    tables = {
        "recipe": "sft", "name": "rates", "seed": seed, "steps": steps, "batch": BATCH, "run": {"threads": 1},
        "model": {"compute": "float32", **model}, "task": {"source": str(data)}, "learner": {"lr": rate},
    }  # fmt: skip
    entry = load_recipe("sft")
    job = entry.build(entry.config.model_validate(tables))
    losses: list[float] = []
    train(job.recipe, steps=steps, callback=lambda _s, _e, _c, metrics: losses.append(metrics["policy/nll_nats"]))
    if target is not None:
        target.mkdir()
        job.save_policy(target)
    return float(np.mean(losses[-5:]))
