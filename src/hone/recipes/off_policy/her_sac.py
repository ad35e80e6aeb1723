"""Hindsight experience replay with soft actor-critic (Andrychowicz et al., 2017; Haarnoja et al., 2018).

Off-policy control of environments with goals and a box of actions. The networks and losses are those of `sac`; what
differs is the memory, which takes what an episode reached for what it wanted. The defaults are those that solve
`hone/Reach-v0`, where the same learner without hindsight (`hindsight.share = 0`) stays near 0.
"""

import math
from functools import partial

import torch
from pydantic import Field

from hone.core.config import Config
from hone.core.credit import Credits
from hone.core.episodes import Episodes
from hone.core.random import generator
from hone.credit.returns import one_step
from hone.envs.gym.world import GymConfig, inspect_world, open_world
from hone.models.control.actor_critic import SoftActorCritic
from hone.models.control.mlp import MlpConfig
from hone.objectives.soft import soft_policy, soft_target, soft_values, temperature
from hone.objectives.weights import token_mean
from hone.recipes.off_policy.sac import actor_objective, critic_objective
from hone.replay.hindsight import Hindsight
from hone.train.config import RunConfig, RunSettings
from hone.train.control.acting import NetworkActor, Scored
from hone.train.control.hindsight import HindsightConfig, goals_of, hindsight_memory, hindsight_table
from hone.train.control.job import JudgeConfig, control_job
from hone.train.control.phases import following, phase
from hone.train.control.replay_config import TurnReplayConfig
from hone.train.control.rows import TransitionRows, transition_rows
from hone.train.control.spaces import spaces_of
from hone.train.job import Entry, Job, Parts
from hone.train.learner.config import LearnerConfig, schedule
from hone.train.learner.gradient import GradientLearner
from hone.train.loop import Recipe
from hone.train.sources.live import Live
from hone.train.sources.replay import Replay


class HerSacAlgorithm(Config):
    """The numbers of both papers, for a reward that is paid once."""

    discount: float = Field(default=0.95, ge=0, le=1)
    """Of a reward one step later."""
    target_rate: float = Field(default=0.02, gt=0, le=1)
    """Share of the critics that their slow copies take on per update."""
    entropy_per_action: float = -1.0
    """Target of the policy's entropy, in nats per number of an action scaled to [-1, 1]."""
    first_temperature: float = Field(default=0.01, gt=0)
    """What a nat of entropy is worth at first. An end that pays 1 ends the pay for entropy too: at a temperature of 1
    the policy would rather go on for ever."""


class HerSacConfig(RunConfig):
    """A squashed Gaussian policy on Gymnasium environments with goals and a box of actions."""

    run: RunSettings = RunSettings(threads=1, log_every=100, checkpoint_every=5000)
    """How the run is carried out."""
    env: GymConfig
    """The environments."""
    network: MlpConfig = MlpConfig(hidden=[128, 128], activation="relu")
    """The policy and each critic have one."""
    learner: LearnerConfig = LearnerConfig(lr=1e-3, max_grad_norm=None)
    """The optimizers; `minibatches` is the number of updates per turn of the loop."""
    replay: TurnReplayConfig = TurnReplayConfig(collect=1, batch=256, memory=200_000)
    """The memory."""
    hindsight: HindsightConfig = HindsightConfig()
    """What is relabelled."""
    algorithm: HerSacAlgorithm = HerSacAlgorithm()
    """Targets and temperature."""
    judge: JudgeConfig = JudgeConfig(episodes=100)
    """How the policy is tried."""


def build(config: HerSacConfig) -> Job[SoftActorCritic]:
    """Raises ConfigError and UserCodeError for what is wrong with the environment."""
    memory = hindsight_memory(config.env, config.replay, config.hindsight)
    world = open_world(config.env, steps=config.replay.collect, seed=config.seed, squashed=True)
    space = spaces_of(world.envs.single_observation_space, world.envs.single_action_space)
    policy = SoftActorCritic(space, config.network, seed=config.seed).to(config.run.device)
    actions, algorithm = policy.actions, config.algorithm
    with torch.no_grad():
        policy.log_temperature.fill_(math.log(algorithm.first_temperature))

    def layout(transitions: Episodes, credits: Credits) -> TransitionRows:
        draws = generator(config.seed, "sac", learner.updates)
        noise = draws.standard_normal((len(transitions), 2, actions), "float32")
        return transition_rows(transitions, credits, noise, device=config.run.device)

    target_entropy = algorithm.entropy_per_action * actions
    heated = [*policy.actor.parameters(), policy.log_temperature]
    learner = GradientLearner(
        policy=policy,
        layout=layout,
        phases=[
            phase("critic", critic_objective, policy.critics.parameters(), config.learner),
            phase("actor", partial(actor_objective, target_entropy=target_entropy), heated, config.learner),
        ],
        seed=config.seed,
        learning_rate=schedule(config.learner, config.learner.optimizer_steps(config.steps)),
        minibatches=config.learner.minibatches,
        shuffle=False,
        after_step=following([(policy.targets, policy.critics)], rate=algorithm.target_rate),
    )
    source = Replay(
        Scored(Live(world, NetworkActor(policy.acting())), world),
        ring=memory,
        sample=config.replay.batch * config.learner.minibatches,
        warmup=config.replay.warmup,
        seed=config.seed,
    )
    recipe = Recipe(source=source, credit=partial(one_step, discount=algorithm.discount), learner=learner)
    return control_job(recipe, env=config.env, judge=config.judge, seed=config.seed, world=world)


def check(config: HerSacConfig) -> list[str]:
    goals_of(config.env)
    return inspect_world(config.env, seed=config.seed, squashed=True)[1]


def derive(config: HerSacConfig) -> dict[str, str]:
    return hindsight_table(
        config.env,
        steps=config.steps,
        updates=config.learner.minibatches,
        replay=config.replay,
        hindsight=config.hindsight,
    )


ENTRY = Entry(
    summary="off-policy control with goals, continuous actions: what was reached is taken for what was wanted",
    source="Andrychowicz et al., Hindsight Experience Replay, 2017",
    config=HerSacConfig,
    build=build,
    check=check,
    derive=derive,
    parts=Parts(
        source="Replay(Live(Gymnasium with goals), Hindsight)",
        credit=(one_step,),
        loss=(soft_values, soft_target, soft_policy, temperature, Hindsight),
        weights=(token_mean,),
    ),
    limitation="needs goals that are reached by what is seen, and a reward that can be computed for any of them.",
)
