"""Division by a group's standard deviation: the resulting weight of each question, over all counts of right answers."""

from functools import partial

import numpy as np
from numpy.typing import NDArray

from hone.core.credit import NO_VALUES
from hone.core.episodes import Episodes
from hone.core.random import generator
from hone.credit.group import Scale, group_relative
from hone.lab.exact import count_probabilities, group_advantages, scores_by_count
from hone.lab.finding import BoundedClaim, Experiment, ExperimentResult, at_least, at_most, line_plot
from hone.lab.puzzles import Floats
from hone.run.report.html import format_number

_SIZE = 16
SCALES: dict[str, Scale] = {"divided by std (GRPO)": "group", "not divided (Dr.GRPO)": "none"}


def _advantages(episodes: Episodes, *, scale: Scale) -> NDArray[np.float32]:
    """Group-relative advantages."""
    return group_relative(episodes, NO_VALUES, scale=scale).advantage


def _question_weights(chances: Floats, scale: Scale) -> Floats:
    """Factor on the gradient of each question's accuracy `[Q]`; the true gradient has the factor 1.

    E[mean over the group of A_i (R_i - p)] / (p (1 - p)), exactly.
    """
    patterns = scores_by_count(_SIZE)
    advantage = group_advantages(partial(_advantages, scale=scale), patterns)
    weight = count_probabilities(chances, _SIZE)
    pull = (advantage[None] * (patterns[None] - chances[:, None, None])).mean(axis=2)
    return (weight * pull).sum(axis=1) / (chances * (1 - chances))


def claims_of(
    preference: float, edge: dict[str, float], middle: dict[str, float], shares: dict[str, float], close: Floats
) -> list[BoundedClaim]:
    """Claims on the weight of questions at p = 0.9 (`edge`) and 0.5 (`middle`), shares, and advantages."""
    grpo, plain = SCALES
    return [
        at_least("weight of a question with p = 0.9 over one with p = 0.5, divided", preference, 1.3),
        at_most("the same, not divided: difference from 1", abs(edge[plain] / middle[plain] - 1), 1e-5),
        at_least("share of very easy and very hard questions, divided over not", shares[grpo] / shares[plain], 1.1),
        at_least("advantage of scores 0.01 apart over scores 1 apart, divided", abs(close[0] / close[1]).min(), 0.95),
    ]


def _run(seed: int, *, quick: bool = False) -> ExperimentResult:
    grid = np.linspace(0.02, 0.98, 13 if quick else 49)
    curves = {name: _question_weights(grid, scale) for name, scale in SCALES.items()}
    asked = generator(seed, "lab/difficulty").beta(1.0, 1.0, size=200).clip(0.02, 0.98)
    extreme = (asked < 0.15) | (asked > 0.85)
    shares: dict[str, float] = {}
    for name, scale in SCALES.items():
        pull = _question_weights(asked, scale) * asked * (1 - asked)  # gradient of a question's logit
        shares[name] = float(pull[extreme].sum() / pull.sum())
    grpo, plain = SCALES
    middle = {name: float(_question_weights(np.array([0.5]), scale)[0]) for name, scale in SCALES.items()}
    edge = {name: float(_question_weights(np.array([0.9]), scale)[0]) for name, scale in SCALES.items()}
    preference = edge[grpo] / middle[grpo]
    close = group_advantages(
        partial(_advantages, scale="group"), np.array([[0.50, 0.51, 0.50, 0.51], [0.0, 1.0, 0.0, 1.0]])
    )
    return ExperimentResult(
        header=("advantage", "weight at p = 0.5", "weight at p = 0.9", "share of p < 0.15 or p > 0.85"),
        rows=[(name, format_number(middle[name]), format_number(edge[name]), f"{shares[name]:.0%}") for name in SCALES],
        panels=[
            line_plot(
                "weight of a question in the gradient (unbiased: the same for all)",
                "probability of a right answer",
                grid,
                curves,
            )
        ],
        verdict=(
            "Division by the group's standard deviation weights a question with success probability 0.9 "
            f"{preference:.2f} times as much as one with 0.5 and gives very easy and very hard questions "
            f"{shares[grpo]:.0%} of the gradient instead of {shares[plain]:.0%}. Scores 0.01 apart then count as much "
            "as scores 1 apart."
        ),
        claims=claims_of(preference, edge, middle, shares, close),
    )


EXPERIMENT = Experiment(
    title="Division by the standard deviation",
    question="Which questions does GRPO's division by the group's standard deviation favour, against Dr.GRPO?",
    run=_run,
    source="Shao et al., 2024; Liu et al., 2025",
)
