"""Gradient temporal differences (Sutton et al., 2009): linear values of a target policy, learned off policy.

With off-policy data, function approximation and bootstrapping, TD(0) can diverge at any step size: Baird's
counterexample, the default environment here, shows it (`method = "semi_gradient"`). GTD2 and TDC follow the gradient of
the projected Bellman error and converge; so does, on this example, a target network (`target_network`).
"""

from typing import Literal

import numpy as np
from pydantic import Field

from hone.control.finite.config import BairdWorld, FiniteConfig
from hone.control.finite.model import FiniteMdp
from hone.control.finite.world import FiniteWorld
from hone.control.tables.kernels import Floats
from hone.control.tables.learn import RateConfig
from hone.control.tables.linear import (
    BAIRD_START,
    LinearRule,
    baird_features,
    gtd2,
    semi_gradient,
    semi_gradient_with_target,
    tdc,
)
from hone.control.tables.tables import StateValues
from hone.control.tabular import (
    PredictionRunConfig,
    TabularAlgorithm,
    TabularMethod,
    open_finite,
    prediction_job,
)
from hone.core.config import new_default
from hone.core.errors import ConfigError
from hone.credit.returns import one_step_target
from hone.run.job import OpenedRun, RecipeParts, RecipeSpec, TrainingJob, opened_run

UPDATE_RULES = {"semi_gradient": semi_gradient, "gtd2": gtd2, "tdc": tdc, "target_network": semi_gradient_with_target}


class GradientTdAlgorithm(TabularAlgorithm):
    """The method's numbers."""

    method: Literal["semi_gradient", "gtd2", "tdc", "target_network"] = "tdc"
    """Learning rule of the weights."""
    features: Literal["baird", "states"] = "baird"
    """Features of the linear values: Baird's eight features of seven states, or one per state."""
    second_rate: float = Field(default=0.05, gt=0)
    """Step size of the second weights (gtd2, tdc)."""
    copy_every: int = Field(default=500, ge=1)
    """Steps between copies of the weights to the target network (target_network)."""


class GradientTdConfig(PredictionRunConfig):
    """Values linear in features, learned off policy in a finite world."""

    finite: FiniteConfig = FiniteConfig(world=BairdWorld(kind="baird"))
    """The world."""
    rollout_steps = new_default(10)
    follow: list[float] = Field(default=[0.0, 1.0], min_length=1)
    """Probability of each action under the target policy, the same in every state."""
    behave: list[float] = Field(default=[6 / 7, 1 / 7], min_length=1)
    """The same, of the behaviour policy."""
    rate: RateConfig = RateConfig(rate=0.005)
    """Step sizes of the weights."""
    algorithm: GradientTdAlgorithm = GradientTdAlgorithm()  # pyright: ignore[reportIncompatibleVariableOverride] - frozen
    """The method."""

    def open(self) -> OpenedRun:
        """The world, built once. Raises ConfigError for policies and features of another world."""
        world = open_finite(self.finite, self)
        _target_and_behaviour_policy(self, world.mdp)
        return opened_run(world, _build)


def _build(config: GradientTdConfig, world: FiniteWorld) -> TrainingJob[StateValues]:
    """Training job of the recipe: linear values of the target policy, learned from steps of the behaviour policy."""
    algorithm = config.algorithm
    follow, behave = _target_and_behaviour_policy(config, world.mdp)
    values = StateValues(follow, features=baird_features() if algorithm.features == "baird" else None)
    if algorithm.features == "baird":
        values.x[:] = BAIRD_START
    rule = LinearRule(
        UPDATE_RULES[algorithm.method],
        second_rate=algorithm.second_rate,
        target_update_every=algorithm.copy_every if algorithm.method == "target_network" else 0,
    )
    method: TabularMethod[StateValues] = TabularMethod(make_rule=lambda _: rule, discount=algorithm.discount)
    return prediction_job(config, world, values, method, rate=config.rate, behaviour=behave)


def _target_and_behaviour_policy(config: GradientTdConfig, mdp: FiniteMdp) -> tuple[Floats, Floats]:
    """Probabilities `[S, A]` of who is followed and who acts."""
    for name, chances in (("follow", config.follow), ("behave", config.behave)):
        if len(chances) != mdp.actions or min(chances) < 0 or abs(sum(chances) - 1) > 1e-9:
            raise ConfigError(f"{name} = {chances} must be {mdp.actions} probabilities that add up to 1")
    missed = [a for a in range(mdp.actions) if config.follow[a] > 0 and config.behave[a] == 0]
    if missed:
        raise ConfigError(f"behave never takes action {missed[0]}, which follow does: nothing is learned of it")
    if config.algorithm.features == "baird" and not isinstance(config.finite.world, BairdWorld):
        raise ConfigError('algorithm.features = "baird" are of finite.world.kind = "baird"; use "states"')
    return np.tile(config.follow, (mdp.states, 1)), np.tile(config.behave, (mdp.states, 1))


ENTRY = RecipeSpec(
    summary="linear values off policy: methods that diverge, and methods that converge",
    paper="Sutton et al., Fast Gradient-Descent Methods for Temporal-Difference Learning, 2009",
    config=GradientTdConfig,
    parts=RecipeParts(
        source="Live(finite world)",
        credit=(one_step_target,),
        loss=(semi_gradient, gtd2, tdc, semi_gradient_with_target),
    ),
    limitation="two step sizes to choose, and slow where features are nearly dependent, as Baird's are.",
)
