"""Proximal policy optimisation (Schulman et al., 2017): several passes over fresh steps, each change clipped.

Advantages by GAE, standardised over the batch; value and entropy terms in the same optimizer step. The defaults are
those that solve CartPole-v1 within 100,000 steps: learning rate and clip width fall to 0, because at the time limit all
actions are equally good, standardised advantages are then the critic's errors, and only small steps do not follow them.
"""

from dataclasses import dataclass
from functools import partial
from typing import Literal

from pydantic import Field

from hone.control import on_policy
from hone.control.networks.actor_critic import ActorCritic
from hone.control.normalise import NormaliseConfig
from hone.control.ppo_backward import ppo_loss_with_backward
from hone.control.rows import StepRows
from hone.control.value_loss import ClippedValueLoss, SquaredValueLoss, ValueLossConfig, old_value_rows
from hone.core.config import new_default
from hone.core.reduction import Reduction
from hone.learner.config import LearnerConfig
from hone.learner.gradient import TrainingRows
from hone.objectives.policy import clipped_surrogate
from hone.objectives.terms import LossTerms
from hone.run.job import RecipeSpec


class PpoAlgorithm(on_policy.ActorCriticAlgorithm):
    """The numbers of the paper."""

    discount = new_default(0.98)
    gae_lambda = new_default(0.8)
    clip_low: float = Field(default=0.2, gt=0, lt=1)
    """Lower clip width of the probability ratio: the ratio is clipped at 1 - clip_low."""
    clip_high: float = Field(default=0.2, gt=0)
    """Upper clip width of the probability ratio: the ratio is clipped at 1 + clip_high."""
    value_loss: ValueLossConfig = SquaredValueLoss()
    """Loss of the critic: `squared`, `huber`, or `clipped` around the value before the update (PPO2)."""
    clip_decay: Literal["constant", "linear"] | None = None
    """Schedule of both clip widths: constant, or linear to 0 at the last optimizer step. None: linear where
    `learner.lr_decay` is, else constant."""
    max_staleness: int = Field(default=0, ge=0, le=16)
    """Largest age of the collected steps, in iterations of the policy that learns from them; above 0 a thread
    collects while the policy learns (asynchronous actors)."""
    normalise: NormaliseConfig = NormaliseConfig()
    """Running normalisation of observations and rewards."""


class PpoConfig(on_policy.OnPolicyRunConfig):
    """A policy and a critic on Gymnasium environments."""

    rollout_steps = new_default(32)
    learner = new_default(LearnerConfig(lr=1e-3, lr_decay="linear", epochs=20, max_grad_norm=0.5))
    algorithm: PpoAlgorithm = PpoAlgorithm()
    """Credit and loss."""

    def method(self) -> on_policy.OnPolicyMethod:
        """Credit and loss of the recipe, as the on-policy family takes them."""
        return ppo_method(self, self.algorithm)


@dataclass
class ClipSchedule:
    """Schedule of the clip width: a function of the optimizer step's number, without state to save."""

    decay_updates: int
    """Optimizer steps over which it shrinks to 0; 0: it stays."""
    clip_factor: float = 1.0

    def prepare(self, policy: ActorCritic, rows: StepRows, update: int, reduction: Reduction) -> TrainingRows[StepRows]:
        del policy, reduction
        self.clip_factor = max(1.0 - update / self.decay_updates, 0.0) if self.decay_updates else 1.0
        return rows


def objective(
    policy: ActorCritic, rows: StepRows, *, algorithm: PpoAlgorithm, clip_schedule: ClipSchedule | None = None
) -> LossTerms:
    """Clipped surrogate + value_weight * the critic's loss - entropy_weight * entropy."""
    now = policy.evaluate_rows(rows)
    low, high = _clip_range(algorithm, clip_schedule)
    surrogate = clipped_surrogate(now.logp, rows.logp, rows.advantage, low=low, high=high)
    weights = (algorithm.value_weight, algorithm.entropy_weight)
    return on_policy.actor_critic_loss(
        surrogate, now, rows.target, *weights, critic_loss=algorithm.value_loss.critic_loss(rows)
    )


def objective_with_backward(
    policy: ActorCritic, rows: StepRows, *, algorithm: PpoAlgorithm, clip_schedule: ClipSchedule | None = None
) -> LossTerms:
    """`objective` with the squared error, and its gradient added to the parameters' gradients."""
    low, high = _clip_range(algorithm, clip_schedule)
    return ppo_loss_with_backward(
        policy, rows, low=low, high=high, value_weight=algorithm.value_weight, entropy_weight=algorithm.entropy_weight
    )


def _clip_range(algorithm: PpoAlgorithm, clip_schedule: ClipSchedule | None) -> tuple[float, float]:
    """Clip widths below and above 1 at this optimizer step."""
    factor = 1.0 if clip_schedule is None else clip_schedule.clip_factor
    return factor * algorithm.clip_low, factor * algorithm.clip_high


def ppo_method(config: on_policy.OnPolicyRunConfig, algorithm: PpoAlgorithm) -> on_policy.OnPolicyMethod:
    """Credit and loss of PPO with the numbers of `algorithm`."""
    shrinks = (algorithm.clip_decay or config.learner.lr_decay) == "linear"
    value_loss, written_out = algorithm.value_loss, partial(objective_with_backward, algorithm=algorithm)
    width = ClipSchedule(decay_updates=config.learner.optimizer_steps(config.steps) if shrinks else 0)
    return on_policy.OnPolicyMethod(
        credit=partial(on_policy.standardised_gae, discount=algorithm.discount, gae_lambda=algorithm.gae_lambda),
        objective=partial(objective, algorithm=algorithm, clip_schedule=width),
        objective_with_backward=partial(written_out, clip_schedule=width)
        if isinstance(value_loss, SquaredValueLoss)
        else None,
        layout=old_value_rows if isinstance(value_loss, ClippedValueLoss) else None,
        normalise=algorithm.normalise,
        max_staleness=algorithm.max_staleness,
        discount=algorithm.discount,
        prepare=width.prepare if shrinks else None,
    )


ENTRY = RecipeSpec(
    summary="on-policy control: clipped policy gradient with a critic",
    paper="Schulman et al., Proximal Policy Optimization Algorithms, 2017",
    config=PpoConfig,
    limitation="the clip bounds the gradient, not the change of the policy over several passes.",
)
