"""One expectation, four estimators: the value of a policy, estimated from samples of an older one."""

import numpy as np
import torch

from hone.core.random import generator
from hone.lab.finding import BoundedClaim, Experiment, ExperimentResult, at_least, at_most, line_plot
from hone.lab.policies import sample_rows
from hone.lab.puzzles import Floats, geometric_mean
from hone.objectives.policy import ratio

_OUTCOMES, DRAWS = 30, 64
_ESTIMATORS = ("Monte Carlo (fresh samples)", "importance", "self-normalised", "truncated at 2", "rejection")


def _estimates(
    now: Floats, then: Floats, worth: Floats, *, draws: np.random.Generator, tries: int
) -> dict[str, Floats]:
    """`[tries]` estimates of E_now[worth] by each estimator from `DRAWS` outcomes; log-probabilities `[OUTCOMES]`."""
    size = tries * DRAWS
    fresh = sample_rows(np.broadcast_to(np.exp(now), (size, _OUTCOMES)), draws.random(size)).reshape(tries, DRAWS)
    old = sample_rows(np.broadcast_to(np.exp(then), (size, _OUTCOMES)), draws.random(size)).reshape(tries, DRAWS)
    weight = ratio(torch.from_numpy(now[old]), torch.from_numpy(then[old])).numpy()
    most = float(np.exp(now - then).max())
    kept = draws.random((tries, DRAWS)) * most < weight
    accepted = np.maximum(kept.sum(axis=1), 1)
    paid = worth[old]
    return {
        _ESTIMATORS[0]: worth[fresh].mean(axis=1),
        _ESTIMATORS[1]: (weight * paid).mean(axis=1),
        _ESTIMATORS[2]: (weight * paid).sum(axis=1) / weight.sum(axis=1),
        _ESTIMATORS[3]: (np.minimum(weight, 2.0) * paid).mean(axis=1),
        _ESTIMATORS[4]: np.where(kept.any(axis=1), (kept * paid).sum(axis=1) / accepted, paid.mean(axis=1)),
    }


def _one_problem(seed: int, case: int, moves: Floats, *, tries: int) -> tuple[Floats, Floats, Floats]:
    """KL of each policy to the behaviour policy `[moves]`; error `[estimators, moves]` of each estimator, the root of
    its mean square; and its bias at the last policy `[estimators]`, in standard errors.
    """
    chance = generator(seed, "lab/sampling", case)
    start, direction = chance.standard_normal((2, _OUTCOMES))
    worth = 1.0 + chance.standard_normal(_OUTCOMES)
    then = start - np.log(np.exp(start).sum())
    kls, errors, bias = np.empty(len(moves)), np.empty((len(_ESTIMATORS), len(moves))), np.empty(len(_ESTIMATORS))
    for k, move in enumerate(moves):
        logits = start + move * direction
        now = logits - np.log(np.exp(logits).sum())
        true = float(np.exp(now) @ worth)
        kls[k] = np.exp(now) @ (now - then)
        measured = _estimates(now, then, worth, draws=generator(seed, "lab/draws", case * len(moves) + k), tries=tries)
        for row, result in enumerate(measured.values()):
            errors[row, k] = np.sqrt(((result - true) ** 2).mean())
            bias[row] = (result.mean() - true) / (result.std() / np.sqrt(tries))
    return kls, errors, bias


def claims_of(over_fresh: dict[str, Floats], bias: dict[str, Floats], apart: float) -> list[BoundedClaim]:
    """Claims on the errors over that of fresh samples `[problems]` far away, on the biases `[problems]` in standard
    errors there, and on the relative difference `apart` of the estimators' errors at the behaviour policy itself.
    """
    _, weighted, normalised, truncated, rejected = _ESTIMATORS
    return [
        at_most("bias of importance sampling, root mean square in standard errors", _size(bias[weighted]), 2.0),
        at_least("the same of truncated weights", _size(bias[truncated]), 3.0),
        *(
            at_least(f"error over fresh samples, far away, {way}", geometric_mean(over_fresh[way]), 1.2)
            for way in (weighted, normalised, rejected)
        ),
        at_most("difference of the estimators' errors without off-policy shift", apart, 0.1),
    ]


def _run(seed: int, *, quick: bool = False) -> ExperimentResult:
    tries, problems = (100, 12) if quick else (400, 24)
    moves = np.array([0.0, 0.5, 1.0, 1.8]) if quick else np.linspace(0, 1.8, 7)
    measured = [_one_problem(seed, case, moves, tries=tries) for case in range(problems)]
    kls = np.mean([kl for kl, _, _ in measured], axis=0)
    errors = {way: np.array([error[row] for _, error, _ in measured]) for row, way in enumerate(_ESTIMATORS)}
    bias = {way: np.array([each[row] for _, _, each in measured]) for row, way in enumerate(_ESTIMATORS)}
    fresh, weighted, normalised, truncated, rejected = _ESTIMATORS
    over_fresh = {way: each[:, -1] / errors[fresh][:, -1] for way, each in errors.items()}
    plain = geometric_mean(over_fresh[weighted])
    at_start = [geometric_mean(each[:, 0]) for each in errors.values()]
    better = float((over_fresh[normalised] < over_fresh[weighted]).mean())
    return ExperimentResult(
        header=("estimator", "error over fresh samples", "least", "largest", "bias, in SE"),
        rows=[
            (way, f"{geometric_mean(times):.2f}", f"{times.min():.2f}", f"{times.max():.2f}", f"{_size(bias[way]):.1f}")
            for way, times in over_fresh.items()
        ],
        panels=[line_plot(f"error with {DRAWS} samples, {problems} problems", "mean KL(policy || behaviour), nats", kls,
                          errors)],
        verdict=(
            f"In {problems} random problems, {kls[-1]:.2f} nats on average from the behaviour policy, the error of "
            f"importance sampling is {plain:.1f} times that of fresh samples (geometric mean; "
            f"{over_fresh[weighted].min():.1f} to {over_fresh[weighted].max():.1f}), of self-normalised weights "
            f"{geometric_mean(over_fresh[normalised]):.1f} times, and of rejection sampling "
            f"{geometric_mean(over_fresh[rejected]):.1f} times. {DRAWS} samples with plain weights have the error of "
            f"{DRAWS / plain**2:.0f} fresh ones. Self-normalised weights have the "
            f"smaller error of the two in {better:.0%} of the problems. Truncating weights at 2 gives a bias of "
            f"{_size(bias[truncated]):.0f} standard errors."
        ),
        claims=claims_of(over_fresh, bias, max(at_start) / min(at_start) - 1),
        figures={"self_normalised_better_share": better},
    )  # fmt: skip


def _size(values: Floats) -> float:
    """Root mean square."""
    return float(np.sqrt((values**2).mean()))


EXPERIMENT = Experiment(
    title="Monte Carlo, importance and rejection sampling",
    question="How accurate are estimates of a policy's value from samples of an older policy?",
    run=_run,
)
