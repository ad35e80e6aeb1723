"""REINFORCE on environments (Williams, 1992): the return that followed a decision makes it likelier.

Learns from whole episodes only, by Monte-Carlo returns. `baseline` is what a return is compared with: a learned value
of what was seen, the batch's mean, or nothing. No baseline biases the gradient; the better it foresees the return, the
less the gradient scatters.
"""

from dataclasses import replace
from functools import partial
from typing import Literal

import torch
from pydantic import Field

from hone.core.config import Config
from hone.core.credit import NO_VALUES, Credits, Values
from hone.core.episodes import Episodes
from hone.credit.returns import gae, returns, standardised
from hone.models.control.actor_critic import ActorCritic
from hone.objectives.policy import reinforce
from hone.objectives.terms import Terms
from hone.objectives.value import squared
from hone.objectives.weights import token_mean
from hone.train.control.on_policy import Method, OnPolicyRun, check_on_policy, derive, on_policy_job, told_of
from hone.train.control.rows import StepRows
from hone.train.job import Entry, Job, Parts
from hone.train.learner.config import LearnerConfig
from hone.train.sources.normalise import Normalise
from hone.train.sources.whole_episodes import Whole


class ReinforceControlAlgorithm(Config):
    """Returns and what they are compared with."""

    discount: float = Field(default=0.99, ge=0, le=1)
    """Of a reward one step later."""
    baseline: Literal["value", "mean", "none"] = "value"
    """`value`: a critic's; `mean`: of the batch's returns; `none`: returns as they are."""
    episodes: int = Field(default=4, ge=1)
    """Episodes that must have ended before an update."""
    value_weight: float = Field(default=1.0, ge=0)
    """Of the critic's squared error, halved."""
    entropy_weight: float = Field(default=0.0, ge=0)
    """Of the policy's entropy, which is kept up."""
    normalise: Normalise = Normalise()
    """Running scales of what is seen and paid."""


class ReinforceControlConfig(OnPolicyRun):
    """A policy, and a critic as its baseline, on Gymnasium environments."""

    rollout_steps: int = Field(default=64, ge=1)
    """Steps of each environment between looks at which episodes have ended."""
    learner: LearnerConfig = LearnerConfig(lr=3e-3, max_grad_norm=0.5)
    """The optimizer; one step a turn."""
    algorithm: ReinforceControlAlgorithm = ReinforceControlAlgorithm()
    """Credit and loss."""


def credited(episodes: Episodes, values: Values, *, algorithm: ReinforceControlAlgorithm) -> Credits:
    """Returns to the end of the episode, above the baseline; a time limit is no end where a critic can look beyond."""
    if algorithm.baseline == "value":
        return standardised(gae(episodes, values, discount=algorithm.discount, decay=1.0))
    paid = returns(episodes, NO_VALUES, discount=algorithm.discount)
    if algorithm.baseline == "none":
        return paid
    return replace(paid, advantage=paid.advantage - paid.advantage.mean())


def objective(policy: ActorCritic, rows: StepRows, *, algorithm: ReinforceControlAlgorithm) -> Terms:
    """-A log p + value_weight * value error - entropy_weight * entropy."""
    now = policy.judge(rows.seen, rows.chosen)
    parts = [reinforce(now.logp, rows.advantage)]
    loss = parts[0].loss
    if now.value is not None:
        parts.append(squared(now.value, rows.target))
        loss = torch.add(loss, parts[1].loss, alpha=algorithm.value_weight)
    if algorithm.entropy_weight:
        loss = torch.sub(loss, now.entropy(), alpha=algorithm.entropy_weight)
    return Terms(loss=loss, told=lambda: told_of(now.entropy(), *parts))


def build(config: ReinforceControlConfig) -> Job[ActorCritic]:
    """Raises ConfigError and UserCodeError for what is wrong with the environment."""
    algorithm = config.algorithm
    method = Method(
        credit=partial(credited, algorithm=algorithm),
        objective=partial(objective, algorithm=algorithm),
        normalise=algorithm.normalise,
        discount=algorithm.discount,
        critic=algorithm.baseline == "value",
        decorate=partial(Whole, episodes=algorithm.episodes),
    )
    return on_policy_job(config, method)


def check(config: ReinforceControlConfig) -> list[str]:
    return check_on_policy(config, config.algorithm.normalise)


ENTRY = Entry(
    summary="on-policy control: Monte-Carlo policy gradient on whole episodes, with or without a baseline",
    source="Williams, Simple Statistical Gradient-Following Algorithms, 1992",
    config=ReinforceControlConfig,
    build=build,
    check=check,
    derive=derive,
    parts=Parts(
        source="Whole(Live(Gymnasium))", credit=(standardised, gae), loss=(reinforce, squared), weights=(token_mean,)
    ),
    limitation="waits for the ends of episodes, and returns scatter more the longer they are.",
)
