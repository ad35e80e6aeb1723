"""Deadly triad: bootstrapping, function approximation and off-policy data; pairs are harmless, the three diverge."""

import numpy as np

from hone.core.episodes import Episodes
from hone.lab.control import train_recipe
from hone.lab.finding import BoundedClaim, Experiment, ExperimentResult, at_least, at_most, line_plot
from hone.lab.puzzles import Floats, geometric_mean
from hone.recipes.tabular.gradient_td import ENTRY, GradientTdAlgorithm, GradientTdConfig
from hone.run.report.html import format_number

_TURNS_OF = 10
_START = 12.0
"""Value of Baird's seventh state under the usual initial weights; a table starts with it everywhere."""
_OTHERS, _SEVENTH = [6 / 7, 1 / 7], [0.0, 1.0]
"""Behaviour policy in Baird's example (to any of six states), and target policy (to the seventh)."""
_CASES: dict[str, tuple[GradientTdAlgorithm, list[float]]] = {
    "all three": (GradientTdAlgorithm(method="semi_gradient"), _OTHERS),
    "on policy": (GradientTdAlgorithm(method="semi_gradient"), _SEVENTH),
    "a table": (GradientTdAlgorithm(method="semi_gradient", features="states"), _OTHERS),
    "target network": (GradientTdAlgorithm(method="target_network"), _OTHERS),
    "GTD2": (GradientTdAlgorithm(method="gtd2"), _OTHERS),
    "TDC": (GradientTdAlgorithm(method="tdc"), _OTHERS),
}

_SHRINKS = {"on policy": 0.7, "a table": 0.985, "GTD2": 0.7, "TDC": 0.7}
"""Bound on the final error over the initial one. A table cannot diverge; slower than this it would not learn."""


def _value_errors(algorithm: GradientTdAlgorithm, behave: list[float], *, seed: int, turns: int) -> Floats:
    """Largest |value| of the seven states `[turns + 1]`; all rewards are 0, so the true value is 0."""
    config = GradientTdConfig(
        recipe="gradient_td", name="lab", seed=seed, steps=turns, rollout_steps=_TURNS_OF, algorithm=algorithm,
        behave=behave,
    )  # fmt: skip
    recipe = ENTRY.build(config).recipe
    values = recipe.learner.policy
    if algorithm.features == "states":
        values.x[:] = _START
    path = [float(np.abs(values.v).max())]

    def watch(step: int, episodes: Episodes) -> None:
        del step, episodes
        path.append(float(np.abs(values.v).max()))

    train_recipe(recipe, steps=turns, watch=watch)
    return np.array(path)


def claims_of(grown: dict[str, float], largest: dict[str, float]) -> list[BoundedClaim]:
    """Claims by method on the final error and on the largest error of a run, each over the initial one."""
    return [
        at_least("error of all three, final over initial", grown["all three"], 2.0),
        *(at_most(f"the same, {name}", grown[name], bound) for name, bound in _SHRINKS.items()),
        at_most("largest error with a target network over the initial one", largest["target network"], 3.0),
        at_least("final error with a target network over the initial one", grown["target network"], 0.5),
    ]


def _run(seed: int, *, quick: bool = False) -> ExperimentResult:
    turns, runs = (300, 1) if quick else (1000, 3)
    path = {
        name: np.stack([_value_errors(*case, seed=10 * seed + k, turns=turns) for k in range(runs)])
        for name, case in _CASES.items()
    }
    grown = {name: geometric_mean(values[:, -1] / values[:, 0]) for name, values in path.items()}
    largest = {name: float((values.max(axis=1) / values[:, 0]).max()) for name, values in path.items()}
    return ExperimentResult(
        header=("method", "initial error", "final error", "growth factor"),
        rows=[
            (name, format_number(v[0, 0]), format_number(geometric_mean(v[:, -1])), format_number(grown[name]))
            for name, v in path.items()
        ],
        panels=[
            line_plot(
                "largest error of a value", "environment steps", _TURNS_OF * np.arange(turns + 1), path, log_y=True
            ),
        ],
        verdict=(
            f"In Baird's counterexample, where every true value is 0, {turns * _TURNS_OF:,} steps multiply the largest "
            f"error of the semi-gradient method by {format_number(grown['all three'])} if it bootstraps, generalises "
            f"and learns off policy; by {format_number(grown['on policy'])} on policy, "
            f"{format_number(grown['a table'])} with a table, {format_number(grown['GTD2'])} with GTD2 and "
            f"{format_number(grown['TDC'])} with TDC (geometric means over runs). A target network keeps the error "
            f"within {largest['target network']:.1f} times its initial value in every run, and ends at "
            f"{grown['target network']:.1f} times."
        ),
        claims=claims_of(grown, largest),
    )


EXPERIMENT = Experiment(
    title="The deadly triad",
    question="When do off-policy values diverge, and which methods converge?",
    run=_run,
    source="Baird, 1995; Sutton et al., 2009",
)
