"""hone's own loop around small worlds: control that is learned in seconds, most of it judged by dynamic programming.

Belongs here: running a wired job and hearing of it, and copies of a finite world side by side. Worlds, tables and rules
come from `envs`, `tabular` and the recipes; an experiment names them.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from hone.core.credit import Credits, Metrics
from hone.core.episodes import Episodes
from hone.core.ragged import owner_of
from hone.credit.returns import one_step
from hone.envs.finite.model import Finite, Outcomes, finite
from hone.envs.finite.world import FiniteWorld
from hone.lab.puzzles import Floats
from hone.tabular.batch import RateConfig
from hone.tabular.learn import Rule, TabularLearner
from hone.tabular.tables import ActionTable
from hone.train.job import Job
from hone.train.loop import Recipe, train
from hone.train.sources.live import Live
from hone.train.tabular.job import Credit, TableActor

P = TypeVar("P")
Watch = Callable[[int, Episodes], None]
"""Number of the step, from 1, and what was learned from in it."""


def learned(recipe: Recipe[P], *, steps: int, watch: Watch | None = None) -> P:
    """The policy after `steps` turns of the loop; `watch` is called after each."""

    def report(step: int, episodes: Episodes, credits: Credits, metrics: Metrics) -> None:
        del credits, metrics
        if watch is not None:
            watch(step, episodes)

    return train(recipe, steps=steps, report=report)


def job_learned(job: Job[Any], *, steps: int, watch: Watch | None = None) -> dict[str, float]:
    """What the judge of a recipe's job says after `steps` turns; the job's environments are closed."""
    assert job.judge is not None
    try:
        learned(job.recipe, steps=steps, watch=watch)
        return dict(job.judge().metrics)
    finally:
        job.close()


def tabular(
    world: FiniteWorld,
    table: ActionTable,
    rule: Rule,
    *,
    rate: RateConfig,
    credit: Credit | None = None,
) -> Recipe[ActionTable]:
    """A rule on a table in a world that is known; credit is one step's, under the world's discount, unless given."""
    return Recipe(
        source=Live(world, TableActor(table.acting())),
        credit=credit or partial(one_step, discount=world.mdp.discount),
        learner=TabularLearner(table, rule, rate),
    )


def side_by_side(mdp: Finite, copies: int) -> Finite:
    """`copies` of a world that no step leads between: state s of copy c has the number c * S + s. Episodes begin in
    any of them.

    One table of all of them is as many independent learners, moved by one call.
    """
    pair = owner_of(mdp.offsets)
    shift = np.repeat(np.arange(copies) * mdp.states, len(pair))
    outcomes = Outcomes(
        state=np.tile(pair // mdp.actions, copies) + shift,
        action=np.tile(pair % mdp.actions, copies),
        after=np.tile(mdp.after, copies) + shift,
        probability=np.tile(mdp.probability, copies),
        reward=np.tile(mdp.reward, copies),
        ends=np.tile(mdp.ends, copies),
    )
    return finite(
        outcomes, states=copies * mdp.states, actions=mdp.actions, start=np.tile(mdp.start, copies) / copies,
        discount=mdp.discount, limit=mdp.limit,
    )  # fmt: skip


def paying(mdp: Finite, reward: NDArray[np.floating]) -> Finite:
    """The same world with other rewards `[K]`."""
    return replace(mdp, reward=reward.astype(np.float64))


def smooth(values: Floats, width: int) -> Floats:
    """Means over `width` values, `[n - width + 1]`."""
    return np.convolve(values, np.ones(width) / width, mode="valid")
