"""Proximal policy optimisation (Schulman et al., 2017): several passes over fresh steps, each change clipped.

Advantages by GAE, standardised over the batch; value and entropy terms in the same optimizer step. The defaults are
those that solve CartPole-v1 within 100,000 steps.
"""

from functools import partial

import torch
from pydantic import Field, model_validator

from hone.core.config import Config
from hone.core.credit import Credits, Values
from hone.core.episodes import Episodes
from hone.core.errors import ConfigError
from hone.credit.returns import gae, standardised
from hone.envs.gym import GymConfig, inspect_world, open_world
from hone.envs.gym_make import placed
from hone.models.control import ActorCritic
from hone.models.mlp import Bounds, MlpConfig, Spaces
from hone.objectives.policy import clipped
from hone.objectives.terms import Terms
from hone.objectives.value import squared
from hone.objectives.weights import token_mean
from hone.train.config import RunConfig, RunSettings
from hone.train.control import JudgeConfig, NetworkActor, Scored, StepRows, control_job, foresee, spaces_of, step_rows
from hone.train.job import Entry, Job, Parts
from hone.train.learner import GradientLearner
from hone.train.loop import Recipe
from hone.train.optimize import LearnerConfig, policy_phase, require_whole_minibatches, schedule
from hone.train.sources import Live


class PpoAlgorithm(Config):
    """The numbers of the paper."""

    discount: float = Field(default=0.98, ge=0, le=1)
    """Of a reward one step later."""
    decay: float = Field(default=0.8, ge=0, le=1)
    """GAE's lambda: 0 trusts the critic, 1 the returns."""
    clip_low: float = Field(default=0.2, gt=0, lt=1)
    """How far the probability of a decision may fall before its gradient stops."""
    clip_high: float = Field(default=0.2, gt=0)
    """How far it may rise."""
    value_weight: float = Field(default=0.5, ge=0)
    """Of the critic's squared error."""
    entropy_weight: float = Field(default=0.0, ge=0)
    """Of the policy's entropy, which is kept up."""


class PpoConfig(RunConfig):
    """A policy and a critic on Gymnasium environments."""

    run: RunSettings = RunSettings(threads=1)
    """How the run is carried out; one thread is fastest for a small network."""
    env: GymConfig
    """The environments."""
    rollout_steps: int = Field(default=32, ge=1)
    """Steps of each environment per turn of the loop."""
    network: MlpConfig = MlpConfig()
    """Policy and critic have one each."""
    learner: LearnerConfig = LearnerConfig(lr=1e-3, decay="linear", epochs=20, max_grad_norm=0.5)
    """The optimizer; `minibatches` per epoch."""
    algorithm: PpoAlgorithm = PpoAlgorithm()
    """Credit and loss."""
    judge: JudgeConfig = JudgeConfig()
    """How the policy is tried."""

    @model_validator(mode="after")
    def _parts_fit(self) -> "PpoConfig":
        require_whole_minibatches(self.learner, self.env.num_envs * self.rollout_steps, "env.num_envs x rollout_steps")
        return self


def objective(policy: ActorCritic, rows: StepRows, *, algorithm: PpoAlgorithm) -> Terms:
    """Clipped surrogate + value_weight * value error - entropy_weight * entropy."""
    now = policy.judge(rows.seen, rows.chosen)
    assert now.value is not None
    surrogate = clipped(now.logp, rows.logp, rows.advantage, low=algorithm.clip_low, high=algorithm.clip_high)
    critic = squared(now.value, rows.target)
    loss = torch.add(surrogate.loss, critic.loss, alpha=algorithm.value_weight)
    if algorithm.entropy_weight:
        loss = torch.sub(loss, now.entropy(), alpha=algorithm.entropy_weight)
    return Terms(
        loss=loss, told=lambda: {**surrogate.metrics, **critic.metrics, "policy/entropy_nats": now.entropy().detach()}
    )


def build(config: PpoConfig) -> Job[ActorCritic]:
    """Raises ConfigError and UserCodeError for what is wrong with the environment."""
    world = open_world(config.env, steps=config.rollout_steps, seed=config.seed)
    space = spaces_of(world.envs.single_observation_space, world.envs.single_action_space)
    require_clipping(config.env, space)
    policy = ActorCritic(space, config.network, seed=config.seed).to(config.run.device)

    def credit(episodes: Episodes, values: Values) -> Credits:
        return standardised(gae(episodes, values, discount=config.algorithm.discount, decay=config.algorithm.decay))

    learner = GradientLearner(
        policy=policy,
        layout=partial(step_rows, device=config.run.device),
        phases=[policy_phase(policy, partial(objective, algorithm=config.algorithm), config.learner)],
        seed=config.seed,
        learning_rate=schedule(config.learner, config.learner.optimizer_steps(config.steps)),
        foresee=foresee,
        epochs=config.learner.epochs,
        minibatches=config.learner.minibatches,
    )
    recipe = Recipe(source=Scored(Live(world, NetworkActor(policy.acting())), world), credit=credit, learner=learner)
    return control_job(
        recipe,
        env=config.env,
        judge=config.judge,
        seed=config.seed,
        world=world,
    )


def require_clipping(env: GymConfig, space: Spaces) -> None:
    if isinstance(space.actions, Bounds) and not env.clip_actions:
        raise ConfigError("env.clip_actions = false: a Gaussian policy reaches outside any box; set it to true")


def check(config: PpoConfig) -> list[str]:
    found, warnings = inspect_world(config.env, seed=config.seed)
    require_clipping(config.env, spaces_of(*found))
    return warnings


def derive(config: PpoConfig) -> dict[str, str]:
    batch = config.env.num_envs * config.rollout_steps
    return {
        "steps of the world per turn": f"{config.env.num_envs} environments x {config.rollout_steps} = {batch}",
        "steps of the world": f"{config.steps * batch}",
        "minibatch": f"{batch} / {config.learner.minibatches} = {batch // config.learner.minibatches} steps",
        "environments": placed(config.env),
        "optimizer steps": f"{config.learner.optimizer_steps(config.steps)}",
    }


ENTRY = Entry(
    summary="on-policy control: clipped policy gradient with a critic",
    source="Schulman et al., Proximal Policy Optimization Algorithms, 2017",
    config=PpoConfig,
    build=build,
    check=check,
    derive=derive,
    parts=Parts(source="Live(Gymnasium)", credit=(standardised, gae), loss=(clipped, squared), weights=(token_mean,)),
    limitation="several passes over the same steps: a clip bounds the gradient, not the change of the policy.",
)
