"""Eligibility traces: the best lambda on the random walk of 19 states, whose values are known."""

import numpy as np

from hone.control.finite.build import chain_mdp
from hone.control.finite.model import FiniteMdp
from hone.control.finite.solve import evaluate_policy
from hone.control.finite.world import FiniteWorld
from hone.control.tables.kernels import ACCUMULATING, DUTCH
from hone.control.tables.learn import EligibilityTraces, RateConfig, TabularLearner, expected_sarsa_weights
from hone.control.tables.tables import StateValues
from hone.control.tabular import StationaryActor
from hone.core.credit import NO_VALUES
from hone.core.episodes import Episodes
from hone.core.errors import DivergedError
from hone.credit.returns import one_step_target
from hone.lab.finding import BoundedClaim, Experiment, ExperimentResult, at_least, at_most, line_plot
from hone.lab.puzzles import Floats
from hone.run.report.html import format_number
from hone.sources.live import LiveSource

STATES, EPISODES = 19, 10
_DECAYS = (0.0, 0.4, 0.8, 0.9, 0.95, 1.0)
RATES = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1.0)
KINDS = {"accumulating": ACCUMULATING, "dutch": DUTCH}
_FAR = 1.0
"""Errors are clipped here: a diverging method counts as 1, the error of always predicting the value of one end."""


def random_walks(mdp: FiniteMdp, *, seed: int, runs: int) -> list[list[Episodes]]:
    """`EPISODES` walks to an end for each of `runs` runs, under the uniform policy; they are shared by all methods."""
    uniform = StateValues(np.full((mdp.states, 2), 0.5))
    world = FiniteWorld(mdp=mdp, steps=400 * EPISODES, seed=seed, copies=runs)
    lived = LiveSource(world, StationaryActor(uniform.numpy_policy())).collect()
    # Pieces of a copy are contiguous: its walks begin at the first piece with its number.
    begins = np.flatnonzero(lived.group < runs)
    return [[lived.take(np.array([begin + k])) for k in range(EPISODES)] for begin in begins]


def walk_error(
    mdp: FiniteMdp, runs: list[list[Episodes]], true: Floats, *, decay: float, trace: int, rate: float
) -> Floats:
    """Root mean squared error over states, a mean over walks, of each run `[runs]`; larger ones count as `_FAR`."""
    result = np.empty((len(runs), EPISODES))
    for number_, walks_ in enumerate(runs):
        values = StateValues(np.full((mdp.states, 2), 0.5))
        learner = TabularLearner(
            values,
            EligibilityTraces(decay=decay, trace=trace, next_weights=expected_sarsa_weights),
            RateConfig(rate=rate),
        )
        for k, walk in enumerate(walks_):
            try:
                learner.update(walk, one_step_target(walk, NO_VALUES, discount=1.0))
            except DivergedError:
                result[number_, k:] = _FAR
                break
            off = values.v - true
            result[number_, k] = _FAR if np.abs(off).max() > 1e3 else min(_FAR, float(np.sqrt((off**2).mean())))
    return result.mean(axis=1)


def claims_of(best: dict[str, Floats], worst: dict[str, float]) -> list[BoundedClaim]:
    """Claims on the lowest error over step sizes by lambda `[DECAYS]`, and on the error at a large step size, by kind
    of trace.
    """
    dutch, accumulating = best["dutch"], best["accumulating"]
    return [
        at_most("best error, dutch, over that of lambda = 0", dutch.min() / dutch[0], 0.95),
        at_most("best error, dutch, over that of lambda = 1", dutch.min() / dutch[-1], 0.9),
        at_most("best error, dutch over accumulating", dutch.min() / accumulating.min(), 1.05),
        at_least(
            "error of accumulating over dutch, lambda = 0.9, step size 0.8", worst["accumulating"] / worst["dutch"], 1.2
        ),
    ]


def _run(seed: int, *, quick: bool = False) -> ExperimentResult:
    mdp = chain_mdp(STATES, discount=1.0, small=-1.0, large=1.0)
    true = evaluate_policy(mdp, np.full((mdp.states, 2), 0.5))
    runs = random_walks(mdp, seed=seed, runs=4 if quick else 30)
    every = {
        name: np.array([[walk_error(mdp, runs, true, decay=d, trace=kind, rate=r) for r in RATES] for d in _DECAYS])
        for name, kind in KINDS.items()
    }
    table = {name: errors.mean(axis=2) for name, errors in every.items()}
    best = {name: errors.min(axis=1) for name, errors in table.items()}
    of_runs = {  # the error of each run `[runs, DECAYS]` at the step size with the lowest mean
        name: errors[np.arange(len(_DECAYS)), errors.mean(axis=2).argmin(axis=1)].T for name, errors in every.items()
    }
    at = {name: int(errors.argmin()) for name, errors in best.items()}
    dutch, accumulating = best["dutch"], best["accumulating"]
    worst = {name: float(errors[_DECAYS.index(0.9), RATES.index(0.8)]) for name, errors in table.items()}
    rows = [
        (format_number(d), *(text for row in by_decay for text in (f"{row.min():.3f}", f"{RATES[row.argmin()]:g}")))
        for d, by_decay in zip(_DECAYS, zip(*table.values(), strict=True), strict=True)
    ]
    return ExperimentResult(
        header=("lambda", *(text for name in table for text in (f"lowest error, {name}", "at step size"))),
        rows=rows,
        panels=[
            line_plot("lowest error over step sizes", "lambda (0: one step, 1: Monte Carlo)", _DECAYS, of_runs),
            line_plot(
                "error by step size, dutch traces",
                "step size",
                RATES,
                {f"lambda = {d:g}": errors.T for d, errors in zip(_DECAYS, every["dutch"], strict=True)},
            ),
        ],
        verdict=(
            f"Over the first {EPISODES} episodes the values of {STATES} states have an error of {dutch[0]:.3f} with "
            f"one-step targets, {dutch[-1]:.3f} with Monte Carlo returns and {dutch.min():.3f} with dutch traces of "
            f"lambda = {_DECAYS[at['dutch']]:g}, each at its best step size. Accumulating traces reach "
            f"{accumulating.min():.3f}, but at a step size of 0.8 and lambda = 0.9 their error is "
            f"{worst['accumulating']:.2f} against {worst['dutch']:.2f}. Errors above {_FAR:g} count as {_FAR:g} in "
            "every figure, so a diverging method looks better than it is."
        ),
        claims=claims_of(best, worst),
    )


EXPERIMENT = Experiment(
    title="Eligibility traces",
    question="Which lambda is best, and does the kind of trace matter?",
    run=_run,
    source="Sutton, 1988; van Seijen et al., 2016",
)
