"""hone's training loop on small environments: learned in seconds, most of them evaluated by dynamic programming.

Runs of an assembled job with callbacks, and copies of a finite environment side by side. Environments, tables and rules
come from `envs`, `tabular` and the recipes.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from hone.control.finite.model import FiniteMdp, MdpOutcomes, make_mdp
from hone.control.finite.world import FiniteWorld
from hone.control.tables.learn import RateConfig, TabularLearner, UpdateRule
from hone.control.tables.tables import ActionTable
from hone.control.tabular import TabularCredit, table_actor
from hone.core.credit import Credits, Metrics
from hone.core.episodes import Episodes
from hone.core.ragged import owner_of
from hone.credit.returns import one_step_target
from hone.lab.puzzles import Floats
from hone.run.job import TrainingJob
from hone.run.loop import Recipe, train
from hone.sources.live import LiveSource

P = TypeVar("P")
_EpisodesCallback = Callable[[int, Episodes], None]
"""Called with the number of the step, from 1, and the episodes that it learned from."""


def train_recipe(recipe: Recipe[P], *, steps: int, watch: _EpisodesCallback | None = None) -> P:
    """The policy after `steps` iterations; `watch` is called after each."""

    def report(step: int, episodes: Episodes, credits: Credits, metrics: Metrics) -> None:
        del credits, metrics
        if watch is not None:
            watch(step, episodes)

    return train(recipe, steps=steps, callback=report)


def train_job(job: TrainingJob[Any], *, steps: int, watch: _EpisodesCallback | None = None) -> dict[str, float]:
    """Evaluation metrics of a recipe's job after `steps` iterations; the job's environments are closed."""
    assert job.evaluate is not None
    try:
        train_recipe(job.recipe, steps=steps, watch=watch)
        return dict(job.evaluate().metrics)
    finally:
        job.close()


def tabular_recipe(
    world: FiniteWorld,
    table: ActionTable,
    rule: UpdateRule,
    *,
    rate: RateConfig,
    credit: TabularCredit | None = None,
) -> Recipe[ActionTable]:
    """A job with an update rule on a table in a known environment; by default the credit is one step's, with its
    discount.
    """
    return Recipe(
        source=LiveSource(world, table_actor(table)),
        credit=credit or partial(one_step_target, discount=world.mdp.discount),
        learner=TabularLearner(table, rule, rate),
    )


def replicate_mdp(mdp: FiniteMdp, copies: int) -> FiniteMdp:
    """`copies` of an environment without transitions between them: state s of copy c has the number c * S + s. Episodes
    start in any of them.

    One table of all of them is as many independent learners, updated by one call.
    """
    pair = owner_of(mdp.offsets)
    shift = np.repeat(np.arange(copies) * mdp.states, len(pair))
    outcomes = MdpOutcomes(
        state=np.tile(pair // mdp.actions, copies) + shift,
        action=np.tile(pair % mdp.actions, copies),
        next_state=np.tile(mdp.next_state, copies) + shift,
        probability=np.tile(mdp.probability, copies),
        reward=np.tile(mdp.reward, copies),
        terminates=np.tile(mdp.terminates, copies),
    )
    return make_mdp(
        outcomes, states=copies * mdp.states, actions=mdp.actions, start=np.tile(mdp.start_distribution,
        copies) / copies,
        discount=mdp.discount, limit=mdp.step_limit,
    )  # fmt: skip


def with_rewards(mdp: FiniteMdp, reward: NDArray[np.floating]) -> FiniteMdp:
    """The same environment with other rewards `[K]`."""
    return replace(mdp, reward=reward.astype(np.float64))


def moving_average(values: Floats, width: int) -> Floats:
    """Moving averages over `width` values, `[n - width + 1]`."""
    return np.convolve(values, np.ones(width) / width, mode="valid")
