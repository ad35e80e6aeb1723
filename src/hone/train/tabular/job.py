"""Shared parts of the tabular recipes: environments, learner, actor, and evaluation, saving and loading of tables.

Belongs here: wiring between worlds, tables and the loop. Does not: anything of one method. A finite world is known
whole, so a table in it is judged by dynamic programming; in a Gymnasium world it plays.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias, TypeVar

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from pydantic import Field, model_validator

from hone.core.config import Config
from hone.core.credit import Credits, Values
from hone.core.episodes import Episodes
from hone.core.errors import ConfigError
from hone.credit.returns import one_step_target
from hone.envs.finite.config import FiniteConfig, build_finite_mdp, require_all_actions
from hone.envs.finite.model import FiniteMdp
from hone.envs.finite.world import FiniteWorld
from hone.envs.gym.make import describe_placement
from hone.envs.gym.world import GymConfig, GymSpaces, GymWorld, inspect_world, open_world
from hone.estimators.means import Estimate
from hone.evaluate.control.dynamic_programming import exact_metrics
from hone.evaluate.control.returns import evaluate_returns
from hone.tabular.batch import RateConfig
from hone.tabular.explore import ConstantSchedule, EpsilonGreedy, Exploration
from hone.tabular.learn import TabularLearner, UpdateRule
from hone.tabular.tables import (
    ActionTable,
    FixedPolicyActor,
    StateFeatures,
    StateValues,
    Table,
    TablePolicyActor,
    load_table_arrays,
    save_table,
)
from hone.train.config import RunConfig, RunSettings
from hone.train.control.job import ControlEvaluationConfig, evaluation_result
from hone.train.job import EvaluationResult, TrainingJob, close_nothing, no_notices
from hone.train.loop import Recipe, Source
from hone.train.sources.live import LiveSource
from hone.train.sources.whole_episodes import WholeEpisodes

Array: TypeAlias = NDArray[np.generic]
NoiseArray: TypeAlias = NDArray[np.float32]
TabularCredit: TypeAlias = Callable[[Episodes, Values], Credits]
T = TypeVar("T", bound=Table)


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


class TabularRunConfig(RunConfig):
    """A table of action values, in a Gymnasium world of numbered states or in a finite world."""

    run: RunSettings = RunSettings(threads=1, log_every=20)
    """Threads, logging, checkpoints and other settings of the run."""
    env: GymConfig | None = None
    """Gymnasium environments; exactly one of `env` and `finite`."""
    finite: FiniteConfig | None = None
    """A finite environment with known transition probabilities."""
    rollout_steps: int = Field(default=8, ge=1)
    """Steps of each environment per iteration; 1 learns after every step, as the textbooks do."""
    table: TableConfig = TableConfig()
    """Values and step sizes."""
    exploration: Exploration = EpsilonGreedy(epsilon=ConstantSchedule(value=0.1))
    """Exploration strategy."""
    evaluation: ControlEvaluationConfig = ControlEvaluationConfig()
    """Evaluation of the greedy policy; in a finite environment its value is computed exactly."""
    algorithm: TabularAlgorithm = TabularAlgorithm()
    """Discount factor and other numbers of the algorithm."""

    @model_validator(mode="after")
    def _one_world(self) -> "TabularRunConfig":
        if (self.env is None) == (self.finite is None):
            raise ValueError("give exactly one of env and finite")
        return self


# --------------------------------------------------------------------------------------------------- worlds


@dataclass(frozen=True, slots=True, kw_only=True)
class TabularWorld:
    """A world to act in."""

    world: GymWorld | FiniteWorld
    states: StateFeatures
    first_action: int
    mdp: FiniteMdp | None
    """Where it is known."""


def open_tabular(config: TabularRunConfig, *, discount: float) -> TabularWorld:
    """Raises ConfigError for spaces that are not numbered, and as the worlds do."""
    if config.finite is not None:
        mdp, world = open_finite(config.finite, steps=config.rollout_steps, seed=config.seed, discount=discount)
        return TabularWorld(
            world=world, states=StateFeatures(count=mdp.states, actions=mdp.actions), first_action=0, mdp=mdp
        )
    assert config.env is not None
    world = open_world(config.env, steps=config.rollout_steps, seed=config.seed)
    try:
        states, first = discrete_spaces((world.envs.single_observation_space, world.envs.single_action_space))
    except ConfigError:
        world.close()
        raise
    return TabularWorld(world=world, states=states, first_action=first, mdp=None)


def open_finite(config: FiniteConfig, *, steps: int, seed: int, discount: float) -> tuple[FiniteMdp, FiniteWorld]:
    """Raises ConfigError and DataError for a world that is none."""
    mdp = build_finite_mdp(config, discount=discount)
    require_all_actions(mdp)
    return mdp, FiniteWorld(mdp=mdp, steps=steps, seed=seed, copies=config.copies)


def discrete_spaces(found: GymSpaces) -> tuple[StateFeatures, int]:
    """Numbered states and actions of Gymnasium's spaces, and the number of the first action. Raises ConfigError."""
    seen, chosen = found
    if not isinstance(seen, spaces.Discrete) or not isinstance(chosen, spaces.Discrete):
        raise ConfigError(
            f"a table needs numbered states and actions, got {seen} and {chosen}; recipe tile_sarsa takes a box of "
            "observations, dqn and ppo take more"
        )
    return StateFeatures(count=int(seen.n), actions=int(chosen.n), first=int(seen.start)), int(chosen.start)


def check_tabular(config: TabularRunConfig) -> list[str]:
    """Warnings; raises as `open_tabular`, without a run."""
    if config.finite is not None:
        require_all_actions(build_finite_mdp(config.finite, discount=config.algorithm.discount))
        return []
    assert config.env is not None
    found, warnings = inspect_world(config.env, seed=config.seed)
    discrete_spaces(found)
    return warnings


def derive_tabular(config: TabularRunConfig) -> dict[str, str]:
    """Figures that follow from the config, shown by `hone plan`."""
    copies = config.finite.copies if config.finite is not None else config.env.num_envs if config.env is not None else 0
    batch = copies * config.rollout_steps
    where = "a table, stepped at once" if config.env is None else describe_placement(config.env)
    return {
        "environment steps per iteration": f"{copies} environments x {config.rollout_steps} = {batch}",
        "environment steps": f"{config.steps * batch}",
        "environments": where,
    }


def derive_finite(config: FiniteConfig, *, rollout_steps: int, iterations: int) -> dict[str, str]:
    """Environment steps of a run in copies of a finite world, shown by `hone plan`."""
    batch = config.copies * rollout_steps
    return {
        "environment steps per iteration": f"{config.copies} copies x {rollout_steps} = {batch}",
        "environment steps": f"{iterations * batch}",
    }


# --------------------------------------------------------------------------------------------------- acting


@dataclass
class TableActor:
    """Decides by a table; the turn of its exploration is the version that it was published as."""

    numpy_policy: TablePolicyActor
    version: int = 0

    def publish(self, policy: ActionTable, version: int) -> None:
        self.numpy_policy, self.version = policy.numpy_policy(version), version

    def noise(self, draws: np.random.Generator, shape: tuple[int, ...]) -> NoiseArray:
        return self.numpy_policy.noise(draws, shape)

    def decide(self, seen: Array, noise: NoiseArray) -> tuple[NDArray[np.int64], NoiseArray]:
        return self.numpy_policy.decide(seen, noise)


@dataclass
class StationaryActor:
    """Decides by probabilities that never change."""

    numpy_policy: FixedPolicyActor
    version: int = 0

    def publish(self, policy: StateValues, version: int) -> None:
        del policy
        self.version = version

    def noise(self, draws: np.random.Generator, shape: tuple[int, ...]) -> NoiseArray:
        return self.numpy_policy.noise(draws, shape)

    def decide(self, seen: Array, noise: NoiseArray) -> tuple[NDArray[np.int64], NoiseArray]:
        return self.numpy_policy.decide(seen, noise)


# --------------------------------------------------------------------------------------------------- the job


@dataclass(frozen=True, slots=True, kw_only=True)
class TabularMethod:
    """What one method is, for `table_job`."""

    make_rule: Callable[[ActionTable], UpdateRule]
    discount: float
    credit: TabularCredit | None = None
    """None: the parts of a one-step target."""
    needs_values: bool = False
    """Whether credit asks what the table expects."""
    whole_episodes: bool = False
    """Whether it learns from whole episodes only."""
    first_visits: bool = False
    """And there from the first visit of a pair only."""
    table_count: int = 1


def table_job(config: TabularRunConfig, method: TabularMethod) -> TrainingJob[ActionTable]:
    """A method on a table of numbered states, ready to be run. Raises as `open_tabular`."""
    opened = open_tabular(config, discount=method.discount)
    table = ActionTable(
        opened.states, explore=config.exploration, initial=config.table.initial, tables=method.table_count,
        first_action=opened.first_action,
    )  # fmt: skip
    return action_values_job(
        table, method, world=opened.world, rate=config.table.rate,
        evaluate=_evaluation_of(table, config.env, config.evaluation, config.seed, opened.mdp),
        evaluate_every=config.evaluation.every,
    )  # fmt: skip


def action_values_job(
    table: ActionTable,
    method: TabularMethod,
    *,
    world: GymWorld | FiniteWorld,
    rate: RateConfig,
    evaluate: Callable[[], EvaluationResult],
    evaluate_every: int,
) -> TrainingJob[ActionTable]:
    """A method on any table of action values."""
    live: Source[ActionTable] = LiveSource(world, TableActor(table.numpy_policy()))
    return _table_training_job(
        Recipe(
            source=WholeEpisodes(live) if method.whole_episodes else live,
            credit=method.credit or partial(one_step_target, discount=method.discount),
            learner=TabularLearner(
                table, method.make_rule(table), rate, predicts_values=method.needs_values,
                first_visits=method.first_visits
            ),
        ),
        world=world, judge=evaluate, judge_every=evaluate_every,
    )  # fmt: skip


def state_values_job(
    recipe: Recipe[StateValues], *, world: FiniteWorld, evaluation: ControlEvaluationConfig
) -> TrainingJob[StateValues]:
    """Evaluation of state values by their error against the exact ones."""
    values = recipe.learner.policy
    return _table_training_job(
        recipe, world=world, judge=partial(exact_evaluation, values, world.mdp), judge_every=evaluation.every
    )


def exact_evaluation(table: Table, mdp: FiniteMdp) -> EvaluationResult:
    """Exact evaluation of a table in a known finite process; its interval is a point."""
    metrics = exact_metrics(table, mdp)
    score = metrics["eval/score"]
    return EvaluationResult(estimate=Estimate(mean=score, low=score, high=score, n=1), metrics=metrics)


def played_evaluation(table: ActionTable, env: GymConfig, *, episodes: int, seed: int) -> EvaluationResult:
    """Evaluation of a table by episodes in its environment."""
    return evaluation_result(evaluate_returns(table, env, episodes=episodes, seed=seed))


def _evaluation_of(
    table: ActionTable, env: GymConfig | None, judge: ControlEvaluationConfig, seed: int, mdp: FiniteMdp | None
) -> Callable[[], EvaluationResult]:
    if mdp is not None:
        return partial(exact_evaluation, table, mdp)
    assert env is not None
    return partial(played_evaluation, table, env, episodes=judge.episodes, seed=seed)


def _table_training_job(
    recipe: Recipe[T], *, world: GymWorld | FiniteWorld, judge: Callable[[], EvaluationResult], judge_every: int
) -> TrainingJob[T]:
    table = recipe.learner.policy
    gym = world if isinstance(world, GymWorld) else None
    return TrainingJob(
        recipe=recipe,
        save_policy=lambda folder: save_table(table, folder),
        load_policy=lambda folder: load_table_arrays(table, folder),
        evaluate=judge,
        evaluate_every=judge_every,
        warnings=gym.warnings if gym is not None else (),
        pop_notices=gym.pop_notices if gym is not None else no_notices,
        close=gym.close if gym is not None else close_nothing,
    )
