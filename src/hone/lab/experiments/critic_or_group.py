"""A critic or the group's mean as baseline: noise of the gradient at the same expected gradient, by critics of growing
knowledge."""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hone.core.credit import NO_VALUES, Credits, Values
from hone.core.random import generator
from hone.credit.group import leave_one_out
from hone.credit.returns import decoupled_gae
from hone.lab.exact import scored_episodes
from hone.lab.finding import BoundedClaim, Experiment, ExperimentResult, at_least, at_most, bar_plot
from hone.lab.puzzles import Floats

_STEPS, _GROUP = 8, 8
GROUP_MEAN: Final = "mean of the other answers"
_BLIND, _POSITION, _PROMPT, _ERRORS = "one number", "position", "position and prompt", "position, prompt and errors"
_NOISY: Final = "all that, and noise"
CRITICS = (_BLIND, _POSITION, _PROMPT, _ERRORS, _NOISY)
"""Baselines: the group's, and critics by what they know."""
_PAID_BY_STEP, _PAID_AT_END = "each right step", "the whole chain"
_NOISE = 1.5
"""Standard deviation of the noisy critic's errors, in standard deviations of the returns."""


@dataclass(frozen=True, slots=True)
class _ChainAnswers:
    """E answers of `_STEPS` steps; a step is right with the probability of its prompt, and counts while all before it
    are."""

    chance: Floats
    """`[E]`."""
    right: NDArray[np.bool_]
    """`[E, STEPS]` each step by itself."""

    @property
    def alive(self) -> Floats:
        """`[E, STEPS + 1]` 1 while no step before was wrong."""
        ones = np.ones((len(self.chance), 1))
        return np.concatenate([ones, np.cumprod(self.right, axis=1)], axis=1).astype(np.float64)

    def rewards(self, paid: str) -> Floats:
        """`[E, STEPS]` of each step, or of the whole chain at its end."""
        counted = self.alive[:, 1:]
        return counted if paid == _PAID_BY_STEP else counted * (np.arange(_STEPS) == _STEPS - 1)

    def values(self, paid: str) -> Floats:
        """`[E, STEPS]` exact expected rewards from each step on, given that none before was wrong."""
        left = _STEPS - np.arange(_STEPS)
        p = self.chance[:, None]
        return p * (1 - p**left) / (1 - p) if paid == _PAID_BY_STEP else p**left


def _predictions(answers: _ChainAnswers, paid: str, *, seed: int) -> dict[str, Floats]:
    """Values `[E, STEPS]` by each critic of `CRITICS`: the expected return given what it knows."""
    alive, exact = answers.alive[:, :_STEPS], answers.values(paid)
    known = exact * alive
    returns = np.cumsum(answers.rewards(paid)[:, ::-1], axis=1)[:, ::-1]
    by_prompt = exact * answers.chance[:, None] ** np.arange(_STEPS)
    noise = _NOISE * returns.std() * generator(seed, "lab/critic-noise").standard_normal(known.shape)
    return {
        _BLIND: np.full_like(known, known.mean()),
        _POSITION: np.broadcast_to(known.mean(axis=0), known.shape),
        _PROMPT: by_prompt,
        _ERRORS: known,
        _NOISY: known + noise,
    }


def _gradient_errors(answers: _ChainAnswers, credits: Credits, paid: str, groups: int) -> tuple[float, float]:
    """Variance of the gradient per answer, and squared bias, both in the squared length of the true gradient and as
    means over prompts.

    The gradient is in the logits of the steps. The true one at step t is p^t (1 - p) V_t: to be alive there, times what
    the right choice is worth more than the wrong one, times p (1 - p), which is the slope of p.
    """
    p = answers.chance.reshape(-1, groups, _GROUP)[:, 0, 0]
    first = answers.values(paid).reshape(len(p), -1, _STEPS)[:, 0]
    true = p[:, None] ** np.arange(_STEPS) * (1 - p[:, None]) * first
    slope = answers.right - answers.chance[:, None]
    gradient = (credits.advantage.reshape(slope.shape) * slope).reshape(len(p), groups, _GROUP, _STEPS).mean(axis=2)
    size = (true**2).sum(axis=1)
    variance = _GROUP * gradient.var(axis=1, ddof=1).sum(axis=1)
    bias = ((gradient.mean(axis=1) - true) ** 2).sum(axis=1) - variance / (_GROUP * groups)
    return float((variance / size).mean()), float((bias / size).mean())


@dataclass(frozen=True, slots=True)
class BaselineErrors:
    """Errors of one baseline."""

    explained: float
    """Explained variance of the returns; NaN for the group's mean."""
    variance: tuple[float, float]
    """Variance of the gradient per answer with lambda 1 and 0."""
    bias: tuple[float, float]
    """Squared bias with lambda 1 and 0."""


def _errors_by_baseline(prompts: int, groups: int, paid: str, *, seed: int) -> dict[str, BaselineErrors]:
    """Errors of the group's mean (whose lambda is 1) and of every critic, on `groups` groups of `_GROUP` answers to
    each of `prompts` prompts of different difficulty."""
    draws = generator(seed, "lab/critic-or-group")
    chance = np.repeat(draws.uniform(0.6, 0.95, prompts), groups * _GROUP)
    answers = _ChainAnswers(chance, draws.random((len(chance), _STEPS)) < chance[:, None])
    rewards, numbers = answers.rewards(paid), np.repeat(np.arange(len(chance) // _GROUP), _GROUP)
    episodes = scored_episodes(rewards.sum(axis=1), numbers, lengths=np.full(len(chance), _STEPS))
    episodes = replace(episodes, reward=rewards.reshape(-1).astype(np.float32))
    variance, bias = _gradient_errors(answers, leave_one_out(episodes, NO_VALUES), paid, groups)
    measured = {GROUP_MEAN: BaselineErrors(float("nan"), (variance, variance), (bias, bias))}
    for name, value in _predictions(answers, paid, seed=seed).items():
        values = Values(value=value.reshape(-1).astype(np.float32), final=np.zeros(len(episodes), np.float32))
        whole, step = (decoupled_gae(episodes, values, policy_lambda=decay) for decay in (1.0, 0.0))
        pairs = [_gradient_errors(answers, credits, paid, groups) for credits in (whole, step)]
        measured[name] = BaselineErrors(
            whole.metrics["critic/explained_variance"], (pairs[0][0], pairs[1][0]), (pairs[0][1], pairs[1][1])
        )
    return measured


def claims_of(by_step: dict[str, BaselineErrors], at_end: dict[str, BaselineErrors]) -> list[BoundedClaim]:
    """Claims on the errors of all baselines, with rewards per step and with one score at the end."""
    steps = by_step[_ERRORS].variance[0] / by_step[GROUP_MEAN].variance[0]
    group = at_end[GROUP_MEAN].variance[0]
    informed, noisy = at_end[_ERRORS].variance[1] / group, at_end[_NOISY].variance[0] / group
    return [
        at_most("rewards per step: variance with a critic that knows errors, over the group's mean", steps, 0.7),
        at_most("one score: variance with that critic and lambda 0, over the group's mean", informed, 0.7),
        at_most("one score: its squared bias with lambda 0", at_end[_ERRORS].bias[1], 0.05),
        at_least("one score: squared bias with lambda 0 of a critic that sees no errors", at_end[_PROMPT].bias[1], 0.3),
        at_most("explained variance of the noisy critic", at_end[_NOISY].explained, 0.0),
        at_least("one score: variance with the noisy critic, over the group's mean", noisy, 3.0),
    ]


def _run(seed: int, *, quick: bool = False) -> ExperimentResult:
    prompts, groups = (24, 80) if quick else (60, 500)
    by_step, at_end = (_errors_by_baseline(prompts, groups, paid, seed=seed) for paid in (_PAID_BY_STEP, _PAID_AT_END))
    group, best, blind, noisy = (at_end[name] for name in (GROUP_MEAN, _ERRORS, _PROMPT, _NOISY))
    steps = by_step[_ERRORS].variance[0] / by_step[GROUP_MEAN].variance[0]
    return ExperimentResult(
        header=(
            "baseline knows", "explained, per step", "variance, lambda 1", "lambda 0", "explained, at the end",
            "variance, lambda 1", "lambda 0", "squared bias, lambda 0",
        ),
        rows=[
            (name, *_cells(by_step[name]), *_cells(at_end[name]), f"{at_end[name].bias[1]:.2f}") for name in by_step
        ],
        panels=[
            bar_plot(
                f"variance of the gradient per answer, {paid} pays",
                {
                    f"{name}, lambda {decay}": errors.variance[1 - decay]
                    for name, errors in measured.items()
                    for decay in ((1,) if name == GROUP_MEAN else (1, 0))
                    if name != _NOISY
                },
            )
            for paid, measured in ((_PAID_BY_STEP, by_step), (_PAID_AT_END, at_end))
        ],
        verdict=(
            f"With rewards per step a critic that knows errors has {steps:.2f} times the variance of the group's mean; "
            f"with one score at the end {best.variance[0] / group.variance[0]:.2f} times with lambda 1, and "
            f"{best.variance[1] / group.variance[0]:.2f} times with lambda 0, where it stays unbiased (squared bias "
            f"{max(best.bias[1], 0.0):.3f}). A critic that sees no errors is biased there ({blind.bias[1]:.2f}), and "
            f"one whose explained variance is {noisy.explained:.1f} has "
            f"{noisy.variance[0] / group.variance[0]:.0f} times the variance."
        ),
        claims=claims_of(by_step, at_end),
    )  # fmt: skip


def _cells(errors: BaselineErrors) -> tuple[str, str, str]:
    """Explained variance, and variance with lambda 1 and 0; the group's mean has neither a critic nor a lambda."""
    if np.isnan(errors.explained):
        return "-", f"{errors.variance[0]:.1f}", "-"
    return f"{errors.explained:.2f}", f"{errors.variance[0]:.1f}", f"{errors.variance[1]:.1f}"


EXPERIMENT = Experiment(
    title="Critic or group",
    question="When does a critic make the gradient less noisy than the mean of a group of answers?",
    run=_run,
    source="Schulman et al., 2016; Shao et al., 2024; Yuan et al. (VC-PPO), 2025",
)
