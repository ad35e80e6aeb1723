"""What recipes share that are paid for novelty: PPO with two critics, two discounts, and a model of what is known.

Belongs here: the wiring. What novelty is, is said by a recipe file.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from hone.control import on_policy
from hone.control.environments.world import GymWorld
from hone.control.networks.actor_critic import entropy_metrics
from hone.control.networks.intrinsic_reward import CuriousActorCritic, NoveltyConfig
from hone.control.phases import optimizer_phase
from hone.control.rows import StepRows, step_rows
from hone.control.spaces import gaussian_spaces, world_spaces
from hone.core.config import new_default
from hone.core.credit import Credits, Values
from hone.core.episodes import Episodes
from hone.credit.moments import (
    NoveltyCredits,
    NoveltyValues,
    environment_offsets,
    non_episodic_gae,
    running_returns,
    with_novelty,
)
from hone.credit.returns import gae, standardised
from hone.objectives.policy import clipped_surrogate
from hone.objectives.terms import LossTerms
from hone.objectives.value import squared_error
from hone.objectives.weights import token_mean
from hone.run.job import OpenedRun, RecipeParts, TrainingJob


class IntrinsicRewardAlgorithm(on_policy.ClippedAlgorithm):
    """PPO's numbers, and those of the second stream; `discount` is of the extrinsic reward, `gae_lambda` of both."""

    entropy_weight = new_default(0.01)
    novelty_discount: float = Field(default=0.99, ge=0, le=1)
    """Discount factor of the intrinsic reward."""
    paid_weight: float = Field(default=10.0, ge=0)
    """Weight of the extrinsic advantage. The paper has 2; more reduces exploration sooner once rewards are found."""
    novelty_weight: float = Field(default=1.0, ge=0)
    """Weight of the intrinsic advantage; 0 is PPO without it."""
    novelty_scale_decay: float = Field(default=0.9, gt=0, le=1)
    """Weight, an iteration later, of the returns by whose standard deviation the intrinsic reward is divided. The paper
    forgets none (1). Where novelty falls faster than its scale, it ends below the errors of its critic; a small decay
    keeps it at full size after all is known."""


class IntrinsicRewardRunConfig(on_policy.OnPolicyRunConfig):
    """A policy, two critics, and a measure of novelty on Gymnasium environments."""

    has_encoders = False

    rollout_steps: int = Field(default=64, ge=2)
    """Steps of each environment per iteration."""
    algorithm: IntrinsicRewardAlgorithm = IntrinsicRewardAlgorithm()
    """Credit and loss."""
    novelty: NoveltyConfig
    """Measure of novelty."""
    novelty_model: ClassVar[Callable[..., object]]
    """The measure that the recipe's default builds."""

    def open(self) -> OpenedRun:
        return self.open_envs(_build, on_policy.require_clipped_actions)

    @classmethod
    def parts(cls) -> RecipeParts:
        return RecipeParts(
            source="Live(Gymnasium)",
            credit=(standardised, with_novelty, non_episodic_gae),
            loss=(clipped_surrogate, squared_error, cls.novelty_model),
            weights=(token_mean,),
        )


@dataclass(frozen=True, kw_only=True)
class _IntrinsicRewardRows(StepRows):
    """On-policy steps, with what was seen next and the second critic's target."""

    next_seen: Tensor
    novelty_target: Tensor


@dataclass
class _IntrinsicRewardCredit:
    """The credit: what is new is paid beside what the world pays, in units of its own running return.

    It keeps count of what was seen in the policy's own buffers, once for every batch that it is asked about.
    """

    policy: CuriousActorCritic
    algorithm: IntrinsicRewardAlgorithm

    def __call__(self, episodes: Episodes, values: Values) -> Credits:
        assert isinstance(values, NoveltyValues)
        asked, lanes = self.algorithm, environment_offsets(episodes, len(self.policy.get_buffer("running")))
        bonus = self._bonus(episodes, lanes)
        paid = gae(episodes, values, discount=asked.discount, gae_lambda=asked.gae_lambda)
        advantage, target = non_episodic_gae(
            episodes,
            bonus,
            values,
            environment_offsets=lanes,
            discount=asked.novelty_discount,
            gae_lambda=asked.gae_lambda,
        )
        both = with_novelty(
            paid, advantage, target, extrinsic_weight=asked.paid_weight, intrinsic_weight=asked.novelty_weight
        )
        novelty_metrics = {"novelty/mean": float(bonus.mean()), "novelty/largest": float(bonus.max())}
        return replace(standardised(both), metrics={**both.metrics, **novelty_metrics})

    @torch.no_grad()
    def _bonus(self, episodes: Episodes, lanes: NDArray[np.int64]) -> NDArray[np.float64]:
        """`[N]` novelty in deviations of its running return."""
        policy, steps = self.policy, episodes.transitions()
        device, running = next(policy.parameters()).device, policy.get_buffer("running")
        assert steps.final is not None
        columns = (steps.observations, steps.chosen, steps.final)
        seen, chosen, after = (torch.from_numpy(np.ascontiguousarray(column)).to(device) for column in columns)
        policy.novelty.update(after)
        raw = policy.novelty.bonus(seen, chosen, after).double().cpu().numpy()
        before = np.zeros(len(lanes) - 1)
        before[: len(running)] = running.cpu().numpy()[: len(before)]
        returns = running_returns(raw, lanes, before, discount=self.algorithm.novelty_discount)
        running[: len(before)] = torch.from_numpy(returns[lanes[1:] - 1][: len(running)]).to(device)
        policy.returns.update(torch.from_numpy(returns[:, None]).to(device), keep=self.algorithm.novelty_scale_decay)
        return raw / (float(policy.returns.std()[0]) + 1e-8)


@torch.no_grad()
def _predict_values(policy: CuriousActorCritic, episodes: Episodes) -> NoveltyValues:
    """Both critics' values of everything seen, and of what was seen last."""
    assert episodes.final is not None
    device, count = next(policy.parameters()).device, episodes.decisions
    both = (torch.from_numpy(np.ascontiguousarray(part)).to(device) for part in (episodes.observations, episodes.final))
    paid, new = (value.cpu().numpy() for value in policy.values(torch.cat(list(both))))
    return NoveltyValues(value=paid[:count], final=paid[count:], novelty=new[:count], novelty_final=new[count:])


def _intrinsic_reward_rows(episodes: Episodes, credits: Credits, *, device: str = "cpu") -> _IntrinsicRewardRows:
    """On-policy rows; a credit without novelty asks the second critic for nothing."""
    rows, steps = step_rows(episodes, credits, device=device), episodes.transitions()
    assert steps.final is not None
    target = credits.novelty_target if isinstance(credits, NoveltyCredits) else np.zeros(len(rows), np.float32)
    return _IntrinsicRewardRows(
        **vars(rows),
        next_seen=torch.from_numpy(np.ascontiguousarray(steps.final)).to(device),
        novelty_target=torch.from_numpy(target).to(device),
    )


def _policy_objective(
    policy: CuriousActorCritic, rows: _IntrinsicRewardRows, *, algorithm: IntrinsicRewardAlgorithm
) -> LossTerms:
    """Clipped surrogate + value_weight * (both critics' errors) - entropy_weight * entropy."""
    now = policy.evaluate_actions(rows.seen, rows.chosen, rows.mask)
    paid, new = policy.values(rows.seen)
    surrogate = clipped_surrogate(now.logp, rows.logp, rows.advantage, low=algorithm.clip, high=algorithm.clip)
    critic, second = squared_error(paid, rows.target), squared_error(new, rows.novelty_target)
    entropy = now.entropy()
    errors = critic.loss + second.loss
    return LossTerms(
        loss=surrogate.loss + algorithm.value_weight * errors - algorithm.entropy_weight * entropy,
        compute_metrics=lambda: {
            **surrogate.metrics,
            **critic.metrics,
            "novelty/error_abs": second.metrics["value/error_abs"],
            **entropy_metrics(entropy.detach(), now.mask),
        },
    )


def _novelty_objective(policy: CuriousActorCritic, rows: _IntrinsicRewardRows) -> LossTerms:
    """Loss of the novelty model on the visited observations."""
    return LossTerms(loss=policy.novelty.loss(rows.seen, rows.chosen, rows.next_seen))


def _build(config: IntrinsicRewardRunConfig, world: GymWorld) -> TrainingJob[CuriousActorCritic]:
    """Training job that acts in `world`."""
    policy = CuriousActorCritic(
        gaussian_spaces(world_spaces(world), config.network),
        config.network,
        seed=config.seed,
        novelty=config.novelty,
        lanes=config.env.num_envs,
    ).to(config.run.device)
    objective = partial(_policy_objective, algorithm=config.algorithm)
    phases = [optimizer_phase("policy", objective, policy.policy_parameters(), config.learner)]
    learnt = policy.novelty.trainable_parameters()
    if learnt:
        phases.append(optimizer_phase("novelty", _novelty_objective, learnt, config.learner))
    layout = partial(_intrinsic_reward_rows, device=config.run.device)
    learner = on_policy.rollout_learner(
        config, config.learner, policy, phases, layout=layout, predict_values=_predict_values
    )
    return on_policy.rollout_job(config, world, _IntrinsicRewardCredit(policy, config.algorithm), learner)
