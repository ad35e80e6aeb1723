"""Gradient temporal differences (Sutton et al., 2009): linear values of a target policy, learned off policy.

With off-policy data, function approximation and bootstrapping, TD(0) can diverge at any step size: Baird's
counterexample, the default environment here, shows it (`method = "semi_gradient"`). GTD2 and TDC follow the gradient of
the projected Bellman error and converge; so does, on this example, a target network (`target_network`).
"""

from functools import partial
from typing import Literal

import numpy as np
from pydantic import Field

from hone.core.config import Config
from hone.core.errors import ConfigError
from hone.credit.returns import one_step_target
from hone.envs.finite.config import BairdWorld, FiniteConfig
from hone.envs.finite.model import FiniteMdp
from hone.tabular.batch import RateConfig
from hone.tabular.kernels import Floats
from hone.tabular.learn import TabularLearner
from hone.tabular.linear import (
    BAIRD_START,
    LinearRule,
    baird_features,
    gtd2,
    semi_gradient,
    semi_gradient_with_target,
    tdc,
)
from hone.tabular.tables import StateValues
from hone.train.config import RunConfig, RunSettings
from hone.train.control.job import ControlEvaluationConfig
from hone.train.job import RecipeParts, RecipeSpec, TrainingJob, checked_run
from hone.train.loop import Recipe
from hone.train.sources.live import LiveSource
from hone.train.tabular.job import StationaryActor, derive_finite, open_finite, state_values_job

UPDATE_RULES = {"semi_gradient": semi_gradient, "gtd2": gtd2, "tdc": tdc, "target_network": semi_gradient_with_target}


class GradientTdAlgorithm(Config):
    """The method's numbers."""

    discount: float = Field(default=0.99, gt=0, le=1)
    """Discount factor (gamma)."""
    method: Literal["semi_gradient", "gtd2", "tdc", "target_network"] = "tdc"
    """Learning rule of the weights."""
    features: Literal["baird", "states"] = "baird"
    """Features of the linear values: Baird's eight features of seven states, or one per state."""
    second_rate: float = Field(default=0.05, gt=0)
    """Step size of the second weights (gtd2, tdc)."""
    copy_every: int = Field(default=500, ge=1)
    """Steps between copies of the weights to the target network (target_network)."""


class GradientTdConfig(RunConfig):
    """Values linear in features, learned off policy in a finite world."""

    run: RunSettings = RunSettings(threads=1, log_every=20)
    """Threads, logging, checkpoints and other settings of the run."""
    finite: FiniteConfig = FiniteConfig(world=BairdWorld(kind="baird"))
    """The world."""
    rollout_steps: int = Field(default=10, ge=1)
    """Steps of each copy per iteration."""
    follow: list[float] = Field(default=[0.0, 1.0], min_length=1)
    """Probability of each action under the target policy, the same in every state."""
    behave: list[float] = Field(default=[6 / 7, 1 / 7], min_length=1)
    """The same, of the behaviour policy."""
    rate: RateConfig = RateConfig(rate=0.005)
    """Step sizes of the weights."""
    algorithm: GradientTdAlgorithm = GradientTdAlgorithm()
    """The method."""
    evaluation: ControlEvaluationConfig = ControlEvaluationConfig()
    """Interval between computations of the value error."""


def build(config: GradientTdConfig) -> TrainingJob[StateValues]:
    """Raises ConfigError for policies and features of another world."""
    algorithm = config.algorithm
    mdp, world = open_finite(config.finite, steps=config.rollout_steps, seed=config.seed, discount=algorithm.discount)
    follow, behave = target_and_behaviour_policy(config, mdp)
    values = StateValues(follow, features=baird_features() if config.algorithm.features == "baird" else None)
    if config.algorithm.features == "baird":
        values.x[:] = BAIRD_START
    rule = LinearRule(
        UPDATE_RULES[algorithm.method],
        second_rate=algorithm.second_rate,
        target_update_every=algorithm.copy_every if algorithm.method == "target_network" else 0,
    )
    recipe = Recipe(
        source=LiveSource(world, StationaryActor(values.numpy_policy(behaviour=behave))),
        credit=partial(one_step_target, discount=algorithm.discount),
        learner=TabularLearner(values, rule, config.rate),
    )
    return state_values_job(recipe, world=world, evaluation=config.evaluation)


def target_and_behaviour_policy(config: GradientTdConfig, mdp: FiniteMdp) -> tuple[Floats, Floats]:
    """Probabilities `[S, A]` of who is followed and who acts."""
    for name, found in (("follow", config.follow), ("behave", config.behave)):
        if len(found) != mdp.actions or min(found) < 0 or abs(sum(found) - 1) > 1e-9:
            raise ConfigError(f"{name} = {found} must be {mdp.actions} probabilities that add up to 1")
    missed = [a for a in range(mdp.actions) if config.follow[a] > 0 and config.behave[a] == 0]
    if missed:
        raise ConfigError(f"behave never takes action {missed[0]}, which follow does: nothing is learned of it")
    if config.algorithm.features == "baird" and not isinstance(config.finite.world, BairdWorld):
        raise ConfigError('algorithm.features = "baird" are of finite.world.kind = "baird"; use "states"')
    return np.tile(config.follow, (mdp.states, 1)), np.tile(config.behave, (mdp.states, 1))


def check(config: GradientTdConfig) -> list[str]:
    """Warnings about the config; raises ConfigError for a run that cannot work."""
    mdp, _ = open_finite(config.finite, steps=1, seed=config.seed, discount=config.algorithm.discount)
    target_and_behaviour_policy(config, mdp)
    return []


def derive(config: GradientTdConfig) -> dict[str, str]:
    """Figures that follow from the config, shown by `hone plan`."""
    return derive_finite(config.finite, rollout_steps=config.rollout_steps, iterations=config.steps)


ENTRY = RecipeSpec(
    summary="linear values off policy: methods that diverge, and methods that converge",
    paper="Sutton et al., Fast Gradient-Descent Methods for Temporal-Difference Learning, 2009",
    config=GradientTdConfig,
    open=checked_run(check, build),
    derive=derive,
    parts=RecipeParts(
        source="Live(finite world)",
        credit=(one_step_target,),
        loss=(semi_gradient, gtd2, tdc, semi_gradient_with_target),
    ),
    limitation="two step sizes to choose, and slow where features are nearly dependent, as Baird's are.",
)
