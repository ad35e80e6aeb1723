"""Monte Carlo, one-step targets and GAE between them: bias and variance against exact values of small environments."""

from dataclasses import replace

import numpy as np

from hone.core.credit import Values
from hone.core.episodes import Episodes
from hone.core.random import generator
from hone.credit.returns import gae
from hone.lab.exact import scored_episodes
from hone.lab.finding import BoundedClaim, Experiment, ExperimentResult, at_least, at_most, line_plot
from hone.lab.puzzles import Floats
from hone.run.report.html import format_number

_STATES, _FORWARD, _NOISE, _DISCOUNT = 8, 0.6, 1.0, 0.98
_CRITIC_ERROR, _CASES = 2.0, 8
_DECAYS = (0.0, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 1.0)


def _random_walks(pay: Floats, *, seed: int, case: int, count: int) -> Episodes:
    """`count` walks from evenly spread first states to the end; rewards are `pay` of the state plus noise."""
    draws = generator(seed, "lab/walk", case)
    first = np.arange(count) % _STATES
    stays = 1 + draws.geometric(_FORWARD, size=(count, _STATES)) - 1  # steps spent in each state
    stays[np.arange(_STATES)[None] < first[:, None]] = 0
    lengths = stays.sum(axis=1)
    states = np.repeat(np.tile(np.arange(_STATES), count), stays.reshape(-1))
    reward = pay[states] + _NOISE * draws.standard_normal(len(states))
    episodes = scored_episodes(np.zeros(count), first, lengths=lengths)
    return replace(episodes, seen=states[:, None], reward=reward.astype(np.float32))


def _bias_and_variance(*, seed: int, case: int, count: int) -> tuple[Floats, Floats]:
    """Squared bias and variance of the value target of first states, for each of `_DECAYS`, in a random environment."""
    draws = generator(seed, "lab/chain", case)
    pay, error = draws.uniform(-1, 1, _STATES), _CRITIC_ERROR * draws.standard_normal(_STATES)
    # Values of the states `[STATES]`, V = (I - discount P)^-1 pay.
    moves = (1 - _FORWARD) * np.eye(_STATES) + _FORWARD * np.eye(_STATES, k=1)
    true = np.asarray(np.linalg.solve(np.eye(_STATES) - _DISCOUNT * moves, pay), np.float64)
    episodes = _random_walks(pay, seed=seed, case=case, count=count)
    states = episodes.observations[:, 0].astype(np.int64)
    critic = Values(value=(true + error)[states].astype(np.float32), final=np.zeros(count, np.float32))
    first = episodes.offsets[:-1]
    bias, variance = np.empty(len(_DECAYS)), np.empty(len(_DECAYS))
    for k, decay in enumerate(_DECAYS):
        target = gae(episodes, critic, discount=_DISCOUNT, gae_lambda=decay).target
        assert target is not None
        off = target[first].astype(np.float64) - true[states[first]]
        by_state = [off[episodes.group == state] for state in range(_STATES)]
        bias[k] = np.mean([some.mean() ** 2 for some in by_state])
        variance[k] = np.mean([some.var() for some in by_state])
    return bias, variance


def claims_of(bias: Floats, variance: Floats, total: Floats, best: int) -> list[BoundedClaim]:
    """Claims on squared bias, variance and squared error by lambda `[DECAYS]`; `best` has the least error."""
    return [
        at_most("squared bias of Monte Carlo over one-step", bias[-1] / bias[0], 0.05),
        at_least("variance of Monte Carlo over one-step", variance[-1] / variance[0], 2.0),
        at_most("best squared error over one-step", total[best] / total[0], 0.98),
        at_most("best squared error over Monte Carlo", total[best] / total[-1], 0.9),
    ]


def _run(seed: int, *, quick: bool = False) -> ExperimentResult:
    count = 4000 if quick else 20_000
    result = [_bias_and_variance(seed=seed, case=case, count=count) for case in range(_CASES)]
    bias, variance = np.mean([b for b, _ in result], axis=0), np.mean([v for _, v in result], axis=0)
    total = bias + variance
    best = int(total.argmin())
    return ExperimentResult(
        header=("lambda", "squared bias", "variance", "squared error"),
        rows=[
            (format_number(decay), format_number(float(b)), format_number(float(v)), format_number(float(b + v)))
            for decay, b, v in zip(_DECAYS, bias, variance, strict=True)
        ],
        panels=[
            line_plot(
                "error of a value target, with an inaccurate critic",
                "lambda (0: one step, 1: Monte Carlo)",
                _DECAYS,
                {"squared bias": bias, "variance": variance, "squared error": total},
            )
        ],
        verdict=(
            f"With a critic error of {_CRITIC_ERROR} (standard deviation), the one-step target has a squared bias of "
            f"{bias[0]:.2f} and a variance of {variance[0]:.2f}, Monte Carlo {bias[-1]:.3f} and {variance[-1]:.2f}. "
            f"lambda = {_DECAYS[best]} has the lowest squared error, {total[best]:.2f} against {total[0]:.2f} and "
            f"{total[-1]:.2f}."
        ),
        claims=claims_of(bias, variance, total, best),
    )


EXPERIMENT = Experiment(
    title="Monte Carlo, temporal difference, GAE",
    question="How do bias and variance of value targets change from one step to the full return?",
    run=_run,
    source="Sutton, 1988; Schulman et al., 2016",
)
