"""Prediction: state values of a finite MDP under a given policy, learned from steps.

TD(0) (Sutton, 1988), n-step returns, TD(lambda) with accumulating, replacing or dutch traces, and Monte Carlo, on
policy or off (weighted importance sampling). The MDP is known, so a run is evaluated by the error of its values.
"""

from functools import partial
from typing import Annotated, Literal, TypeAlias

import numpy as np
from pydantic import Field

from hone.core.config import Config
from hone.core.errors import ConfigError
from hone.credit.returns import discounted_returns, n_step, one_step_target
from hone.envs.finite.config import FiniteConfig
from hone.envs.finite.model import FiniteMdp
from hone.envs.finite.solve import policy_iteration
from hone.tabular.batch import expected_sarsa_weights
from hone.tabular.kernels import (
    ACCUMULATING,
    DUTCH,
    REPLACING,
    Floats,
    eligibility_traces,
    expected_sarsa,
    target_update,
    weighted_importance_update,
)
from hone.tabular.learn import (
    EligibilityTraces,
    ExpectedSarsa,
    TabularLearner,
    TargetRule,
    UpdateRule,
    WeightedImportanceSampling,
)
from hone.tabular.tables import StateValues
from hone.train.config import RunConfig, RunSettings
from hone.train.control.job import ControlEvaluationConfig
from hone.train.job import RecipeParts, RecipeSpec, TrainingJob, checked_run
from hone.train.loop import Recipe
from hone.train.sources.live import LiveSource
from hone.train.sources.whole_episodes import WholeEpisodes
from hone.train.tabular.job import (
    StationaryActor,
    TableConfig,
    TabularCredit,
    derive_finite,
    open_finite,
    state_values_job,
)

TRACE_KINDS = {"accumulating": ACCUMULATING, "replacing": REPLACING, "dutch": DUTCH}


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


class TdPredictionAlgorithm(Config):
    """The method's numbers."""

    discount: float = Field(default=1.0, gt=0, le=1)
    """Discount factor (gamma)."""
    method: PredictionMethod = OneStepTd()
    """Target of a value update."""


class EpsilonPolicyConfig(Config):
    """A policy to evaluate or to act with: the optimal one, epsilon-greedy."""

    epsilon: float = Field(default=1.0, ge=0, le=1)
    """Probability of an action drawn from all; 1 is the uniform policy, 0 the best."""


class TdPredictionConfig(RunConfig):
    """Values of states."""

    run: RunSettings = RunSettings(threads=1, log_every=20)
    """Threads, logging, checkpoints and other settings of the run."""
    finite: FiniteConfig
    """The world."""
    rollout_steps: int = Field(default=8, ge=1)
    """Steps of each copy per iteration."""
    table: TableConfig = TableConfig()
    """Values and step sizes."""
    follow: EpsilonPolicyConfig = EpsilonPolicyConfig()
    """The target policy: its values are learned."""
    behave: EpsilonPolicyConfig | None = None
    """The behaviour policy; None: the target policy."""
    algorithm: TdPredictionAlgorithm = TdPredictionAlgorithm()
    """Discount factor and other numbers of the algorithm."""
    evaluation: ControlEvaluationConfig = ControlEvaluationConfig()
    """Interval between computations of the value error."""


def build(config: TdPredictionConfig) -> TrainingJob[StateValues]:
    """Raises ConfigError for numbers that do not fit together."""
    require_consistent(config)
    algorithm = config.algorithm
    mdp, world = open_finite(
        config.finite, steps=config.rollout_steps, seed=config.seed, discount=algorithm.discount
    )  # fmt: skip
    values = StateValues(action_probabilities(mdp, config.follow), initial=config.table.initial)
    values.x[mdp.terminal] = 0.0
    behaviour = None if config.behave is None else action_probabilities(mdp, config.behave)
    live = LiveSource(world, StationaryActor(values.numpy_policy(behaviour=behaviour)))
    rule, credit, whole = rule_and_credit(algorithm)
    method = algorithm.method
    first = isinstance(method, MonteCarloReturns) and method.visits == "first" and not method.off_policy
    recipe = Recipe(
        source=WholeEpisodes(live) if whole else live,
        credit=credit,
        learner=TabularLearner(values, rule, config.table.rate, predicts_values=True, first_visits=first),
    )
    return state_values_job(recipe, world=world, evaluation=config.evaluation)


def rule_and_credit(algorithm: TdPredictionAlgorithm) -> tuple[UpdateRule, TabularCredit, bool]:
    """Rule and credit of a method, and whether it needs whole episodes."""
    discount = algorithm.discount
    match algorithm.method:
        case OneStepTd():
            return (
                ExpectedSarsa(next_weights=expected_sarsa_weights),
                partial(one_step_target, discount=discount),
                False,
            )
        case NStepTd(steps=steps):
            return TargetRule(), partial(n_step, discount=discount, steps=steps), False
        case LambdaTd(trace_lambda=decay, trace=trace):
            rule = EligibilityTraces(
                decay=discount * decay, trace=TRACE_KINDS[trace], next_weights=expected_sarsa_weights
            )
            return rule, partial(one_step_target, discount=discount), False
        case MonteCarloReturns(off_policy=off_policy):
            rule = WeightedImportanceSampling() if off_policy else TargetRule()
            return rule, partial(discounted_returns, discount=discount), True


def action_probabilities(mdp: FiniteMdp, policy: EpsilonPolicyConfig) -> Floats:
    """`[S, A]`; rows of states in which nothing can be done are uniform."""
    uniform = np.full((mdp.states, mdp.actions), 1.0 / mdp.actions)
    if policy.epsilon == 1.0:
        return uniform
    return policy.epsilon * uniform + (1.0 - policy.epsilon) * np.eye(mdp.actions)[policy_iteration(mdp).policy]


def require_consistent(config: TdPredictionConfig) -> None:
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


def check(config: TdPredictionConfig) -> list[str]:
    """Warnings about the config; raises ConfigError for a run that cannot work."""
    require_consistent(config)
    open_finite(config.finite, steps=config.rollout_steps, seed=config.seed, discount=config.algorithm.discount)
    return []


def derive(config: TdPredictionConfig) -> dict[str, str]:
    """Figures that follow from the config, shown by `hone plan`."""
    return derive_finite(config.finite, rollout_steps=config.rollout_steps, iterations=config.steps)


ENTRY = RecipeSpec(
    summary="values of states under a given policy: TD(0), n-step, TD(lambda), Monte Carlo",
    paper="Sutton, Learning to Predict by the Methods of Temporal Differences, 1988",
    config=TdPredictionConfig,
    open=checked_run(check, build),
    derive=derive,
    parts=RecipeParts(
        source="Live(finite world)",
        credit=(one_step_target, n_step, discounted_returns),
        loss=(expected_sarsa, target_update, eligibility_traces, weighted_importance_update),
    ),
    limitation="it improves no policy; a constant step size leaves noise in the values.",
)
