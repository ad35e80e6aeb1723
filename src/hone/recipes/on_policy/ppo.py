"""Proximal policy optimisation (Schulman et al., 2017): several passes over fresh steps, each change clipped.

Advantages by GAE, standardised over the batch; value and entropy terms in the same optimizer step. The defaults are
those that solve CartPole-v1 within 100,000 steps.
"""

from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from pydantic import Field

from hone.core.config import Config
from hone.core.credit import Credits, Values
from hone.core.episodes import Episodes
from hone.core.reduction import Reduction
from hone.credit.returns import gae, standardised
from hone.models.control.actor_critic import ActorCritic
from hone.objectives.policy import clipped_surrogate
from hone.objectives.terms import LossTerms
from hone.objectives.value import squared_error
from hone.objectives.weights import token_mean
from hone.train.control.on_policy import (
    OnPolicyMethod,
    OnPolicyRunConfig,
    check_on_policy,
    derive_on_policy,
    on_policy_job,
    require_clipping,
)
from hone.train.control.rows import StepRows
from hone.train.job import RecipeParts, RecipeSpec, TrainingJob, checked_run
from hone.train.learner.config import LearnerConfig
from hone.train.learner.gradient import TrainingRows
from hone.train.sources.normalise import NormaliseConfig


class PpoAlgorithm(Config):
    """The numbers of the paper."""

    discount: float = Field(default=0.98, ge=0, le=1)
    """Discount factor (gamma)."""
    gae_lambda: float = Field(default=0.8, ge=0, le=1)
    """GAE's lambda: 0 trusts the critic, 1 the returns."""
    clip_low: float = Field(default=0.2, gt=0, lt=1)
    """Lower clip width of the probability ratio: the ratio is clipped at 1 - clip_low."""
    clip_high: float = Field(default=0.2, gt=0)
    """Upper clip width of the probability ratio: the ratio is clipped at 1 + clip_high."""
    clip_decay: Literal["constant", "linear"] = "constant"
    """Schedule of both clip widths: constant, or linear to 0 at the last optimizer step."""
    value_weight: float = Field(default=0.5, ge=0)
    """Weight of the critic's squared error."""
    entropy_weight: float = Field(default=0.0, ge=0)
    """Weight of the entropy bonus."""
    max_staleness: int = Field(default=0, ge=0, le=16)
    """Largest age of the collected steps, in iterations of the policy that learns from them; above 0 a thread
    collects while the policy learns (asynchronous actors)."""
    normalise: NormaliseConfig = NormaliseConfig()
    """Running normalisation of observations and rewards."""


class PpoConfig(OnPolicyRunConfig):
    """A policy and a critic on Gymnasium environments."""

    learner: LearnerConfig = LearnerConfig(lr=1e-3, lr_decay="linear", epochs=20, max_grad_norm=0.5)
    """The optimizer; `minibatches` per epoch."""
    algorithm: PpoAlgorithm = PpoAlgorithm()
    """Credit and loss."""


@dataclass
class ClipSchedule:
    """What is left of the clip's width: a function of the optimizer step's number, so there is no state to save."""

    decay_updates: int
    """Optimizer steps over which it shrinks to 0; 0: it stays."""
    clip_factor: float = 1.0

    def prepare(self, policy: ActorCritic, rows: StepRows, update: int, reduction: Reduction) -> TrainingRows[StepRows]:
        del policy, reduction
        self.clip_factor = max(1.0 - update / self.decay_updates, 0.0) if self.decay_updates else 1.0
        return rows


def objective(
    policy: ActorCritic, rows: StepRows, *, algorithm: PpoAlgorithm, clip_schedule: ClipSchedule | None = None
) -> LossTerms:  # fmt: skip
    """Clipped surrogate + value_weight * value error - entropy_weight * entropy."""
    now = policy.evaluate_actions(rows.seen, rows.chosen)
    assert now.value is not None
    share = 1.0 if clip_schedule is None else clip_schedule.clip_factor
    low, high = share * algorithm.clip_low, share * algorithm.clip_high
    surrogate = clipped_surrogate(now.logp, rows.logp, rows.advantage, low=low, high=high)
    critic = squared_error(now.value, rows.target)
    loss = torch.add(surrogate.loss, critic.loss, alpha=algorithm.value_weight)
    if algorithm.entropy_weight:
        loss = torch.sub(loss, now.entropy(), alpha=algorithm.entropy_weight)
    return LossTerms(
        loss=loss,
        compute_metrics=lambda: {**surrogate.metrics, **critic.metrics, "policy/entropy_nats": now.entropy().detach()},
    )


def build(config: PpoConfig) -> TrainingJob[ActorCritic]:
    """Build the training job. Raises ConfigError and UserCodeError for an invalid environment."""
    algorithm = config.algorithm
    shrinks = algorithm.clip_decay == "linear"
    width = ClipSchedule(decay_updates=config.learner.optimizer_steps(config.steps) if shrinks else 0)

    def credit(episodes: Episodes, values: Values) -> Credits:
        return standardised(gae(episodes, values, discount=algorithm.discount, gae_lambda=algorithm.gae_lambda))

    method = OnPolicyMethod(
        credit=credit,
        objective=partial(objective, algorithm=algorithm, clip_schedule=width),
        normalise=algorithm.normalise,
        max_staleness=algorithm.max_staleness,
        discount=algorithm.discount,
        prepare=width.prepare if shrinks else None,
    )
    return on_policy_job(config, method)


def check(config: PpoConfig) -> list[str]:
    """Warnings about the config; raises ConfigError for a run that cannot work."""
    return check_on_policy(config, config.algorithm.normalise)


ENTRY = RecipeSpec(
    summary="on-policy control: clipped policy gradient with a critic",
    paper="Schulman et al., Proximal Policy Optimization Algorithms, 2017",
    config=PpoConfig,
    open=checked_run(check, build),
    derive=derive_on_policy,
    parts=RecipeParts(
        source="Live(Gymnasium)",
        credit=(standardised, gae),
        loss=(clipped_surrogate, squared_error),
        weights=(token_mean,),
    ),
    limitation="the clip bounds the gradient, not the change of the policy over several passes.",
)

__all__ = ["ENTRY", "PpoAlgorithm", "PpoConfig", "build", "check", "derive_on_policy", "objective", "require_clipping"]
