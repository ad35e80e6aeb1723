"""Prediction: state values of a finite MDP under a given policy, learned from steps.

TD(0) (Sutton, 1988), n-step returns, TD(lambda) with accumulating, replacing or dutch traces, and Monte Carlo, on
policy or off (weighted importance sampling). The MDP is known, so a run is evaluated by the error of its values.
"""

from functools import partial
from typing import Annotated, Literal, TypeAlias

import numpy as np
from pydantic import Field

from hone.control.finite.model import FiniteMdp
from hone.control.finite.solve import policy_iteration
from hone.control.finite.world import FiniteWorld
from hone.control.tables.kernels import (
    Floats,
    eligibility_traces,
    expected_sarsa,
    target_update,
    weighted_importance_update,
)
from hone.control.tables.learn import (
    EligibilityTraces,
    ExpectedSarsa,
    TargetRule,
    WeightedImportanceSampling,
    expected_sarsa_weights,
)
from hone.control.tables.tables import StateValues
from hone.control.tabular import (
    TRACE_KINDS,
    PredictionRunConfig,
    TableConfig,
    TabularAlgorithm,
    TabularMethod,
    open_finite,
    prediction_job,
)
from hone.core.config import Config, new_default
from hone.core.errors import ConfigError
from hone.credit.returns import discounted_returns, n_step, one_step_target
from hone.run.job import OpenedRun, RecipeParts, RecipeSpec, TrainingJob, opened_run


class OneStepTd(Config):
    """TD(0)."""

    kind: Literal["td"] = "td"
    """Names this alternative."""


class NStepTd(Config):
    """n-step TD: n rewards, then the bootstrapped value."""

    kind: Literal["n_step"]
    """Names this alternative."""
    steps: int = Field(default=4, ge=1)
    """n; `rollout_steps` should be more."""


class LambdaTd(Config):
    """TD(lambda), online."""

    kind: Literal["lambda"]
    """Names this alternative."""
    trace_lambda: float = Field(default=0.9, ge=0, le=1)
    """lambda: 0 is TD(0), 1 learns from returns."""
    trace: Literal["accumulating", "replacing", "dutch"] = "dutch"
    """Update of the eligibility trace of the visited state."""


class MonteCarloReturns(Config):
    """Returns of whole episodes."""

    kind: Literal["monte_carlo"]
    """Names this alternative."""
    visits: Literal["first", "every"] = "every"
    """Visits of a state that count in an episode: the first or all; on policy only."""
    off_policy: bool = False
    """Weight returns by importance sampling if `behave` differs from `follow`."""


PredictionMethod: TypeAlias = Annotated[OneStepTd | NStepTd | LambdaTd | MonteCarloReturns, Field(discriminator="kind")]


class TdPredictionAlgorithm(TabularAlgorithm):
    """The method's numbers."""

    discount = new_default(1.0)
    method: PredictionMethod = OneStepTd()
    """Target of a value update."""


class EpsilonPolicyConfig(Config):
    """A policy to evaluate or to act with: the optimal one, epsilon-greedy."""

    epsilon: float = Field(default=1.0, ge=0, le=1)
    """Probability of an action drawn from all; 1 is the uniform policy, 0 the best."""


class TdPredictionConfig(PredictionRunConfig):
    """Values of states."""

    table: TableConfig = TableConfig()
    """Values and step sizes."""
    follow: EpsilonPolicyConfig = EpsilonPolicyConfig()
    """The target policy: its values are learned."""
    behave: EpsilonPolicyConfig | None = None
    """The behaviour policy; None: the target policy."""
    algorithm: TdPredictionAlgorithm = TdPredictionAlgorithm()  # pyright: ignore[reportIncompatibleVariableOverride] - frozen
    """Discount factor and other numbers of the algorithm."""

    def open(self) -> OpenedRun:
        """The world, built once. Raises ConfigError for numbers that do not fit together."""
        _require_consistent(self)
        return opened_run(open_finite(self.finite, self), _build)


def _build(config: TdPredictionConfig, world: FiniteWorld) -> TrainingJob[StateValues]:
    """Training job of the recipe: values of the target policy, learned from steps of the behaviour policy."""
    values = StateValues(_action_probabilities(world.mdp, config.follow), initial=config.table.initial)
    values.x[world.mdp.terminal] = 0.0
    behaviour = None if config.behave is None else _action_probabilities(world.mdp, config.behave)
    method = _tabular_method(config.algorithm)
    return prediction_job(config, world, values, method, rate=config.table.rate, behaviour=behaviour)


def _tabular_method(algorithm: TdPredictionAlgorithm) -> TabularMethod[StateValues]:
    """Update rule and credit, and the episodes and visits that count."""
    discount = algorithm.discount
    method = partial(TabularMethod, discount=discount, needs_values=True)
    match algorithm.method:
        case OneStepTd():
            return method(make_rule=lambda _: ExpectedSarsa(next_weights=expected_sarsa_weights))
        case NStepTd(steps=steps):
            return method(make_rule=lambda _: TargetRule(), credit=partial(n_step, discount=discount, steps=steps))
        case LambdaTd(trace_lambda=trace_lambda, trace=trace):
            rule = EligibilityTraces(
                decay=discount * trace_lambda, trace=TRACE_KINDS[trace], next_weights=expected_sarsa_weights
            )
            return method(make_rule=lambda _: rule)
        case MonteCarloReturns(off_policy=off_policy, visits=visits):
            return method(
                make_rule=lambda _: WeightedImportanceSampling() if off_policy else TargetRule(),
                credit=partial(discounted_returns, discount=discount),
                whole_episodes=True,
                first_visits=visits == "first" and not off_policy,
            )


def _action_probabilities(mdp: FiniteMdp, policy: EpsilonPolicyConfig) -> Floats:
    """`[S, A]`; rows of states in which nothing can be done are uniform."""
    uniform = np.full((mdp.states, mdp.actions), 1.0 / mdp.actions)
    if policy.epsilon == 1.0:
        return uniform
    return policy.epsilon * uniform + (1.0 - policy.epsilon) * np.eye(mdp.actions)[policy_iteration(mdp).policy]


def _require_consistent(config: TdPredictionConfig) -> None:
    """Raises ConfigError for settings that the chosen method does not support."""
    method = config.algorithm.method
    weighted = isinstance(method, MonteCarloReturns) and method.off_policy
    if config.behave is not None and not weighted:
        raise ConfigError(
            'behave is given, but only algorithm.method = { kind = "monte_carlo", off_policy = true } learns of '
            "another policy than the one that acts; recipe gradient_td does by ratios"
        )
    if isinstance(method, LambdaTd) and method.trace == "dutch" and config.table.rate.power:
        raise ConfigError('algorithm.method.trace = "dutch" needs one step size for all: set table.rate.power = 0')


ENTRY = RecipeSpec(
    summary="values of states under a given policy: TD(0), n-step, TD(lambda), Monte Carlo",
    paper="Sutton, Learning to Predict by the Methods of Temporal Differences, 1988",
    config=TdPredictionConfig,
    parts=RecipeParts(
        source="Live(finite world)",
        credit=(one_step_target, n_step, discounted_returns),
        loss=(expected_sarsa, target_update, eligibility_traces, weighted_importance_update),
    ),
    limitation="it improves no policy; a constant step size leaves noise in the values.",
)
