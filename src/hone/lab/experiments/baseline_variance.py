"""Baselines: noise at the same expected gradient, by enumeration of every group of four answers."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from hone.core.credit import NO_VALUES, Values
from hone.core.episodes import Episodes
from hone.core.random import generator
from hone.credit.group import group_relative, leave_one_out
from hone.credit.returns import gae, reward_as_advantage
from hone.lab.exact import all_groups, group_advantages
from hone.lab.finding import BoundedClaim, Experiment, ExperimentResult, at_least, at_most, line_plot
from hone.lab.puzzles import Floats
from hone.run.report.html import format_number

_ANSWERS, _SIZE, _FILLER = 5, 4, 16
_CHANCES = np.round(np.arange(0.05, 1.0, 0.05), 2)
_AdvantageFunction = Callable[[Episodes], NDArray[np.float32]]


def _baselines(chance: float) -> dict[str, _AdvantageFunction]:
    """The critic is exact: it predicts the probability of a right answer."""

    def critic(episodes: Episodes) -> NDArray[np.float32]:
        expected = np.full(len(episodes), chance, np.float32)
        return gae(
            episodes, Values(value=expected, final=np.zeros_like(expected)), discount=1.0, gae_lambda=1.0
        ).advantage

    return {
        "none (REINFORCE)": lambda episodes: reward_as_advantage(episodes, NO_VALUES).advantage,
        "group mean": lambda episodes: group_relative(episodes, NO_VALUES, scale="none").advantage,
        "leave one out": lambda episodes: leave_one_out(episodes, NO_VALUES).advantage,
        "perfect critic": critic,
    }


def _gradient_moments(chance: float, wrong: Floats, *, filler: int) -> dict[str, tuple[float, float]]:
    """Share of the true gradient that is expected, and variance of a group's gradient when scaled to that mean.

    The first token decides: the policy picks the right one with `chance`, and `wrong` `[ANSWERS - 1]` distributes the
    rest. Then `filler` uniform tokens follow that change nothing: the gradient of their log-probability has mean 0,
    squared length 1 - 1/ANSWERS each, and is independent of the advantage.
    """
    policy = np.concatenate([[chance], (1 - chance) * wrong])
    groups = all_groups(_ANSWERS, _SIZE)
    weight = policy[groups].prod(axis=1)
    scores = (np.eye(_ANSWERS) - policy)[groups]  # gradient of each answer's log-probability
    true = chance * (np.eye(_ANSWERS)[0] - policy)
    moments: dict[str, tuple[float, float]] = {}
    for name, judge in _baselines(chance).items():
        advantage = group_advantages(judge, (groups == 0).astype(np.float64))
        slopes = (advantage[:, :, None] * scores).mean(axis=1)
        share = float((weight @ slopes) @ true / (true @ true))
        deciding = weight @ ((slopes / share - true) ** 2).sum(axis=1)
        idle = weight @ (advantage**2).sum(axis=1) * filler * (1 - 1 / _ANSWERS) / (_SIZE * share) ** 2
        moments[name] = (share, float(deciding + idle))
    return moments


def claims_of(
    moments: list[dict[str, tuple[float, float]]],
    shares: dict[str, float],
    easy: dict[str, float],
    hard: dict[str, float],
) -> list[BoundedClaim]:
    """Claims on shares of the gradient and variances by chance (`moments`), and at p = 0.9 (`easy`) and 0.1."""
    raw, mean, loo, critic = shares
    return [
        at_most(
            "REINFORCE, leave-one-out and critic miss the true gradient by",
            max(abs(each[name][0] - 1) for each in moments for name in (raw, loo, critic)),
            1e-5,
        ),
        at_most("group mean: share of the gradient off (G-1)/G by", abs(shares[mean] - 0.75), 1e-5),
        at_least("variance without a baseline over leave-one-out, p = 0.9", easy[raw] / easy[loo], 3),
        at_most("variance without a baseline over leave-one-out, p = 0.1", hard[raw] / hard[loo], 1),
        at_most("variance of a perfect critic over leave-one-out", easy[critic] / easy[loo], 0.9),
    ]


def _run(seed: int, *, quick: bool = False) -> ExperimentResult:
    chances = _CHANCES[1::4] if quick else _CHANCES
    wrong = generator(seed, "lab/baseline").dirichlet(np.ones(_ANSWERS - 1))
    moments = [_gradient_moments(float(chance), wrong, filler=_FILLER) for chance in chances]
    (_, hard), (_, easy) = (
        _by_name(_gradient_moments(0.1, wrong, filler=_FILLER)),
        _by_name(_gradient_moments(0.9, wrong, filler=_FILLER)),
    )
    shares, alone = _by_name(_gradient_moments(0.9, wrong, filler=0))
    raw, mean, loo, critic = shares
    return ExperimentResult(
        header=("baseline", "share of true gradient", "variance, p = 0.1", "p = 0.9", "p = 0.9, one token alone"),
        rows=[
            (name, f"{shares[name]:.3f}", *map(format_number, (hard[name], easy[name], alone[name]))) for name in shares
        ],
        panels=[
            line_plot(
                f"variance of a group's gradient at equal mean, {_FILLER + 1} tokens",
                "probability of a right answer",
                chances,
                {name: [each[name][1] for each in moments] for name in shares},
                log_y=True,
            )
        ],
        verdict=(
            f"At an equal expected gradient and with one deciding token of {_FILLER + 1}, the gradient without a "
            f"baseline has {easy[raw] / easy[loo]:.1f} times the variance of leave-one-out at p = 0.9, but "
            f"{hard[raw] / hard[loo]:.2f} times at p = 0.1 (and {alone[raw] / alone[loo]:.4f} times at p = 0.9 if the "
            f"answer is the deciding token alone). A perfect critic has {easy[critic] / easy[loo]:.2f} times, and the "
            f"plain group mean is leave-one-out times {shares[mean]:.2f}."
        ),
        claims=claims_of(moments, shares, easy, hard),
    )


def _by_name(moments: dict[str, tuple[float, float]]) -> tuple[dict[str, float], dict[str, float]]:
    """Shares and variances by name."""
    return {name: pair[0] for name, pair in moments.items()}, {name: pair[1] for name, pair in moments.items()}


EXPERIMENT = Experiment(
    title="Variance of baselines",
    question="How much variance remains with no baseline, the group's mean, leave-one-out and a critic?",
    run=_run,
    source="Williams, 1992; Ahmadian et al., 2024",
)
