"""Shared parts of the tabular recipes: environments, learner, actor, and evaluation, saving and loading of tables.

Belongs here: wiring between worlds, tables and the loop. Does not: anything of one method. A finite world is known
whole, so a table in it is judged by dynamic programming; in a Gymnasium world it plays.
"""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from pydantic import Field, model_validator

from hone.control.acting import NetworkActor
from hone.control.environments.make import describe_envs
from hone.control.environments.world import GymConfig, GymSpaces, GymWorld, open_world
from hone.control.evaluate.returns import evaluate_returns, exact_metrics
from hone.control.finite.config import FiniteConfig, build_finite_mdp
from hone.control.finite.world import FiniteWorld
from hone.control.job import ControlEvaluationConfig, ControlRunConfig, evaluation_result
from hone.control.off_policy import ScheduledExplorer
from hone.control.tables.explore import ConstantSchedule, EpsilonGreedy, Exploration
from hone.control.tables.kernels import ACCUMULATING, DUTCH, REPLACING
from hone.control.tables.learn import RateConfig, TabularLearner, UpdateRule
from hone.control.tables.tables import (
    ActionTable,
    StateFeatures,
    StateValues,
    Table,
    TileCoder,
    load_table_arrays,
    save_table,
)
from hone.core.config import Config, new_default
from hone.core.credit import Credits, Values
from hone.core.episodes import Episodes
from hone.core.errors import ConfigError
from hone.credit.returns import one_step_target
from hone.estimators.means import Estimate
from hone.run.job import (
    EvaluationResult,
    OpenedRun,
    RecipeParts,
    RunConfig,
    RunSettings,
    TrainingJob,
    episode_table,
    opened_run,
)
from hone.run.loop import Recipe, Source
from hone.sources.live import LiveSource, WholeEpisodes

TabularCredit: TypeAlias = Callable[[Episodes, Values], Credits]
T = TypeVar("T", bound=Table)
TRACE_KINDS = {"accumulating": ACCUMULATING, "replacing": REPLACING, "dutch": DUTCH}
"""Name of a config -> update of the eligibility traces."""


class TableConfig(Config):
    """The numbers of a table."""

    initial: float = 0.0
    """Initial value of every entry; above all reachable returns it explores by optimism."""
    rate: RateConfig = RateConfig()
    """Step sizes."""


class TabularAlgorithm(Config):
    """The method's numbers."""

    discount: float = Field(default=0.99, gt=0, le=1)
    """Discount factor (gamma)."""


class TableRunConfig(ControlRunConfig):
    """Values of numbered states, learnt in a table."""

    run = new_default(RunSettings(threads=1, log_every=20))
    rollout_steps: int = Field(default=8, ge=1)
    """Steps of each environment per iteration; 1 learns after every step, as the textbooks do."""
    algorithm: TabularAlgorithm = TabularAlgorithm()
    """Discount factor and other numbers of the algorithm."""
    evaluation = new_default(
        ControlEvaluationConfig(),
        "Evaluation of the greedy policy; in a finite environment its value is computed exactly.",
    )


class TabularRunConfig(TableRunConfig):
    """A table of action values, in a Gymnasium world of numbered states or in a finite world."""

    env: GymConfig | None = None
    """Gymnasium environments; exactly one of `env` and `finite`."""
    finite: FiniteConfig | None = None
    """A finite environment with known transition probabilities."""
    table: TableConfig = TableConfig()
    """Values and step sizes."""
    exploration: Exploration = EpsilonGreedy(epsilon=ConstantSchedule(value=0.1))
    """Exploration strategy."""

    @model_validator(mode="after")
    def _one_world(self) -> "TabularRunConfig":
        if (self.env is None) == (self.finite is None):
            raise ValueError("give exactly one of env and finite")
        return self

    def derive(self) -> dict[str, str]:
        """Figures that follow from the config, shown by `hone plan`."""
        return _figures(self, self.finite)

    def method(self) -> "TabularMethod[ActionTable]":
        """Update rule and credit of the recipe."""
        raise TypeError(f"{type(self).__name__} names no method")

    def open(self) -> OpenedRun:
        """Open and check the environments. Raises ConfigError for numbers that do not fit together, and as
        `_open_tabular`."""
        made = self.method()
        return table_run(
            _open_tabular(self), made, table=self.table, exploration=self.exploration, env=self.env,
            evaluation=self.evaluation,
        )  # fmt: skip


class GymTableRunConfig(ControlRunConfig):
    """A table in Gymnasium environments, with features or options of its own."""

    run = new_default(RunSettings(threads=1, log_every=20))
    env: GymConfig
    """The environments, with numbered actions."""
    rollout_steps: int = Field(default=4, ge=1)
    """Steps of each environment per iteration."""
    evaluation = new_default(ControlEvaluationConfig(), "Evaluation of the greedy policy.")

    def derive(self) -> dict[str, str]:
        """Figures that follow from the config, shown by `hone plan`."""
        return _figures(self, None)


class PredictionRunConfig(TableRunConfig):
    """Values of states of a finite world under a given policy."""

    finite: FiniteConfig
    """The world."""
    evaluation = new_default(ControlEvaluationConfig(), "Interval between computations of the value error.")

    def derive(self) -> dict[str, str]:
        """Figures that follow from the config, shown by `hone plan`."""
        batch = self.finite.copies * self.rollout_steps
        return {
            "environment steps per iteration": f"{self.finite.copies} copies x {self.rollout_steps} = {batch}",
            "environment steps": f"{self.steps * batch}",
        }


# --------------------------------------------------------------------------------------------------- worlds


TableFeatures: TypeAlias = StateFeatures | TileCoder


@dataclass(frozen=True, slots=True, kw_only=True)
class _TabularWorld:
    """Open environments, and the cells of a table that their observations stand for."""

    world: GymWorld | FiniteWorld
    features: TableFeatures
    first_action: int = 0


def _open_tabular(config: TabularRunConfig) -> _TabularWorld:
    """Open the environments of a table of numbered states. Raises ConfigError for other spaces, and as `open_world`."""
    if config.env is not None:
        return open_gym_table(config.env, steps=config.rollout_steps, seed=config.seed, features=_discrete_spaces)
    assert config.finite is not None
    world = open_finite(config.finite, config)
    return _TabularWorld(world=world, features=StateFeatures(count=world.mdp.states, actions=world.mdp.actions))


def open_gym_table(
    env: GymConfig, *, steps: int, seed: int, features: Callable[[GymSpaces], tuple[TableFeatures, int]]
) -> _TabularWorld:
    """Gymnasium environments, with the features of their spaces and the number of the first action.

    Raises as `open_world` and `features`; nothing is open then.
    """
    world = open_world(env, steps=steps, seed=seed)
    with contextlib.ExitStack() as on_fault:
        on_fault.callback(world.close)
        cells, first = features((world.envs.single_observation_space, world.envs.single_action_space))
        on_fault.pop_all()
    return _TabularWorld(world=world, features=cells, first_action=first)


def open_finite(finite: FiniteConfig, config: TabularRunConfig | PredictionRunConfig) -> FiniteWorld:
    """Copies of a finite MDP. Raises ConfigError and DataError for an invalid one."""
    mdp = build_finite_mdp(finite, discount=config.algorithm.discount)
    # A table would try actions that are not available.
    some = np.flatnonzero(mdp.available.any(axis=1) & ~mdp.available.all(axis=1))
    if len(some):
        raise ConfigError(
            f"state {some[0]}: only actions {np.flatnonzero(mdp.available[some[0]]).tolist()} are available"
        )
    return FiniteWorld(mdp=mdp, steps=config.rollout_steps, seed=config.seed, copies=finite.copies)


def _discrete_spaces(found: GymSpaces) -> tuple[StateFeatures, int]:
    """Numbered states and actions of Gymnasium's spaces, and the number of the first action. Raises ConfigError."""
    seen, chosen = found
    if not isinstance(seen, spaces.Discrete) or not isinstance(chosen, spaces.Discrete):
        raise ConfigError(
            f"a table needs numbered states and actions, got {seen} and {chosen}; recipe tile_sarsa takes a box of "
            "observations, dqn and ppo take more"
        )
    return StateFeatures(count=int(seen.n), actions=int(chosen.n), first=int(seen.start)), int(chosen.start)


def _figures(config: TabularRunConfig | GymTableRunConfig, finite: FiniteConfig | None) -> dict[str, str]:
    copies = finite.copies if finite is not None else config.env.num_envs if config.env is not None else 0
    batch = copies * config.rollout_steps
    where = {"environments": "a table, stepped at once"} if config.env is None else describe_envs(config.env)
    return {
        "environment steps per iteration": f"{copies} environments x {config.rollout_steps} = {batch}",
        "environment steps": f"{config.steps * batch}",
        **where,
    }


# --------------------------------------------------------------------------------------------------- acting


def table_actor(table: ActionTable) -> ScheduledExplorer:
    """Actor of the published table, whose exploration follows its version."""
    return ScheduledExplorer(table.numpy_policy(), exploration_policy=ActionTable.numpy_policy)


@dataclass
class StationaryActor(NetworkActor):
    """Decides by probabilities that never change."""

    def publish(self, policy: object, version: int) -> None:
        del policy
        self.version = version


# --------------------------------------------------------------------------------------------------- the job


@dataclass(frozen=True, slots=True, kw_only=True)
class TabularMethod(Generic[T]):
    """Definition of one method, for `table_run` and `prediction_job`."""

    make_rule: Callable[[T], UpdateRule]
    discount: float
    credit: TabularCredit | None = None
    """None: the parts of a one-step target."""
    needs_values: bool = False
    """True if the credit reads the table's values."""
    whole_episodes: bool = False
    """True if it learns from whole episodes only."""
    first_visits: bool = False
    """True if only the first visit of a pair in an episode counts."""
    table_count: int = 1
    warnings: Sequence[str] = ()
    """Warnings about the config."""


def _method_recipe(table: T, live: Source[T], method: TabularMethod[T], rate: RateConfig) -> Recipe[T]:
    """A method that fills `table` from the steps of `live`."""
    return Recipe(
        source=WholeEpisodes(live) if method.whole_episodes else live,
        credit=method.credit or partial(one_step_target, discount=method.discount),
        learner=TabularLearner(
            table, method.make_rule(table), rate, predicts_values=method.needs_values, first_visits=method.first_visits
        ),
    )


def table_run(
    opened: _TabularWorld,
    method: TabularMethod[ActionTable],
    *,
    table: TableConfig,
    exploration: Exploration,
    env: GymConfig | None,
    evaluation: ControlEvaluationConfig,
) -> OpenedRun:
    """Run of a method on a table over open environments, which are closed with the job."""

    def build(config: RunConfig, world: GymWorld | FiniteWorld) -> TrainingJob[ActionTable]:
        values = ActionTable(
            opened.features, explore=exploration, initial=table.initial, tables=method.table_count,
            first_action=opened.first_action,
        )  # fmt: skip
        live = LiveSource(world, table_actor(values))
        recipe = _method_recipe(values, live, method, table.rate)
        return _table_job(recipe, world, evaluation, env=env, seed=config.seed)

    if isinstance(opened.world, FiniteWorld):
        return opened_run(opened.world, build, warnings=method.warnings)
    warnings = [*opened.world.warnings, *method.warnings]
    return opened_run(opened.world, build, warnings=warnings, close=opened.world.close)


def prediction_job(
    config: PredictionRunConfig,
    world: FiniteWorld,
    values: StateValues,
    method: TabularMethod[StateValues],
    *,
    rate: RateConfig,
    behaviour: NDArray[np.float64] | None,
) -> TrainingJob[StateValues]:
    """Job that learns `values` from steps of a behaviour policy `[S, A]`; None: the policy that they are of."""
    live = LiveSource(world, StationaryActor(values.numpy_policy(behaviour=behaviour)))
    return _table_job(_method_recipe(values, live, method, rate), world, config.evaluation)


def _table_job(
    recipe: Recipe[T],
    world: GymWorld | FiniteWorld,
    evaluation: ControlEvaluationConfig,
    *,
    env: GymConfig | None = None,
    seed: int = 0,
) -> TrainingJob[T]:
    """Job around a table, evaluated exactly in a finite world, and by episodes of `env` otherwise."""
    table = recipe.learner.policy

    def evaluate() -> EvaluationResult:
        if isinstance(world, FiniteWorld):
            metrics = exact_metrics(table, world.mdp)
            score = metrics["eval/score"]
            return EvaluationResult(estimate=Estimate(mean=score, low=score, high=score, n=1), metrics=metrics)
        assert env is not None
        assert isinstance(table, ActionTable)
        return evaluation_result(evaluate_returns(table, env, episodes=evaluation.episodes, seed=seed))

    job = TrainingJob(
        recipe=recipe,
        save_policy=partial(save_table, table),
        load_policy=partial(load_table_arrays, table),
        rollouts=episode_table,
        evaluate=evaluate,
        evaluate_every=evaluation.every,
    )
    if isinstance(world, FiniteWorld):
        return job
    return replace(job, warnings=world.warnings, pop_notices=world.pop_notices)


# --------------------------------------------------------------------------------------------------- the recipe


def tabular_parts(
    *loss: Callable[..., Any],
    source: str = "Live(numbered states)",
    credit: Sequence[Callable[..., Any]] = (one_step_target,),
) -> RecipeParts:
    """Parts of a recipe on a table of numbered states: its update rules, and a one-step target unless given."""
    return RecipeParts(source=source, credit=credit, loss=loss)
