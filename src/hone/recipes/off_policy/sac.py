"""Soft actor-critic (Haarnoja et al., 2018): off-policy control that keeps its entropy at a target.

Twin critics with slow copies, a squashed Gaussian, and a temperature that is learnt. The defaults are those that solve
Pendulum-v1 within 20,000 steps.
"""

from functools import partial

import torch
from pydantic import Field
from torch import Tensor

from hone.core.config import Config
from hone.core.credit import Credits
from hone.core.episodes import Episodes
from hone.core.random import generator
from hone.credit.returns import one_step
from hone.envs.gym.make import placed
from hone.envs.gym.world import GymConfig, inspect_world, open_world
from hone.models.control.actor_critic import SoftActorCritic
from hone.models.control.mlp import MlpConfig
from hone.objectives.soft import soft_policy, soft_target, soft_values, temperature
from hone.objectives.terms import Terms
from hone.objectives.weights import token_mean
from hone.replay.ring import Ring
from hone.train.config import RunConfig, RunSettings
from hone.train.control.acting import NetworkActor, Scored
from hone.train.control.experts import Demonstrations, with_demonstrations
from hone.train.control.job import JudgeConfig, control_job
from hone.train.control.phases import following, phase
from hone.train.control.replay_config import ReplayConfig
from hone.train.control.rows import TransitionRows, transition_rows
from hone.train.control.spaces import spaces_of
from hone.train.job import Entry, Job, Parts
from hone.train.learner.config import LearnerConfig, schedule
from hone.train.learner.gradient import GradientLearner, Phase
from hone.train.loop import Recipe
from hone.train.sources.live import Live
from hone.train.sources.replay import Replay


class SacAlgorithm(Config):
    """The numbers of the paper."""

    discount: float = Field(default=0.99, ge=0, le=1)
    """Of a reward one step later."""
    target_rate: float = Field(default=0.005, gt=0, le=1)
    """Share of the critics that their slow copies take on per update."""
    entropy_per_action: float = -1.0
    """Target of the policy's entropy, in nats per number of an action scaled to [-1, 1]."""


class SacConfig(RunConfig):
    """A squashed Gaussian policy on Gymnasium environments with a box of actions."""

    run: RunSettings = RunSettings(threads=1, log_every=100, checkpoint_every=5000)
    """How the run is carried out."""
    env: GymConfig
    """The environments; each is stepped once per turn of the loop."""
    network: MlpConfig = MlpConfig(hidden=[256, 256], activation="relu")
    """The policy and each critic have one."""
    learner: LearnerConfig = LearnerConfig(lr=1e-3, max_grad_norm=None)
    """The optimizers; `minibatches` is the number of updates per turn of the loop."""
    replay: ReplayConfig = ReplayConfig()
    """The memory."""
    demonstrations: Demonstrations | None = None
    """A log that is replayed beside what is lived through."""
    algorithm: SacAlgorithm = SacAlgorithm()
    """Targets and temperature."""
    judge: JudgeConfig = JudgeConfig()
    """How the policy is tried."""


@torch.no_grad()
def looked_ahead(policy: SoftActorCritic, rows: TransitionRows) -> Tensor:
    """`[n]` the soft target."""
    action, logp = policy.draw(rows.after, rows.noise[:, 0])
    worth = policy.target_worth(rows.after, action)
    return soft_target(rows.reward, rows.discount, worth, logp, policy.log_temperature.exp())


def critic_objective(policy: SoftActorCritic, rows: TransitionRows) -> Terms:
    """Squared error of both critics against the soft target."""
    return soft_values(*policy.worth(rows.seen, policy.unit(rows.chosen)), looked_ahead(policy, rows))


def actor_objective(policy: SoftActorCritic, rows: TransitionRows, *, target_entropy: float) -> Terms:
    """The policy's loss and the temperature's: they share the draw, and no parameter."""
    action, logp = policy.draw(rows.seen, rows.noise[:, 1])
    first, second = policy.worth(rows.seen, action, frozen=True)
    actor = soft_policy(logp, first, second, policy.log_temperature.exp())
    heat = temperature(policy.log_temperature, logp, target_entropy=target_entropy)
    return Terms(loss=actor.loss + heat.loss, told=lambda: {**actor.metrics, **heat.metrics})


def phases_of(policy: SoftActorCritic, config: SacConfig) -> list[Phase[SoftActorCritic, TransitionRows]]:
    """Critics, then actor and temperature."""
    entropy = config.algorithm.entropy_per_action * policy.actions
    critic = phase("critic", critic_objective, policy.critics.parameters(), config.learner)
    actor = phase(
        "actor",
        partial(actor_objective, target_entropy=entropy),
        [*policy.actor.parameters(), policy.log_temperature],
        config.learner,
    )
    return [critic, actor]


def build(config: SacConfig) -> Job[SoftActorCritic]:
    """Raises ConfigError and UserCodeError for what is wrong with the environment."""
    world = open_world(config.env, steps=1, seed=config.seed, squashed=True)
    space = spaces_of(world.envs.single_observation_space, world.envs.single_action_space)
    policy = SoftActorCritic(space, config.network, seed=config.seed).to(config.run.device)
    actions = policy.actions

    def layout(transitions: Episodes, credits: Credits) -> TransitionRows:
        noise = generator(config.seed, "sac", learner.updates).standard_normal(
            (len(transitions), 2, actions), "float32"
        )
        return transition_rows(transitions, credits, noise, device=config.run.device)

    learner = GradientLearner(
        policy=policy,
        layout=layout,
        phases=phases_of(policy, config),
        seed=config.seed,
        learning_rate=schedule(config.learner, config.learner.optimizer_steps(config.steps)),
        minibatches=config.learner.minibatches,
        shuffle=config.demonstrations is not None,  # they come first in a sample
        after_step=following([(policy.targets, policy.critics)], rate=config.algorithm.target_rate),
    )
    source = Replay(
        Scored(Live(world, NetworkActor(policy.acting())), world),
        ring=with_demonstrations(Ring(config.replay.memory), config.demonstrations, space),
        sample=config.replay.batch * config.learner.minibatches,
        warmup=config.replay.warmup,
        seed=config.seed,
    )
    recipe = Recipe(source=source, credit=partial(one_step, discount=config.algorithm.discount), learner=learner)
    return control_job(
        recipe,
        env=config.env,
        judge=config.judge,
        seed=config.seed,
        world=world,
    )


def check(config: SacConfig) -> list[str]:
    return inspect_world(config.env, seed=config.seed, squashed=True)[1]


def derive(config: SacConfig) -> dict[str, str]:
    return {
        "steps of the world": f"{config.replay.warmup} + {config.steps} x {config.env.num_envs}",
        "environments": placed(config.env),
        "updates": f"{config.steps} x {config.learner.minibatches} = {config.steps * config.learner.minibatches}",
        "update": f"{config.replay.batch} transitions",
    }


ENTRY = Entry(
    summary="off-policy control of continuous actions: maximum entropy, twin critics, replay",
    source="Haarnoja et al., Soft Actor-Critic Algorithms and Applications, 2018",
    config=SacConfig,
    build=build,
    check=check,
    derive=derive,
    parts=Parts(
        source="Replay(Live(Gymnasium))",
        credit=(one_step,),
        loss=(soft_values, soft_target, soft_policy, temperature),
        weights=(token_mean,),
    ),
    limitation="boxes of actions only; the values of actions that were never tried are guesses.",
)
