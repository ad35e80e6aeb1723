"""Naive self-play in poker: best responses to the newest policy alone go round in circles; averages converge."""

from typing import Any

import numpy as np

from hone.control.seats.tree_training import TreeSource
from hone.core.random import generator
from hone.lab.control import train_recipe
from hone.lab.finding import BoundedClaim, Experiment, ExperimentResult, at_least, at_most, line_plot
from hone.lab.puzzles import Floats
from hone.recipes.registry import load_recipe
from hone.run.report.html import format_number

NAIVE, LEAGUE, MEAN, REGRET = "newest policy alone", "equilibrium of the population", "mean of the population", "CFR+"
_METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    NAIVE: ("double_oracle", {"algorithm": {"mixture": "latest"}}),
    LEAGUE: ("double_oracle", {"algorithm": {"mixture": "nash"}}),
    MEAN: ("double_oracle", {"algorithm": {"mixture": "uniform"}}),
    REGRET: ("cfr_plus", {}),
}


def _nash_convs(recipe: str, tables: dict[str, Any], *, seed: int, rounds: int) -> Floats:
    """NashConv `[rounds + 1]` of the released policy in Kuhn poker, from a random policy on."""
    spec = load_recipe(recipe)
    common = {"recipe": recipe, "name": "lab", "steps": 2 * rounds, "env": {"id": "compiled:kuhn_poker", "num_envs": 1}}
    job = spec.build(spec.config.model_validate(common | tables))
    source = job.recipe.source
    assert isinstance(source, TreeSource)
    policies, play = source.policies, source.policies.play
    weights = generator(seed, "naive self-play").random(play.tree.legal.shape)
    policies.release(weights / weights.sum(axis=1, keepdims=True))
    path = [play.nash_conv(policies.average)]

    def watch(step: int, *_: object) -> None:
        if step % play.seats == 0:
            path.append(play.nash_conv(policies.average))

    train_recipe(job.recipe, steps=2 * rounds, watch=watch)
    job.close()
    return np.array(path)


def claims_of(path: dict[str, Floats]) -> list[BoundedClaim]:
    """Claims on NashConv `[runs, rounds + 1]` by method, each on its worst run."""
    late = path[NAIVE][:, path[NAIVE].shape[1] // 2 :]
    return [
        at_least("lowest NashConv of the newest policy in the second half", late.min(), 0.2),
        at_least("its highest there over its lowest", (late.max(axis=1) / late.min(axis=1)).min(), 2.0),
        at_most("last NashConv of the equilibrium of the population", path[LEAGUE][:, -1].max(), 0.001),
        at_most("last NashConv of CFR+", path[REGRET][:, -1].max(), 0.05),
        at_most("last NashConv of the mean over the first", (path[MEAN][:, -1] / path[MEAN][:, 0]).max(), 0.6),
    ]


def _run(seed: int, *, quick: bool = False) -> ExperimentResult:
    rounds, runs = (30, 1) if quick else (60, 3)
    path = {
        name: np.stack([_nash_convs(*method, seed=10 * seed + run, rounds=rounds) for run in range(runs)])
        for name, method in _METHODS.items()
    }
    half = rounds // 2
    rows: list[tuple[str, ...]] = []
    for name, values in path.items():
        late = values[:, half:]
        figures = (values[:, 0].mean(), late.min(), late.max(), values[:, -1].max())
        rows.append((name, *(format_number(round(float(one), 9)) for one in figures)))
    return ExperimentResult(
        header=("released policy", "first", "lowest of the second half", "highest of it", "last, worst run"),
        rows=rows,
        panels=[line_plot("NashConv in Kuhn poker", "best responses or visits of both seats", range(rounds + 1), path)],
        verdict=(
            "In Kuhn poker the best response to the newest policy alone goes round in circles: between "
            f"{format_number(path[NAIVE][:, half:].min())} and {format_number(path[NAIVE][:, half:].max())} in "
            f"NashConv, after {rounds} rounds as after {half}. The equilibrium of the same population ends at "
            f"{format_number(round(path[LEAGUE][:, -1].max(), 9))}, regrets averaged over behaviour (CFR+) at "
            f"{format_number(path[REGRET][:, -1].max())}, the plain mean of the population at "
            f"{format_number(path[MEAN][:, -1].max())}."
        ),
        claims=claims_of(path),
    )


EXPERIMENT = Experiment(
    title="Naive self-play",
    question="Does a policy become unbeatable by beating its newest version over and over?",
    run=_run,
    source="Lanctot et al., 2017; Tammelin, 2014",
)
