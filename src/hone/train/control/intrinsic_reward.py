"""What recipes share that are paid for novelty: PPO with two critics, two discounts, and a model of what is known.

Belongs here: the wiring. What novelty is, is said by a recipe file.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, model_validator
from torch import Tensor

from hone.core.config import Config
from hone.core.credit import Credits, Values
from hone.core.episodes import Episodes
from hone.credit.novelty import (
    NoveltyCredits,
    NoveltyValues,
    environment_offsets,
    non_episodic_gae,
    running_returns,
    with_novelty,
)
from hone.credit.returns import gae, standardised
from hone.envs.gym.make import describe_placement
from hone.envs.gym.world import GymConfig, inspect_world, open_world
from hone.models.control.intrinsic_reward import CuriousActorCritic, NoveltyConfig
from hone.models.control.mlp import MlpConfig
from hone.objectives.policy import clipped_surrogate
from hone.objectives.terms import LossTerms
from hone.objectives.value import squared_error
from hone.objectives.weights import token_mean
from hone.train.config import RunConfig, RunSettings
from hone.train.control.acting import DropFailedEpisodes, NetworkActor
from hone.train.control.job import ControlEvaluationConfig, control_job
from hone.train.control.on_policy import require_clipping
from hone.train.control.phases import optimizer_phase
from hone.train.control.rows import StepRows, step_rows
from hone.train.control.spaces import network_spaces
from hone.train.job import RecipeParts, TrainingJob
from hone.train.learner.config import LearnerConfig, learning_rate_schedule, require_whole_minibatches
from hone.train.learner.gradient import GradientLearner
from hone.train.loop import Recipe
from hone.train.sources.live import LiveSource

RETURN_STATISTICS_DECAY = 0.9
"""Weight of what novelty came to before, a turn later. The paper forgets nothing; then a network that learns fast makes
novelty so small that the second critic's errors hide it."""


class IntrinsicRewardAlgorithm(Config):
    """PPO's hyperparameters, and those of the intrinsic reward."""

    discount: float = Field(default=0.99, ge=0, le=1)
    """Discount factor of the extrinsic reward."""
    novelty_discount: float = Field(default=0.99, ge=0, le=1)
    """Discount factor of the intrinsic reward."""
    gae_lambda: float = Field(default=0.95, ge=0, le=1)
    """GAE's lambda, of both."""
    paid_weight: float = Field(default=10.0, ge=0)
    """Weight of the extrinsic advantage. The paper has 2; more reduces exploration sooner once rewards are found."""
    novelty_weight: float = Field(default=1.0, ge=0)
    """Weight of the intrinsic advantage; 0 is PPO without it."""
    clip: float = Field(default=0.2, gt=0, lt=1)
    """Clip width of the probability ratio around 1."""
    value_weight: float = Field(default=0.5, ge=0)
    """Weight of both critics' squared errors."""
    entropy_weight: float = Field(default=0.01, ge=0)
    """Weight of the entropy bonus."""


class IntrinsicRewardRunConfig(RunConfig):
    """A policy, two critics, and a measure of novelty on Gymnasium environments."""

    run: RunSettings = RunSettings(threads=1)
    """Threads, logging, checkpoints and other settings of the run; one thread is fastest for a small network."""
    env: GymConfig
    """The environments."""
    rollout_steps: int = Field(default=64, ge=2)
    """Steps of each environment per iteration."""
    network: MlpConfig = MlpConfig()
    """Policy and critics have one each."""
    learner: LearnerConfig = LearnerConfig(lr=1e-3, epochs=4, minibatches=4, max_grad_norm=0.5)
    """The optimizers; `minibatches` per epoch."""
    algorithm: IntrinsicRewardAlgorithm = IntrinsicRewardAlgorithm()
    """Credit and loss."""
    evaluation: ControlEvaluationConfig = ControlEvaluationConfig()
    """Evaluation of the policy."""

    @model_validator(mode="after")
    def _parts_fit(self) -> "IntrinsicRewardRunConfig":
        require_whole_minibatches(self.learner, self.env.num_envs * self.rollout_steps, "env.num_envs x rollout_steps")
        return self


@dataclass(frozen=True, kw_only=True)
class IntrinsicRewardRows(StepRows):
    """On-policy steps, with what was seen next and the second critic's target."""

    next_seen: Tensor
    novelty_target: Tensor


@dataclass
class IntrinsicRewardCredit:
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
        told = {"novelty/mean": float(bonus.mean()), "novelty/largest": float(bonus.max())}
        return replace(standardised(both), metrics={**both.metrics, **told})

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
        policy.returns.update(torch.from_numpy(returns[:, None]).to(device), keep=RETURN_STATISTICS_DECAY)
        return raw / (float(policy.returns.std()[0]) + 1e-8)


@torch.no_grad()
def predict_values(policy: CuriousActorCritic, episodes: Episodes) -> NoveltyValues:
    """Both critics' values of everything seen, and of what was seen last."""
    assert episodes.final is not None
    device, count = next(policy.parameters()).device, episodes.decisions
    both = (torch.from_numpy(np.ascontiguousarray(part)).to(device) for part in (episodes.observations, episodes.final))
    paid, new = (value.cpu().numpy() for value in policy.values(torch.cat(list(both))))
    return NoveltyValues(value=paid[:count], final=paid[count:], novelty=new[:count], novelty_final=new[count:])


def intrinsic_reward_rows(episodes: Episodes, credits: Credits, *, device: str = "cpu") -> IntrinsicRewardRows:
    """On-policy rows; a credit without novelty asks the second critic for nothing."""
    rows, steps = step_rows(episodes, credits, device=device), episodes.transitions()
    assert steps.final is not None
    target = credits.novelty_target if isinstance(credits, NoveltyCredits) else np.zeros(len(rows), np.float32)
    return IntrinsicRewardRows(
        **vars(rows),
        next_seen=torch.from_numpy(np.ascontiguousarray(steps.final)).to(device),
        novelty_target=torch.from_numpy(target).to(device),
    )


def policy_objective(
    policy: CuriousActorCritic, rows: IntrinsicRewardRows, *, algorithm: IntrinsicRewardAlgorithm
) -> LossTerms:
    """Clipped surrogate + value_weight * (both critics' errors) - entropy_weight * entropy."""
    now = policy.evaluate_actions(rows.seen, rows.chosen)
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
            "policy/entropy_nats": entropy.detach(),
        },
    )


def novelty_objective(policy: CuriousActorCritic, rows: IntrinsicRewardRows) -> LossTerms:
    """What novelty is measured by learns that this is not new any more."""
    return LossTerms(loss=policy.novelty.loss(rows.seen, rows.chosen, rows.next_seen))


def intrinsic_reward_job(config: IntrinsicRewardRunConfig, novelty: NoveltyConfig) -> TrainingJob[CuriousActorCritic]:
    """Build the training job. Raises ConfigError and UserCodeError for an invalid environment."""
    world = open_world(config.env, steps=config.rollout_steps, seed=config.seed)
    space = network_spaces(world.envs.single_observation_space, world.envs.single_action_space)
    require_clipping(config.env, space)
    policy = CuriousActorCritic(space, config.network, seed=config.seed, novelty=novelty, lanes=config.env.num_envs).to(
        config.run.device
    )
    objective = partial(policy_objective, algorithm=config.algorithm)
    phases = [optimizer_phase("policy", objective, policy.policy_parameters(), config.learner)]
    learnt = policy.novelty.trainable_parameters()
    if learnt:
        phases.append(optimizer_phase("novelty", novelty_objective, learnt, config.learner))
    learner = GradientLearner(
        policy=policy,
        layout=partial(intrinsic_reward_rows, device=config.run.device),
        phases=phases,
        seed=config.seed,
        learning_rate=learning_rate_schedule(config.learner, config.learner.optimizer_steps(config.steps)),
        predict_values=predict_values,
        epochs=config.learner.epochs,
        minibatches=config.learner.minibatches,
    )
    recipe = Recipe(
        source=DropFailedEpisodes(LiveSource(world, NetworkActor(policy.numpy_policy())), world),
        credit=IntrinsicRewardCredit(policy, config.algorithm),
        learner=learner,
    )
    return control_job(recipe, env=config.env, evaluation=config.evaluation, seed=config.seed, world=world)


def check_intrinsic_reward(config: IntrinsicRewardRunConfig) -> list[str]:
    """Warnings about the config; raises ConfigError for a run that cannot work."""
    found, warnings = inspect_world(config.env, seed=config.seed)
    require_clipping(config.env, network_spaces(*found))
    return warnings


def derive_intrinsic_reward(config: IntrinsicRewardRunConfig) -> dict[str, str]:
    """Figures that follow from the config, shown by `hone plan`."""
    batch = config.env.num_envs * config.rollout_steps
    return {
        "environment steps per iteration": f"{config.env.num_envs} environments x {config.rollout_steps} = {batch}",
        "environment steps": f"{config.steps * batch}",
        "minibatch": f"{batch} / {config.learner.minibatches} = {batch // config.learner.minibatches} steps",
        "environments": describe_placement(config.env),
        "optimizer steps": f"{config.learner.optimizer_steps(config.steps)}",
    }


def intrinsic_reward_parts(*novelty: Callable[..., object]) -> RecipeParts:
    """What such a recipe is made of; `novelty` is what it is measured by."""
    return RecipeParts(
        source="Live(Gymnasium)",
        credit=(standardised, with_novelty, non_episodic_gae),
        loss=(clipped_surrogate, squared_error, *novelty),
        weights=(token_mean,),
    )
