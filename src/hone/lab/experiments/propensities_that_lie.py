"""Propensities that lie: the executed action logged with the chooser's probability biases every weighted estimate."""

import numpy as np

from hone.core.decisions import Floats
from hone.core.random import generator
from hone.decide.estimators.rules import RefusalRules
from hone.decide.estimators.terms import LoggedFeedback, doubly_robust, inverse_propensity, self_normalised
from hone.lab.finding import BoundedClaim, Experiment, ExperimentResult, at_least, at_most, bar_plot

_ACTIONS, _SAFE, _CHECKED = 4, 0, 3
"""Actions; the action that a check falls back to; the action that is checked."""
_FAILS = 0.74
"""Share of the checks that fail: 18.5% of all choices are overridden."""
_MEAN_REWARD = np.array([0.74, 0.6, 0.7, 0.8])
_CHOOSER = np.full(_ACTIONS, 1 / _ACTIONS)
_TARGET = np.array([0.31, 0.2, 0.34, 0.15])
_WAYS = ("chooser's probability", "executed action's probability")


def _logged_decisions(way: str, *, seed: int, run: int, n: int) -> LoggedFeedback:
    """n decisions whose action a check replaces in 18.5% of the cases; `way`: the probability that is logged."""
    random = generator(seed, "propensities that lie", run, n)
    chosen = random.choice(_ACTIONS, size=n, p=_CHOOSER)
    action = np.where((chosen == _CHECKED) & (random.random(n) < _FAILS), _SAFE, chosen)
    logged, moved = _CHOOSER.copy(), _FAILS * _CHOOSER[_CHECKED]
    if way != _WAYS[0]:  # the chooser's probabilities, pushed through the check
        logged[_SAFE] += moved
        logged[_CHECKED] -= moved
    probability = logged[action]
    return LoggedFeedback(
        contexts=np.zeros((n, 1)),
        action=action,
        logp=np.log(probability),
        reward=(random.random(n) < _MEAN_REWARD[action]).astype(np.float64),
        target_logp=np.log(np.tile(_TARGET, (n, 1))),
        unit=np.arange(n),
    )


def _relative_errors(way: str, *, seed: int, runs: int, n: int) -> tuple[dict[str, Floats], float]:
    """Relative error of each estimator in each run `[runs]`, and the share of the logs that are refused."""
    truth = float(_TARGET @ _MEAN_REWARD)
    model = np.tile(_MEAN_REWARD * 0.9, (n, 1))
    errors: dict[str, list[float]] = {"ips": [], "snips": [], "dr": []}
    refused = 0
    for run in range(runs):
        logged = _logged_decisions(way, seed=seed, run=run, n=n)
        parts = (inverse_propensity(logged), self_normalised(logged), doubly_robust(logged, model))
        for name, terms in zip(errors, parts, strict=True):
            errors[name].append(terms.value / truth - 1)
        reasons, _ = RefusalRules().audit_weights(logged)
        refused += any(reason.verdict == "refuse" for reason in reasons)
    return {name: np.array(values) for name, values in errors.items()}, refused / runs


def claims_of(lying: dict[str, Floats], honest: dict[str, Floats], refused: dict[str, float]) -> list[BoundedClaim]:
    """Claims on the biases of both ways, and on the logs that the rules refuse."""
    return [
        at_least("bias of IPS with the chooser's probability", float(lying["ips"].mean()), 0.05),
        at_most("bias of IPS with the executed action's", abs(float(honest["ips"].mean())), 0.01),
        at_least("share of lying logs that are refused", refused[_WAYS[0]], 0.9),
        at_most("share of honest logs that are refused", refused[_WAYS[1]], 0.1),
    ]


def _run(seed: int, *, quick: bool = False) -> ExperimentResult:
    runs, n = (30, 8_000) if quick else (100, 20_000)
    measured, refused = {}, {}
    for way in _WAYS:
        measured[way], refused[way] = _relative_errors(way, seed=seed, runs=runs, n=n)
    lying, honest, overridden = measured[_WAYS[0]], measured[_WAYS[1]], _FAILS * float(_CHOOSER[_CHECKED])
    return ExperimentResult(
        header=("logged with the action", "IPS", "SNIPS", "DR, a wrong model", "logs refused"),
        rows=[
            (way, *(f"{measured[way][name].mean():+.1%}" for name in ("ips", "snips", "dr")), f"{refused[way]:.0%}")
            for way in _WAYS
        ],
        panels=[
            bar_plot("relative error of the estimated value", {
                f"{name}, {way}": measured[way][name] for way in _WAYS for name in ("ips", "snips", "dr")
            }),
        ],
        verdict=(
            f"A check overrides {overridden:.1%} of the choices. Logged with the chooser's probability, the executed "
            f"action biases IPS by {lying['ips'].mean():+.1%}, with its own by {honest['ips'].mean():+.1%}. "
            f"The mean weight betrays it: {refused[_WAYS[0]]:.0%} of the lying logs are refused, and "
            f"{refused[_WAYS[1]]:.0%} of the honest ones."
        ),
        claims=claims_of(lying, honest, refused),
        figures={"value": float(_TARGET @ _MEAN_REWARD), "share overridden": overridden},
    )  # fmt: skip


EXPERIMENT = Experiment(
    title="Propensities that lie",
    question="What does it cost to log an overridden action with the probability of the choice?",
    run=_run,
    source="Agarwal et al., 2016",
)
