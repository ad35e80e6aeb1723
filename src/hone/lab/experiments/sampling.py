"""One expectation, four estimators: the value of a policy, estimated from samples of an older one."""

import numpy as np
import torch

from hone.core.random import generator
from hone.lab.finding import Experiment, ExperimentResult, at_least, at_most, line_plot
from hone.lab.policies import sample_rows
from hone.lab.puzzles import Floats
from hone.objectives.policy import ratio
from hone.report.html import format_number

OUTCOMES, DRAWS = 30, 64
ESTIMATORS = ("Monte Carlo (fresh samples)", "importance", "self-normalised", "truncated at 2", "rejection")


def estimates(now: Floats, then: Floats, worth: Floats, *, draws: np.random.Generator, tries: int) -> dict[str, Floats]:
    """`[tries]` estimates of E_now[worth] by each estimator from `DRAWS` outcomes; log-probabilities `[OUTCOMES]`."""
    size = tries * DRAWS
    fresh = sample_rows(np.broadcast_to(np.exp(now), (size, OUTCOMES)), draws.random(size)).reshape(tries, DRAWS)
    old = sample_rows(np.broadcast_to(np.exp(then), (size, OUTCOMES)), draws.random(size)).reshape(tries, DRAWS)
    weight = ratio(torch.from_numpy(now[old]), torch.from_numpy(then[old])).numpy()
    most = float(np.exp(now - then).max())
    kept = draws.random((tries, DRAWS)) * most < weight
    accepted = np.maximum(kept.sum(axis=1), 1)
    paid = worth[old]
    return {
        ESTIMATORS[0]: worth[fresh].mean(axis=1),
        ESTIMATORS[1]: (weight * paid).mean(axis=1),
        ESTIMATORS[2]: (weight * paid).sum(axis=1) / weight.sum(axis=1),
        ESTIMATORS[3]: (np.minimum(weight, 2.0) * paid).mean(axis=1),
        ESTIMATORS[4]: np.where(kept.any(axis=1), (kept * paid).sum(axis=1) / accepted, paid.mean(axis=1)),
    }


def run(seed: int, *, quick: bool = False) -> ExperimentResult:
    """Run the experiment."""
    tries = 400 if quick else 4000
    moves = np.array([0.0, 0.5, 1.0, 1.8]) if quick else np.linspace(0, 1.8, 10)
    chance = generator(seed, "lab/sampling")
    start, direction = chance.standard_normal((2, OUTCOMES))
    worth = 1.0 + chance.standard_normal(OUTCOMES)
    then = start - np.log(np.exp(start).sum())
    kls: list[float] = []
    errors: dict[str, list[float]] = {way: [] for way in ESTIMATORS}
    bias: dict[str, float] = {}
    effective, accepted = 1.0, 1.0
    for k, move in enumerate(moves):
        logits = start + move * direction
        now = logits - np.log(np.exp(logits).sum())
        true = float(np.exp(now) @ worth)
        kls.append(float(np.exp(now) @ (now - then)))
        for way, result in estimates(now, then, worth, draws=generator(seed, "lab/draws", k), tries=tries).items():
            errors[way].append(float(np.sqrt(((result - true) ** 2).mean())))
            bias[way] = float((result.mean() - true) / (result.std() / np.sqrt(tries)))
        effective = float(1 / (np.exp(now) @ np.exp(now - then)))
        accepted = float(1 / np.exp(now - then).max())
    last = {way: errors[way][-1] for way in ESTIMATORS}
    fresh, weighted, normalised, truncated, rejected = ESTIMATORS
    claims = [
        at_most("bias of importance sampling, in standard errors", abs(bias[weighted]), 4.0),
        at_least("bias of truncated weights, in standard errors", abs(bias[truncated]), 5.0),
        at_least("error of importance sampling over fresh samples, far away", last[weighted] / last[fresh], 1.5),
        at_most("error of self-normalised over plain weights, far away", last[normalised] / last[weighted], 1.0),
        at_least("error of rejection over fresh samples, far away", last[rejected] / last[fresh], 1.5),
        at_most("spread of errors without off-policy shift", _spread(errors), 0.2),
    ]
    return ExperimentResult(
        header=("estimator", f"error at {kls[0]:.2f} nats", f"error at {kls[-1]:.2f} nats", "bias there, in SE"),
        rows=[
            (way, format_number(errors[way][0]), format_number(last[way]), format_number(round(bias[way], 1)))
            for way in ESTIMATORS
        ],
        panels=[line_plot(f"error with {DRAWS} samples", "KL(policy || behaviour policy), nats", kls, errors)],
        verdict=(
            f"At {kls[-1]:.2f} nats from the behaviour policy, {DRAWS} weighted samples are worth "
            f"{effective * DRAWS:.0f} fresh ones. The error of importance sampling is "
            f"{last[weighted] / last[fresh]:.1f} times that of fresh samples, of self-normalised weights "
            f"{last[normalised] / last[fresh]:.1f} times, of rejection sampling (which keeps {accepted:.0%}) "
            f"{last[rejected] / last[fresh]:.1f} times. Truncating weights at 2 gives a bias of "
            f"{abs(bias[truncated]):.0f} standard errors."
        ),
        claims=claims,
        figures={"effective_share": effective, "accepted_share": accepted},
    )


def _spread(errors: dict[str, list[float]]) -> float:
    """Relative spread of the first errors."""
    first = [result[0] for result in errors.values()]
    return max(first) / min(first) - 1


EXPERIMENT = Experiment(
    title="Monte Carlo, importance and rejection sampling",
    question="How accurate are estimates of a policy's value from samples of an older policy?",
    run=run,
)
