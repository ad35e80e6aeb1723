"""pass@1 against pass@k: one policy over solution methods: one is right most often, others reach further."""

from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from hone.core.credit import NO_VALUES, Credits, Values
from hone.core.episodes import Episodes
from hone.core.random import generator
from hone.credit.group import group_relative
from hone.credit.passk import max_rl, pass_at_k
from hone.lab.exact import gradient, scored_episodes
from hone.lab.finding import BoundedClaim, Experiment, ExperimentResult, at_least, at_most, plot_by_step
from hone.lab.policies import sample_rows
from hone.lab.puzzles import Floats
from hone.objectives.policy import reinforce_loss

_WAYS, _QUESTIONS, K, _SIZE, _RATE = 5, 40, 8, 16, 0.5
_CreditAssigner = Callable[[Episodes, Values], Credits]
CREDITS: dict[str, _CreditAssigner] = {
    "GRPO": group_relative,
    f"pass@{K} advantages": partial(pass_at_k, k=K),
    "MaxRL": max_rl,
}


def _solution_table(seed: int) -> Floats:
    """True if way w solves question q `[QUESTIONS, WAYS]`: the first solves 6 in 10, each other one its own tenth."""
    order = generator(seed, "lab/ways").permutation(_QUESTIONS)
    solves = np.zeros((_QUESTIONS, _WAYS))
    solves[order[: int(0.6 * _QUESTIONS)], 0] = 1.0
    for way in range(1, _WAYS):
        low = int((0.6 + 0.1 * (way - 1)) * _QUESTIONS)
        solves[order[low : low + _QUESTIONS // 10], way] = 1.0
    return solves


def _mean_pass_at_k(logits: torch.Tensor, solves: Floats, k: int) -> float:
    """Mean probability that one of `k` answers to a question is right, exactly."""
    chance = solves @ torch.softmax(logits.double(), dim=0).numpy()
    return float((1 - (1 - chance) ** k).mean())


def _train_ways(credit: _CreditAssigner, solves: Floats, *, seed: int, steps: int) -> Floats:
    """pass@1 and pass@K over the steps `[steps + 1, 2]`: plain gradient steps, `_SIZE` answers to every question."""
    logits = torch.zeros(_WAYS)
    result = [(_mean_pass_at_k(logits, solves, 1), _mean_pass_at_k(logits, solves, K))]
    asked = np.repeat(np.arange(_QUESTIONS), _SIZE)
    for step in range(steps):
        draws = generator(seed, "lab/passk", step)
        chance = np.broadcast_to(torch.softmax(logits, dim=0).numpy(), (len(asked), _WAYS))
        way = sample_rows(chance, draws.random(len(asked)))
        credits = credit(scored_episodes(solves[asked, way], asked), NO_VALUES)
        table = logits.clone().requires_grad_(True)
        now = torch.log_softmax(table, dim=0)[torch.from_numpy(way)]
        slope = gradient(reinforce_loss(now, torch.from_numpy(credits.advantage)).loss.mean(), table)
        logits = logits - _RATE * slope
        result.append((_mean_pass_at_k(logits, solves, 1), _mean_pass_at_k(logits, solves, K)))
    return np.array(result)


def claims_of(end: dict[str, Floats], start: Floats) -> list[BoundedClaim]:
    """Claims on pass@1 and pass@K `[2]` at the start and at the end by credit."""
    grpo, many, likely = CREDITS
    return [
        at_least("pass@1 of GRPO over the start", float(end[grpo][0] / start[0]), 1.5),
        at_most(f"pass@{K} of GRPO minus the start", float(end[grpo][1] - start[1]), -0.03),
        at_least(f"pass@{K} of pass@{K} advantages minus GRPO", float(end[many][1] - end[grpo][1]), 0.05),
        at_least(f"pass@{K} of MaxRL minus GRPO", float(end[likely][1] - end[grpo][1]), 0.03),
        at_least(f"pass@1 of GRPO minus pass@{K} advantages", float(end[grpo][0] - end[many][0]), 0.03),
    ]


def _run(seed: int, *, quick: bool = False) -> ExperimentResult:
    steps = 60 if quick else 200
    solves = _solution_table(seed)
    paths = {name: _train_ways(credit, solves, seed=seed, steps=steps) for name, credit in CREDITS.items()}
    grpo, many, likely = CREDITS
    start = paths[grpo][0]
    end = {name: path[-1] for name, path in paths.items()}
    return ExperimentResult(
        header=("credit", "pass@1", f"pass@{K}"),
        rows=[("before training", *(f"{value:.1%}" for value in start))]
        + [(name, *(f"{value:.1%}" for value in values)) for name, values in end.items()],
        panels=[
            plot_by_step(f"pass@{k}", {name: path[:, column] for name, path in paths.items()}, first=0)
            for column, k in enumerate((1, K))
        ],
        verdict=(
            f"GRPO raises pass@1 from {start[0]:.0%} to {end[grpo][0]:.0%} and lowers pass@{K} from {start[1]:.0%} to "
            f"{end[grpo][1]:.0%}. pass@{K} advantages "
            f"end at {end[many][0]:.0%} and {end[many][1]:.0%}, MaxRL at {end[likely][0]:.0%} and {end[likely][1]:.0%}."
        ),
        claims=claims_of(end, start),
    )


EXPERIMENT = Experiment(
    title="pass@1 against pass@k",
    question="Does GRPO raise pass@k, and how do pass@k advantages and MaxRL compare?",
    run=_run,
    source="Chen et al., 2025; MaxRL, 2026",
)
