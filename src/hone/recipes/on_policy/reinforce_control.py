"""REINFORCE on environments (Williams, 1992): returns weight the log-probabilities of the actions before them.

Learns from whole episodes only, by Monte Carlo returns. `baseline` is subtracted from a return: a learned state value,
the batch's mean, or nothing. No baseline biases the gradient; the better it predicts the return, the lower the
gradient's variance.
"""

from dataclasses import replace
from functools import partial
from typing import Literal

import torch
from pydantic import Field

from hone.core.config import Config
from hone.core.credit import NO_VALUES, Credits, Values
from hone.core.episodes import Episodes
from hone.credit.returns import discounted_returns, gae, standardised
from hone.models.control.actor_critic import ActorCritic
from hone.objectives.policy import reinforce_loss
from hone.objectives.terms import LossTerms
from hone.objectives.value import squared_error
from hone.objectives.weights import token_mean
from hone.train.control.on_policy import (
    OnPolicyMethod,
    OnPolicyRunConfig,
    check_on_policy,
    derive_on_policy,
    merged_metrics,
    on_policy_job,
)
from hone.train.control.rows import StepRows
from hone.train.job import RecipeParts, RecipeSpec, TrainingJob, checked_run
from hone.train.learner.config import LearnerConfig
from hone.train.sources.normalise import NormaliseConfig
from hone.train.sources.whole_episodes import WholeEpisodes


class ReinforceControlAlgorithm(Config):
    """Returns and baseline."""

    discount: float = Field(default=0.99, ge=0, le=1)
    """Discount factor (gamma)."""
    baseline: Literal["value", "mean", "none"] = "value"
    """`value`: a critic's; `mean`: of the batch's returns; `none`: returns as they are."""
    episodes: int = Field(default=4, ge=1)
    """Episodes that must have ended before an update."""
    value_weight: float = Field(default=1.0, ge=0)
    """Weight of the critic's squared error, halved."""
    entropy_weight: float = Field(default=0.0, ge=0)
    """Weight of the entropy bonus."""
    normalise: NormaliseConfig = NormaliseConfig()
    """Running normalisation of observations and rewards."""


class ReinforceControlConfig(OnPolicyRunConfig):
    """A policy, and a critic as its baseline, on Gymnasium environments."""

    rollout_steps: int = Field(default=64, ge=1)
    """Steps of each environment between looks at which episodes have ended."""
    learner: LearnerConfig = LearnerConfig(lr=3e-3, max_grad_norm=0.5)
    """The optimizer; one step per iteration."""
    algorithm: ReinforceControlAlgorithm = ReinforceControlAlgorithm()
    """Credit and loss."""


def return_credit(episodes: Episodes, values: Values, *, algorithm: ReinforceControlAlgorithm) -> Credits:
    """Returns to the end of the episode, above the baseline; a time limit is no end where a critic can look beyond."""
    if algorithm.baseline == "value":
        return standardised(gae(episodes, values, discount=algorithm.discount, gae_lambda=1.0))
    paid = discounted_returns(episodes, NO_VALUES, discount=algorithm.discount)
    if algorithm.baseline == "none":
        return paid
    return replace(paid, advantage=paid.advantage - paid.advantage.mean())


def objective(policy: ActorCritic, rows: StepRows, *, algorithm: ReinforceControlAlgorithm) -> LossTerms:
    """-A log p + value_weight * value error - entropy_weight * entropy."""
    now = policy.evaluate_actions(rows.seen, rows.chosen)
    parts = [reinforce_loss(now.logp, rows.advantage)]
    loss = parts[0].loss
    if now.value is not None:
        parts.append(squared_error(now.value, rows.target))
        loss = torch.add(loss, parts[1].loss, alpha=algorithm.value_weight)
    if algorithm.entropy_weight:
        loss = torch.sub(loss, now.entropy(), alpha=algorithm.entropy_weight)
    return LossTerms(loss=loss, compute_metrics=lambda: merged_metrics(now.entropy(), *parts))


def build(config: ReinforceControlConfig) -> TrainingJob[ActorCritic]:
    """Build the training job. Raises ConfigError and UserCodeError for an invalid environment."""
    algorithm = config.algorithm
    method = OnPolicyMethod(
        credit=partial(return_credit, algorithm=algorithm),
        objective=partial(objective, algorithm=algorithm),
        normalise=algorithm.normalise,
        discount=algorithm.discount,
        use_critic=algorithm.baseline == "value",
        wrap_source=partial(WholeEpisodes, min_episodes=algorithm.episodes),
    )
    return on_policy_job(config, method)


def check(config: ReinforceControlConfig) -> list[str]:
    """Warnings about the config; raises ConfigError for a run that cannot work."""
    return check_on_policy(config, config.algorithm.normalise)


ENTRY = RecipeSpec(
    summary="on-policy control: Monte-Carlo policy gradient on whole episodes, with or without a baseline",
    paper="Williams, Simple Statistical Gradient-Following Algorithms, 1992",
    config=ReinforceControlConfig,
    open=checked_run(check, build),
    derive=derive_on_policy,
    parts=RecipeParts(
        source="Whole(Live(Gymnasium))",
        credit=(standardised, gae),
        loss=(reinforce_loss, squared_error),
        weights=(token_mean,),
    ),
    limitation="waits for the ends of episodes; the variance of returns grows with their length.",
)
