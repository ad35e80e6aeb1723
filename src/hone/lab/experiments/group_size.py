"""Group size: share of informative groups, gradient noise, and learning, at an equal number of answers."""

from dataclasses import replace

import numpy as np

from hone.core.credit import NO_VALUES
from hone.credit.group import leave_one_out
from hone.lab.exact import count_probabilities, group_advantages, scores_by_count
from hone.lab.finding import BoundedClaim, Experiment, ExperimentResult, at_least, at_most, line_plot, plot_by_step
from hone.lab.puzzles import Floats, addition
from hone.lab.training import PuzzleTraining, final_accuracy, train_seeds
from hone.run.report.html import format_number

_SIZES = (2, 4, 8, 16, 32)
_ANSWERS = 288


def _uninformative_share(chance: Floats, size: int) -> Floats:
    """Share of groups that are all right or all wrong `[P]`."""
    return chance**size + (1 - chance) ** size


def _gradient_noise(chance: float, size: int) -> float:
    """Squared noise of the gradient from `_ANSWERS` answers in groups of `size`, relative to the true one's squared
    length.

    By the number of right answers in a group, with leave-one-out; the gradient is that of the accuracy.
    """
    patterns = scores_by_count(size)
    advantage = group_advantages(lambda episodes: leave_one_out(episodes, NO_VALUES).advantage, patterns)
    weight = count_probabilities(np.array([chance]), size)[0]
    slope = (advantage * (patterns - chance)).mean(axis=1) / (chance * (1 - chance))
    mean = float(weight @ slope)
    return float(weight @ (slope - mean) ** 2) / mean**2 * size / _ANSWERS


def claims_of(
    dumb: dict[int, float], small: int, large: int, noises: dict[int, float], gain: dict[int, float]
) -> list[BoundedClaim]:
    """Claims on the share without signal, the noise and the gain, by group size."""
    return [
        at_least("groups of 2 without signal, p = 0.1", dumb[small], 0.7),
        at_most("groups of 32 without signal, p = 0.1", dumb[large], 0.05),
        at_most("noise of groups of 2 over 32, equal number of answers, p = 0.1", noises[small] / noises[large], 1.5),
        at_least(
            "improvement with groups of 8 over 32, equal number of answers", gain[8] / max(gain[large], 1e-6), 1.1
        ),
    ]


def _run(seed: int, *, quick: bool = False) -> ExperimentResult:
    steps, runs, sizes = (30, 1, (8, 32)) if quick else (60, 2, _SIZES)
    plan = PuzzleTraining(puzzle=addition(12), steps=steps, learning_rate=0.004)
    plans = {size: replace(plan, prompts=_ANSWERS // size, samples=size) for size in sizes}
    result = {size: train_seeds(one, seed=seed, runs=runs, pretraining=12) for size, one in plans.items()}
    solved = {size: final_accuracy(each) for size, each in result.items()}
    first = {size: float(each["solved"][:, 0].mean()) for size, each in result.items()}
    gain = {size: solved[size] - first[size] for size in sizes}
    hard = np.array([0.1])
    dumb = {size: float(_uninformative_share(hard, size)[0]) for size in _SIZES}
    noises = {size: _gradient_noise(0.1, size) for size in _SIZES}
    best = max(sizes, key=lambda size: solved[size])
    small, large = _SIZES[0], _SIZES[-1]
    grid = np.linspace(0.01, 0.99, 50)
    return ExperimentResult(
        header=("group", "no signal, p = 0.1", "noise of the gradient", "solved before", "solved after"),
        rows=[
            (str(size), f"{dumb[size]:.0%}", format_number(noises[size]), f"{first[size]:.1%}", f"{solved[size]:.1%}")
            for size in sizes
        ],
        panels=[
            line_plot(
                "share of groups without signal",
                "probability of a right answer",
                grid,
                {f"{n} answers": _uninformative_share(grid, n) for n in _SIZES},
            ),
            plot_by_step(
                f"additions solved, {_ANSWERS} answers per step",
                {f"{n} answers": result[n]["solved"] for n in sizes},
            ),
        ],
        verdict=(
            f"At p = 0.1 {dumb[small]:.0%} of groups of {small} have no signal (equal scores), of groups of {large} "
            f"{dumb[large]:.0%}. At an equal number of answers, groups of {small} have only "
            f"{noises[small] / noises[large]:.2f} times the gradient noise. With {_ANSWERS} answers per step groups of "
            f"{best} solve most at the end ({solved[best]:.1%}, mean of {runs} runs), and groups of {large} "
            f"{solved[large]:.1%}."
        ),
        claims=claims_of(dumb, small, large, noises, gain),
    )


EXPERIMENT = Experiment(
    title="Group size",
    question="For a fixed number of answers, are many questions with few answers better, or few with many?",
    run=_run,
    source="Shao et al., 2024",
)
