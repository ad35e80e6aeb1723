"""Soft actor-critic (Haarnoja et al., 2018): off-policy control that keeps its entropy at a target.

Twin critics with target networks, a squashed Gaussian policy, and a learned temperature. The defaults are those that
solve Pendulum-v1 within 20,000 steps.
"""

from functools import partial

import torch
from pydantic import Field
from torch import Tensor

from hone.core.config import Config
from hone.core.credit import Credits
from hone.core.episodes import Episodes
from hone.core.random import generator
from hone.credit.returns import one_step_target
from hone.envs.gym.make import describe_placement
from hone.envs.gym.world import GymConfig, inspect_world, open_world
from hone.models.control.actor_critic import SoftActorCritic
from hone.models.control.mlp import MlpConfig
from hone.objectives.soft import sac_actor_loss, soft_target, temperature_loss, twin_critic_loss
from hone.objectives.terms import LossTerms
from hone.objectives.weights import token_mean
from hone.replay.ring import RingBuffer
from hone.train.config import RunConfig, RunSettings
from hone.train.control.acting import DropFailedEpisodes, NetworkActor
from hone.train.control.experts import DemonstrationsConfig, with_demonstrations
from hone.train.control.job import ControlEvaluationConfig, control_job
from hone.train.control.phases import optimizer_phase, target_update
from hone.train.control.replay_config import ReplayConfig
from hone.train.control.rows import TransitionRows, transition_rows
from hone.train.control.spaces import network_spaces
from hone.train.job import RecipeParts, RecipeSpec, TrainingJob, checked_run
from hone.train.learner.config import ReplayLearnerConfig, learning_rate_schedule
from hone.train.learner.gradient import GradientLearner, OptimizerPhase
from hone.train.loop import Recipe
from hone.train.sources.live import LiveSource
from hone.train.sources.replay import ReplaySource


class SacAlgorithm(Config):
    """The numbers of the paper."""

    discount: float = Field(default=0.99, ge=0, le=1)
    """Discount factor (gamma)."""
    tau: float = Field(default=0.005, gt=0, le=1)
    """Polyak coefficient of the target networks per update."""
    entropy_per_action: float = -1.0
    """Target entropy of the policy, in nats per dimension of an action scaled to [-1, 1]."""


class SacConfig(RunConfig):
    """A squashed Gaussian policy on Gymnasium environments with a box of actions."""

    run: RunSettings = RunSettings(threads=1, log_every=100, checkpoint_every=5000)
    """Threads, logging, checkpoints and other settings of the run."""
    env: GymConfig
    """The environments; each is stepped once per iteration."""
    network: MlpConfig = MlpConfig(hidden=[256, 256], activation="relu")
    """The policy and each critic have one."""
    learner: ReplayLearnerConfig = ReplayLearnerConfig(lr=1e-3, max_grad_norm=None)
    """The optimizers."""
    replay: ReplayConfig = ReplayConfig()
    """The replay buffer."""
    demonstrations: DemonstrationsConfig | None = None
    """Log of demonstrations, mixed into the replay buffer's batches."""
    algorithm: SacAlgorithm = SacAlgorithm()
    """Targets and temperature."""
    evaluation: ControlEvaluationConfig = ControlEvaluationConfig()
    """Evaluation of the policy."""


@torch.no_grad()
def soft_value_target(policy: SoftActorCritic, rows: TransitionRows) -> Tensor:
    """`[n]` the soft target."""
    action, logp = policy.sample_actions(rows.next_seen, rows.noise[:, 0])
    worth = policy.min_target_q_values(rows.next_seen, action)
    return soft_target(rows.reward, rows.discount, worth, logp, policy.log_temperature.exp())


def critic_objective(policy: SoftActorCritic, rows: TransitionRows) -> LossTerms:
    """Squared error of both critics against the soft target."""
    return twin_critic_loss(
        *policy.q_values(rows.seen, policy.to_unit_box(rows.chosen)), soft_value_target(policy, rows)
    )


def actor_objective(policy: SoftActorCritic, rows: TransitionRows, *, target_entropy: float) -> LossTerms:
    """The policy's loss and the temperature's: they share the draw, and no parameter."""
    action, logp = policy.sample_actions(rows.seen, rows.noise[:, 1])
    first, second = policy.q_values(rows.seen, action, frozen=True)
    actor = sac_actor_loss(logp, first, second, policy.log_temperature.exp())
    heat = temperature_loss(policy.log_temperature, logp, target_entropy=target_entropy)
    return LossTerms(loss=actor.loss + heat.loss, compute_metrics=lambda: {**actor.metrics, **heat.metrics})


def optimizer_phases(
    policy: SoftActorCritic, config: SacConfig
) -> list[OptimizerPhase[SoftActorCritic, TransitionRows]]:
    """Critics, then actor and temperature."""
    entropy = config.algorithm.entropy_per_action * policy.action_size
    critic = optimizer_phase("critic", critic_objective, policy.critics.parameters(), config.learner)
    actor = optimizer_phase(
        "actor",
        partial(actor_objective, target_entropy=entropy),
        [*policy.actor.parameters(), policy.log_temperature],
        config.learner,
    )
    return [critic, actor]


def build(config: SacConfig) -> TrainingJob[SoftActorCritic]:
    """Build the training job. Raises ConfigError and UserCodeError for an invalid environment."""
    world = open_world(config.env, steps=1, seed=config.seed, squashed=True)
    space = network_spaces(world.envs.single_observation_space, world.envs.single_action_space)
    policy = SoftActorCritic(space, config.network, seed=config.seed).to(config.run.device)
    actions = policy.action_size

    def layout(transitions: Episodes, credits: Credits) -> TransitionRows:
        noise = generator(config.seed, "sac", learner.updates).standard_normal(
            (len(transitions), 2, actions), "float32"
        )
        return transition_rows(transitions, credits, noise, device=config.run.device)

    learner = GradientLearner(
        policy=policy,
        layout=layout,
        phases=optimizer_phases(policy, config),
        seed=config.seed,
        learning_rate=learning_rate_schedule(config.learner, config.learner.optimizer_steps(config.steps)),
        minibatches=config.learner.updates_per_iteration,
        shuffle=config.demonstrations is not None,  # they come first in a sample
        after_step=target_update([(policy.targets, policy.critics)], tau=config.algorithm.tau),
    )
    source = ReplaySource(
        DropFailedEpisodes(LiveSource(world, NetworkActor(policy.numpy_policy())), world),
        buffer=with_demonstrations(RingBuffer(config.replay.capacity), config.demonstrations, space),
        sample_size=config.replay.batch * config.learner.updates_per_iteration,
        warmup=config.replay.warmup,
        seed=config.seed,
    )
    recipe = Recipe(source=source, credit=partial(one_step_target, discount=config.algorithm.discount), learner=learner)
    return control_job(
        recipe,
        env=config.env,
        evaluation=config.evaluation,
        seed=config.seed,
        world=world,
    )


def check(config: SacConfig) -> list[str]:
    """Warnings about the config; raises ConfigError for a run that cannot work."""
    return inspect_world(config.env, seed=config.seed, squashed=True)[1]


def derive(config: SacConfig) -> dict[str, str]:
    """Sizes that follow from the config."""
    updates = config.learner.updates_per_iteration
    return {
        "environment steps": f"{config.replay.warmup} + {config.steps} x {config.env.num_envs}",
        "environments": describe_placement(config.env),
        "updates": f"{config.steps} x {updates} = {config.steps * updates}",
        "update": f"{config.replay.batch} transitions",
    }


ENTRY = RecipeSpec(
    summary="off-policy control of continuous actions: maximum entropy, twin critics, replay",
    paper="Haarnoja et al., Soft Actor-Critic Algorithms and Applications, 2018",
    config=SacConfig,
    open=checked_run(check, build),
    derive=derive,
    parts=RecipeParts(
        source="Replay(Live(Gymnasium))",
        credit=(one_step_target,),
        loss=(twin_critic_loss, soft_target, sac_actor_loss, temperature_loss),
        weights=(token_mean,),
    ),
    limitation="boxes of actions only; the values of actions that were never tried are guesses.",
)
