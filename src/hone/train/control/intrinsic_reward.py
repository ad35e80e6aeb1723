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
    CuriousCredits,
    CuriousValues,
    continuing_gae,
    lanes_of,
    running_returns,
    with_novelty,
)
from hone.credit.returns import gae, standardised
from hone.envs.gym.make import placed
from hone.envs.gym.world import GymConfig, inspect_world, open_world
from hone.models.control.intrinsic_reward import CuriousActorCritic, NoveltyConfig
from hone.models.control.mlp import MlpConfig
from hone.objectives.policy import clipped
from hone.objectives.terms import Terms
from hone.objectives.value import squared
from hone.objectives.weights import token_mean
from hone.train.config import RunConfig, RunSettings
from hone.train.control.acting import NetworkActor, Scored
from hone.train.control.job import JudgeConfig, control_job
from hone.train.control.on_policy import require_clipping
from hone.train.control.phases import phase
from hone.train.control.rows import StepRows, step_rows
from hone.train.control.spaces import spaces_of
from hone.train.job import Job, Parts
from hone.train.learner.config import LearnerConfig, require_whole_minibatches, schedule
from hone.train.learner.gradient import GradientLearner
from hone.train.loop import Recipe
from hone.train.sources.live import Live

KEEP = 0.9
"""Weight of what novelty came to before, a turn later. The paper forgets nothing; then a network that learns fast makes
novelty so small that the second critic's errors hide it."""


class CuriousAlgorithm(Config):
    """PPO's numbers, and those of the second stream."""

    discount: float = Field(default=0.99, ge=0, le=1)
    """Of what the world pays one step later."""
    novelty_discount: float = Field(default=0.99, ge=0, le=1)
    """Of novelty one step later."""
    decay: float = Field(default=0.95, ge=0, le=1)
    """GAE's lambda, of both."""
    paid_weight: float = Field(default=10.0, ge=0)
    """Of the advantage of what the world pays. The paper has 2; more lets go of novelty sooner once it pays."""
    novelty_weight: float = Field(default=1.0, ge=0)
    """Of the advantage of novelty; 0 is PPO without it."""
    clip: float = Field(default=0.2, gt=0, lt=1)
    """How far the probability of a decision may move before its gradient stops."""
    value_weight: float = Field(default=0.5, ge=0)
    """Of both critics' squared errors."""
    entropy_weight: float = Field(default=0.01, ge=0)
    """Of the policy's entropy, which is kept up: whoever stands beside what pays must still try it."""


class CuriousConfig(RunConfig):
    """A policy, two critics, and a measure of novelty on Gymnasium environments."""

    run: RunSettings = RunSettings(threads=1)
    """How the run is carried out; one thread is fastest for a small network."""
    env: GymConfig
    """The environments."""
    rollout_steps: int = Field(default=64, ge=2)
    """Steps of each environment per turn of the loop."""
    network: MlpConfig = MlpConfig()
    """Policy and critics have one each."""
    learner: LearnerConfig = LearnerConfig(lr=1e-3, epochs=4, minibatches=4, max_grad_norm=0.5)
    """The optimizers; `minibatches` per epoch."""
    algorithm: CuriousAlgorithm = CuriousAlgorithm()
    """Credit and loss."""
    judge: JudgeConfig = JudgeConfig()
    """How the policy is tried."""

    @model_validator(mode="after")
    def _parts_fit(self) -> "CuriousConfig":
        require_whole_minibatches(self.learner, self.env.num_envs * self.rollout_steps, "env.num_envs x rollout_steps")
        return self


@dataclass(frozen=True, kw_only=True)
class CuriousRows(StepRows):
    """On-policy steps, with what was seen next and the second critic's target."""

    after: Tensor
    novelty_target: Tensor


@dataclass
class Curiosity:
    """The credit: what is new is paid beside what the world pays, in units of its own running return.

    It keeps count of what was seen in the policy's own buffers, once for every batch that it is asked about.
    """

    policy: CuriousActorCritic
    algorithm: CuriousAlgorithm

    def __call__(self, episodes: Episodes, values: Values) -> Credits:
        assert isinstance(values, CuriousValues)
        asked, lanes = self.algorithm, lanes_of(episodes, len(self.policy.get_buffer("running")))
        bonus = self._bonus(episodes, lanes)
        paid = gae(episodes, values, discount=asked.discount, decay=asked.decay)
        advantage, target = continuing_gae(
            episodes, bonus, values, lanes=lanes, discount=asked.novelty_discount, decay=asked.decay
        )
        both = with_novelty(paid, advantage, target, paid=asked.paid_weight, new=asked.novelty_weight)
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
        policy.novelty.observe(after)
        raw = policy.novelty.surprise(seen, chosen, after).double().cpu().numpy()
        before = np.zeros(len(lanes) - 1)
        before[: len(running)] = running.cpu().numpy()[: len(before)]
        returns = running_returns(raw, lanes, before, discount=self.algorithm.novelty_discount)
        running[: len(before)] = torch.from_numpy(returns[lanes[1:] - 1][: len(running)]).to(device)
        policy.returns.observe(torch.from_numpy(returns[:, None]).to(device), keep=KEEP)
        return raw / (float(policy.returns.deviation()[0]) + 1e-8)


@torch.no_grad()
def foresee(policy: CuriousActorCritic, episodes: Episodes) -> CuriousValues:
    """Both critics' values of everything seen, and of what was seen last."""
    assert episodes.final is not None
    device, count = next(policy.parameters()).device, episodes.decisions
    both = (torch.from_numpy(np.ascontiguousarray(part)).to(device) for part in (episodes.observations, episodes.final))
    paid, new = (value.cpu().numpy() for value in policy.values(torch.cat(list(both))))
    return CuriousValues(value=paid[:count], final=paid[count:], novelty=new[:count], novelty_final=new[count:])


def curious_rows(episodes: Episodes, credits: Credits, *, device: str = "cpu") -> CuriousRows:
    """On-policy rows; a credit without novelty asks the second critic for nothing."""
    rows, steps = step_rows(episodes, credits, device=device), episodes.transitions()
    assert steps.final is not None
    target = credits.novelty_target if isinstance(credits, CuriousCredits) else np.zeros(len(rows), np.float32)
    return CuriousRows(
        **vars(rows),
        after=torch.from_numpy(np.ascontiguousarray(steps.final)).to(device),
        novelty_target=torch.from_numpy(target).to(device),
    )


def policy_objective(policy: CuriousActorCritic, rows: CuriousRows, *, algorithm: CuriousAlgorithm) -> Terms:
    """Clipped surrogate + value_weight * (both critics' errors) - entropy_weight * entropy."""
    now = policy.judge(rows.seen, rows.chosen)
    paid, new = policy.values(rows.seen)
    surrogate = clipped(now.logp, rows.logp, rows.advantage, low=algorithm.clip, high=algorithm.clip)
    critic, second = squared(paid, rows.target), squared(new, rows.novelty_target)
    entropy = now.entropy()
    errors = critic.loss + second.loss
    return Terms(
        loss=surrogate.loss + algorithm.value_weight * errors - algorithm.entropy_weight * entropy,
        told=lambda: {
            **surrogate.metrics,
            **critic.metrics,
            "novelty/error_abs": second.metrics["value/error_abs"],
            "policy/entropy_nats": entropy.detach(),
        },
    )


def novelty_objective(policy: CuriousActorCritic, rows: CuriousRows) -> Terms:
    """What novelty is measured by learns that this is not new any more."""
    return Terms(loss=policy.novelty.loss(rows.seen, rows.chosen, rows.after))


def curious_job(config: CuriousConfig, novelty: NoveltyConfig) -> Job[CuriousActorCritic]:
    """Raises ConfigError and UserCodeError for what is wrong with the environment."""
    world = open_world(config.env, steps=config.rollout_steps, seed=config.seed)
    space = spaces_of(world.envs.single_observation_space, world.envs.single_action_space)
    require_clipping(config.env, space)
    policy = CuriousActorCritic(space, config.network, seed=config.seed, novelty=novelty, lanes=config.env.num_envs).to(
        config.run.device
    )
    objective = partial(policy_objective, algorithm=config.algorithm)
    phases = [phase("policy", objective, policy.deciding(), config.learner)]
    learnt = policy.novelty.learns()
    if learnt:
        phases.append(phase("novelty", novelty_objective, learnt, config.learner))
    learner = GradientLearner(
        policy=policy,
        layout=partial(curious_rows, device=config.run.device),
        phases=phases,
        seed=config.seed,
        learning_rate=schedule(config.learner, config.learner.optimizer_steps(config.steps)),
        foresee=foresee,
        epochs=config.learner.epochs,
        minibatches=config.learner.minibatches,
    )
    recipe = Recipe(
        source=Scored(Live(world, NetworkActor(policy.acting())), world),
        credit=Curiosity(policy, config.algorithm),
        learner=learner,
    )
    return control_job(recipe, env=config.env, judge=config.judge, seed=config.seed, world=world)


def curious_check(config: CuriousConfig) -> list[str]:
    found, warnings = inspect_world(config.env, seed=config.seed)
    require_clipping(config.env, spaces_of(*found))
    return warnings


def curious_table(config: CuriousConfig) -> dict[str, str]:
    batch = config.env.num_envs * config.rollout_steps
    return {
        "steps of the world per turn": f"{config.env.num_envs} environments x {config.rollout_steps} = {batch}",
        "steps of the world": f"{config.steps * batch}",
        "minibatch": f"{batch} / {config.learner.minibatches} = {batch // config.learner.minibatches} steps",
        "environments": placed(config.env),
        "optimizer steps": f"{config.learner.optimizer_steps(config.steps)}",
    }


def curious_parts(*novelty: Callable[..., object]) -> Parts:
    """What such a recipe is made of; `novelty` is what it is measured by."""
    return Parts(
        source="Live(Gymnasium)",
        credit=(standardised, with_novelty, continuing_gae),
        loss=(clipped, squared, *novelty),
        weights=(token_mean,),
    )
