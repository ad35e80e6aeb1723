"""Aggregation: the effect of each way of averaging over tokens on the length of right and of wrong answers.

An answer is right with probability 1/2, independent of its length: an unbiased gradient changes neither length.
"""

from functools import partial

import numpy as np

from hone.lab.finding import BoundedClaim, Experiment, ExperimentResult, at_least, at_most, plot_by_step
from hone.lab.puzzles import Floats
from hone.lab.stopping_answers import LONGEST, initial_logits, mean_lengths, sample_stopping
from hone.objectives.weights import WeightingScheme, constant_length, sequence_mean, token_mean
from hone.run.report.html import format_number

_RATE = 12.0
SCHEMES: dict[str, WeightingScheme] = {
    "sequence mean (GRPO)": sequence_mean,
    "token mean (DAPO)": token_mean,
    "constant (Dr.GRPO)": partial(constant_length, length=LONGEST),
}


def _train_lengths(scheme: WeightingScheme, *, seed: int, steps: int, answers: int) -> Floats:
    """Mean length of wrong and right answers over the steps `[steps + 1, 2]`, by plain gradient descent."""
    logits = initial_logits()
    result = [mean_lengths(logits)]
    at_start = float(result[0].mean())
    for step in range(steps):
        sampled = sample_stopping(logits, answers, seed=seed, step=step)
        # equal step sizes: a constant divides by the longest answer, the others by actual lengths
        size = LONGEST / at_start if isinstance(scheme, partial) else 1.0
        logits = logits - _RATE * size * sampled.slope(logits, scheme(sampled.lengths))
        result.append(mean_lengths(logits))
    return np.array(result)


def claims_of(ends: dict[str, Floats], drift: dict[str, float]) -> list[BoundedClaim]:
    """Claims on the final lengths over the initial ones (wrong, right), and on their largest change, by scheme."""
    biased, mean, constant = SCHEMES
    return [
        at_least("wrong answers grow by a factor, sequence mean", float(ends[biased][0]), 1.1),
        at_most("right answers shrink to a share, sequence mean", float(ends[biased][1]), 0.95),
        at_most("drift of lengths, token mean over sequence mean", drift[mean] / drift[biased], 0.5),
        at_most("drift of lengths, constant over sequence mean", drift[constant] / drift[biased], 0.5),
    ]


def _run(seed: int, *, quick: bool = False) -> ExperimentResult:
    steps, answers = (20, 1024) if quick else (60, 2048)
    result = {name: _train_lengths(scheme, seed=seed, steps=steps, answers=answers) for name, scheme in SCHEMES.items()}
    start = float(result["token mean (DAPO)"][0].mean())
    ends = {name: path[-1] / start for name, path in result.items()}
    biased, mean, constant = SCHEMES
    drift = {name: float(abs(ends[name] - 1).max()) for name in SCHEMES}
    return ExperimentResult(
        header=("aggregation", "wrong answers before", "wrong after", "right before", "right after"),
        rows=[
            (name, *(format_number(float(path[step, kind])) for kind in (0, 1) for step in (0, -1)))
            for name, path in result.items()
        ],
        panels=[
            plot_by_step(
                f"mean length of {kind} answers, tokens",
                {name: path[:, column] for name, path in result.items()},
                first=0,
            )
            for column, kind in enumerate(("wrong", "right"))
        ],
        verdict=(
            f"Length does not affect the score here. In {steps} steps, averaging each answer over its own tokens makes "
            f"wrong answers {ends[biased][0]:.2f} times as long and right ones {ends[biased][1]:.2f} times. A mean "
            f"over all tokens changes neither by more than {drift[mean]:.0%}, a constant divisor by "
            f"{drift[constant]:.0%}."
        ),
        claims=claims_of(ends, drift),
    )


EXPERIMENT = Experiment(
    title="Length bias",
    question="Does averaging over an answer's own length make wrong answers longer?",
    run=_run,
    source="Liu et al., 2025 (Dr.GRPO); Yu et al., 2025 (DAPO)",
)
